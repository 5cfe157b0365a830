"""Sharpness of linear networks against the rate, from flow to the edge of stability and beyond."""

from __future__ import annotations

from typing import Any

import numpy as np

from hyperribbon.application.inspection import leading_eigenvalues
from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.linear_networks import _training
from hyperribbon.papers.experiments.linear_networks._data import read_moments
from hyperribbon.papers.experiments.linear_networks._sweeps import predictions
from hyperribbon.papers.simulation import train_linear
from hyperribbon.papers.training.loop import DivergenceError

TITLE = "Sharpness against the learning rate, up to the edge of stability and beyond"

_NEEDS = "a network of width 64"
STATEMENTS = kit.at_scale(
    _NEEDS,
    kit.observe(
        "small-steps",
        "Sec. 3",
        "While 2/η is above the sharpness of the minimum that small steps reach, the rate changes "
        "the sharpness by less than 2%.",
        kit.Band.at_most(0.02, "words"),
    ),
    kit.observe(
        "at-the-edge",
        "Sec. 3",
        "Where 2/η lies between that and the sharpness of the balanced minimum, the flattest of "
        "all, training ends at most 1% above 2/η and at most 10% below.",
        kit.Band(0.9, 1.01, "words"),
    ),
    kit.observe(
        "beyond",
        "Eq. (9)",
        "Below the sharpness of the balanced minimum no minimum is stable: the loss ends at least "
        "1% above the least of a linear map.",
        kit.Band.at_least(0.01, "words"),
    ),
)


class Config(_training.TrainingConfig):
    """Setting of the sharpness against the rate."""

    shares: tuple[float, ...] = (0.5,)
    epochs: int = 4000  # at the largest stable rate; others train for the same time
    lr: float = 0.025  # of small steps
    # 2/η, as the place between the balanced minimum (0) and the minimum of small steps (1)
    places: tuple[float, ...] = (3.0, 2.0, 1.5, 1.2, 0.9, 0.75, 0.6, 0.45, 0.3, 0.15, -0.1, -0.2)


PRESETS = _training.presets(
    Config(),
    smoke={"width": 16, "epochs": 300, "places": (2.0, 0.6, -0.2), "samples": 800},
    paper={"epochs": 20_000},
)


class Result(kit.Frozen):
    """Sharpness and loss at the end of training, by rate."""

    data: str  # name of the data set
    samples: int  # images
    places: np.ndarray  # (r,), of 2/η between the balanced minimum and that of small steps
    rates: np.ndarray  # (r,)
    trained: np.ndarray  # (r,), sharpness at the end; NaN where training diverged
    loss: np.ndarray  # (r,), mean over the last tenth of the epochs
    floor: float  # least loss of a linear map
    balanced: float  # sharpness of the balanced minimum, the general form of Eq. (13)
    small: float  # sharpness at the end of small steps


def compute(config: Config, context: kit.Context) -> Result:
    """Train one start at small steps, and then at rates on both sides of its edge."""
    (item,) = _training.training_items(config, context)
    _, facts = read_moments(item)
    known = predictions(facts, config.depth)
    balanced = float(known["general"])
    time = config.epochs * 2 / balanced
    (small,) = context.map(_train, [{**item, "epochs": round(time / config.lr)}], "small steps")
    edges = [balanced + place * (small["trained"] - balanced) for place in config.places]
    items = [{**item, "lr": 2 / edge, "epochs": round(time * edge / 2)} for edge in edges]
    runs = context.map(_train, items, "rates")
    return Result(
        data=item["data"],
        samples=item["samples"],
        places=np.array(config.places),
        rates=2 / np.array(edges),
        floor=float(known["floor"]),
        balanced=balanced,
        small=small["trained"],
        **kit.stack(runs, "trained", "loss"),
    )


def _train(item: kit.Item) -> dict[str, Any]:
    moments, _ = read_moments(item)
    start = _training.start_weights(item, *moments.cross.shape)
    try:
        run = train_linear(start, moments, lr=item["lr"], epochs=item["epochs"])
    except DivergenceError:
        return {"trained": float("nan"), "loss": float("inf")}
    last = run.losses[-max(1, item["epochs"] // 10) :].mean()
    return {"trained": float(leading_eigenvalues(run.weights, moments)[0]), "loss": float(last)}


def plot(result: Result) -> kit.Figure:
    """Draw sharpness against the edge of stability 2/η, and the loss at the end."""
    figure, (top, below) = kit.new_figure(2, 1, ratio=0.6, sharex=True)
    edges = 2 / result.rates
    top.plot(edges, edges, color="0.6", lw=1, label=r"$2/\eta$")
    top.axhline(result.small, color=kit.COLORS[2], ls="--", lw=1, label="small steps")
    top.axhline(result.balanced, color=kit.COLORS[0], lw=1, label="Eq. (13), balanced")
    top.plot(edges, result.trained, "o", color=kit.COLORS[1], ms=5, label="trained")
    top.set_ylabel(r"sharpness $\lambda_{\max}$")
    top.set_title(_training.panel_title(result.data, result.samples), fontsize=8)
    finite = result.trained[np.isfinite(result.trained)]
    top.set_ylim(0.95 * min(result.balanced, finite.min()), 1.1 * max(result.small, finite.max()))
    top.legend(fontsize=7)
    above = np.maximum(result.loss - result.floor, 1e-12)
    below.plot(edges, above, "o", color=kit.COLORS[1], ms=5)
    for axis in (top, below):
        axis.axvline(result.balanced, color=kit.COLORS[0], lw=0.8, ls=":")
        axis.axvline(result.small, color=kit.COLORS[2], lw=0.8, ls=":")
    below.set(yscale="log", xlabel=r"$2/\eta$", ylabel="loss above the least")
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure sharpness and loss on each side of both edges of stability."""
    stable, edge, beyond = result.places > 1, result.places < 1, result.places < 0
    edge &= ~beyond
    ratio = result.trained * result.rates / 2
    change = np.abs(result.trained[stable] / result.small - 1)
    excess = np.nan_to_num(result.loss / result.floor - 1, posinf=np.inf)[beyond]
    return {
        "small-steps": kit.over_seeds([change.max()], "largest relative change"),
        "at-the-edge": kit.over_seeds(
            [ratio[edge][np.abs(ratio[edge] - 1).argmax()]],
            f"sharpness over 2/η, farthest from one of {edge.sum()} rates",
        ),
        "beyond": kit.over_seeds(
            [min(excess.min(), 1e6)], "least excess of the mean loss of the last tenth"
        ),
    }
