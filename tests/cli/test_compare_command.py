"""`hyperribbon compare` on checkpoints of a person's own model."""

import torch
from typer.testing import CliRunner

from hyperribbon.cli.app import app

FILE = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    x = torch.randn(64, 3)
    return nn.Linear(3, 2), nn.CrossEntropyLoss(), (x, (x[:, 0] > 0).long())
"""


def test_two_checkpoints_are_compared(tmp_path):
    (tmp_path / "mine.py").write_text(FILE)
    for name, factor in (("small", 0.1), ("large", 5.0)):
        weight = factor * torch.ones(2, 3).cumsum(1)
        torch.save({"weight": weight, "bias": torch.zeros(2)}, tmp_path / f"{name}.pt")
    files = [str(tmp_path / name) for name in ("small.pt", "large.pt")]
    with torch.random.fork_rng():
        arguments = [f"{tmp_path / 'mine.py'}:make", *files, "--out", str(tmp_path / "page.html")]
        done = CliRunner().invoke(app, ["compare", *arguments])
    assert done.exit_code == 0, done.output
    assert "small" in done.output
    assert "sharpness" in done.output
    assert "8 of 8" in done.output
    page = (tmp_path / "page.html").read_text()
    assert "small minus large" in page
    assert "groups agree" in page
