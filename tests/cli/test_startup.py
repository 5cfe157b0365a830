"""What the command line imports before it is asked to compute anything."""

import os
import subprocess
import sys

import pytest

from hyperribbon.cli import catalogue

HEAVY = {"torch", "scipy", "pandas", "sklearn", "matplotlib", "plotly", "zarr", "dash"}


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["inspect", "--help"], ["list"], ["list", "--json"], []],
)
def test_what_computes_nothing_imports_nothing_heavy(arguments):
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "hyperribbon", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "100"},
    )
    loaded = {line.rpartition("|")[2].strip().split(".")[0] for line in run.stderr.splitlines()}
    assert "typer" in loaded
    assert not loaded & HEAVY
    assert any(word in run.stdout.lower() for word in ("hyperribbon", "usage", "ribbons/fig4"))


def test_the_list_is_that_of_the_registry():
    from hyperribbon import experiments

    registered = {id: found.title for id, found in experiments.all_experiments().items()}
    assert experiments.PAPERS == catalogue.PAPERS
    assert list(catalogue.experiment_titles().items()) == list(registered.items())
