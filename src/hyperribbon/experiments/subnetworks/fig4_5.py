"""Fig. 4.5 of [subnetworks]: anisotropy along re-initialisation by change and at random."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core import Band, Claim
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.subnetworks._drawing import draw_band, judge_over_seeds
from hyperribbon.experiments.subnetworks._spectra import (
    SpectralConfig,
    fractions_of,
    spectral_curve,
)
from hyperribbon.experiments.subnetworks._training import presets, source_of
from hyperribbon.plots.style import COLORS, new_figure

ID = "subnetworks/fig4.5"
TITLE = "Anisotropy and norms of the Fisher matrix along re-initialisation"

_ORDERS = ("smallest", "random")


@dataclass(frozen=True)
class Config(SpectralConfig):
    """Setting of the figure."""


PRESETS, PRESETS_WITH_DATA = presets(
    Config, smoke={"samples": 12, "stride": 4, "seeds": 1}, paper={"samples": 500}
)


@dataclass(frozen=True)
class Result:
    """Spectra along re-initialisation.

    Attributes:
        fractions: {"smallest", "random"}: (f,), share of the weights re-initialised.
        t50: By order, (seeds, f).
        t100: The same.
        spectral_norm: The same.
        frobenius: The same.
        samples: N.
        outputs: Outputs of the matrix.
        source: What was trained.
    """

    fractions: dict[str, np.ndarray]
    t50: dict[str, np.ndarray]
    t100: dict[str, np.ndarray]
    spectral_norm: dict[str, np.ndarray]
    frobenius: dict[str, np.ndarray]
    samples: int
    outputs: str
    source: str


def compute(config: Config, context: Context) -> Result:
    """Measure both curves of every run."""
    curves = {order: spectral_curve(config, context, "reinitialize", order) for order in _ORDERS}
    columns = {
        key: {order: curve[key] for order, curve in curves.items()}
        for key in ("t50", "t100", "spectral_norm", "frobenius")
    }
    return Result(
        fractions={order: np.array(fractions_of(config, order)) for order in _ORDERS},
        **columns,
        samples=config.samples,
        outputs=config.outputs,
        source=source_of(config),
    )


def plot(result: Result) -> Figure:
    """Draw trace ratios above norms."""
    figure, axes = new_figure(2, 2, width="full", ratio=0.6, sharex=True)
    panels = (
        (axes[0, 0], result.t50, "$T_{50}$", "linear"),
        (axes[0, 1], result.t100, "$T_{100}$", "linear"),
        (axes[1, 0], result.frobenius, r"L2 norm $\|F\|_F$", "log"),
        (axes[1, 1], result.spectral_norm, r"spectral norm $\lambda_{\max}$", "log"),
    )
    labels = {"smallest": "smallest change first", "random": "at random"}
    for axis, values, label, scale in panels:
        for color, order in zip(COLORS, _ORDERS, strict=False):
            draw_band(
                axis, result.fractions[order], values[order], color=color, marker="o", ms=3,
                label=labels[order],
            )  # fmt: skip
        axis.set(ylabel=label, yscale=scale)
    for axis in axes[1]:
        axis.set_xlabel(f"share re-initialised ($N={result.samples}$, {result.outputs})")
    axes[0, 0].legend(loc="lower left")
    return figure


def claims(result: Result) -> list[Claim]:
    """Judge what keeps the anisotropy, what loses it, and how the norms move."""
    smallest, random = result.fractions["smallest"], result.fractions["random"]
    ratio, by_chance = result.t100["smallest"], result.t100["random"]
    norm = result.spectral_norm["smallest"]
    setting = f"N = {result.samples}, {result.outputs} outputs, {result.source}"
    at = {share: int(np.argmin(np.abs(smallest - share))) for share in (0.2, 0.8)}
    chance = int(np.argmin(np.abs(random - 0.4)))
    return [
        judge_over_seeds(
            f"{ID}/kept",
            place="Fig. 4.5",
            statement="Re-initialising the 80% of the weights that changed least keeps T100",
            expected=Band.around(0.0, "paper", atol=0.01),
            values=ratio[:, at[0.8]] - ratio[:, 0],
            why=f"change of T100 from {ratio[:, 0].mean():.4f}; {setting}",
        ),
        judge_over_seeds(
            f"{ID}/random-loses",
            place="Fig. 4.5",
            statement="Re-initialising at random loses anisotropy early: more at a share of 0.4 "
            "than by change at 0.8",
            expected=Band.at_most(0.0, "paper"),
            values=by_chance[:, chance] - ratio[:, at[0.8]],
            why=f"T100 at random minus T100 by change; {setting}",
        ),
        judge_over_seeds(
            f"{ID}/norms-rise-at-once",
            place="Fig. 4.5",
            statement="The norms rise as soon as the re-initialised share grows",
            expected=Band.at_least(1.1, "paper"),
            values=norm[:, at[0.2]] / norm[:, 0],
            why="spectral norm at a share of 0.2 over that of the trained network; at 0.8 it is "
            f"{(norm[:, at[0.8]] / norm[:, 0]).mean():.0f} times as large; {setting}",
        ),
        judge_over_seeds(
            f"{ID}/norms-rise-then-fall",
            place="Fig. 4.5",
            statement="The norms rise above both ends before they reach the start's",
            expected=Band.at_least(1.0, "paper"),
            values=norm.max(1) / np.maximum(norm[:, 0], norm[:, -1]),
            why=f"largest spectral norm over the larger of the ends; {setting}",
        ),
        judge_over_seeds(
            f"{ID}/norms-fall-in-training",
            place="Sec. 4.3.3",
            statement="Training reduces the norms of the Fisher matrix",
            expected=Band.at_most(1.0, "paper"),
            values=norm[:, 0] / norm[:, -1],
            why="spectral norm after training over that at the start; it depends on N and on the "
            f"outputs; {setting}",
        ),
    ]
