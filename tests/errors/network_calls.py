"""Good calls of what takes models, data, operators, records and charts."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import hyperribbon as hr
from errors.calling import Call
from hyperribbon import noise, operators, plots, spectra
from hyperribbon.papers import training

_generator = torch.Generator().manual_seed(0)
INPUTS = torch.randn(10, 3, generator=_generator)
LABELS = torch.arange(10) % 2
DATA = (INPUTS, LABELS)
NUMBERS = (INPUTS, INPUTS[:, :1])
LOSS = nn.CrossEntropyLoss()
MATRIX = torch.diag(torch.tensor([4.0, 3.0, 2.0, 1.0, 0.5, 0.1]))
SERIES = np.random.default_rng(0).standard_normal((60, 3)) * np.array([2.0, 1.0, 0.5])
PATHS = [
    np.full((4, 5, 2), 0.5) + 0.02 * np.arange(4)[:, None, None] * np.array([s, -s]) for s in (1, 2)
]
HALF = np.full((5, 2), 0.5)
SURE = np.tile([0.9, 0.1], (5, 1))


def model() -> nn.Module:
    """Return a new small classifier."""
    return training.mlp((3, 4, 2), "tanh")


class Gap:
    """An operator that is only a shape and a product."""

    shape = MATRIX.shape

    def __matmul__(self, block: Any) -> Any:
        return MATRIX.double().numpy() @ np.asarray(block)


@cache
def ribbon() -> Path:
    """Return the folder of a short recorded run."""
    folder = Path(tempfile.mkdtemp(prefix="bad-inputs-"))
    recorder = hr.Recorder(folder, "1it", probe=INPUTS)
    hr.train(model(), LOSS, DATA, epochs=6, lr=0.1, batch_size=4, recorder=recorder)
    return folder


def _operators() -> Iterator[Call]:
    risk = {
        "model": model(),
        "loss": LOSS,
        "data": DATA,
        "params": "*",
        "mask": None,
        "forward": None,
        "memory": 1e9,
        "process_group": None,
    }
    yield Call(hr.Risk, risk)
    for kind in (hr.Hessian, hr.GGN):
        yield Call(kind, risk)
    yield Call(
        hr.GradientCovariance, {**risk, "centered": True, "batch_size": 4, "replacement": True}
    )
    yield Call(
        hr.Fisher,
        {
            "model": model(),
            "data": INPUTS,
            "likelihood": "categorical",
            "estimator": "mc",
            "outputs": "model",
            "samples": 1,
            "seed": 0,
        },
    )
    yield Call(_student, {"scale": 1.0, "df": 4.0, "likelihood": "student"})
    yield Call(_student, {"variance": 1.0, "likelihood": "gaussian"}, "Fisher of a Gaussian")
    for kind in (hr.Jacobian, hr.NTK):
        yield Call(kind, {"model": model(), "inputs": INPUTS, "params": "*"})
    yield Call(_times, {"vector": torch.ones(26)})
    yield Call(_at, {"weights": torch.ones(26)})
    yield Call(
        operators.Projected,
        {"operator": hr.GGN(model(), LOSS, DATA), "basis": torch.eye(26)[:, :3]},
    )
    yield Call(
        operators.Restricted,
        {"operator": hr.GGN(model(), LOSS, DATA), "indices": torch.tensor([0, 2, 5])},
    )


def _student(**options: Any) -> Any:
    return hr.Fisher(training.mlp((3, 1)), INPUTS, **options)


def _times(vector: Any) -> Any:
    return hr.GGN(model(), LOSS, DATA) @ vector


def _at(weights: Any) -> Any:
    return hr.GGN(model(), LOSS, DATA).at(weights)


def _spectra() -> Iterator[Call]:
    yield Call(
        hr.eigsh,
        {
            "op": MATRIX,
            "k": 2,
            "which": "LA",
            "tol": 1e-4,
            "method": "lanczos",
            "seed": 0,
            "v0": torch.ones(6),
            "max_matvecs": 100,
            "max_seconds": 10.0,
            "eigenvectors": True,
            "basis": 5,
            "storage": "memory",
            "memory": 1e9,
            "should_stop": lambda: False,
        },
    )
    sampled = {"op": Gap(), "precision": 0.1, "seed": 0, "max_matvecs": 40, "memory": 1e9}
    yield Call(hr.trace, sampled | {"should_stop": lambda: False})
    yield Call(hr.frobenius, sampled)
    yield Call(hr.diagonal, {"op": Gap(), "matvecs": 40, "seed": 0})
    yield Call(
        hr.density,
        {
            "op": MATRIX,
            "probes": 3,
            "steps": 5,
            "width": 0.2,
            "points": 128,
            "seed": 0,
            "memory": 1e9,
            "should_stop": lambda: False,
        },
    )
    batches = {"batch_size": 4, "batches": 2, "mode": "eval", "params": None, "forward": None}
    batches |= {"model": model(), "loss": LOSS, "data": DATA, "tol": 1e-3, "memory": 1e9, "seed": 0}
    yield Call(hr.batch_sharpness, batches)
    blocks = {"op": hr.Hessian(model(), LOSS, DATA), "k": 1, "tol": 1e-3}
    yield Call(hr.layer_curvature, blocks | {"precision": 0.01, "seed": 0})
    yield Call(hr.plan, {"op": MATRIX, "k": 2, "memory": 1e9, "eigenvectors": True, "tol": 1e-4})
    yield Call(
        hr.predict_manifold,
        {
            "model": nn.Linear(3, 1),
            "loss": nn.MSELoss(),
            "data": NUMBERS,
            "steps": 3,
            "lr": 0.01,
            "initializations": 4,
            "seed": 0,
        },
    )
    yield Call(
        hr.predict_sharpness,
        {
            "model": nn.Linear(3, 1),
            "loss": nn.MSELoss(),
            "data": NUMBERS,
            "optimizer": 0.01,
            "steps": 3,
            "memory": 1e9,
            "seed": 0,
        },
    )
    yield Call(hr.summarize, {"eigenvalues": torch.tensor([3.0, 2.0, 1.0]), "trace": 7.0})
    yield Call(hr.alignment, {"U": torch.eye(4)[:, :2], "V": torch.eye(4)[:, 1:3]})
    yield Call(spectra.effective_rank, {"weights": torch.ones(4)})
    yield Call(
        hr.track,
        {
            "operators": [MATRIX, 2 * MATRIX],
            "k": 2,
            "weights": None,
            "which": "LA",
            "tol": 1e-4,
            "seed": 0,
            "eigenvectors": True,
        },
    )
    yield Call(hr.Tracker, {"k": 2, "make": None, "which": "LA", "tol": 1e-4, "seed": 0})


def _noise() -> Iterator[Call]:
    C = hr.GradientCovariance(model(), LOSS, DATA)
    H = hr.Hessian(model(), LOSS, DATA)
    flat = {"k": 3, "start": 0, "window": 20}
    yield Call(noise.autocorrelation_time, {"series": SERIES})
    yield Call(noise.stationarity, {"projections": SERIES})
    yield Call(
        hr.weight_covariance,
        {"trajectory": SERIES, **flat, "params": None, "basis": np.eye(3), "memory": 1e8},
    )
    yield Call(
        hr.variance_flatness,
        {
            "trajectory": SERIES,
            "curvature": np.diag([4.0, 1.0, 0.25]),
            "k": 3,
            "start": 0,
            "params": None,
            "window": 30,
            "loss": None,
            "confidence": 0.9,
            "warn": False,
            "strict": False,
        },
    )
    net = model()
    yield Call(
        hr.fluctuations,
        {
            "model": net,
            "loss": LOSS,
            "data": [DATA, DATA],
            "optimizer": torch.optim.SGD(net.parameters(), lr=0.01),
            "steps": 12,
            "layers": "*",
            "along": "covariance",
            "k": 3,
            "samples": 4,
            "mode": "eval",
            "trajectory": None,
            "folder": None,
            "memory": 1e8,
            "seed": 0,
        },
    )
    pair = {"H": np.diag([3.0, 2.0]), "C": np.eye(2)}
    yield Call(noise.detailed_balance_defect, pair)
    yield Call(noise.proportionality, pair)
    yield Call(
        hr.stationary_covariance,
        {"H": H, "C": C, "lr": 0.1, "time": "continuous", "k": 3, "seed": 0},
    )
    yield Call(noise.noise_scale, {"C": C})
    yield Call(noise.compare_noise, {"H": H, "C": C, "k": 3, "seed": 0})
    yield Call(
        noise.measure_noise,
        {
            "model": model(),
            "loss": LOSS,
            "data": DATA,
            "k": 3,
            "curvature": "hessian",
            "params": "*",
            "mask": None,
            "seed": 0,
        },
    )
    yield Call(
        noise.linearize,
        {
            "model": training.mlp((3, 2, 1)),
            "data": NUMBERS,
            "loss": "half_squares",
            "params": "*",
            "mask": None,
        },
    )
    predicted = hr.stationary_covariance(H, C, 0.1, k=3)
    yield Call(
        noise.compare_covariance, {"trajectory": ribbon(), "predicted": predicted, "start": 0}
    )


def _plots() -> Iterator[Call]:
    x = np.array([1.0, 2.0, 3.0])
    curve = {
        "x": x,
        "y": x,
        "label": "a",
        "style": "line",
        "dashed": False,
        "low": x - 1,
        "high": x + 1,
        "color": 0,
    }
    yield Call(_drawn, curve, "plots.Curve", {"kind": plots.Curve})
    yield Call(
        _drawn,
        {
            "names": ("a", "b"),
            "values": np.ones(2),
            "errors": np.ones(2),
            "label": "a",
            "colors": (0, 1),
        },
        "plots.Bars",
        {"kind": plots.Bars},
    )
    yield Call(_drawn, {"at": 1.0, "label": "a", "axis": "y"}, "plots.Level", {"kind": plots.Level})
    yield Call(
        _drawn,
        {
            "points": np.ones((3, 3)),
            "label": "a",
            "values": x,
            "value_label": "v",
            "notes": ("a", "b", "c"),
        },
        "plots.Path",
        {"kind": plots.Path},
    )
    yield Call(
        _drawn,
        {"x": x, "y": x, "z": np.ones((3, 3)), "label": "a"},
        "plots.Surface",
        {"kind": plots.Surface},
    )
    for function in (plots.draw, plots.draw_interactive):
        yield Call(function, {"chart": _chart(plots.Curve(x, x))})
    yield Call(plots.new_figure, {"rows": 1, "columns": 2, "width": "column", "ratio": 0.75})


def _chart(mark: Any) -> Any:
    return plots.Chart("a", "A", "x", "y", (mark,))


def _drawn(kind: Any, **options: Any) -> Any:
    import matplotlib.pyplot as plt

    plots.draw_interactive(_chart(kind(**options)))
    plt.close(plots.draw(_chart(kind(**options))))


def network_calls() -> Iterator[Call]:
    """Return the calls, room by room."""
    for room in (_operators, _spectra, _noise, _plots):
        yield from room()
