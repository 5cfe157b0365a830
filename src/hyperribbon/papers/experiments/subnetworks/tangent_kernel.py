"""Eqs. (4.16)–(4.20) of [subnetworks]: the tangent kernel by width, and the linear dynamics."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import nn

from hyperribbon.core import derive_seed, torch_generator
from hyperribbon.operators import NTK
from hyperribbon.papers.experiments import kit

TITLE = "The tangent kernel and the linear dynamics, by width"

_SETTING = (
    "one hidden layer of tanh units in the parameterisation f = a·φ(Wx/√d)/√m with standard normal "
    "weights, for which the limit exists (Sec. 4.2); full-batch gradient descent on ½‖f − y‖²"
)

STATEMENTS = (
    kit.says(
        "dynamics",
        "Eq. (4.16)",
        "By substitution, this becomes",
        "Over one small step the outputs change by −ηK(f − y)/n within 0.01 of the change.",
        kit.Band.at_most(0.01, "closed form"),
        setting=_SETTING,
    ),
    kit.says(
        "deterministic",
        "Sec. 4.2",
        "The NTK depends only on the network architecture and is independent of the initialization "
        "values.",
        "The relative distance of the kernels of two starts falls with the width m as a power of "
        "−0.3 or below (−½ is expected).",
        kit.Band.at_most(-0.3, "words"),
        setting=_SETTING,
    ),
    kit.says(
        "constant",
        "Sec. 4.2",
        "The NTK remains unchanged throughout training.",
        "The relative change of the kernel in training falls with the width as a power of −0.3 or "
        "below.",
        kit.Band.at_most(-0.3, "words"),
        setting=_SETTING,
    ),
    kit.says(
        "linear",
        "Eqs. (4.19), (4.20)",
        "In practice, for sufficiently wide neural networks, the NTK becomes a more precise "
        "predictor of the training dynamics.",
        "The distance between trained outputs and those of Eq. (4.20) with the kernel of the start "
        "falls with the width as a power of −0.3 or below.",
        kit.Band.at_most(-0.3, "words"),
        setting=_SETTING,
    ),
)


class Config(kit.Frozen):
    """Setting of the experiment."""

    widths: tuple[int, ...] = (32, 128, 512, 2048)  # m
    inputs: int = 10  # d
    samples: int = 20  # training samples
    updates: int = 300  # of full-batch descent with half of the largest stable step
    starts: int = 5  # networks of each width
    seeds: int = 3  # data sets


PRESETS = kit.presets(
    Config(),
    smoke=Config(widths=(16, 128), inputs=4, samples=8, updates=60, starts=2, seeds=2),
    paper=Config(widths=(32, 128, 512, 2048, 8192), samples=50, updates=2000, starts=10, seeds=5),
)


class Result(kit.Frozen):
    """Kernels and outputs by width."""

    widths: np.ndarray  # (m,)
    spread: np.ndarray  # (seeds, m), mean relative distance of the kernels of two starts
    change: np.ndarray  # (seeds, m), mean relative change in training
    error: np.ndarray  # (seeds, m), mean relative distance from the linear dynamics
    first: np.ndarray  # (seeds, m), relative error of Eq. (4.16) over one small step


class _Wide(nn.Module):
    """f = a·φ(Wx/√d)/√m with standard normal weights, a wide network for the tangent kernel."""

    def __init__(self, inputs: int, width: int, seed: int) -> None:
        super().__init__()
        generator = torch_generator(seed, "weights")
        draw = {"generator": generator, "dtype": torch.float64}
        self.inner = nn.Parameter(torch.randn(width, inputs, **draw, device="cpu"))
        self.outer = nn.Parameter(torch.randn(1, width, **draw, device="cpu"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(x @ self.inner.T / x.shape[1] ** 0.5)
        return hidden @ self.outer.T / self.outer.shape[1] ** 0.5


def compute(config: Config, context: kit.Context) -> Result:
    """Train networks of every width and take their tangent kernels, on every data set."""
    seeds = [derive_seed(context.seed, "data", number) for number in range(config.seeds)]
    items = [
        {**vars(config), "seed": seed, "width": width} for seed in seeds for width in config.widths
    ]
    measured = context.map(_width, items, "tangent kernels")
    table = np.array(measured).reshape(config.seeds, len(config.widths), 4)
    names = ("spread", "change", "error", "first")
    values = {name: table[..., column] for column, name in enumerate(names)}
    return Result(widths=np.array(config.widths), **values)


def _width(item: kit.Item) -> np.ndarray:
    generator = torch_generator(item["seed"], "data")
    draw = {"generator": generator, "dtype": torch.float64}
    inputs = torch.randn(item["samples"], item["inputs"], **draw, device="cpu")
    targets = torch.sin(inputs.sum(1, keepdim=True))
    kernels, rows = [], []
    for start in range(item["starts"]):
        network = _Wide(item["inputs"], item["width"], derive_seed(item["seed"], "start", start))
        kernel = NTK(network, inputs).to_dense()
        kernels.append(kernel)
        rows.append(_train(network, kernel, inputs, targets, item["updates"]))
    pairs = [_distance(a, b) for a, b in combinations(kernels, 2)]
    return np.array([np.mean(pairs), *np.mean(rows, axis=0)])


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


def _train(
    network: nn.Module,
    kernel: torch.Tensor,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    updates: int,
) -> tuple[float, float, float]:
    """Descend; return change of the tangent kernel, distance from the line, error of one step."""
    count = len(inputs)
    step = count / float(torch.linalg.eigvalsh(kernel)[-1])
    with torch.no_grad():
        before = network(inputs)

    def descend(step: float) -> None:
        loss = (network(inputs) - targets).square().sum() / (2 * count)
        slopes = torch.autograd.grad(loss, list(network.parameters()))
        with torch.no_grad():
            for parameter, slope in zip(network.parameters(), slopes, strict=True):
                parameter -= step * slope

    small = 1e-4 * step
    descend(small)
    with torch.no_grad():
        moved = (network(inputs) - before) / small
    first = _distance(moved, -kernel @ (before - targets) / count)
    linear = before - small * kernel @ (before - targets) / count
    for _ in range(updates):
        descend(step)
        linear = linear - step * kernel @ (linear - targets) / count
    with torch.no_grad():
        after = network(inputs)
    away = float((after - linear).norm() / (before - targets).norm())
    return _distance(NTK(network, inputs).to_dense(), kernel), away, first


def plot(result: Result) -> kit.Figure:
    """Draw the tangent kernel's three distances by width."""
    figure, axis = kit.new_figure()
    for color, values, label in (
        (kit.COLORS[0], result.spread, "between two starts"),
        (kit.COLORS[1], result.change, "change in training"),
        (kit.COLORS[2], result.error, "outputs from Eq. (4.20)"),
    ):
        for row in values:
            axis.loglog(result.widths, row, "o-", ms=3, lw=0.8, color=color, label=label)
            label = None
    line = result.spread.mean(0)[0] * (result.widths / result.widths[0]) ** -0.5
    axis.loglog(result.widths, line, "k:", label=r"$m^{-1/2}$")
    axis.set(xlabel="width $m$", ylabel="relative distance")
    axis.legend(fontsize=7)
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure the tangent kernel's powers of the width, and the error of its dynamics."""
    logs = np.log(result.widths)

    def powers(values: np.ndarray, what: str) -> Any:
        slopes = [np.polyfit(logs, np.log(row), 1)[0] for row in values]
        ends = values.mean(0)
        why = f"power of the width; {what} {ends[0]:.2g} at {result.widths[0]}, {ends[-1]:.2g} at"
        return kit.over_seeds(slopes, f"{why} {result.widths[-1]}")

    return {
        "dynamics": kit.over_seeds(result.first.max(1), "largest relative error over the widths"),
        "deterministic": powers(result.spread, "distance"),
        "constant": powers(result.change, "change"),
        "linear": powers(result.error, "distance"),
    }
