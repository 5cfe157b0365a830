"""Fig. 5 of [ribbons]: the head of P₁ comes from the targets, its tail from the initial weights."""

from __future__ import annotations

import numpy as np

from hyperribbon.papers.experiments.judging import Measurements, estimate, over_seeds
from hyperribbon.papers.experiments.kit import COLORS, Figure, new_figure
from hyperribbon.papers.experiments.ribbons import _parts
from hyperribbon.papers.experiments.ribbons._shared import simulation_says
from hyperribbon.papers.experiments.statements import Band, observe, says

TITLE = "Head and tail of the second moment of trajectories"
RANDOM = "trained models"

_SETTING = "n = 50, d = 100, c = 0.2, T = 50, σw² = 0.1, σ*² = 2, as printed"
STATEMENTS = (
    says(
        "head",
        "Fig. 5, caption",
        "the head is well approximated by the contribution coming from the targets",
        "Before the two parts change order, every eigenvalue of P1 is nearer to the targets' part, "
        "on the logarithmic scale.",
        Band(1, 1, "words"),
        setting=f"{_SETTING}; targets at their typical size in every direction",
    ),
    says(
        "tail",
        "Fig. 5, caption",
        "The tail of the eigenspectrum of P1(T) is well-approximated by the contribution coming "
        "from the weight initializations",
        "After the two parts change order, every eigenvalue of P1 is nearer to the part of the "
        "initial weights.",
        Band(1, 1, "words"),
        setting=f"{_SETTING}; targets at their typical size in every direction",
    ),
    simulation_says(_SETTING),
    observe(
        "concentration",
        "Eq. (10)",
        "One draw of the true weights stands for all: their dimensions differ by less than one "
        "half (standard deviation).",
        Band.at_most(0.5, "words"),
        compare="mean",
    ),
)

Config, PRESETS, Result, compute = _parts.Config, _parts.PRESETS, _parts.Result, _parts.compute


def plot(result: _parts.Result) -> Figure:
    """Draw P₁ and its parts; the spectrum over single batches of trained models shows the noise."""
    figure, axis = new_figure(ratio=0.85)
    index = np.arange(1, len(result.P) + 1)
    axis.semilogy(index, result.P1, color="0.25", lw=3.5, alpha=0.35, label="$P_1$")
    axis.semilogy(index, result.P, color=COLORS[2], ls="--", label="$P=P_1-P_2$")
    _parts.draw_parts(axis, result, color=COLORS[2])
    handover = _parts.handover(result)
    axis.axvline(handover, color="0.6", lw=0.8, ls=":")
    text, place = f"handover at $i={handover}$", (handover + 2.5, 0.75)
    axis.annotate(text, (handover, 0.6), place, fontsize=8, va="center")
    return figure


def measure(result: _parts.Result) -> Measurements:
    """Measure the head, the tail, the simulation and the spread over targets (Fig. 5)."""
    drawn = result.drawn_dimensions
    return {
        **_parts.measure_head_and_tail(result, "P1"),
        "simulation": over_seeds(result.projections, "one value per batch of models"),
        "concentration": estimate(
            drawn.std(),
            drawn.std() / np.sqrt(2 * len(drawn)),
            f"mean {drawn.mean():.1f}; few eigenvalues carry the trace, so little averages out",
            freedom=len(drawn) - 1,
        ),
    }
