"""Fig. 3.7 of [subnetworks]: how much the selections by magnitude and by change share."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import rankdata

from hyperribbon.papers.experiments.judging import Measurements
from hyperribbon.papers.experiments.kit import COLORS, Context, Figure, Item, new_figure, stack
from hyperribbon.papers.experiments.statements import Band, observe
from hyperribbon.papers.experiments.subnetworks import _runs
from hyperribbon.papers.experiments.subnetworks._weights import REACHED
from hyperribbon.subnetworks import overlap_ratio, rank

TITLE = "Overlap of the selections by magnitude and by change"

STATEMENTS = (
    _runs.says_trained(
        "overlap",
        "Sec. 3.4",
        "when a large fraction of parameters is pruned (e.g., p = 0.8), the overlap ratio between "
        "the two criteria reaches 83.7%",
        f"At p = 0.8 the overlap ratio R of Eq. (3.1) is 0.837 {REACHED}",
        Band.around(0.837, "printed", atol=0.0005),
        compare="prediction",
        changed="2026-11-17: mean of our runs within ±0.003 before",
    ),
    _runs.says_trained(
        "independent",
        "Sec. 3.4, Fig. 3.7",
        "Our observation that the measured overlap ratio aligns with this expectation suggests "
        "that the two criteria are statistically independent in terms of the indices they select.",
        "At p = 0.8, R lies within three standard deviations of p, those of two independent "
        "choices of pn of n weights.",
        Band(-3, 3, "closed form"),
    ),
    _runs.says_trained(
        "larger-changes-larger-values",
        "Sec. 3.3.2",
        "parameters with larger absolute changes during training are more likely to correspond to "
        "those with larger absolute values in the trained model",
        "Absolute change and absolute value have a positive rank correlation over all weights "
        "(which contradicts the independence of Sec. 3.4).",
        Band.at_least(0.0, "words"),
    ),
    observe(
        "kept",
        "Sec. 3.4",
        "The weights kept by both criteria at p = 0.8 overlap by 0.2 ± 0.02, as independent "
        "choices would.",
        Band.around(0.2, "closed form", atol=0.02),
        needs=_runs.SCALE,
        changed="2026-11-17: a claim before; it follows from the independence judged above",
    ),
)


class Config(_runs.TrainingConfig):
    """Setting of Fig. 3.7 of [subnetworks]."""

    points: int = 20  # number of fractions in (0, 1)


PRESETS, PRESETS_WITH_DATA = _runs.presets(Config, smoke={"points": 10}, paper={"points": 100})


class Result(_runs.OfRuns):
    """Overlap by fraction (Fig. 3.7 of [subnetworks])."""

    fractions: np.ndarray  # (f,)
    ratio: np.ndarray  # (seeds, f), |S₁ ∩ S₂| / |S₁| of the selected (smallest) weights
    z: np.ndarray  # (seeds, f), deviations from independence in standard deviations
    kept: np.ndarray  # (seeds, f), the same ratio of the weights not selected
    spearman: np.ndarray  # (seeds,), rank correlation of |θ| and |θ − θ⁰| over all weights
    pearson_output: np.ndarray  # (seeds,), their correlation in the output layer
    weights: int  # number of weights


def compute(config: Config, context: Context) -> Result:
    """Compare the two selections of every run (Fig. 3.7 of [subnetworks])."""
    fractions = (np.arange(1, config.points) / config.points).tolist()
    items = [{**item, "fractions": fractions} for item in _runs.train_runs(config, context)]
    measured = context.map(_overlaps, items, "overlaps")
    return Result(
        fractions=np.array(fractions),
        **stack(measured, "ratio", "z", "kept", "spearman", "pearson_output"),
        weights=measured[0]["weights"],
        **_runs.origin(config),
    )


def _overlaps(item: Item) -> dict[str, Any]:
    run = _runs.load_run(item)
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
    """Draw the overlap beside independence, and its z-score (Fig. 3.7 of [subnetworks])."""
    figure, (left, right) = new_figure(1, 2, width="full", ratio=0.75)
    _runs.draw_band(left, result.fractions, result.ratio, color=COLORS[0], label="selected, $R$")
    left.plot(
        result.fractions, result.fractions, color=COLORS[0], ls=":", label="independent: $R = p$"
    )
    _runs.draw_band(left, result.fractions, result.kept, color=COLORS[1], label="kept")
    left.plot(
        result.fractions, 1 - result.fractions, color=COLORS[1], ls=":", label="independent: $1-p$"
    )
    left.set(xlabel="fraction selected, $p$", ylabel="overlap ratio", xlim=(0, 1), ylim=(0, 1.03))
    left.legend(loc="lower center", ncols=2, bbox_to_anchor=(0.5, 1.0))
    _runs.draw_band(right, result.fractions, result.z, color=COLORS[0])
    right.axhspan(-2, 2, color="0.85", lw=0)
    right.set(xlabel="fraction selected, $p$", ylabel="$z$ against independence", xlim=(0, 1))
    return figure


def measure(result: Result) -> Measurements:
    """Measure the printed overlap and the independence read into it (Fig. 3.7 of [subnetworks])."""
    position = int(np.argmin(np.abs(result.fractions - 0.8)))
    p = float(result.fractions[position])
    deviation = (1 - p) / np.sqrt(result.weights)
    return {
        "overlap": result.by_run(result.ratio[:, position], f"R at p = {p:g}"),
        "independent": result.by_run(
            result.z[:, position],
            f"R looks close to p, but over {result.weights:,} weights its standard deviation "
            f"is {deviation:.1e}; Spearman {result.spearman.mean():.2f}, output layer Pearson "
            f"{result.pearson_output.mean():.2f}",
        ),
        "larger-changes-larger-values": result.by_run(
            result.spearman, "Spearman's rank correlation"
        ),
        "kept": result.by_run(
            result.kept[:, position], "the weights that matter are shared more than by chance"
        ),
    }
