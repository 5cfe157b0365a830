"""A paper's folder says what each of its figures shows."""

import importlib
from pathlib import Path

import pytest

import hyperribbon.papers.experiments as experiments

FOLDER = Path(experiments.__file__).parent
PAPERS = ("ribbons", "subnetworks", "fluctuations", "linear_networks")


@pytest.mark.parametrize("paper", PAPERS)
def test_every_figure_stands_in_the_listing_of_its_folder(paper):
    package = importlib.import_module(f"hyperribbon.papers.experiments.{paper}")
    said = " ".join(package.__doc__.split())
    files = sorted(path.stem for path in (FOLDER / paper).glob("[!_]*.py"))
    assert files
    for name in files:
        title = importlib.import_module(f"{package.__name__}.{name}").TITLE
        assert f"- {name}: {title}" in said
