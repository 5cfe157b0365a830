import pickle
import time
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from hyperribbon.application.cli.app import app
from hyperribbon.core import ArgumentError

FACTORY = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    inputs = torch.randn(60, 4, generator=torch.Generator().manual_seed(1))
    return model, nn.CrossEntropyLoss(), (inputs, (inputs[:, 0] > 0).long())

def digits():
    return nn.Sequential(nn.Linear(64, 10)), nn.CrossEntropyLoss()

def normed():
    model, loss, data = make()
    model[1] = nn.Sequential(nn.BatchNorm1d(6), nn.Tanh())
    return model, loss, data

def dropped():
    model, loss, data = make()
    model[1] = nn.Sequential(nn.Tanh(), nn.Dropout(0.5))
    return model.train(), loss, data

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = make()[0]

    def forward(self, x, labels=None):
        logits = self.inner(x)
        return {"logits": logits, "loss": nn.functional.cross_entropy(logits, labels)}

def own():
    inputs, labels = make()[2]
    return Own(), None, {"x": inputs, "labels": labels}

def broken():
    raise ValueError("no such weights")

def wrong():
    return "model"
"""


class _Payload:
    """Runs a command when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    (tmp_path / "own_model.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _run(*arguments: str):
    return CliRunner().invoke(app, ["inspect", *arguments, "--seconds", "6", "--k", "3"])


def _refused(*arguments: str) -> str:
    result = _run(*arguments)
    assert isinstance(result.exception, ArgumentError), result.output
    return str(result.exception)


def test_a_model_is_inspected_with_its_checkpoint_and_its_start(folder):
    namespace: dict = {}
    exec(FACTORY, namespace)
    model = namespace["make"]()[0]
    save_file(model.state_dict(), "start.safetensors")
    wrapped = {f"model.{name}": tensor + 0.1 for name, tensor in model.state_dict().items()}
    torch.save({"state_dict": wrapped}, "final.pt")
    result = _run(
        "own_model.py:make",
        "--checkpoint",
        "final.pt",
        "--initial",
        "start.safetensors",
        "--lr",
        "0.1",
        "--momentum",
        "0.9",
        "--out",
        "out",
    )
    assert result.exit_code == 0, result.output
    assert "Learning rate 0.1 is at" in " ".join(result.output.split())
    assert (folder / "out" / "report.html").stat().st_size > 1e6
    assert (folder / "out" / "tables" / "quantities.csv").is_file()
    assert list((folder / "out" / "figures").glob("*.svg"))


@pytest.mark.usefixtures("headlines_only")
def test_the_mode_is_chosen_and_named(folder):
    told = {
        mode: " ".join(_run("own_model.py:normed", "--mode", mode, "--out", mode).output.split())
        for mode in ("eval", "train")
    }
    assert "all 60 samples, evaluation mode" in told["eval"]
    assert "all 60 samples, training mode, one batch of 60 samples" in told["train"]
    assert "mode" in _refused("own_model.py:normed", "--mode", "training", "--out", "out")
    assert "dropout in training mode" in _refused("own_model.py:dropped", "--mode", "train")


@pytest.mark.usefixtures("headlines_only")
@pytest.mark.parametrize("name", ["dropped", "own"])
@pytest.mark.parametrize("command", ["plan", "inspect"])
def test_models_in_training_mode_and_with_losses_of_their_own_are_taken(folder, command, name):
    options = ["--seconds", "4", "--out", "out"] if command == "inspect" else []
    result = CliRunner().invoke(app, [command, f"own_model.py:{name}", "--k", "2", *options])
    assert result.exit_code == 0, result.output
    if command == "plan":
        assert "44 weights" in result.output
        more = [command, f"own_model.py:{name}", "--mode", "train"]
        refused = CliRunner().invoke(app, more).exception
        assert (refused is None) is (name == "own")


@pytest.mark.usefixtures("headlines_only")
def test_a_named_data_set_is_given_as_rows_to_a_model_of_rows(folder):
    result = _run("own_model.py:digits", "--data", "digits", "--out", "out")
    assert result.exit_code == 0, result.output


def test_a_file_that_carries_code_is_refused_and_nothing_is_executed(folder):
    marker = folder / "executed"
    for name in ("payload.pt", "payload.bin"):
        Path(name).write_bytes(pickle.dumps({"weight": _Payload(marker)}))
        assert "run code" in _refused("own_model.py:make", "--checkpoint", name)
    assert not marker.exists()


def test_truncated_and_foreign_checkpoints_are_refused(folder):
    save_file({"0.weight": torch.zeros(6, 4)}, "other.safetensors")
    assert "lacks" in _refused("own_model.py:make", "--checkpoint", "other.safetensors")
    whole = Path("other.safetensors").read_bytes()
    Path("cut.safetensors").write_bytes(whole[: len(whole) // 2])
    assert "truncated" in _refused("own_model.py:make", "--checkpoint", "cut.safetensors")
    torch.save({"0.weight": torch.zeros(6, 4)}, "whole.pt")
    Path("cut.pt").write_bytes(Path("whole.pt").read_bytes()[:200])
    assert "damaged" in _refused("own_model.py:make", "--checkpoint", "cut.pt")
    assert "file does not exist" in _refused("own_model.py:make", "--checkpoint", "absent.pt")


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("own_model", "module:function"),
        ("nowhere_at_all:make", "importing nowhere_at_all failed"),
        ("absent.py:make", "absent.py does not exist"),
        ("own_model.py:absent", "has no function absent"),
        ("own_model.py:broken", "no such weights"),
        ("own_model.py:wrong", "does not return"),
    ],
)
def test_a_wrong_factory_gets_one_clear_message(folder, spec, reason):
    assert reason in _refused(spec)


def test_momentum_needs_a_rate(folder):
    assert "Give --lr 0.1 too" in _refused("own_model.py:make", "--momentum", "0.9")


def test_help_has_examples_and_is_quick():
    for command in ("inspect", "demo"):
        result = CliRunner().invoke(app, [command, "--help"])
        assert result.exit_code == 0
        assert "Example" in result.output


@pytest.mark.slow
def test_the_demo_finishes_in_three_minutes_and_shows_everything(tmp_path):
    began = time.monotonic()
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "demo")])
    assert result.exit_code == 0, result.output
    assert time.monotonic() - began < 180
    page = (tmp_path / "demo" / "report.html").read_text()
    for text in ("Curvature", "Trajectory", "Training", "Claims", "ribbons/fig4"):
        assert text in page
    assert "report.html" in "".join(result.output.split())


