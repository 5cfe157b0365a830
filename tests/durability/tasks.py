"""What is killed: five kinds of work that keep what is finished, small and the same every time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import nn

import hyperribbon as hr
from hyperribbon.papers.experiments import run
from hyperribbon.papers.training import mlp, train
from hyperribbon.recording import Measurement, Recorder
from hyperribbon.recording.trajectory import Trajectory

Report = Callable[[int], None]


class Drift:
    """A measurement that remembers."""

    weight = None

    def __call__(self, model):
        before, self.weight = self.weight, model[0].layer1.weight.detach().clone()
        return 0.0 if before is None else (self.weight - before).norm().item()

    def state_dict(self):
        return {"weight": self.weight}

    def load_state_dict(self, state):
        self.weight = state["weight"]


class Reporting(Recorder):
    """Tells somebody outside what it calls written, at every step."""

    report: Report = staticmethod(lambda step: None)

    def step(self, *arguments, **keywords):
        taken = super().step(*arguments, **keywords)
        if self._wait:
            assert not taken or self.written == self.steps
        if self.written is not None:
            self.report(self.written)
        return taken


def record(
    folder: Path, report: Report, *, epochs: int = 30, every: str = "3it", wait: bool = False
) -> None:
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    model = nn.Sequential(mlp((6, 8)), nn.Dropout(0.3), mlp((8, 2)))
    measure = [Measurement("drift", Drift())]
    recorder = Reporting(folder, every, probe=x, measure=measure, wait=wait)
    recorder.report = report
    settings = {"lr": 0.05, "momentum": 0.9, "batch_size": 16, "test": (x, y)}
    try:
        train(model, nn.CrossEntropyLoss(), (x, y), epochs=epochs, recorder=recorder, **settings)
        recorder.close()
    finally:
        recorder.release()


class Counting:
    """Progress that reports how many points are done."""

    def __init__(self, report: Report) -> None:
        self.report, self.done = report, 0

    def start(self, label: str, total: int) -> None:
        pass

    def advance(self, handle: Any, count: int = 1) -> None:
        self.done += count
        self.report(self.done)

    def finish(self, handle: Any) -> None:
        pass


def spectrum(point):
    matrix = np.random.default_rng(point["seed"]).standard_normal((60, 60))
    return {"values": np.linalg.eigvalsh(matrix @ matrix.T), "matrix": matrix}


def sweep(folder: Path, report: Report, *, points: int = 25) -> None:
    hr.sweep(spectrum, {"seed": range(points)}, out=folder, progress=Counting(report))


def reproduce(folder: Path, report: Report) -> None:
    run("ribbons/fig4", preset="smoke", out=folder, progress=Counting(report))


def ticket(point):
    x = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()

    def fit(model):
        train(model, nn.CrossEntropyLoss(), (x, y), epochs=2, lr=0.1, batch_size=16)

    def accuracy(state):
        model = mlp((4, 6, 2))
        model.load_state_dict(state)
        return (model(x).argmax(1) == y).float().mean().item()

    found = hr.find_ticket(mlp((4, 6, 2), seed=point["seed"]), fit, accuracy, levels=2)
    levels = [[level.kept, level.ticket, *level.branches.values()] for level in found.levels]
    return {"levels": np.array(levels), "final": found.final}


def find_ticket(folder: Path, report: Report, *, tickets: int = 6) -> None:
    hr.sweep(ticket, {"seed": range(tickets)}, out=folder, progress=Counting(report))


def ensemble(folder: Path, report: Report, *, together: bool = False) -> None:
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
    settings = {"lr": 0.05, "momentum": 0.9, "batch_size": 16, "probe": x, "together": together}
    hr.train_ensemble(
        lambda seed: mlp((6, 8, 2), seed=seed),
        nn.CrossEntropyLoss(),
        (x, (x[:, 0] > 0).long()),
        seeds=[0, 1, 2],
        epochs=6,
        folder=folder,
        **settings,
    )


def compare(folder: Path, report: Report) -> None:
    x = torch.randn(48, 4, generator=torch.Generator().manual_seed(0))
    data, loss = (x, (x[:, 0] > 0).long()), nn.CrossEntropyLoss()
    first, second = mlp((4, 6, 2), seed=0), mlp((4, 6, 2), seed=1)
    settings = {"loss": loss, "data": data, "groups": 4, "k": 2, "console": Console(quiet=True)}
    found = hr.compare(first, second, **settings, folder=folder)
    (folder / "result.txt").write_text(repr((found.differences, found.shared, found.notes)))
    found.save(folder / "saved")


TASKS = {
    "compare": compare,
    "record": record,
    "sweep": sweep,
    "reproduce": reproduce,
    "find_ticket": find_ticket,
    "ensemble": ensemble,
    "ensemble/together": partial(ensemble, together=True),
    "record/short": partial(record, epochs=5, every="2it"),
    "record/wait": partial(record, epochs=5, every="2it", wait=True),
    "sweep/short": partial(sweep, points=8),
    "find_ticket/short": partial(find_ticket, tickets=3),
}
"""By name; the short ones have fewer moments to be killed at, and each costs less."""


def content(task: str, folder: Path) -> list[Any]:
    """Return all that a task's folder says, in a form that can be compared bit for bit."""
    task = task.partition("/")[0]
    if task != "record":
        kept = ("result.safetensors", "claims.json")
        files = sorted(folder.rglob("*"))
        if task == "compare":  # a saved comparison says when
            files = [f for f in files if "saved" not in f.parts]
        if task == "reproduce":
            files = [f for f in files if f.name in kept or f.parent.name == "figures"]
        return [
            (str(file.relative_to(folder)), hashlib.sha256(file.read_bytes()).hexdigest())
            for file in files
            if file.is_file() and not file.name.startswith(".")
        ]
    trajectory = Trajectory.open(folder)
    table = trajectory.metrics()
    records = []
    for record in trajectory:
        index = record.index
        weights = b"".join(t.numpy().tobytes() for t in trajectory.weights(index).values())
        predictions = trajectory.predictions(index).tobytes()
        row = table[["step", "epoch", *sorted(record.metrics)]].iloc[index].to_numpy().tobytes()
        records.append((record.step, hashlib.sha256(weights + predictions + row).hexdigest()))
    return records


def assert_reported_is_there(task: str, folder: Path, whole: list[Any], reported: int) -> None:
    """All that was reported as written is on disk, and as it would be without a kill."""
    task = task.partition("/")[0]
    if task == "record":
        found = content(task, folder)
        assert found == whole[: len(found)], "a record is wrong"
        assert reported <= (found[-1][0] if found else 0), "a record is lost"
    elif task in ("sweep", "find_ticket"):
        found = content(task, folder) if folder.exists() else []
        assert set(found) <= set(whole), "a result is wrong"
        assert reported <= len(found), "a result is lost"
