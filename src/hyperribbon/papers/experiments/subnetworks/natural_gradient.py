"""Eq. (4.6) of [subnetworks]: natural gradient descent on ill-conditioned problems."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from hyperribbon.core import derive_seed, torch_generator
from hyperribbon.operators import Fisher, Hessian
from hyperribbon.papers.experiments import kit

TITLE = "Natural gradient descent on ill-conditioned problems"

_EXCESS = 1e-6

STATEMENTS = (
    kit.says(
        "faster",
        "Eq. (4.6)",
        "This often improves optimization stability and can lead to faster convergence in certain "
        "problems.",
        "On the worst-conditioned problem natural gradient descent with η = 1 needs at most 0.1 of "
        "the updates of gradient descent with the step 2/(λ₁ + λₙ) of the minimum, the best "
        "constant one near it (our margin).",
        kit.Band.at_most(0.1, "words"),
        setting="logistic regression on features of different scale, whose Fisher matrix is the "
        "Hessian of the loss: a problem of the kind the sentence means",
    ),
    kit.observe(
        "invariant",
        "Eq. (4.6)",
        "Its updates do not depend on the scale of the features: the counts at all condition "
        "numbers are the same.",
        kit.Band.around(0, "closed form"),
    ),
)


class Config(kit.Frozen):
    """Setting of the experiment."""

    features: int = 10  # inputs of the regression
    samples: int = 200  # labelled samples
    conditions: tuple[float, ...] = (1.0, 10.0, 100.0, 1000.0)  # of the features' covariance
    most: int = 20_000  # updates at which descent is given up
    seeds: int = 5  # problems


PRESETS = kit.presets(
    Config(),
    smoke=Config(features=4, samples=60, conditions=(1.0, 100.0), most=3000, seeds=2),
    paper=Config(features=30, samples=1000, conditions=(1.0, 10.0, 100.0, 1e3, 1e4), seeds=10),
)


class Result(kit.Frozen):
    """Updates until the loss is within 10⁻⁶ of its minimum."""

    conditions: np.ndarray  # (c,)
    gradient: np.ndarray  # (seeds, c), of gradient descent; `most` where it did not arrive
    natural: np.ndarray  # (seeds, c), of natural gradient descent
    # (3, points), updates and the excess losses of both on the worst problem of the first seed; NaN
    # where natural gradient descent has arrived
    curves: np.ndarray


def compute(config: Config, context: kit.Context) -> Result:
    """Descend on every problem by the gradient and by the natural gradient."""
    seeds = [derive_seed(context.seed, "problem", number) for number in range(config.seeds)]
    items = [
        {**vars(config), "seed": seed, "condition": condition}
        for seed in seeds
        for condition in config.conditions
    ]
    measured = context.map(_descend, items, "descents")
    shape = (config.seeds, len(config.conditions))
    return Result(
        conditions=np.array(config.conditions),
        **kit.stack(measured, "gradient", "natural", shape=shape),
        curves=measured[len(config.conditions) - 1]["curves"],
    )


def _descend(item: kit.Item) -> dict[str, Any]:
    generator = torch_generator(item["seed"], "regression")
    shape = (item["samples"], item["features"])
    draw = {"generator": generator, "dtype": torch.float64}
    inputs = torch.randn(shape, **draw, device="cpu")
    planted = torch.randn(item["features"], **draw, device="cpu")
    chance = torch.sigmoid(inputs @ planted)
    labels = (torch.rand(len(chance), **draw, device="cpu") < chance).double()
    scales = np.geomspace(1, item["condition"] ** -0.5, item["features"])
    scaled = inputs * torch.from_numpy(scales)
    targets = labels[:, None]
    loss = nn.BCEWithLogitsLoss()
    model = nn.Linear(item["features"], 1, bias=False).double()

    def gradient() -> torch.Tensor:
        return torch.autograd.grad(loss(model(scaled), targets), model.weight)[0]

    def natural() -> torch.Tensor:
        fisher = Fisher(model, scaled, likelihood="bernoulli").to_dense()
        return torch.linalg.solve(fisher, gradient()[0])[None]

    lowest = _iterate(model, natural, 1.0, loss, (scaled, targets), 0.0, 50)[-1]
    curvatures = torch.linalg.eigvalsh(Hessian(model, loss, (scaled, targets)).to_dense())
    best = 2 / float(curvatures[0] + curvatures[-1])  # of a quadratic with these curvatures
    goal = lowest + _EXCESS
    slow = _iterate(model, gradient, best, loss, (scaled, targets), goal, item["most"])
    fast = _iterate(model, natural, 1.0, loss, (scaled, targets), goal, item["most"])
    points = np.unique(np.geomspace(1, len(slow), 200).astype(int)) - 1
    curves = np.full((3, len(points)), np.nan)
    curves[0], curves[1] = points, np.array(slow)[points] - lowest
    known = points[points < len(fast)]
    curves[2, : len(known)] = np.array(fast)[known] - lowest
    return {"gradient": len(slow) - 1, "natural": len(fast) - 1, "curves": curves}


def _iterate(
    model: nn.Linear,
    direction: Any,
    step: float,
    loss: nn.Module,
    data: tuple[torch.Tensor, torch.Tensor],
    goal: float,
    most: int,
) -> list[float]:
    """Descend by the natural or another gradient until the loss reaches a goal; return losses."""
    with torch.no_grad():
        model.weight.zero_()
    losses = []
    while True:
        with torch.no_grad():
            losses.append(float(loss(model(data[0]), data[1])))
        if losses[-1] <= goal or len(losses) > most:
            return losses
        move = direction()
        with torch.no_grad():
            model.weight -= step * move


def plot(result: Result) -> kit.Figure:
    """Draw natural-gradient updates by condition number, and both descents on the worst problem."""
    figure, (left, right) = kit.new_figure(1, 2, width="full", ratio=0.75)
    for color, counts, label in (
        (kit.COLORS[0], result.gradient, "gradient descent"),
        (kit.COLORS[1], result.natural, "natural gradient"),
    ):
        for row in counts:
            left.loglog(result.conditions, row, "o-", ms=3, lw=0.8, color=color, label=label)
            label = None
    left.set(xlabel="condition number of the features", ylabel=f"updates to excess {_EXCESS:g}")
    left.legend()
    updates, slow, fast = result.curves
    right.semilogy(updates, np.maximum(slow, 1e-16), color=kit.COLORS[0])
    right.semilogy(updates, np.maximum(fast, 1e-16), "o-", ms=3, color=kit.COLORS[1])
    right.set_xscale("symlog", linthresh=1)
    right.set(xlabel="updates", ylabel="loss above its minimum")
    right.set_title(f"condition number {result.conditions[-1]:g}")
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure how much faster the natural gradient is, and its invariance."""
    ratio = result.natural / result.gradient
    return {
        "faster": kit.over_seeds(
            ratio[:, -1],
            f"{result.natural[:, -1].mean():.0f} updates, gradient descent "
            f"{result.gradient[:, -1].mean():,.0f}, at condition number "
            f"{result.conditions[-1]:g}; at {result.conditions[0]:g} the ratio is "
            f"{ratio[:, 0].mean():.2f}",
        ),
        "invariant": kit.over_seeds(np.ptp(result.natural, axis=1), "range of the counts"),
    }
