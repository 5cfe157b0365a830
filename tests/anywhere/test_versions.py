"""What the package promises of versions is what was run, and the page shows just that."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest
import torch
from torch import nn

import hyperribbon as hr
from hyperribbon.core.devices import torch_private

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OF_OURS = {"dev", "docs", "bench", "all"}  # extras for those who work on the library


@pytest.fixture(scope="module")
def matrix():
    place = importlib.util.spec_from_file_location("matrix", ROOT / "tools" / "matrix.py")
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module


def minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def numbers_of(version: str) -> tuple[int, ...]:
    """Return a version without the zeros at its end: 2.0 and 2.0.0 are one."""
    found = [int(part) for part in version.split(".")]
    while found and found[-1] == 0:
        found.pop()
    return tuple(found)


def test_requirements_have_a_floor_and_no_ceiling():
    for line in PROJECT["dependencies"]:
        assert re.fullmatch(r"[a-z0-9-]+>=[0-9.]+", line), line
    assert re.fullmatch(r">=3\.\d+", PROJECT["requires-python"])


def test_the_floors_are_what_was_run(matrix):
    run = matrix.read_stored()["floor"]["versions"]
    floors = dict(line.split(">=") for line in PROJECT["dependencies"])
    for name in matrix.SHOWN:
        assert numbers_of(run[name]) == numbers_of(floors[name]), name
    assert f"torch=={floors['torch']}" in matrix.requirements("floor")
    assert minor(run["python"]) == PROJECT["requires-python"].removeprefix(">=")


def test_newer_rows_ask_for_one_torch_and_the_newest_of_the_rest(matrix):
    names = [line.split(">=")[0] for line in PROJECT["dependencies"]]
    assert matrix.requirements("newest") == names
    rest = set(names) - {"torch"}
    assert set(matrix.requirements("2.8")) == {"torch==2.8.0", *rest}


COUNTED_ELSEWHERE = {"recording", "simulation"}
"""Rooms whose tests stood in those of `training` and `core` when older rows were run."""


def test_every_row_was_run_in_every_room(matrix):
    stored = matrix.read_stored()
    assert set(matrix.ENTRIES) <= set(stored)
    for entry, row in stored.items():
        rooms = set(row["rooms"])
        assert rooms | COUNTED_ELSEWHERE == set(matrix.ROOMS), entry
        assert rooms & COUNTED_ELSEWHERE in (set(), COUNTED_ELSEWHERE), entry
        for room, found in row["rooms"].items():
            assert found["passed"] > 0, (entry, room)
            assert len(found["failures"]) == found["failed"], (entry, room)
    for entry, version in matrix.TORCH.items():
        assert stored[entry]["versions"]["torch"].split("+")[0] == version


def test_the_classifiers_are_the_pythons_that_were_run(matrix):
    said = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if ":: 3." in line}
    assert said == {minor(row["versions"]["python"]) for row in matrix.read_stored().values()}


def test_the_page_shows_what_is_stored(matrix):
    page = matrix.PAGE.read_text()
    shown = page.split("<!-- counts -->\n")[1].split("\n<!-- end of counts -->")[0]
    assert shown == matrix.table(matrix.read_stored())


def test_a_table_says_what_failed_and_what_was_left_out(matrix):
    versions = {"python": "3.11.7", **dict.fromkeys(matrix.SHOWN, "1.0")}
    whole = {"passed": 8, "failed": 0, "skipped": 1, "failures": [], "every": 1}
    part = {"passed": 6, "failed": 2, "skipped": 0, "failures": ["a", "b"], "every": 5}
    rooms = {"operators": whole, "core": part}
    row = matrix.table({"it": {"versions": versions, "rooms": rooms}}).splitlines()[2]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:2] == ["it", "3.11.7"]
    told = dict(zip(matrix.ROOMS, cells[-len(matrix.ROOMS) :], strict=True))
    assert told["operators"] == "8" and told["core"] == "6 (1 in 5), 2 failed"
    assert told["spectra"] == "–"


XML = """<testsuites><testsuite>
<testcase classname="tests.core.test_a" name="test_one" />
<testcase classname="tests.core.test_a" name="test_two[x.y]"><failure /></testcase>
<testcase classname="tests.core.test_a" name="test_two[x.y]"><error /></testcase>
<testcase classname="tests.spectra.test_b.TestIt" name="test_three"><skipped /></testcase>
<testcase classname="" name="tests.spectra.test_c"><error /></testcase>
</testsuite></testsuites>"""


def test_results_are_counted_room_by_room(matrix, tmp_path):
    (tmp_path / "it.xml").write_text(XML)
    found = matrix.count(tmp_path / "it.xml", ["core", "spectra"])
    assert found == {
        "core": {
            "passed": 1,
            "failed": 1,
            "skipped": 0,
            "failures": ["tests.core.test_a.test_two[x.y]"],
        },
        "spectra": {"passed": 0, "failed": 1, "skipped": 1, "failures": ["tests.spectra.test_c"]},
    }


def test_other_versions_begin_a_row_anew(matrix):
    stored = {}
    old = matrix.row_of(stored, "newest", {"torch": "2.14"})
    old["rooms"]["core"] = {"passed": 1}
    assert matrix.row_of(stored, "newest", {"torch": "2.14"})["rooms"]
    assert not matrix.row_of(stored, "newest", {"torch": "2.15"})["rooms"]


def test_the_hosted_checks_run_every_row(matrix):
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    (entries,) = re.findall(r"entry: \[(.*)\]", text)
    asked = {entry.strip(' "') for entry in entries.split(",")}
    assert asked == {*matrix.ENTRIES, *matrix.PYTHONS}


def test_everything_for_users_is_in_all():
    extras = PROJECT["optional-dependencies"]
    (line,) = extras["all"]
    assert set(line.split("[")[1].rstrip("]").split(",")) == set(extras) - OF_OURS


def test_the_readme_begins_with_an_installation_and_two_commands():
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    commands = [[line.split("#")[0].split() for line in block.splitlines()] for block in blocks]
    assert commands[0] == [["pip", "install", "'.[demo]'"], ["hyperribbon", "demo"]]
    assert commands[1][0][:3] == ["pip", "install", "torch"]
    assert commands[2] == [["make", "demo"], ["make", "test"]]
    assert f"torch ({PROJECT['dependencies'][0].partition('>=')[2]} or newer)" in text


@pytest.mark.parametrize("name", ["_will_engine_execute_node", "_are_functorch_transforms_active"])
def test_products_are_right_where_torch_cannot_be_asked(name, monkeypatch):
    """Against plain double backward through the same network, as one function of its weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(18, 2)).double()
    inputs, targets = torch.randn(6, 1, 5, 5, dtype=torch.float64), torch.randint(0, 2, (6,))
    shapes = {key: tensor.shape for key, tensor in model.named_parameters()}
    start = nn.utils.parameters_to_vector(model.parameters()).detach()

    def loss(weights: torch.Tensor) -> torch.Tensor:
        parts = weights.split([shape.numel() for shape in shapes.values()])
        state = {key: part.view(shapes[key]) for key, part in zip(shapes, parts, strict=True)}
        outputs = torch.func.functional_call(model, state, (inputs,))
        return nn.functional.cross_entropy(outputs, targets)

    expected = torch.autograd.functional.hessian(loss, start)
    monkeypatch.delattr(torch._C, name, raising=False)
    found = hr.Hessian(model, nn.CrossEntropyLoss(), (inputs, targets)).to_dense()
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    if name == "_are_functorch_transforms_active":
        assert torch_private.is_transformed()
