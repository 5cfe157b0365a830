"""Fig. 4.6 of [subnetworks]: trace ratio and accuracy along re-initialisation and pruning."""

from __future__ import annotations

import numpy as np

from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.subnetworks import _spectra

TITLE = "Trace ratio and accuracy, smallest and largest changes first"

_CURVES = ("reinitialize-smallest", "prune-smallest", "reinitialize-largest", "prune-largest")

_QUOTE = (
    "when critical parameters are disturbed—whether by pruning or re-initialization—the anisotropy "
    "of the FIM spectrum consistently declines, accompanied by a corresponding drop in model "
    "performance"
)

STATEMENTS = (
    _spectra.says_fisher(
        "together",
        "Sec. 4.3.3, Fig. 4.6 (c)",
        _QUOTE,
        "Along re-initialisation, largest change first, T100 and test accuracy have a correlation "
        "of at least 0.7 (our threshold).",
        kit.Band.at_least(0.7, "words"),
    ),
    _spectra.says_fisher(
        "pruning-returns",
        "Sec. 4.3.3, Fig. 4.6 (d)",
        "Sub-figures (b) and (d) illustrate an increase in the trace ratio at the end of pruning",
        "Pruning the largest changes first, T100 rises by at least 0.05 from its minimum to "
        "p = 0.9 (our threshold).",
        kit.Band.at_least(0.05, "words"),
    ),
)

Config = _spectra.SpectralConfig
Result = _spectra.Curves
PRESETS, PRESETS_WITH_DATA = _spectra.PRESETS, _spectra.PRESETS_WITH_DATA


def compute(config: Config, context: kit.Context) -> Result:
    """Measure the four curves of every run (Fig. 4.6 of [subnetworks])."""
    return _spectra.measure_curves(config, context, _CURVES, ("t100", "accuracy"))


def plot(result: Result) -> kit.Figure:
    """Draw one panel for each operation and order (Fig. 4.6 of [subnetworks])."""
    figure, axes = kit.new_figure(2, 2, width="full", ratio=0.6, sharey=True)
    words = {"reinitialize": "re-initialised", "prune": "pruned"}
    for letter, axis, curve in zip("abcd", axes.ravel(), _CURVES, strict=True):
        operation, order = curve.split("-")
        for column, color, marker, label in (
            ("t100", kit.COLORS[0], "o", "$T_{100}$"),
            ("accuracy", kit.COLORS[1], "s", "test accuracy"),
        ):
            result.draw(axis, column, curve, color=color, marker=marker, label=label)
        axis.set_title(f"({letter}) {words[operation]}, {_spectra.ORDER_LABELS[order]}")
        axis.set_ylim(0, 1.03)
        if order == "largest":
            _spectra.logarithmic_shares(axis)
    for axis in axes[:, 0]:
        axis.set_ylabel("$T_{100}$, test accuracy")
    for axis in axes[1]:
        axis.set_xlabel("share of the weights (logarithmic above 0.01)")
    axes[0, 0].legend(loc="lower left")
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure whether T100 and accuracy fall together, and its return under pruning (Fig. 4.6)."""
    ratio = result.columns["t100"]["reinitialize-largest"]
    accuracy = result.columns["accuracy"]["reinitialize-largest"]
    pruned = result.columns["t100"]["prune-largest"]
    return {
        "together": result.by_run(
            [np.corrcoef(*pair)[0, 1] for pair in zip(ratio, accuracy, strict=True)],
            "correlation of the two along the curve",
        ),
        "pruning-returns": result.by_run(
            result.at("t100", "prune-largest", 0.9) - pruned.min(1),
            f"T100 at p = 0.9 minus its minimum, {pruned.min(1).mean():.2f}",
        ),
    }
