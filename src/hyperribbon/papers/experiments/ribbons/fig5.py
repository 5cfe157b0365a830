"""Fig. 5 of [ribbons]: the head of P₁ comes from the targets, its tail from the initial weights."""

from __future__ import annotations

import numpy as np

from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.ribbons import _parts
from hyperribbon.papers.experiments.ribbons._shared import draw_spectrum, simulation_says

TITLE = "Head and tail of the second moment of trajectories"
RANDOM = "trained models"

_SETTING = "n = 50, d = 100, c = 0.2, T = 50, σw² = 0.1, σ*² = 2, as printed"
STATEMENTS = (
    kit.says(
        "head",
        "Fig. 5, caption",
        "the head is well approximated by the contribution coming from the targets",
        "Before the two parts change order, every eigenvalue of P1 is nearer to the targets' part, "
        "on the logarithmic scale.",
        kit.Band(1, 1, "words"),
        setting=f"{_SETTING}; targets at their typical size in every direction",
    ),
    kit.says(
        "tail",
        "Fig. 5, caption",
        "The tail of the eigenspectrum of P1(T) is well-approximated by the contribution coming "
        "from the weight initializations",
        "After the two parts change order, every eigenvalue of P1 is nearer to the part of the "
        "initial weights.",
        kit.Band(1, 1, "words"),
        setting=f"{_SETTING}; targets at their typical size in every direction",
    ),
    simulation_says(_SETTING),
    kit.says(
        "concentration",
        "Eq. (10)",
        "the norm of the targets concentrates around the value ‖y‖² ≈ σ*² Σ λi",
        "Over draws of the true weights ‖y‖² has a relative standard deviation of at most a tenth.",
        kit.Band.at_most(0.1, "words"),
        setting=f"{_SETTING}; it depends neither on T nor on σ*",
        changed="2026-11-18: an observation on the spread of the dimensions before, whose verdict "
        "depended on σ*/σw; the sentence is about the norm",
    ),
)

Config, PRESETS, Result, compute = _parts.Config, _parts.PRESETS, _parts.Result, _parts.compute


def plot(result: _parts.Result) -> kit.Figure:
    """Draw Fig. 5: P₁ and its parts; the spectrum over single batches shows the noise."""
    figure, axis = kit.new_figure(ratio=0.85)
    draw_spectrum(axis, result.P1, color="0.25", lw=3.5, alpha=0.35, label="$P_1$")
    draw_spectrum(axis, result.P, color=kit.COLORS[2], ls="--", label="$P=P_1-P_2$")
    _parts.draw_parts(axis, result, color=kit.COLORS[2])
    handover = _parts.handover(result)
    axis.axvline(handover, color="0.6", lw=0.8, ls=":")
    text, place = f"handover at $i={handover}$", (handover + 2.5, 0.75)
    axis.annotate(text, (handover, 0.6), place, fontsize=8, va="center")
    return figure


def measure(result: _parts.Result) -> kit.Measurements:
    """Measure the head, the tail, the simulation and the spread over targets (ribbons, Fig. 5)."""
    spread, draws = result.norms.std(ddof=1), len(result.norms)
    # Of the standard deviation of draws with kurtosis κ: σ√((κ − 1)/4N).
    kurtosis = ((result.norms - result.norms.mean()) ** 4).mean() / spread**4
    return {
        **_parts.measure_head_and_tail(result, "P1"),
        "simulation": kit.over_seeds(result.projections, "one value per batch of models"),
        "concentration": kit.estimate(
            spread,
            spread * np.sqrt((kurtosis - 1) / (4 * draws)),
            f"mean {result.norms.mean():.2f} of σ*² tr K over {draws} draws; few eigenvalues carry "
            "the trace, so little averages out",
            freedom=draws - 1,
        ),
    }
