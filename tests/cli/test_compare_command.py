"""`hyperribbon compare` on checkpoints of the user's own model, and on inspections."""

import pytest
import torch
from rich.console import Console
from torch import nn
from typer.testing import CliRunner

import hyperribbon as hr
from hyperribbon.application.cli.app import app
from hyperribbon.core.checks import ArgumentError

QUIET = Console(quiet=True)

FILE = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    x = torch.randn(64, 3)
    return nn.Linear(3, 2), nn.CrossEntropyLoss(), (x, (x[:, 0] > 0).long())
"""


def refuse(file, tree):
    raise AssertionError(f"{file.name} is measured again")


def test_two_checkpoints_are_compared_and_what_was_measured_is_kept(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(FILE)
    for name, factor in (("small", 0.1), ("large", 5.0)):
        weight = factor * torch.ones(2, 3).cumsum(1)
        torch.save({"weight": weight, "bias": torch.zeros(2)}, tmp_path / f"{name}.pt")
    files = [str(tmp_path / name) for name in ("small.pt", "large.pt")]
    with torch.random.fork_rng():
        arguments = [f"{tmp_path / 'mine.py'}:make", *files, "--out", str(tmp_path / "page.html")]
        arguments = ["compare", *arguments, "--folder", str(tmp_path / "kept")]
        done = CliRunner().invoke(app, arguments)
        monkeypatch.setattr("hyperribbon.core.store.kept.save_tree", refuse)  # nothing anew
        again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 0, again.output
    assert done.exit_code == 0, done.output
    assert "small" in done.output
    assert "sharpness" in done.output
    assert "8 of 8" in done.output
    page = (tmp_path / "page.html").read_text()
    assert "small minus large" in page
    assert "groups agree" in page


def test_out_is_a_folder_or_a_page_and_the_budget_is_kept(tmp_path):
    (tmp_path / "mine.py").write_text(FILE)
    for name in ("one", "two"):
        torch.save({"weight": torch.randn(2, 3), "bias": torch.zeros(2)}, tmp_path / f"{name}.pt")
    files = [str(tmp_path / name) for name in ("one.pt", "two.pt")]
    arguments = ["compare", f"{tmp_path / 'mine.py'}:make", *files, "--out", str(tmp_path / "cmp")]
    with torch.random.fork_rng():
        done = CliRunner().invoke(app, [*arguments, "--budget", "1e-6"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "cmp" / "report.html").is_file()
    assert (tmp_path / "cmp" / "tables" / "differences.csv").is_file()
    words = " ".join(done.output.split())
    assert "Skipped for time: adaptive sharpness, filter-normalised sharpness, trace" in words
    assert "--budget" in words and "budget=" not in words


@pytest.fixture(scope="module")
def inspections(tmp_path_factory):
    """Two stored inspections of one network at two scales."""
    folder = tmp_path_factory.mktemp("inspections")
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    for name, factor in (("small", 0.1), ("large", 5.0)):
        model = nn.Linear(3, 2)
        with torch.no_grad():
            model.weight.copy_(factor * torch.ones(2, 3).cumsum(1))
            model.bias.zero_()
        data = x, (x[:, 0] > 0).long()
        found = hr.inspect(model, nn.CrossEntropyLoss(), data, k=3, budget=10, console=QUIET)
        found.save(folder / name)
    return folder


def test_two_inspections_are_compared(inspections, tmp_path):
    places = [str(inspections / name) for name in ("small", "large")]
    done = CliRunner().invoke(app, ["compare", *places, "--out", str(tmp_path / "page.html")])
    assert done.exit_code == 0, done.output
    assert "sharpness" in done.output
    assert "small" in done.output
    assert "small minus large" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (["--samples", "64"], "--samples"),
        (["--data", "mnist5k"], "--data"),
        (["--seed", "1"], "--seed"),
    ],
)
def test_what_inspections_cannot_obey_is_refused(inspections, extra, said):
    places = [str(inspections / name) for name in ("small", "large")]
    done = CliRunner().invoke(app, ["compare", *places, *extra])
    assert isinstance(done.exception, ArgumentError)
    assert said in str(done.exception)


def test_checkpoints_without_a_factory_are_refused(tmp_path):
    torch.save({}, tmp_path / "a.pt")
    done = CliRunner().invoke(app, ["compare", str(tmp_path / "a.pt"), str(tmp_path / "b.pt")])
    assert isinstance(done.exception, ArgumentError)
    assert "mymodel.py:make" in str(done.exception)
