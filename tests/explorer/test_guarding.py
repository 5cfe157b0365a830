"""Names, origins, tokens, policies and ports: who may ask, and what pages may load."""

import base64
import hashlib
import re
import socket
import time

import pytest

from hyperribbon.core.checks import ArgumentError
from hyperribbon.explorer import serve
from hyperribbon.explorer.guarding import Guard, is_loopback

SPECTRUM = "ribbons-spectrum.figure"


@pytest.mark.parametrize("name", ["evil.example", "127.0.0.1.evil.example", "192.168.0.7", "[::2]"])
def test_names_that_are_not_this_machine_are_refused(client_of, tmp_path, name):
    client = client_of(tmp_path, base=f"http://{name}:8050")
    assert client.get("/").status_code == 421
    assert client.get("/_dash-layout").status_code == 421
    assert client.ask(SPECTRUM).status_code == 421


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "[::1]", "LOCALHOST"])
def test_names_of_this_machine_are_let_in(client_of, tmp_path, name):
    assert client_of(tmp_path, base=f"http://{name}:8050").get("/").status_code == 200


def test_beyond_this_machine_numbers_and_named_hosts_are_let_in(client_of, tmp_path):
    guard = Guard("0.0.0.0", "secret", ["lab.example"])
    for name, status in (
        ("10.1.2.3", 200),
        ("lab.example", 200),
        (socket.gethostname(), 200),
        ("evil.example", 421),
    ):
        client = client_of(tmp_path, guard, base=f"http://{name}:8050")
        assert client.get("/").status_code == status


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:9999", "https://"]
)
def test_other_sites_cannot_ask(client, origin):
    assert client.ask(SPECTRUM, Origin=origin).status_code == 403
    assert client.ask(SPECTRUM, Origin="http://127.0.0.1:8050").status_code == 200
    assert client.ask(SPECTRUM, Sec_Fetch_Site="cross-site").status_code == 403
    assert client.ask(SPECTRUM, Sec_Fetch_Site="same-origin").status_code == 200


def start(client):
    values = {"visitor.data": client.visitor()}
    answer = client.ask("linear-tick.disabled", "linear-start.n_clicks", values)
    assert answer.status_code == 200
    return answer.json["response"]["linear-status"]["children"]


def test_measurements_beyond_this_machine_need_the_token(client_of, tmp_path):
    client = client_of(tmp_path, Guard("0.0.0.0", "secret"), base="http://10.1.2.3:8050")
    assert "token" in start(client)
    client.get("/?token=wrong")
    assert "token" in start(client)
    answer = client.get("/linear?token=secret&depth=2")
    assert answer.status_code == 302
    assert answer.headers["Location"] == "/linear?depth=2"
    assert "HttpOnly" in answer.headers["Set-Cookie"]
    assert "SameSite=Strict" in answer.headers["Set-Cookie"]
    assert start(client) == "Running…"


def test_uploads_beyond_this_machine_need_it_too(client_of, tmp_path):
    client = client_of(tmp_path, Guard("0.0.0.0", "secret"), base="http://10.1.2.3:8050")
    values = {"ribbons-upload.contents": "data:;base64,AAAA", "ribbons-upload.filename": "a.npy"}
    answer = client.ask("ribbons-upload-message", "ribbons-upload.contents", values)
    assert "token" in answer.json["response"]["ribbons-upload-message"]["children"]


def test_a_link_with_a_token_leads_nowhere_else(client_of, tmp_path):
    client = client_of(tmp_path, Guard("0.0.0.0", "secret"), base="http://10.1.2.3:8050")
    for path in ("//evil.example/", "/\\evil.example", "///evil.example"):
        where = client.get(f"{path}?token=secret").headers.get("Location", "/")
        assert where.startswith("/")
        assert not where.startswith(("//", "/\\"))


def test_pages_run_no_scripts_but_their_own(client):
    answer = client.get("/")
    policy = answer.headers["Content-Security-Policy"]
    (scripts,) = re.findall(r"script-src ([^;]*)", policy)
    assert "unsafe" not in scripts and "*" not in policy and "http" not in policy
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    page = re.sub("<!--.*?-->", "", answer.text, flags=re.S)
    inline = re.findall(r"<script(?![^>]*src=)([^>]*)>(.*?)</script>", page, re.S)
    run = [text for head, text in inline if "application/json" not in head]
    assert run
    for text in run:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in scripts
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert client.get("/_dash-layout").headers["Content-Security-Policy"] == policy


