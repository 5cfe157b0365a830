import sys
import types
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch import nn

from hyperribbon.core.checks import ArgumentError, MissingExtraError
from hyperribbon.papers.training import mlp, train
from hyperribbon.recording import Recorder


def spread(model):
    """One number and one array: only the number is a scalar to log."""
    return {"width": torch.tensor(2.0), "profile": np.arange(3.0), "missing": float("nan")}


def fit(images, folder, log, epochs=2):
    recorder = Recorder(folder, measure=[spread], log=log)
    train(mlp((64, 3)), nn.CrossEntropyLoss(), images, epochs=epochs, lr=0.1, recorder=recorder)
    recorder.close()
    return recorder


def read_tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_gets_every_scalar_and_goes_on(images, tmp_path):
    if find_spec("tensorboard") is None:  # an extra: the oldest and newest versions lack it
        pytest.skip("tensorboard is not installed")
    recorder = fit(images, tmp_path / "a", "tensorboard")
    fit(images, tmp_path / "a", "tensorboard", epochs=4)
    scalars = read_tensorboard(tmp_path / "a")
    assert scalars.keys() == {"loss", "epoch_loss", "lr", "spread.width"}
    assert [step for step, _ in scalars["spread.width"]] == [0, 1, 2, 3, 4]
    table = recorder.trajectory.metrics()
    for (step, value), expected in zip(scalars["loss"], table["loss"][1:], strict=False):
        assert step > 0 and value == pytest.approx(expected, rel=1e-6)


def test_functions_and_several_targets(images, tmp_path):
    seen, steps = {}, []

    def collect(step, scalars):
        seen[step] = scalars

    fit(images, tmp_path / "a", [collect, lambda step, scalars: steps.append(step)])
    assert steps == list(seen) == [0, 1, 2]
    assert seen[0] == {"spread.width": 2.0}
    assert seen[2].keys() == {"loss", "epoch_loss", "lr", "spread.width"}


def test_mlflow_and_wandb_through_their_log_calls(images, tmp_path, monkeypatch):
    calls = []
    mlflow = types.ModuleType("mlflow")
    mlflow.log_metrics = lambda scalars, step: calls.append(("mlflow", step, scalars))
    wandb = types.ModuleType("wandb")
    wandb.run = object()
    wandb.log = lambda scalars, step: calls.append(("wandb", step, scalars))
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    fit(images, tmp_path / "a", ["mlflow", "wandb"], epochs=1)
    assert [(name, step) for name, step, _ in calls] == [
        ("mlflow", 0),
        ("wandb", 0),
        ("mlflow", 1),
        ("wandb", 1),
    ]
    assert calls[0][2] == calls[1][2] == {"spread.width": 2.0}
    wandb.run = None
    with pytest.raises(ArgumentError, match=r"wandb\.init"):
        fit(images, tmp_path / "b", "wandb")


def test_what_is_not_installed_is_said(images, tmp_path, monkeypatch):
    for name in ("mlflow", "torch.utils.tensorboard.writer"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ArgumentError, match="pip install mlflow"):
        fit(images, tmp_path / "a", "mlflow")
    with pytest.raises(MissingExtraError, match=r"hyperribbon\[tensorboard\]"):
        fit(images, tmp_path / "b", "tensorboard")
    with pytest.raises(ArgumentError, match="log='carrier pigeon'"):
        fit(images, tmp_path / "c", "carrier pigeon")
