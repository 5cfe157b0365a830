"""A comparison that keeps its measurements in a folder continues there."""

from importlib import import_module

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

import hyperribbon as hr
from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.store.check import check_folder
from hyperribbon.papers.training import mlp

X = torch.randn(48, 4, generator=torch.Generator().manual_seed(0))
module = import_module("hyperribbon.application.inspection.comparison.compare")
DATA = (X, (X[:, 0] > 0).long())
MODELS = mlp((4, 6, 2), seed=0), mlp((4, 6, 2), seed=1)


def compare(folder, *models, **changed):
    settings = {"groups": 4, "k": 2, "seed": 0, "console": Console(quiet=True)} | changed
    a, b = models or MODELS
    return hr.compare(a, b, nn.CrossEntropyLoss(), DATA, folder=folder, **settings)


def numbers(found):
    return repr((found.differences, found.shared, found.notes))


def test_a_finished_comparison_is_read(tmp_path, monkeypatch):
    plain, first = compare(None), compare(tmp_path)
    assert numbers(first) == numbers(plain)

    def measure(*_):
        raise AssertionError("measured again")

    for name in ("measure_sharpness", "pruned_losses", "compare_predictions", "compare_weights"):
        monkeypatch.setattr(module, name, measure)
    assert numbers(compare(tmp_path)) == numbers(first)


def test_only_what_is_missing_is_measured(tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "pruned_losses", stop)
        with pytest.raises(KeyboardInterrupt):
            compare(tmp_path)
    kept = {path.name for path in tmp_path.rglob("*.safetensors")}
    assert "sharpness.safetensors" in kept
    assert "pruning.safetensors" not in kept
    monkeypatch.setattr(module, "measure_sharpness", stop)
    assert numbers(compare(tmp_path)) == numbers(compare(tmp_path))


@pytest.mark.parametrize(
    "changed", [{"seed": 1}, {"k": 3}, {"groups": 6}, {"params": "layer1.*"}, {"samples": 40}]
)
def test_other_settings_share_nothing(tmp_path, changed):
    first = compare(tmp_path, parts=("trace",))
    other = compare(tmp_path, parts=("trace",), **changed)
    assert len({path.parent for path in tmp_path.rglob("trace.safetensors")}) == 2
    assert numbers(other) == numbers(compare(None, parts=("trace",), **changed))
    assert numbers(compare(tmp_path, parts=("trace",))) == numbers(first)


def test_other_weights_share_nothing(tmp_path):
    compare(tmp_path, parts=("trace",))
    compare(tmp_path, MODELS[0], mlp((4, 6, 2), seed=2), parts=("trace",))
    assert len(list(tmp_path.rglob("trace.safetensors"))) == 2


def test_a_damaged_measurement_is_found(tmp_path):
    compare(tmp_path, parts=("trace",))
    path = next(tmp_path.rglob("trace.safetensors"))
    assert check_folder(path.parent).is_whole
    content = np.frombuffer(path.read_bytes(), dtype=np.uint8).copy()
    content[len(content) // 2] ^= 1
    path.write_bytes(content.tobytes())
    assert not check_folder(path.parent).is_whole
    with pytest.raises(ArgumentError, match="damaged"):
        compare(tmp_path, parts=("trace",))
