"""Training a deep linear network from the moments of the data, against training on the samples."""

from __future__ import annotations

import time

import numpy as np
import torch

from benchmarks.harness import Limit, Measure
from hyperribbon.core.data import load_data, whiten
from hyperribbon.papers.simulation import HalvingSchedule, draw_linear_weights, train_linear
from hyperribbon.theory.linear_networks.moments import Moments

_WIDTHS = (64, 64, 64, 10)
_LR = 0.01


def _samples() -> tuple[np.ndarray, np.ndarray]:
    data = load_data("mnist5k", "all").flat()
    white = whiten(data.inputs.double().numpy().T)
    return white.inputs, np.eye(10)[data.targets.numpy()].T


def _descend_on_samples(
    weights: list[np.ndarray], X: np.ndarray, Y: np.ndarray, epochs: int
) -> list[np.ndarray]:
    """The same gradient descent with explicit gradients on all samples, in double precision."""
    layers = [torch.tensor(weight) for weight in weights]
    inputs, targets = torch.from_numpy(X), torch.from_numpy(Y)
    schedule, lr, since = HalvingSchedule(), _LR, 0
    losses = np.empty(epochs)
    for epoch in range(epochs):
        hidden = [inputs]
        for layer in layers:
            hidden.append(layer @ hidden[-1])
        error = (hidden.pop() - targets) / X.shape[1]
        losses[epoch] = float(error.square().sum()) * X.shape[1] / 2
        if schedule.is_stalled(losses, epoch, since):
            lr, since = lr / 2, epoch
        for index in range(len(layers) - 1, -1, -1):
            gradient = error @ hidden[index].T
            if index:
                error = layers[index].T @ error
            layers[index] -= lr * gradient
    return [layer.numpy() for layer in layers]


def _compare(start: str, epochs: int) -> list[Limit]:
    X, Y = _samples()
    weights = draw_linear_weights((len(X), *_WIDTHS), start, generator=np.random.default_rng(0))
    began = time.perf_counter()
    run = train_linear(weights, Moments.of(X, Y), lr=_LR, epochs=epochs, schedule=HalvingSchedule())
    ours = time.perf_counter() - began
    began = time.perf_counter()
    expected = _descend_on_samples(weights, X, Y, epochs)
    theirs = time.perf_counter() - began
    apart = max(np.abs(a - b).max() for a, b in zip(run.weights, expected, strict=True))
    return [
        Limit(f"moments and {epochs:,} epochs", ours, unit="s"),
        Limit(f"{epochs:,} epochs on 5,000 samples", theirs, unit="s"),
        Limit("times faster", theirs / ours, low=50),
        Limit("largest difference of a weight", apart, high=1e-8),
    ]


def _balanced() -> list[Limit]:
    return _compare("balanced", 10_000)


def _kaiming() -> list[Limit]:
    return _compare("kaiming_uniform", 1000)


ROWS = [
    Measure("four layers of width 64, balanced start", _balanced),
    Measure("four layers of width 64, Kaiming start", _kaiming),
]
