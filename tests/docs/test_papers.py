"""The maps of the papers: every equation points to a function that exists."""

import tomllib
from operator import attrgetter
from pathlib import Path

import pytest

import hyperribbon
from hyperribbon.papers.experiments import PAPERS

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
