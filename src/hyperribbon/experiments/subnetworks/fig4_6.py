"""Fig. 4.6 of [subnetworks]: trace ratio and accuracy along re-initialisation and pruning."""

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

ID = "subnetworks/fig4.6"
TITLE = "Trace ratio and accuracy, smallest and largest changes first"

_PANELS = (
    ("reinitialize", "smallest"),
    ("prune", "smallest"),
    ("reinitialize", "largest"),
    ("prune", "largest"),
)


@dataclass(frozen=True)
class Config(SpectralConfig):
    """Setting of the figure."""


PRESETS, PRESETS_WITH_DATA = presets(
    Config, smoke={"samples": 12, "stride": 4, "seeds": 1}, paper={"samples": 500}
)


@dataclass(frozen=True)
class Result:
    """Curves by "operation-order".

    Attributes:
        fractions: (f,) each.
        t100: (seeds, f) each.
        accuracy: (seeds, f) each.
        samples: N.
        outputs: Outputs of the matrix.
        source: What was trained.
    """

    fractions: dict[str, np.ndarray]
    t100: dict[str, np.ndarray]
    accuracy: dict[str, np.ndarray]
    samples: int
    outputs: str
    source: str


def compute(config: Config, context: Context) -> Result:
    """Measure the four curves of every run."""
    curves = {f"{a}-{b}": spectral_curve(config, context, a, b) for a, b in _PANELS}
    return Result(
        fractions={f"{a}-{b}": np.array(fractions_of(config, b)) for a, b in _PANELS},
        t100={name: curve["t100"] for name, curve in curves.items()},
        accuracy={name: curve["accuracy"] for name, curve in curves.items()},
        samples=config.samples,
        outputs=config.outputs,
        source=source_of(config),
    )


def plot(result: Result) -> Figure:
    """Draw one panel an operation and order."""
    figure, axes = new_figure(2, 2, width="full", ratio=0.6, sharey=True)
    words = {"reinitialize": "re-initialised", "prune": "pruned"}
    for letter, axis, (operation, order) in zip("acbd", axes.ravel(), _PANELS, strict=True):
        name = f"{operation}-{order}"
        x = result.fractions[name]
        draw_band(axis, x, result.t100[name], color=COLORS[0], marker="o", ms=3, label="$T_{100}$")
        draw_band(
            axis, x, result.accuracy[name], color=COLORS[1], marker="s", ms=3,
            label="test accuracy",
        )  # fmt: skip
        axis.set_title(f"({letter}) {words[operation]}, {order} change first")
        axis.set_ylim(0, 1.03)
        if order == "largest":
            axis.set_xscale("symlog", linthresh=0.01, linscale=0.6)
            axis.set_xticks([0, 0.01, 0.1, 1], ["0", "0.01", "0.1", "1"])
            axis.set_xlim(-0.0005, 1.1)
    for axis in axes[1]:
        axis.set_xlabel("share of the weights (logarithmic above 0.01)")
    axes[0, 0].legend(loc="lower left")
    return figure


def claims(result: Result) -> list[Claim]:
    """Judge how soon the anisotropy is lost, and the return of T100 under pruning."""
    setting = f"N = {result.samples}, {result.outputs} outputs, {result.source}"

    def at(name: str, share: float) -> np.ndarray:
        position = int(np.argmin(np.abs(result.fractions[name] - share)))
        return result.t100[name][:, position]

    pruned = result.t100["prune-largest"]
    return [
        judge_over_seeds(
            f"{ID}/kept-smallest-first",
            place="Fig. 4.6 (a)",
            statement="With the smallest changes re-initialised first, T100 is kept to p = 0.8",
            expected=Band.at_least(0.98, "verification"),
            values=at("reinitialize-smallest", 0.8) / at("reinitialize-smallest", 0.0),
            why=f"T100 at p = 0.8 over that of the trained network; {setting}",
        ),
        judge_over_seeds(
            f"{ID}/lost-largest-first",
            place="Fig. 4.6 (b)",
            statement="With the largest changes re-initialised first, the anisotropy is lost "
            "within 2% of the weights",
            expected=Band.at_most(-0.05, "verification"),
            values=at("reinitialize-largest", 0.02) - at("reinitialize-largest", 0.0),
            why=f"change of T100 at p = 0.02; {setting}",
        ),
        judge_over_seeds(
            f"{ID}/pruning-returns",
            place="Fig. 4.6 (d)",
            statement="Under pruning of the largest changes first, T100 falls and rises again at "
            "the end",
            expected=Band.at_least(0.05, "paper"),
            values=at("prune-largest", 0.9) - pruned.min(1),
            why=f"T100 at p = 0.9 minus its minimum, {pruned.min(1).mean():.2f}; {setting}",
        ),
        judge_over_seeds(
            f"{ID}/together",
            place="Sec. 4.3.3",
            statement="Accuracy and anisotropy decline together when the largest changes go first",
            expected=Band.at_least(0.7, "paper"),
            values=np.array(
                [
                    np.corrcoef(ratio, accuracy)[0, 1]
                    for ratio, accuracy in zip(
                        result.t100["reinitialize-largest"],
                        result.accuracy["reinitialize-largest"],
                        strict=True,
                    )
                ]
            ),
            why=f"correlation of the two along the curve; {setting}",
        ),
    ]