HOSTILE = [None, [], {}, "x", "1e999", float("1e308"), -1e308, 1e9, "NaN", [1, 2], {"a": 1}, True]


@pytest.mark.parametrize("value", HOSTILE, ids=str)
def test_values_that_no_slider_has_are_brought_inside(client, value):
    for name in ("n", "T", "ratio", "b"):
        answer = client.ask(SPECTRUM, "ribbons-n.value", {f"ribbons-{name}.value": value})
        assert answer.status_code in (200, 400)
        if answer.status_code == 200:
            code = answer.json["response"]["ribbons-code"]["children"]
            assert "e+" not in code and "inf" not in code and "nan" not in code


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        '{"output": "x"}',
        '{"output": ["a"]}',
        b"\xff\xfe",
        '{"output": "..a.b...", "inputs": 3}',
        "[" * 5000,
    ],
    ids=range(10),
)
def test_requests_that_no_page_makes_are_refused(client, body):
    assert 400 <= client.post(body).status_code < 500
    assert client.ask(SPECTRUM).status_code == 200


def test_unclamped_jobs_block_nobody(client):
    """Values far outside and visitors of any name: the others still get their turn."""
    others = [client.visitor() for _ in range(8)]
    for visitor in others:
        values = {
            "visitor.data": visitor,
            "linear-d_in.value": 1e9,
            "linear-depth.value": [1],
            "linear-width.value": "x",
        }
        client.ask("linear-tick.disabled", "linear-start.n_clicks", values)
    for visitor in (None, 3, {"a": 1}, "x" * 10_000, "../..", "0" * 32, others[0] + "0", "é-"):
        answer = client.ask(
            "linear-tick.disabled", "linear-start.n_clicks", {"visitor.data": visitor}
        )
        assert answer.json["response"]["linear-status"]["children"] == "Reload the page."
    for visitor in others:
        client.ask("linear-tick.disabled", "linear-stop.n_clicks", {"visitor.data": visitor})
    mine = {"visitor.data": client.visitor(), "linear-depth.value": 1, "linear-d_in.value": 6}
    client.ask("linear-tick.disabled", "linear-start.n_clicks", mine)
    deadline = time.monotonic() + 60
    while True:
        answer = client.ask("linear-tick.disabled", "linear-tick.n_intervals", mine)
        status = answer.json["response"]["linear-status"]["children"]
        if status == "Done.":
            break
        assert time.monotonic() < deadline, status
        time.sleep(0.05)


@pytest.mark.parametrize("port", [99999, -1, 65536, 8050.5, "8050", True, None])
def test_ports_that_do_not_exist_are_refused(tmp_path, port):
    with pytest.raises(ArgumentError, match="65535"):
        serve(tmp_path, port=port)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("localhost", True),
        ("::1", True),
        ("127.8.8.8", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.2", False),
        ("example.org", False),
    ],
)
def test_loopback_is_known(host, expected):
    assert is_loopback(host) is expected


def test_a_server_beyond_this_machine_has_a_token_in_its_address(tmp_path):
    server = serve(tmp_path, host="0.0.0.0", port=0)
    try:
        assert server.token and server.address.endswith(f"/?token={server.token}")
        assert server.address.startswith("http://127.0.0.1:")
    finally:
        server.server_close()
    server = serve(tmp_path, port=0)
    try:
        assert server.token is None and "token" not in server.address
    finally:
        server.server_close()


def test_browsers_behind_one_address_do_not_share_a_turn(client_of, tmp_path):
    """All on this machine have one address; whoever keeps no cookie shares that of his address."""
    guard = Guard()
    users = []
    first, second, bare = (client_of(tmp_path, guard) for _ in range(3))
    for client in (first, second):
        assert client.get("/").status_code == 200
    forged = client_of(tmp_path, guard)
    forged.flask.set_cookie("hyperribbon-session", "0-0", domain="127.0.0.1")
    for client in (first, first, second, bare, forged):
        cookies = client.flask.get_cookie("hyperribbon-session", domain="127.0.0.1")
        sent = {"Cookie": f"hyperribbon-session={cookies.value}"} if cookies else {}
        with client.app.server.test_request_context("/", headers=sent):
            users.append(guard.user())
    assert users[0] == users[1] != users[2]
    assert users[3] == users[4] not in users[:3]
