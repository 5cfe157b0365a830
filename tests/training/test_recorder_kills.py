import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from hyperribbon.core.trajectory import Trajectory
from hyperribbon.training import Recorder, mlp, train

RUN = """
import os, random, signal, sys, time
import torch
from torch import nn
from hyperribbon.training import Measurement, Recorder, mlp, train

torch.set_num_threads(1)

class Drift:
    weight = None

    def __call__(self, model):
        before, self.weight = self.weight, model[0].layer1.weight.detach().clone()
        return 0.0 if before is None else (self.weight - before).norm().item()

    def state_dict(self):
        return {"weight": self.weight}

    def load_state_dict(self, state):
        self.weight = state["weight"]

def run(folder):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 6, generator=generator)
    y = (x[:, 0] > 0).long()
    model = nn.Sequential(mlp((6, 8)), nn.Dropout(0.3), mlp((8, 2)))
    measure = [Measurement("drift", Drift())]
    recorder = Recorder(folder, every="3it", probe=x, measure=measure)
    train(model, nn.CrossEntropyLoss(), (x, y), epochs=30, lr=0.05, momentum=0.9, batch_size=16,
          recorder=recorder, test=(x, y))
    recorder.close()

def fork(folder):
    pid = os.fork()
    if pid == 0:
        run(folder)
        os._exit(0)
    return pid

torch.optim.SGD(nn.Linear(1, 1).parameters())  # imports what the children need, once
whole, killed = sys.argv[1:3]
begin = time.perf_counter()
os.waitpid(fork(whole), 0)
duration = time.perf_counter() - begin
rng, kills, number = random.Random(7), 0, 0
while kills < 20:
    pid = fork(f"{killed}/{number}")
    time.sleep(rng.uniform(0.0, duration / 6))
    os.kill(pid, signal.SIGKILL)
    if os.WIFSIGNALED(os.waitpid(pid, 0)[1]):
        kills += 1
    else:  # it had come to its end: begin another run
        number += 1
print("killed", kills)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(fork(f"{killed}/{number}"), 0)[1]))
"""


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


def test_killed_twenty_times_at_random_moments(tmp_path):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    arguments = [sys.executable, "-c", RUN, str(tmp_path / "whole"), str(tmp_path / "killed")]
    done = subprocess.run(
        arguments, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "killed 20" in done.stdout
    for folder in (tmp_path / "killed").iterdir():
        trajectory = assert_same(tmp_path / "whole", folder)
        assert trajectory.steps[-1] == 120 and len(trajectory) == 41


class Killed(Exception):
    """Stands for a kill between two file operations."""


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_kill_around_every_rename_write_and_sync(tmp_path, monkeypatch, after):
    """What is on disk changes by renames, writes and syncs: stop before and after each in turn."""
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()

    def run(folder):
        recorder = Recorder(folder, every="1it", probe=x)
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
