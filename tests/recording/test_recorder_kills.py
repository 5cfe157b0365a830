import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from hyperribbon.papers.training import mlp, train
from hyperribbon.recording import Recorder
from hyperribbon.recording.trajectory import Trajectory


def assert_same(one: Path, two: Path) -> Trajectory:
    first, second = Trajectory.open(one), Trajectory.open(two)
    assert first.steps.tolist() == second.steps.tolist()
    assert first.epochs.tolist() == second.epochs.tolist()
    for index in range(len(first)):
        a, b = first.weights(index), second.weights(index)
        assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
    np.testing.assert_array_equal(first.predictions(), second.predictions())
    np.testing.assert_array_equal(first.metrics().to_numpy(), second.metrics().to_numpy())
    return first


class Killed(Exception):
    """Stands for a kill between two file operations."""


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_kill_around_every_rename_write_and_sync(tmp_path, monkeypatch, after):
    """What is on disk changes by renames, writes and syncs: stop before and after each in turn."""
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()

    def run(folder):
        recorder = Recorder(folder, every="1it", probe=x, wait=True)
        settings = {"epochs": 1, "lr": 0.1, "momentum": 0.9, "batch_size": 6}
        try:
            train(mlp((3, 2)), nn.CrossEntropyLoss(), (x, y), recorder=recorder, **settings)
        finally:
            recorder.release()

    count, target = 0, None

    def failing(original):
        def call(*arguments, **keywords):
            nonlocal count
            count += 1
            if count == target and not after:
                raise Killed
            result = original(*arguments, **keywords)
            if count == target:
                raise Killed
            return result

        return call

    for name in ("replace", "fsync", "pwrite"):
        monkeypatch.setattr(os, name, failing(getattr(os, name)))
    run(tmp_path / "whole")
    total = count
    assert total > 30
    for moment in range(1, total + 1):
        folder = tmp_path / "killed" / str(moment)
        count, target = 0, moment
        with pytest.raises(Killed):
            run(folder)
        target = None
        run(folder)
        assert_same(tmp_path / "whole", folder)
        assert not list(folder.rglob("*.tmp"))
