"""What the command line imports before it is asked to compute anything."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hyperribbon.application.cli import papers
from hyperribbon.core.store import write_json
from hyperribbon.recording.trajectory import Trajectory

HEAVY = {"torch", "scipy", "pandas", "sklearn", "matplotlib", "plotly", "zarr", "dash"}


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["inspect", "--help"], ["list"], ["list", "--json"], []],
)
def test_what_computes_nothing_imports_nothing_heavy(arguments):
    output, loaded = command(*arguments)
    assert not loaded & HEAVY
    assert any(word in output.lower() for word in ("hyperribbon", "usage", "ribbons/fig4"))


def test_a_report_of_stored_results_imports_nothing_heavy(tmp_path):
    """Claims, figures, an inspection: everything is on disk; only plotly's script is read."""
    write_inspection(tmp_path / "inspected")
    (figure,) = (Path(__file__).parents[2] / "docs" / "runs").glob("ribbons_fig4-*")
    out = tmp_path / "report.html"
    _, loaded = command("report", str(figure), str(tmp_path / "inspected"), "--out", str(out))
    assert not loaded & (HEAVY - {"plotly"})
    assert "ribbons/fig4" in out.read_text() and "An answer." in out.read_text()


def test_a_report_of_a_training_imports_no_torch(tmp_path):
    path = Trajectory.create(tmp_path / "run")
    for step in range(5):
        predictions = np.array([[0.5 + step / 10, 0.5 - step / 10]] * 3)
        path.append(step, predictions=predictions, metrics={"loss": 1.0 / (step + 1)})
    out = tmp_path / "report.html"
    _, loaded = command("report", str(tmp_path / "run"), "--out", str(out))
    assert "torch" not in loaded
    assert "Paths of the predictions" in out.read_text()


def command(*arguments: str) -> tuple[str, set[str]]:
    """Run the command line; return what it prints and the packages it imports."""
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "hyperribbon", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "100"},
    )
    assert "Traceback" not in run.stderr, run.stderr[-2000:]
    loaded = {line.rpartition("|")[2].strip().split(".")[0] for line in run.stderr.splitlines()}
    assert "typer" in loaded
    return run.stdout, loaded


def write_inspection(folder: Path) -> None:
    answer = {"finding": "An answer.", "meaning": "", "usual": "", "advice": "", "term": "loss"}
    part = {"name": "basics", "title": "Loss", "group": "Model", "quantities": [], "charts": []}
    part |= {"readings": [], "notes": [], "tables": {}}
    content = {"title": "net", "where": "8 samples", "parts": [part], "outcomes": []}
    content |= {"answers": [answer], "reading": ["An answer."], "statistics": {}, "missing": {}}
    folder.mkdir()
    write_json(folder / "inspection.json", content)
    write_json(folder / "run.json", {"id": "inspect"})


def test_the_list_is_that_of_the_registry():
    from hyperribbon.papers import experiments

    registered = {id: found.title for id, found in experiments.all_experiments().items()}
    assert experiments.PAPERS == papers.PAPERS
    assert list(papers.experiment_titles().items()) == list(registered.items())
