"""Untrusted runs and uploads, damaged, booby-trapped or enormous: each is recognised."""

import ast
import base64
import io
import json

import numpy as np
import pytest

from hyperribbon.application.explorer.papers.uploads import MAX_ENTRIES, matrix_slope, read_matrix
from hyperribbon.application.explorer.runs.catalogue import find_entries
from hyperribbon.core.checks import ArgumentError

RUN = {
    "id": "ribbons/fig8",
    "preset": "smoke",
    "title": "A title",
    "config": {},
    "environment": {"seed": 3},
}
CLAIM = {"verdict": "holds", "place": "Fig. 8", "reading": "It holds", "measured": 1.0, "why": "so"}
COMPONENT = {
    "type": "A",
    "namespace": "dash_html_components",
    "props": {"href": "javascript:alert(1)", "children": "click"},
}


def write(folder, run=RUN, claims=(CLAIM,)):
    folder.mkdir(parents=True)
    text = run if isinstance(run, str | bytes) else json.dumps(run)
    (folder / "run.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    (folder / "claims.json").write_text(json.dumps(list(claims)))
    return folder


DAMAGED = {
    "empty": "",
    "cut": '{"id": "rib',
    "list": "[]",
    "number": "7",
    "bytes": b"\xff\xfe\x00",
    "no id": {"title": "x"},
    "seed": {**RUN, "environment": {"seed": "__import__('os')"}},
    "environment": {**RUN, "environment": 7},
    "deep": '{"a":' * 100_000,
}


@pytest.fixture
def store(tmp_path):
    write(tmp_path / "good")
    for name, run in DAMAGED.items():
        write(tmp_path / f"bad {name}", run)
    write(tmp_path / "bad claims", claims=[{"verdict": "holds"}])
    return tmp_path


def shown(client, name):
    values = {"runs-run.value": name}
    answer = client.ask("runs-shown.children", "runs-run.value", values)
    assert answer.status_code == 200
    return answer.text


def test_damaged_runs_are_listed_as_damaged_and_hide_nothing(client_of, store):
    client = client_of(store)
    page = client.ask("content.children", "url.pathname", {"url.pathname": "/runs"})
    assert page.status_code == 200
    for name in (*DAMAGED, "claims"):
        assert f"damaged: bad {name}" in page.text
        assert "damaged and cannot be shown" in shown(client, f"bad {name}")
    assert "experiment: good" in page.text
    assert "A title" in shown(client, "good")
    values = {"runs-run.value": "good", "runs-with.value": "bad cut"}
    both = client.ask("runs-shown.children", "runs-run.value", values).text
    assert "A title" in both and "damaged" in both


INJECTIONS = [
    'x"); import os; os.system("true"); print("',
    "x'); import os; os.system('true'); print('",
    'x\n"""\nimport os\n"""',
    "x\\",
    "</pre><script>alert(1)</script>",
]


@pytest.mark.parametrize("text", INJECTIONS, ids=range(5))
@pytest.mark.parametrize("field", ["id", "preset"])
def test_copied_code_holds_what_runs_say_as_text_only(tmp_path, text, field):
    write(tmp_path / "run", {**RUN, field: text})
    code = find_entries(tmp_path)["run"].code()
    body = ast.parse(code).body
    assert [type(statement).__name__ for statement in body] == ["ImportFrom", "Expr"]
    call = body[1].value
    assert all(isinstance(a, ast.Constant) for a in (*call.args, *(k.value for k in call.keywords)))
    values = [call.args[0].value, *(k.value.value for k in call.keywords)]
    assert text in values


def test_inspections_hold_numbers_in_their_code(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "inspection.json").write_text('{"reading": [], "parts": []}')
    config = {"k": "1); import os; (2", "seconds": 60, "seed": 0}
    (folder / "run.json").write_text(json.dumps({"title": "x", "config": config}))
    assert find_entries(tmp_path)["run"].damage


def test_texts_of_runs_are_never_components(client_of, tmp_path):
    """Dash draws a dict of this form as an element of the page."""
    claim = {**CLAIM, "reading": COMPONENT, "why": COMPONENT, "verdict": COMPONENT}
    write(tmp_path / "run", {**RUN, "title": COMPONENT}, [claim])
    answer = json.loads(shown(client_of(tmp_path), "run"))

    def walk(node):
        if isinstance(node, dict):
            if node.get("type") == "A":
                raise AssertionError("a run put an element into the page")
            for child in node.values():
                walk(child)
        elif isinstance(node, list):
            for child in node:
                walk(child)

    walk(answer)


def test_links_out_of_a_run_are_not_followed(client_of, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("the secret")
    folder = write(tmp_path / "store" / "run")
    (folder / "figures").mkdir()
    (folder / "figures" / "a.png").symlink_to(secret)
    text = shown(client_of(tmp_path / "store"), "run")
    assert base64.b64encode(b"the secret").decode() not in text
    assert "points outside" in text


def test_names_that_are_no_runs_show_nothing(client_of, store):
    client = client_of(store)
    for name in ("../..", "/etc", "good/../good", "", "good\0", "x" * 5000):
        assert "A title" not in shown(client, name)


def uri(content):
    return "data:application/octet-stream;base64," + base64.b64encode(content).decode()


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def lying_npy(shape, descr="<f8"):
    """A head that promises far more than follows."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": descr, "fortran_order": False, "shape": shape}
    )
    return file.getvalue() + b"\0" * 64


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (lying_npy((10**6, 10**6)), "a.npy"),
        (lying_npy((4, 4), "|O"), "a.npy"),
        (npy(np.zeros((MAX_ENTRIES // 3 + 1, 3), dtype=np.uint8)), "a.npy"),
        (npy(np.full((4, 4), np.nan)), "a.npy"),
        (npy(np.array([["a"] * 4] * 4)), "a.npy"),
        (npy(np.zeros(5)), "a.npy"),
        (b"\x93NUMPY\x09\x09", "a.npy"),
        (b"", "a.npy"),
        (b"1,2\n3", "a.csv"),
        (b"\xff\xfe", "a.csv"),
        (b"1,2,3\n" * 3, "a.exe"),
        (b"__import__('os'),1,2\n" * 4, "a.csv"),
    ],
    ids=range(12),
)
def test_uploads_that_are_no_matrices_are_refused(content, name):
    with pytest.raises(ArgumentError, match="file"):
        read_matrix(uri(content), name)


def test_objects_in_uploads_never_run(tmp_path):
    """A pickle would call what it names."""
    ran = tmp_path / "ran"

    class Bomb:
        def __reduce__(self):
            return (open, (str(ran), "w"))

    with pytest.raises(ArgumentError, match="file"):
        read_matrix(uri(npy(np.array([[Bomb()] * 4] * 4, dtype=object))), "a.npy")
    assert not ran.exists()


def test_matrices_of_equal_samples_have_no_slope():
    with pytest.raises(ArgumentError, match="identical"):
        matrix_slope(np.ones((10, 10)))
