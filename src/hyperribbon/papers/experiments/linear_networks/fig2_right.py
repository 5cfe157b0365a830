"""Fig. 2 (c) of [linear_networks]: Tanh networks, without linearity."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from hyperribbon.operators import Hessian
from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.linear_networks import _sweeps, _training
from hyperribbon.papers.experiments.linear_networks._data import one_hot, read_moments, white_data
from hyperribbon.papers.simulation import HalvingSchedule
from hyperribbon.spectra import eigsh
from hyperribbon.theory import linear_networks as theory

TITLE = "Sharpness of trained Tanh networks against label imbalance"

_SETTING = (
    f"{_sweeps.SETTING}; Tanh networks from balanced starts, as App. C has it, while the caption "
    "says unbalanced; ten times the rate for a tenth of the epochs follows the same flow"
)
_QUOTE = (
    "while the results are slightly different from the theoretical predictions, they are "
    "qualitatively similar"
)
STATEMENTS = kit.at_scale(
    "5,000 images and a network of width 64",
    kit.says(
        "imbalance",
        "Sec. 5",
        _QUOTE,
        "For every set, sharpness rises from each share of the largest class to the next.",
        kit.Band.at_least(0.0, "words"),
        setting=_SETTING,
    ),
    kit.says(
        "near",
        "Sec. 5",
        _QUOTE,
        "Slightly different is within 25% of Eq. (14), for every set and share.",
        kit.Band(0.75, 1.25, "words"),
        setting=_SETTING,
    ),
)

Config, Result = _sweeps.SweepConfig, _sweeps.SweepResult

# Ten times the paper's rate for a tenth of its epochs follows the same gradient flow: rate times
# sharpness stays below 0.4.
PRESETS = _training.presets(
    Config(shares=(0.1, 0.5, 0.9), lr=0.1, epochs=1000),
    smoke={"shares": (0.1, 0.5), "width": 16, "epochs": 300},
    paper={"shares": _sweeps.SHARES, "lr": 0.01, "epochs": 10_000},
)
PRESETS_WITH_DATA = _training.with_data(PRESETS)

_PAPER_LR = 0.01


def compute(config: _sweeps.SweepConfig, context: kit.Context) -> _sweeps.SweepResult:
    """Train Tanh networks from balanced starts on white inputs for every share (Fig. 2 (c))."""
    return _sweeps.run_sweep(config, context, train)


def train(item: kit.Item) -> dict[str, Any]:
    """Train one Tanh network on the samples and take its sharpness (Fig. 2 (c))."""
    _, facts = read_moments(item)
    data, white, _ = white_data(item)
    X = torch.from_numpy(np.ascontiguousarray(white.T, dtype=np.float32))
    Y = torch.from_numpy(np.ascontiguousarray(one_hot(data).T, dtype=np.float32))
    model = _tanh_network(_training.start_weights(item, Y.shape[1], X.shape[1]))
    start = _sharpness(model, X, Y)
    loss = _descend(model, X, Y, item)
    trained = _sharpness(model, X, Y)
    weights = [parameter.detach().double().numpy() for parameter in model.parameters()]
    return {
        "trained": trained,
        "peak": max(start, trained),
        "loss": loss,
        "defect": theory.balance_defect(weights),
        "epochs": np.array([0, item["epochs"]]),
        "history": np.array([start, trained]),
        "rate": item["lr"],
        **(found := _sweeps.predictions(facts, item["depth"])),
        "exact": found["general"],
    }


def _tanh_network(start: list[np.ndarray]) -> nn.Sequential:
    modules: list[nn.Module] = []
    for weight in start:
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(weight))
        modules += [layer, nn.Tanh()]
    return nn.Sequential(*modules[:-1])


def _descend(model: nn.Module, X: torch.Tensor, Y: torch.Tensor, item: kit.Item) -> float:
    """Run full-batch gradient descent on (1/2n)‖f(X) − Y‖²; return the loss at the end (Fig. 2)."""
    optimizer = torch.optim.SGD(model.parameters(), lr=item["lr"])
    schedule = HalvingSchedule(window=max(1, round(100 * _PAPER_LR / item["lr"])))
    losses, since = [], 0
    for epoch in range(item["epochs"] + 1):
        loss = (model(X) - Y).square().sum() / (2 * len(X))
        losses.append(loss.item())
        if epoch == item["epochs"]:
            break
        if schedule.is_stalled(losses, epoch, since):
            optimizer.param_groups[0]["lr"] /= 2
            since = epoch
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses[-1]


def _sharpness(model: nn.Module, X: torch.Tensor, Y: torch.Tensor) -> float:
    hessian = Hessian(model, nn.MSELoss(reduction="sum"), (X, Y))
    top = eigsh(hessian, 1, tol=1e-3, method="lanczos", eigenvectors=False).eigenvalues[0]
    return float(top) / (2 * len(X))


def plot(result: _sweeps.SweepResult) -> kit.Figure:
    """Draw trained sharpness beside the prediction for linear networks (Fig. 2 (c))."""
    return _sweeps.plot_sweep(result, "trained, Tanh")


def measure(result: _sweeps.SweepResult) -> kit.Measurements:
    """Measure whether the trend survives the nonlinearity, and how near the prediction is."""
    ratio = result.trained[..., 0] / result.printed
    return {
        "imbalance": _sweeps.measure_rise(result.trained),
        "near": kit.over_seeds(
            [ratio.flat[np.abs(ratio - 1).argmax()]],
            f"farthest of the ratios to Eq. (14), {ratio.min():.2f} to {ratio.max():.2f}",
        ),
    }
