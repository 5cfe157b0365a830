"""Thirteen kinds of data with the same samples, and every public function that takes data."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    TensorDataset,
)

import hyperribbon as hr

N = 8  # which inspect looks at together, first
X = torch.randn(N, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.arange(N) % 3
LOSS = nn.CrossEntropyLoss()
QUIET = Console(quiet=True)
BATCHES = [(X[i : i + 4], Y[i : i + 4]) for i in range(0, N, 4)]


class Model(nn.Module):
    """Six numbers to three scores; in two halves, or by name, too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, more: torch.Tensor | None = None) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x if more is None else torch.cat([x, more], 1))))


class Linear(nn.Module):
    """The same without an activation, for what is a theory of linear networks."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 4, bias=False), nn.Linear(4, 3, bias=False)

    def forward(self, x: torch.Tensor, more: torch.Tensor | None = None) -> torch.Tensor:
        return self.last(self.first(x if more is None else torch.cat([x, more], 1)))


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(zip(X, Y, strict=True))


class Sequence:
    """A length and an index, and nothing else."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        return X[index], Y[index]


class Named(Dataset):
    """Samples as dicts."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        return {"x": X[index], "labels": Y[index]}


def shuffled() -> DataLoader:
    return DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True)


def batch_sampler() -> DataLoader:
    data = TensorDataset(X, Y)
    return DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 4, False))


KINDS: dict[str, Callable[[], Any]] = {
    "pair of tensors": lambda: (X, Y),
    "pair of arrays": lambda: (X.numpy(), Y.numpy()),
    "several inputs": lambda: ((X[:, :2], X[:, 2:]), Y),
    "dict of tensors": lambda: {"x": X, "labels": Y},
    "list of batches": lambda: list(BATCHES),
    "generator of batches": lambda: (batch for batch in BATCHES),
    "list of dict batches": lambda: [{"x": x, "labels": y} for x, y in BATCHES],
    "Dataset": lambda: TensorDataset(X, Y),
    "length and index": Sequence,
    "DataLoader": shuffled,
    "DataLoader, batch sampler": batch_sampler,
    "DataLoader of dicts": lambda: DataLoader(Named(), batch_size=4),
    "IterableDataset": Stream,
}


def model(kind: type[nn.Module] = Model) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return kind().double()


def state() -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model().state_dict().items()}


def halved() -> dict[str, torch.Tensor]:
    return {name: 0.5 * tensor for name, tensor in state().items()}


def inspected(data: Any) -> float:
    found = hr.inspect(model(), LOSS, data, k=1, budget=0.5, console=QUIET)
    return float(found.statistics[f"loss@{N}"].value)


def compared(data: Any) -> float:
    options = {"loss": LOSS, "data": data, "parts": [], "console": QUIET, "groups": 4}
    return float(hr.compare(model(), model(), **options).differences[0].a)


def trained(data: Any) -> float:
    network = model()
    hr.train(network, LOSS, data, epochs=1, lr=0.1, batch_size=None)
    return network.last.weight.sum().item()


def recorded(data: Any) -> float:
    network = model()
    with tempfile.TemporaryDirectory() as folder:
        how = {
            "measure": "sharpness",
            "loss": LOSS,
            "data": data,
            "wait": True,
            "max_overhead": math.inf,
        }
        recorder = hr.Recorder(Path(folder) / "run", every="1it", **how)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        with recorder:
            recorder.attach(network, optimizer, total="1it")
            recorder.step(0.0)
        return float(hr.Trajectory.open(Path(folder) / "run").metric("sharpness")[0])


def ensemble(data: Any, **options: Any) -> float:
    make = lambda seed: model()  # noqa: E731
    found = hr.train_ensemble(
        make, LOSS, data, seeds=[0], epochs=1, lr=0.1, batch_size=None, **options
    )
    return float(sum(t.double().abs().sum() for t in found.members[0].result.final.values()))


FUNCTIONS: dict[str, Callable[[Any], float]] = {
    "Risk": lambda data: hr.Risk(model(), LOSS, data).value(),
    "Hessian": lambda data: float(hr.Hessian(model(), LOSS, data).to_dense().trace()),
    "GGN": lambda data: hr.GGN(model(), LOSS, data).trace(),
    "GradientCovariance": lambda data: hr.GradientCovariance(model(), LOSS, data).trace(),
    "Fisher": lambda data: hr.Fisher(model(), data).trace(),
    "NTK": lambda data: hr.NTK(model(), data).trace(),
    "Jacobian": lambda data: float(hr.Jacobian(model(), data).to_dense().square().sum()),
    "inspect": inspected,
    "compare": compared,
    "compare_with_theory": lambda data: float(
        hr.compare_with_theory(model(Linear), LOSS, data, k=1).measured.sharpness
    ),
    "train": trained,
    "train_ensemble": ensemble,
    "Recorder(data=)": recorded,
    "recording.evaluate": lambda data: hr.recording.evaluate(model(), LOSS, data)["loss"],
    "recording.predict": lambda data: float(hr.recording.predict(model(), data).sum()),
    "subnetworks.evaluate_states": lambda data: float(
        hr.subnetworks.evaluate_states(model(), [state()], data).double().sum()
    ),
    "subnetworks.metric_of": lambda data: float(
        hr.subnetworks.metric_of(model(), data)(state()).double().sum()
    ),
    "subnetworks.sweep_selection": lambda data: float(
        hr.subnetworks.sweep_selection(
            model(), state(), halved(), data, fractions=[0.0, 0.5]
        ).values[1]
    ),
    "subnetworks.gradient_saliency": lambda data: float(
        sum(s.sum() for s in hr.subnetworks.gradient_saliency(model(), LOSS, data).values())
    ),
    "subnetworks.fisher_saliency": lambda data: float(
        sum(s.sum() for s in hr.subnetworks.fisher_saliency(model(), LOSS, data).values())
    ),
    "noise.measure_noise": lambda data: float(
        hr.noise.measure_noise(model(), LOSS, data, k=2).scale
    ),
}
