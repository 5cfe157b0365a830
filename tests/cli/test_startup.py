"""What the command line imports before it is asked to compute anything."""

import os
import subprocess
import sys

import pytest

HEAVY = {"torch", "scipy", "pandas", "sklearn", "matplotlib", "plotly", "zarr", "dash"}


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["inspect", "--help"], ["list", "--help"], []]
)
def test_help_imports_nothing_heavy(arguments):
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "hyperribbon", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "100"},
    )
    loaded = {line.rpartition("|")[2].strip().split(".")[0] for line in run.stderr.splitlines()}
    assert "typer" in loaded
    assert not loaded & HEAVY
    assert "hyperribbon" in run.stdout.lower() or "usage" in run.stdout.lower()
