"""The deliberate bugs of `make mutate` fit the package as it is."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = (
    "operators",
    "spectra",
    "core",
    "theory",
    "training",
    "simulation",
    "recording",
    "manifold",
    "subnetworks",
    "noise",
    "inspection",
    "comparison",
    "report",
    "explorer",
    "plots",
    "prediction",
    "experiments",
    "cli",
)


@pytest.fixture(scope="module")
def mutate():
    spec = importlib.util.spec_from_file_location("mutate", ROOT / "tools" / "mutate.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutate"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["mutate"]


def test_every_bug_changes_one_place_and_names_tests_that_exist(mutate):
    """When code changed: find the line that does now what the bug's line did."""
    text, wrong = "\0".join(mutate.read_texts().values()), []
    for bug in mutate.read_bugs():
        count = text.count(bug.find)
        if count != 1 or bug.find == bug.replace:
            wrong.append(f"{bug.what}: {count} places for {bug.find!r}")
            continue
        files = [a for a in bug.arguments if a.startswith("tests/")]
        wrong += [f"{bug.what}: no {file}" for file in files if not (ROOT / file).exists()]
        wrong += [] if files else [f"{bug.what}: no tests"]
    assert not wrong


def test_all_rooms_have_bugs_and_no_bug_is_listed_twice(mutate):
    bugs = mutate.read_bugs()
    assert len(bugs) >= 60
    assert {bug.room for bug in bugs} == set(ROOMS)
    assert (
        len({(bug.find, bug.replace) for bug in bugs}) == len({b.what for b in bugs}) == len(bugs)
    )


def test_failures_are_read_from_what_pytest_prints(mutate):
    printed = (
        "F\nFAILED tests/a.py::test_b[x - y] - assert [1] - [2]\nERROR tests/c.py::test_d\n"
        "FAILED tests/e.py::test_f - assert 1 == 2\n1 passed\n"
    )
    found = ["tests/a.py::test_b[x - y]", "tests/c.py::test_d", "tests/e.py::test_f"]
    assert mutate.failures(printed) == found
