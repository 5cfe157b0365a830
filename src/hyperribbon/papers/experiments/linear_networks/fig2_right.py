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

TITLE = "Sharpness of trained Tanh networks against label imbalance"

_SETTING = (
    "Fig. 1 (c)'s setting with Tanh networks, 1,000 images of each set, and 20 times the rate for "
    "a twentieth of the epochs, which follows the same flow"
)
_BALANCED = f"{_SETTING}; balanced starts, as App. C has it"
_UNBALANCED = f"{_SETTING}; Kaiming uniform starts, as the caption has it: unbalanced"
_QUOTE = (
    "while the results are slightly different from the theoretical predictions, they are "
    "qualitatively similar"
)
STATEMENTS = kit.at_scale(
    "1,000 images and a network of width 64",
    *(
        statement
        for end, setting in (("", _BALANCED), ("-unbalanced", _UNBALANCED))
        for statement in (
            kit.says(
                f"imbalance{end}",
                "Sec. 5",
                _QUOTE,
                "For every set, sharpness rises from each share of the largest class to the next.",
                kit.Band.at_least(0.0, "words"),
                setting=setting,
            ),
            kit.says(
                f"near{end}",
                "Sec. 5",
                _QUOTE,
                "Slightly different is within 25% of Eq. (14), for every set and share.",
                kit.Band(0.75, 1.25, "words"),
                setting=setting,
            ),
        )
    ),
)

_STARTS = (("balanced", 0.5), ("kaiming_uniform", 0.0))


class Config(_sweeps.SweepConfig):
    """Setting of Fig. 2 (c) of [linear_networks]; both starts are trained."""

    shares: tuple[float, ...] = (0.1, 0.5, 0.9)
    samples: int = 1000
    lr: float = 0.2
    epochs: int = 500


# Twenty times the paper's rate for a twentieth of its epochs follows the same gradient flow.
PRESETS = _training.presets(
    Config(),
    smoke={"shares": (0.1, 0.5), "width": 16, "epochs": 150},
    paper={"shares": _sweeps.SHARES, "samples": 5000, "lr": 0.01, "epochs": 10_000},
)
PRESETS_WITH_DATA = _training.with_data(PRESETS)

_PAPER_LR = 0.01


class Result(kit.Frozen):
    """Trained sharpness from both starts, and its predictions (Fig. 2 (c))."""

    depth: int  # number of layers
    classes: int  # number of classes
    data: list[str]  # names of the data sets, m
    shares: np.ndarray  # (m, s), share of the largest class as sampled
    samples: np.ndarray  # (m, s), images used
    inputs: np.ndarray  # (m, s), pixels of an image
    general: np.ndarray  # (m, s), Eq. (13) in its general form, through Eq. (9)
    printed: np.ndarray  # (m, s), Eq. (14)
    trained: np.ndarray  # (m, s, 2), sharpness at the end, from balanced and Kaiming starts
    loss: np.ndarray  # (m, s, 2), loss at the end


def compute(config: Config, context: kit.Context) -> Result:
    """Train Tanh networks from both starts on white inputs for every share (Fig. 2 right)."""
    items = _training.training_items(config, context)
    runs = context.map(_train, items, "training")
    columns = kit.stack(runs, shape=(len(config.data), len(config.shares)))
    names = ("shares", "samples", "inputs", "general", "printed", "trained", "loss")
    return Result(
        depth=config.depth,
        classes=runs[0]["classes"],
        data=list(config.data),
        **{name: columns[name] for name in names},
    )


def _train(item: kit.Item) -> dict[str, Any]:
    """Train on one sub-sample from both starts (Fig. 2 right of [linear_networks])."""
    _, facts = read_moments(item)
    data, white = white_data(item)
    X = torch.from_numpy(np.ascontiguousarray(white.T, dtype=np.float32))
    Y = torch.from_numpy(np.ascontiguousarray(one_hot(data).T, dtype=np.float32))
    found = [train(X, Y, {**item, "start": name, "scale": scale}) for name, scale in _STARTS]
    return {**_sweeps.predictions(facts, item["depth"]), **kit.stack(found)}


def train(X: torch.Tensor, Y: torch.Tensor, item: kit.Item) -> dict[str, float]:
    """Train one Tanh network on samples and take its loss and sharpness (Fig. 2 right)."""
    model = _tanh_network(_training.start_weights(item, Y.shape[1], X.shape[1]))
    loss = _descend(model, X, Y, item)
    return {"trained": _sharpness(model, X, Y), "loss": loss}


def _tanh_network(start: list[np.ndarray]) -> nn.Sequential:
    modules: list[nn.Module] = []
    for weight in start:
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(weight))
        modules += [layer, nn.Tanh()]
    return nn.Sequential(*modules[:-1])


def _descend(model: nn.Module, X: torch.Tensor, Y: torch.Tensor, item: kit.Item) -> float:
    """Run Fig. 2 right's full-batch descent on (1/2n)‖f(X) − Y‖²; return the loss at the end."""
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


def plot(result: Result) -> kit.Figure:
    """Draw trained sharpness from both starts beside the prediction (Fig. 2 right)."""
    figure, axes = _training.panels(result.data, result.samples, sharey=True)
    _sweeps.draw_theory(result, axes)
    _sweeps.draw_trained(result, axes, result.trained[..., :1], "Tanh, balanced start")
    look = {"color": kit.COLORS[3], "marker": "s"}
    _sweeps.draw_trained(result, axes, result.trained[..., 1:], "Tanh, Kaiming start", **look)
    _sweeps.add_legend(figure, axes)
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure whether Tanh networks show the trend, and the prediction's error (Fig. 2 right)."""
    measured = {}
    for start, end in enumerate(("", "-unbalanced")):
        trained = result.trained[..., start]
        ratio = trained / result.printed
        measured[f"imbalance{end}"] = _sweeps.measure_rise(trained[..., None])
        measured[f"near{end}"] = kit.over_seeds(
            [ratio.flat[np.abs(ratio - 1).argmax()]],
            f"farthest of the ratios to Eq. (14), {ratio.min():.2f} to {ratio.max():.2f}",
        )
    return measured
