"""Fig. 3.7 of [subnetworks]: how much the selections by magnitude and by change share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import rankdata

from hyperribbon.core import Band, Claim
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.statements import Ledger, observe, says
from hyperribbon.experiments.subnetworks._drawing import draw_band
from hyperribbon.experiments.subnetworks._training import (
    SCALE,
    TRAINING,
    TrainingConfig,
    by_run,
    is_full,
    load_run,
    presets,
    source_of,
    trained_runs,
)
from hyperribbon.plots.style import COLORS, new_figure
from hyperribbon.subnetworks import overlap_ratio, rank

ID = "subnetworks/fig3.7"
TITLE = "Overlap of the selections by magnitude and by change"

LEDGER = Ledger(
    ID,
    says(
        "overlap",
        "Sec. 3.4",
        "when a large fraction of parameters is pruned (e.g., p = 0.8), the overlap ratio between "
        "the two criteria reaches 83.7%",
        "At p = 0.8 the overlap ratio R of Eq. (3.1) is 0.837 in a run.",
        Band.around(0.837, "printed", atol=0.0005),
        setting=TRAINING,
        needs=SCALE,
        compare="prediction",
        changed="2026-11-17: mean of our runs within ±0.003 before",
    ),
    says(
        "independent",
        "Sec. 3.4, Fig. 3.7",
        "Our observation that the measured overlap ratio aligns with this expectation suggests "
        "that the two criteria are statistically independent in terms of the indices they select.",
        "At p = 0.8, R lies within three standard deviations of p, those of two independent "
        "choices of pn of n weights.",
        Band(-3, 3, "closed form"),
        setting=TRAINING,
        needs=SCALE,
    ),
    observe(
        "kept",
        "Sec. 3.4",
        "The weights kept by both criteria at p = 0.8 overlap by 0.2 ± 0.02, as independent "
        "choices would.",
        Band.around(0.2, "closed form", atol=0.02),
        needs=SCALE,
        changed="2026-11-17: a claim before; it follows from the independence judged above",
    ),
)


@dataclass(frozen=True)
class Config(TrainingConfig):
    """Setting of the figure.

    Attributes:
        points: Number of fractions in (0, 1).
    """

    points: int = 20


PRESETS, PRESETS_WITH_DATA = presets(
    Config, smoke={"points": 10}, laptop={"seeds": 6}, paper={"points": 100}
)


@dataclass(frozen=True)
class Result:
    """Overlap by fraction.

    Attributes:
        fractions: (f,).
        ratio: (seeds, f), |S₁ ∩ S₂| / |S₁| of the selected (smallest) weights.
        z: (seeds, f), deviations from independence in standard deviations.
        kept: (seeds, f), the same ratio of the weights not selected.
        spearman: (seeds,), rank correlation of |θ| and |θ − θ⁰| over all weights.
        pearson_output: (seeds,), their correlation in the output layer.
        weights: Number of weights.
        source: What was trained.
        full: Whether as in the paper, on all of MNIST.
    """

    fractions: np.ndarray
    ratio: np.ndarray
    z: np.ndarray
    kept: np.ndarray
    spearman: np.ndarray
    pearson_output: np.ndarray
    weights: int
    source: str
    full: bool


def compute(config: Config, context: Context) -> Result:
    """Compare the two selections of every run."""
    fractions = (np.arange(1, config.points) / config.points).tolist()
    items = [{**item, "fractions": fractions} for item in trained_runs(config, context)]
    measured = context.map(_overlaps, items, "overlaps")
    stacked = {key: np.array([one[key] for one in measured]) for key in measured[0]}
    return Result(
        np.array(fractions),
        stacked["ratio"],
        stacked["z"],
        stacked["kept"],
        stacked["spearman"],
        stacked["pearson_output"],
        int(stacked["weights"][0]),
        source_of(config),
        is_full(config),
    )


def _overlaps(item: Mapping[str, Any]) -> dict[str, Any]:
    run = load_run(item)
    rankings = {
        name: rank(run.final, run.initial, criterion=name) for name in ("magnitude", "change")
    }
    ratio, z, kept = [], [], []
    for fraction in item["fractions"]:
        first, second = (ranking.select(fraction) for ranking in rankings.values())
        overlap = overlap_ratio(first, second)
        ratio.append(overlap.ratio)
        z.append(overlap.z)
        kept.append(overlap_ratio(~first, ~second).ratio)
    joined = [
        np.concatenate([score.flatten().numpy() for score in ranking.scores.values()])
        for ranking in rankings.values()
    ]
    output = list(run.final)[-2]
    last = [ranking.scores[output].flatten().numpy() for ranking in rankings.values()]
    return {
        "ratio": np.array(ratio),
        "z": np.array(z),
        "kept": np.array(kept),
        "spearman": float(np.corrcoef([rankdata(scores) for scores in joined])[0, 1]),
        "pearson_output": float(np.corrcoef(last)[0, 1]),
        "weights": len(joined[0]),
    }


def plot(result: Result) -> Figure:
    """Draw the overlap beside independence, and its z-score."""
    figure, (left, right) = new_figure(1, 2, width="full", ratio=0.75)
    draw_band(left, result.fractions, result.ratio, color=COLORS[0], label="selected, $R$")
    left.plot(
        result.fractions, result.fractions, color=COLORS[0], ls=":", label="independent: $R = p$"
    )
    draw_band(left, result.fractions, result.kept, color=COLORS[1], label="kept")
    left.plot(
        result.fractions, 1 - result.fractions, color=COLORS[1], ls=":", label="independent: $1-p$"
    )
    left.set(xlabel="fraction selected, $p$", ylabel="overlap ratio", xlim=(0, 1), ylim=(0, 1.03))
    left.legend(loc="lower center", ncols=2, bbox_to_anchor=(0.5, 1.0))
    draw_band(right, result.fractions, result.z, color=COLORS[0])
    right.axhspan(-2, 2, color="0.85", lw=0)
    right.set(xlabel="fraction selected, $p$", ylabel="$z$ against independence", xlim=(0, 1))
    return figure


def claims(result: Result) -> list[Claim]:
    """Judge the printed overlap and the independence read into it."""
    position = int(np.argmin(np.abs(result.fractions - 0.8)))
    p = float(result.fractions[position])
    deviation = (1 - p) / np.sqrt(result.weights)
    return LEDGER.judge(
        {
            "overlap": by_run(result, result.ratio[:, position], f"R at p = {p:g}"),
            "independent": by_run(
                result,
                result.z[:, position],
                f"R looks close to p, but over {result.weights:,} weights its standard deviation "
                f"is {deviation:.1e}; Spearman {result.spearman.mean():.2f}, output layer Pearson "
                f"{result.pearson_output.mean():.2f}",
            ),
            "kept": by_run(
                result,
                result.kept[:, position],
                "the weights that matter are shared more than by chance",
            ),
        }
    )
