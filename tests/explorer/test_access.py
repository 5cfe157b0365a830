"""Tokens, origins, policies and ports: who may ask, and what pages may load."""

import base64
import hashlib
import re
import time

import pytest

from hyperribbon.application.explorer import serve
from hyperribbon.core.checks import ArgumentError

SPECTRUM = "ribbons-spectrum.figure"
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")


def routes(app):
    """Return an address of every route: pages, assets, Dash's own, and some that do not exist."""
    rules = [
        re.sub(r"<[^>]*?(path|filename|package_name|fingerprinted_path)?>", "dash", str(rule))
        for rule in app.server.url_map.iter_rules()
    ]
    pages = ["/", "/live", "/runs?run=a", "/ribbons", "/linear", "/fluctuations", "/two-layers"]
    files = ["/assets/explorer.css", "/assets/explorer.js", "/favicon.ico", "/_favicon.ico"]
    return [*rules, *pages, *files, "/_dash-component-suites/dash/deps/react@18.3.1.min.js", "/x/y"]


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "[::1]", "10.1.2.3", "evil.example"])
def test_every_route_without_the_token_is_refused(client_of, tmp_path, name):
    client = client_of(tmp_path, base=f"http://{name}:8050", enter=False)
    found = routes(client.app)
    assert len(found) > 15
    for path in found:
        for method in METHODS:
            for given in ("", "wrong", "é"):
                separator = "&" if "?" in path else "?"
                address = f"{path}{separator}token={given}" if given else path
                answer = client.flask.open(address, method=method, base_url=client.base)
                assert answer.status_code == 401, (method, address)
                assert "Set-Cookie" not in answer.headers
    client.flask.set_cookie("hyperribbon-8050", "wrong", domain=name.strip("[]"))
    assert client.get("/").status_code == 401


def test_the_token_opens_every_page_and_is_not_kept_in_the_address(client_of, tmp_path):
    client = client_of(tmp_path, enter=False)
    answer = client.get("/?pick=a&token=the+token+of+the+tests&pick=b")
    assert answer.status_code == 302
    assert answer.headers["Location"] == "/?pick=a&pick=b"
    assert "HttpOnly" in answer.headers["Set-Cookie"]
    assert "SameSite=Lax" in answer.headers["Set-Cookie"]
    for path in ("/", "/_dash-layout", "/_dash-dependencies", "/assets/explorer.css"):
        with client.get(path) as answer:
            assert answer.status_code == 200
    assert client.ask(SPECTRUM).status_code == 200


def test_a_page_under_another_name_has_no_cookie(client):
    """A site that points its own name here (DNS rebinding) does not get this machine's cookies."""
    client.base = "http://evil.example:8050"
    assert client.get("/").status_code == 401


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:9999", "https://"]
)
def test_other_sites_cannot_ask(client, origin):
    assert client.ask(SPECTRUM, Origin=origin).status_code == 403
    assert client.ask(SPECTRUM, Origin="http://127.0.0.1:8050").status_code == 200
    assert client.ask(SPECTRUM, Sec_Fetch_Site="cross-site").status_code == 403
    assert client.ask(SPECTRUM, Sec_Fetch_Site="same-origin").status_code == 200


def test_a_link_with_a_token_leads_nowhere_else(client):
    for path in ("//evil.example/", "/\\evil.example", "///evil.example"):
        answer = client.get(f"{path}?token=the+token+of+the+tests")
        where = answer.headers.get("Location", "/")
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
    others += [None, 3, {"a": 1}, "x" * 10_000, "../..", "0" * 32, "é-"]
    for visitor in others:
        values = {"visitor.data": visitor}
        answer = client.ask("linear-tick.disabled", "linear-start.n_clicks", values)
        assert answer.json["response"]["linear-status"]["children"] == "Running…"
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


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_server_has_a_token_in_its_address(tmp_path, host):
    server = serve(tmp_path, host=host, port=0)
    try:
        assert len(server.token) > 20 and server.address.endswith(f"/?token={server.token}")
        assert server.address.startswith("http://127.0.0.1:")
    finally:
        server.server_close()
