"""Balance of consecutive layers along training: under gradient flow, weight decay, at the edge."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from hyperribbon.application.inspection import leading_eigenvalues
from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.linear_networks import _training
from hyperribbon.papers.experiments.linear_networks._data import read_moments
from hyperribbon.papers.experiments.linear_networks._sweeps import predictions
from hyperribbon.papers.simulation import train_linear
from hyperribbon.theory import linear_networks as theory

TITLE = "Balance of the layers along training: flow, weight decay, edge of stability"

_SETTING = (
    "4 layers of width 64, white MNIST with a class of one half, constant rates, no halving; "
    "unbalanced layers start Kaiming uniform"
)
STATEMENTS = kit.at_scale(
    "a network of width 64",
    kit.says(
        "flow",
        "Sec. 3",
        "initially balanced layers remain balanced under gradient flow training, provided there is "
        "no nonlinearity between them",
        "At the smallest rate, the layers' imbalance ends below 1% of their squared norm.",
        kit.Band.at_most(0.01, "words"),
        setting=_SETTING,
    ),
    kit.says(
        "decay",
        "Sec. 3",
        "the layers become increasingly balanced under weight-decay training",
        "The imbalance falls from each record to the next, at every weight decay.",
        kit.Band.at_most(0.0, "printed"),
        setting=_SETTING,
    ),
    kit.says(
        "edge",
        "Sec. 3",
        "gradient descent training at the edge-of-stability [3] balances the singular values of "
        "the weight matrices",
        "With 2/η halfway between the sharpness of the balanced minimum and that of the minimum "
        "of small steps, the layers' gains along the leading direction end at most 0.9 times as "
        "far apart.",
        kit.Band.at_most(0.9, "words"),
        setting=_SETTING,
        changed="2026-11-18: the layers' spectral norms before, which belong to directions of the "
        "random start that training never enters; they ended 0.94 times as far apart",
    ),
    kit.observe(
        "order-of-rate",
        "Sec. 3",
        "What is left of the imbalance is proportional to the rate, so flow has none: its "
        "logarithmic slope in η is 1.",
        kit.Band(0.8, 1.2, "closed form"),
    ),
    kit.observe(
        "rate-of-decay",
        "Sec. 3",
        "Under weight decay λ the imbalance falls as exp(−2λt).",
        kit.Band(0.95, 1.05, "closed form"),
    ),
)


class Config(_training.TrainingConfig):
    """Setting of the balance along training."""

    shares: tuple[float, ...] = (0.5,)
    epochs: int = 0  # each rate trains for `time`
    time: float = 200.0  # rate times epochs
    rates: tuple[float, ...] = (0.1, 0.05, 0.025)  # of balanced starts, descending
    decays: tuple[float, ...] = (0.001, 0.003, 0.01)  # weight decays of unbalanced starts
    records: int = 40  # epochs at which the imbalance is taken


PRESETS = _training.presets(
    Config(),
    smoke={"width": 16, "time": 60.0, "decays": (0.003, 0.01), "records": 10, "samples": 800},
    paper={"records": 100},
)


class Result(kit.Frozen):
    """Imbalance along training; times are rate times epochs."""

    samples: int  # images
    rates: np.ndarray  # (a,)
    flow: np.ndarray  # (a, 3, e): time, imbalance and spread of balanced starts, see `_train`
    decays: np.ndarray  # (b,)
    decay: np.ndarray  # (b, 3, e), the same of unbalanced starts
    small: np.ndarray  # (3, e), of an unbalanced start at the smallest rate, without decay
    edge: np.ndarray  # (3, e), of the same start at the edge of stability
    edge_rate: float  # rate of that
    norm: float  # Σ‖Wℓ‖² at the end, of a balanced start at the smallest rate
    sharpness: np.ndarray  # (2,), of the balanced minimum and of the minimum of small steps


def compute(config: Config, context: kit.Context) -> Result:
    """Train balanced and unbalanced networks and take the imbalance of their layers."""
    (item,) = _training.training_items(config, context)
    shared = {**item, "decay": 0.0, "sharpness": False}
    flow = [{**shared, "start": "balanced", "scale": 0.5, "lr": rate} for rate in config.rates]
    small = {**shared, "lr": config.rates[-1], "sharpness": True}
    decay = [{**small, "decay": value, "sharpness": False} for value in config.decays]
    found = context.map(_train, [*flow, *decay, small], "training")
    _, facts = read_moments(item)
    least, reached = predictions(facts, config.depth)["general"], found[-1]["sharpness"]
    edge = {**small, "lr": 4 / (least + reached), "sharpness": False}
    (at_edge,) = context.map(_train, [edge], "training at the edge")
    series, count = np.array([run["series"] for run in found]), len(config.rates)
    return Result(
        samples=item["samples"],
        rates=np.array(config.rates),
        flow=series[:count],
        decays=np.array(config.decays),
        decay=series[count:-1],
        small=series[-1],
        edge=at_edge["series"],
        edge_rate=edge["lr"],
        norm=found[count - 1]["norm"],
        sharpness=np.array([least, reached]),
    )


def _train(item: kit.Item) -> dict[str, Any]:
    """Return times, how far layers are from balance along one training, and the end."""
    moments, _ = read_moments(item)
    epochs = round(item["time"] / item["lr"])
    run = train_linear(
        _training.start_weights(item, *moments.cross.shape),
        moments,
        lr=item["lr"],
        epochs=epochs,
        weight_decay=item["decay"],
        measure={"imbalance": imbalance, "spread": spread},
        at=np.linspace(0, epochs, item["records"]).astype(int).tolist(),
    )
    series = [run.epochs * item["lr"], run.measured["imbalance"], run.measured["spread"]]
    last = leading_eigenvalues(run.weights, moments)[0] if item["sharpness"] else 0.0
    norm = _training.squared_norm(run.weights)
    return {"series": np.array(series), "sharpness": last, "norm": norm}


def imbalance(layers: Sequence[np.ndarray]) -> float:
    """Return √Σ‖Wℓ₊₁ᵀWℓ₊₁ − WℓWℓᵀ‖², zero at balance (Assumption 3 of [linear_networks])."""
    apart = [after.T @ after - before @ before.T for before, after in pairwise(layers)]
    return float(np.sqrt(sum(np.sum(D**2) for D in apart)))


def spread(layers: Sequence[np.ndarray]) -> float:
    """Return the spread, zero in balance: largest less smallest gain along the leading direction.

    It is the top right singular vector of the whole network; in balanced layers every gain is
    their largest singular value.
    """
    product = theory.end_to_end(layers)
    inputs, gains = np.linalg.svd(product, full_matrices=False)[2][0], []
    for W in layers:
        outputs = W @ inputs
        gains.append(float(np.linalg.norm(outputs) / np.linalg.norm(inputs)))
        inputs = outputs
    return max(gains) - min(gains)


def plot(result: Result) -> kit.Figure:
    """Draw the imbalance along training in its three settings of balance."""
    figure, axes = kit.new_figure(1, 3, width="full", ratio=0.95)
    for rate, (time, values), color in zip(
        result.rates, result.flow[:, :2], kit.shades(len(result.rates)), strict=True
    ):
        axes[0].plot(time[1:], values[1:], color=color, label=rf"$\eta={rate:g}$")
    axes[0].set(yscale="log", ylabel="imbalance of the layers", title="balanced start")
    for decay, (time, values), color in zip(
        result.decays, result.decay[:, :2], kit.COLORS, strict=False
    ):
        axes[1].plot(time, values, color=color, label=rf"$\lambda={decay:g}$")
        look = {"ls": ":", "color": "k", "lw": 0.9}
        label = r"$e^{-2\lambda t}$" if decay == result.decays[-1] else None
        axes[1].plot(time, values[0] * np.exp(-2 * decay * time), label=label, **look)
    time, values, apart = result.small
    axes[1].plot(time, values, color="0.5", label="none")
    axes[1].set(yscale="log", title="weight decay")
    axes[2].plot(time, apart, color="0.5", label=rf"$\eta={result.rates[-1]:g}$")
    time, _, apart = result.edge
    label = rf"at the edge, $\eta={result.edge_rate:.2f}$"
    axes[2].plot(time, apart, color=kit.COLORS[1], label=label)
    axes[2].set(ylabel="spread of the gains", ylim=(0, None))
    axes[2].set_title("edge of stability")
    for axis in axes:
        axis.set_title(f"{axis.get_title()}, n = {result.samples:,}", fontsize=8)
        axis.set_xlabel(r"time $\eta\,t$")
        axis.legend(fontsize=7)
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure how layers' balance changes in each setting: what becomes of the imbalance."""
    ends = result.flow[:, 1, -1]
    slope = np.polyfit(np.log(result.rates), np.log(ends), 1)[0]
    times, values = result.decay[:, 0], result.decay[:, 1]
    speed = np.log(values[:, 0] / values[:, -1]) / (2 * result.decays * times[:, -1])
    return {
        "flow": kit.over_seeds([ends[-1] / result.norm], f"at the rate {result.rates[-1]:g}"),
        "decay": kit.over_seeds(
            [np.diff(values, axis=1).max()], "largest change from one record to the next"
        ),
        "edge": kit.over_seeds(
            [result.edge[2, -1] / result.small[2, -1]],
            f"spread at η = {result.edge_rate:.3f} over that at {result.rates[-1]:g}; sharpness "
            f"{result.sharpness[0]:.3f} where balanced, {result.sharpness[1]:.3f} by small steps",
        ),
        "order-of-rate": kit.over_seeds([slope], f"over the rates {result.rates.tolist()}"),
        "rate-of-decay": kit.over_seeds(
            [speed[np.abs(speed - 1).argmax()]],
            f"−ln of the imbalance's fall over 2λt, farthest from one of λ = {result.decays}",
        ),
    }
