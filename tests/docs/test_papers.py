"""The maps of the papers: every equation points to a function that exists."""

import re
import tomllib
from operator import attrgetter
from pathlib import Path

import pytest

import hyperribbon
from hyperribbon.papers.experiments import PAPERS, all_experiments

FOLDER = Path(__file__).parents[2] / "docs" / "papers"
MAPS = {paper: tomllib.loads((FOLDER / f"{paper}.toml").read_text()) for paper in PAPERS}
ENTRIES = [
    (paper, equation, path)
    for paper, content in MAPS.items()
    for equation, (path, _) in content["equations"].items()
]


def resolve(path):
    return attrgetter(path)(hyperribbon)


@pytest.mark.parametrize(("paper", "equation", "path"), ENTRIES)
def test_every_equation_points_to_a_function(paper, equation, path):
    found = resolve(path)
    assert found.__doc__, f"{equation} of [{paper}] points to {path}, which has no docstring"


def test_a_missing_function_is_noticed():
    with pytest.raises(AttributeError):
        resolve("theory.ribbons.no_such_function")


@pytest.mark.parametrize("paper", PAPERS)
def test_every_map_has_a_reference_and_slips(paper):
    assert MAPS[paper]["reference"] and MAPS[paper]["slips"]


@pytest.mark.parametrize("system", MAPS["subnetworks"]["systems"], ids=lambda one: one["place"])
def test_every_system_of_the_thesis_has_an_experiment_or_a_reason_for_none(system):
    known = {id.removeprefix("subnetworks/") for id in all_experiments() if "subnetworks/" in id}
    named = set(
        re.findall(
            r"(?:fig|table)[\dA]\.\d|[a-z]+_[a-z]+|chapter\d|metric\b|meanfield|tickets",
            system["judged"],
        )
    )
    reason = "no claim" in system["judged"] or "every experiment" in system["judged"]
    assert named <= known and (named or reason)


def test_every_equation_of_the_thesis_belongs_to_a_system():
    covered = set()
    for system in MAPS["subnetworks"]["systems"]:
        for first, last in re.findall(r"\((\d\.\d+)\)(?:–\((\d\.\d+)\))?", system["place"]):
            chapter, start = first.split(".")
            end = (last or first).split(".")[1]
            covered |= {f"{chapter}.{number}" for number in range(int(start), int(end) + 1)}
    printed = {"2": 28, "3": 1, "4": 28}  # equations by chapter
    assert covered == {f"{c}.{n}" for c, count in printed.items() for n in range(1, count + 1)}
