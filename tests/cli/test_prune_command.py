"""`hyperribbon prune`: checkpoint, answer, smaller file."""

import pytest
from safetensors.torch import save_file
from typer.testing import CliRunner

import hyperribbon as hr
from hyperribbon.application.cli.app import app
from hyperribbon.core import ArgumentError
from hyperribbon.core.states import load_state

FACTORY = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 2))
    inputs = torch.randn(800, 4, generator=torch.Generator().manual_seed(1))
    return model, nn.CrossEntropyLoss(), (inputs, (inputs[:, 0] > 0).long())
"""


@pytest.fixture
def case(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(FACTORY)
    space = {}
    exec(FACTORY, space)
    model, loss, data = space["make"]()
    hr.train(model, loss, data, epochs=5, lr=0.2, batch_size=50)
    save_file(model.state_dict(), tmp_path / "final.safetensors")
    return space["make"], model.eval(), data


def run(*arguments):
    return CliRunner().invoke(app, ["prune", "net.py:make", *arguments], catch_exceptions=False)


def test_a_checkpoint_becomes_an_answer_and_a_smaller_file(case, tmp_path):
    make, model, (inputs, targets) = case
    options = ("--checkpoint", "final.safetensors", "--granularity", "channel", "--held-out")
    result = run(*options, "--tolerance", "0.05", "--out", "small.safetensors")
    assert result.exit_code == 0
    assert "of the channels lowers accuracy from" in result.output
    assert "800 held-out samples" in result.output and "Left whole: 3" in result.output
    sizes = [
        (tmp_path / name).stat().st_size for name in ("final.safetensors", "small.safetensors")
    ]
    assert sizes[1] < 0.7 * sizes[0]
    small = hr.shrink(make()[0], load_state("small.safetensors")).eval()
    accuracy = [(net(inputs).argmax(1) == targets).double().mean() for net in (model, small)]
    assert small[0].out_features < 40 and accuracy[1] >= accuracy[0] - 0.05 - 1e-9


def test_single_weights_are_zeroed_and_what_was_measured_is_kept(case, tmp_path, monkeypatch):
    options = "--checkpoint", "final.safetensors", "--folder", "kept"
    result = run(*options, "--out", "sparse.safetensors")
    with monkeypatch.context() as again:
        again.setattr("hyperribbon.core.store.kept.save_tree", None)  # nothing anew
        assert run(*options).exit_code == 0
    assert result.exit_code == 0 and "of the weights" in result.output
    assert "held-out data" in result.output
    assert (load_state("sparse.safetensors")["0.weight"] == 0).double().mean() > 0.1
    assert run("--metric", "loss", "--tolerance", "0.1").exit_code == 0


def test_bad_options_are_explained(case):
    with pytest.raises(ArgumentError, match="granularity"):
        run("--granularity", "layer")
    with pytest.raises(ArgumentError, match="safetensors"):
        run("--out", "small.pt")
    with pytest.raises(ArgumentError, match="tolerance"):
        run("--tolerance", "-1")
