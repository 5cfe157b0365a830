"""Sec. 4.3.2 of [subnetworks]: mean-field Fisher statistics of random networks over widths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from hyperribbon.core import ArgumentError, Band, Claim, derive_seed, torch_generator
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.subnetworks._drawing import draw_band, judge_over_seeds
from hyperribbon.inspection import measure_anisotropy
from hyperribbon.plots.style import COLORS, new_figure
from hyperribbon.theory.meanfield import fisher_statistics
from hyperribbon.training import mlp

ID = "subnetworks/meanfield"
TITLE = "Mean-field theory of the Fisher spectrum against random networks"

_SETTINGS = {"relu": (2.0, 0.1), "tanh": (3.0, 0.64), "linear": (1.0, 0.1), "erf": (2.0, 0.3)}
_FIELDS = ("mean", "second_moment", "largest")
_TOLERANCES = {"mean": 0.05, "second_moment": 0.15, "largest": 0.08}
_SLOPES = {"mean": -1.0, "second_moment": 0.0, "largest": 1.0}


@dataclass(frozen=True)
class Config:
    """Setting of the experiment.

    Attributes:
        widths: M of the inputs and of the two hidden layers.
        outputs: C.
        samples: N inputs with standard normal entries.
        draws: Random networks of each width.
    """

    widths: tuple[int, ...] = (125, 250, 500, 1000, 2000)
    outputs: int = 10
    samples: int = 50
    draws: int = 5


PRESETS = {
    "smoke": Config(widths=(50, 100, 200), outputs=3, samples=20, draws=2),
    "laptop": Config(),
    "paper": Config(widths=(125, 250, 500, 1000, 2000, 4000), samples=100, draws=20),
}


@dataclass(frozen=True)
class Result:
    """Measured and predicted statistics, by activation.

    Attributes:
        widths: (w,).
        measured: {activation: (draws, w, 3)}: mean, second moment, mean of the C leading ones.
        predicted: {activation: (w, 3)}.
        refused: Whether the prediction of the largest eigenvalue is refused where κ₂ = 0.
    """

    widths: np.ndarray
    measured: dict[str, np.ndarray]
    predicted: dict[str, np.ndarray]
    refused: bool


def compute(config: Config, context: Context) -> Result:
    """Draw networks of every width and activation, and predict."""
    items = [
        {
            "activation": activation,
            "width": width,
            "outputs": config.outputs,
            "samples": config.samples,
            "seed": derive_seed(context.seed, activation, width, draw),
        }
        for activation in _SETTINGS
        for draw in range(config.draws)
        for width in config.widths
    ]
    table = np.array(context.map(_statistics, items, "random networks"))
    table = table.reshape(len(_SETTINGS), config.draws, len(config.widths), 3)
    predicted = {}
    for activation, (weight, bias) in _SETTINGS.items():
        rows = [
            fisher_statistics(activation, weight, bias, [m, m, m, config.outputs], config.samples)
            for m in config.widths
        ]
        predicted[activation] = np.array([[getattr(r, f) for f in _FIELDS] for r in rows])
    return Result(
        np.array(config.widths),
        dict(zip(_SETTINGS, table, strict=True)),
        predicted,
        _refuses_vanishing_overlap(),
    )


def _statistics(item: Mapping[str, Any]) -> np.ndarray:
    weight, bias = _SETTINGS[item["activation"]]
    width, outputs = item["width"], item["outputs"]
    model = mlp(
        (width, width, width, outputs),
        item["activation"],
        item["seed"],
        init=(weight**0.5, bias**0.5),
    )
    generator = torch_generator(item["seed"], "inputs")
    inputs = torch.randn((item["samples"], width), generator=generator, device="cpu")
    measured = measure_anisotropy(model, inputs, k=outputs, outputs="model", vectors=False)
    return np.array(
        [
            measured.trace / measured.parameters,
            measured.frobenius**2 / measured.parameters,
            float(measured.eigenvalues.mean()),
        ]
    )


def _refuses_vanishing_overlap() -> bool:
    try:
        _ = fisher_statistics("tanh", 3.0, 0.0, [100, 100, 100, 10], 50).largest
    except ArgumentError:
        return True
    return False


def plot(result: Result) -> Figure:
    """Draw the three statistics against the width, measured and predicted."""
    figure, axes = new_figure(1, 3, width="full", ratio=1.0)
    labels = (r"mean eigenvalue", r"$\sum\lambda^2/P$", r"mean of the $C$ leading ones")
    for column, (axis, label) in enumerate(zip(axes, labels, strict=True)):
        for color, activation in zip(COLORS, result.measured, strict=False):
            axis.plot(result.widths, result.predicted[activation][:, column], color=color, lw=1)
            draw_band(
                axis, result.widths, result.measured[activation][:, :, column], color=color,
                marker="o", ls="none", mfc="none", label=activation,
            )  # fmt: skip
        axis.set(xscale="log", yscale="log", xlabel="width $M$", title=label)
        axis.set_xticks(result.widths, [str(width) for width in result.widths], fontsize=7)
        axis.set_xticks([], minor=True)
    axes[0].legend(title="lines: theory", fontsize=7, title_fontsize=7)
    return figure


def claims(result: Result) -> list[Claim]:
    """Judge the predictions at every width from 1000 on, and the slopes in M."""
    found = []
    width = int(result.widths[-1])
    wide = np.flatnonzero(result.widths >= min(1000, width))
    for activation, measured in result.measured.items():
        predicted = result.predicted[activation]
        for column, field in enumerate(_FIELDS):
            ratios = measured[:, wide, column] / predicted[wide, column]
            worst = int(np.abs(ratios.mean(0) - 1).argmax())
            found.append(
                judge_over_seeds(
                    f"{ID}/{activation}-{field.replace('_', '-')}",
                    place="Sec. 4.3.2",
                    statement=f"{activation}: {field.replace('_', ' ')} as the finite-width theory "
                    "predicts",
                    expected=Band.around(1.0, "closed form", atol=_TOLERANCES[field]),
                    values=ratios[:, worst],
                    why=f"measured over predicted at M = {result.widths[wide[worst]]}, the worst "
                    f"of {', '.join(str(m) for m in result.widths[wide])}; {len(ratios)} draws",
                )
            )
    logs = np.log(result.widths)
    for column, field in enumerate(_FIELDS):
        slopes = [
            np.polyfit(logs, np.log(measured[:, :, column].mean(0)), 1)[0]
            for measured in result.measured.values()
        ]
        found.append(
            judge_over_seeds(
                f"{ID}/slope-{field.replace('_', '-')}",
                place="Sec. 4.3.2",
                statement=f"The {field.replace('_', ' ')} scales as M to the {_SLOPES[field]:g}",
                expected=Band.around(_SLOPES[field], "paper", atol=0.15),
                values=slopes,
                why=f"slopes from M = {result.widths[0]} to {width}; mean over activations",
            )
        )
    found.append(
        Claim.judge(
            f"{ID}/no-overlap",
            place="Sec. 4.3.2",
            statement="The formula for the largest eigenvalue holds for every activation",
            expected=Band(0, 0, "paper"),
            measured=float(result.refused),
            why="1 if refused: for an odd activation without biases κ₂ = 0 and no eigenvalue "
            "separates",
        )
    )
    return found