@pytest.mark.usefixtures("headlines_only")
def test_adam_needs_its_state_and_a_page_may_be_named(folder):
    torch.manual_seed(0)
    namespace: dict = {}
    exec(FACTORY, namespace)
    model, loss, (inputs, labels) = namespace["make"]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loss(model(inputs), labels).backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), folder / "adamw.pt")
    arguments = ["inspect", "own_model:make", "--optimizer", "adamw", "--k", "2", "--budget", "5"]
    refused = CliRunner().invoke(app, arguments)
    assert isinstance(refused.exception, ArgumentError)
    assert refused.exception.argument == "--optimizer-state"
    page = folder / "page.html"
    more = ["--optimizer-state", str(folder / "adamw.pt"), "--batch-size", "20"]
    done = CliRunner().invoke(app, [*arguments, *more, "--out", str(page)])
    assert done.exit_code == 0, done.output
    assert page.is_file() and "AdamW" in page.read_text()
    assert ".table()" not in done.output


@pytest.mark.usefixtures("headlines_only")
def test_weight_decay_moves_the_stability_limit(folder):
    arguments = ["inspect", "own_model:make", "--lr", "0.1", "--k", "2", "--budget", "5"]
    for decay in ("0", "0.5"):
        out = ["--weight-decay", decay, "--out", str(folder / decay)]
        assert CliRunner().invoke(app, [*arguments, *out]).exit_code == 0
    tables = [pd.read_csv(folder / d / "tables" / "quantities.csv") for d in ("0", "0.5")]
    first, second = (t.set_index("key")["value"] for t in tables)
    assert first["stability.curvature"] - second["stability.curvature"] == pytest.approx(
        0.5, rel=1e-3
    )
