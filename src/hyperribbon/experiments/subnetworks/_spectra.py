"""Fisher spectra along re-initialisation and pruning of a recorded run, shared by three figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hyperribbon.core import derive_seed
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.subnetworks._training import (
    TrainingConfig,
    load_run,
    test_data,
    train_data,
    trained_runs,
)
from hyperribbon.inspection import Anisotropy, measure_anisotropy
from hyperribbon.subnetworks import evaluate, prune, reinitialize, select

__all__ = ["SpectralConfig", "fractions_of", "spectral_curve", "summary_of"]

_FRACTIONS = {
    "smallest": (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.98, 1.0),
    "random": (0.0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0),
    "largest": (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0),
}
"""Shares of the weights by order; "random" is random selection, the others go by change."""


@dataclass(frozen=True)
class SpectralConfig(TrainingConfig):
    """Setting of the figures with spectra along re-initialisation.

    Attributes:
        samples: N, images the Fisher matrix averages over.
        outputs: "softmax" as in the paper, or "model" for the logits.
        stride: Measure every stride-th of the fractions only.
    """

    samples: int = 200
    outputs: str = "softmax"
    stride: int = 1


def fractions_of(config: SpectralConfig, order: str) -> list[float]:
    """Return the shares of the weights at which a curve is measured, 0 and 1 among them."""
    fractions = _FRACTIONS[order]
    return sorted({*fractions[:: config.stride], fractions[-1]})


def spectral_curve(
    config: SpectralConfig, context: Context, operation: str, order: str
) -> dict[str, np.ndarray]:
    """Return the summaries of every run along the fractions, (seeds, fractions) each."""
    runs = trained_runs(config, context)
    fractions = fractions_of(config, order)
    items = [_item(config, run, operation, order, f) for run in runs for f in fractions]
    points = context.shared_map(_point, items, f"spectra, {operation} {order} first")
    return {
        key: np.array([point[key] for point in points]).reshape(len(runs), len(fractions))
        for key in points[0]
    }


def _item(
    config: SpectralConfig, run: Mapping[str, Any], operation: str, order: str, fraction: float
) -> dict[str, Any]:
    """Return the item of one point; the ends, where the order plays no part, have one name."""
    if fraction == 0.0:
        operation = "reinitialize"
    if fraction in (0.0, 1.0):
        order = "largest"
    return {
        **run,
        "operation": operation,
        "order": order,
        "fraction": fraction,
        "samples": config.samples,
        "outputs": config.outputs,
        "vectors": operation == "reinitialize" and order != "smallest",
    }


def summary_of(measured: Anisotropy) -> dict[str, float]:
    """Return the numbers of one spectrum that the figures show; NaN where not measured."""
    count = len(measured.eigenvalues)
    ranks, kurtoses = measured.effective_ranks, measured.kurtoses
    if ranks is None or kurtoses is None:
        ranks = kurtoses = measured.eigenvalues * float("nan")
    return {
        "t50": measured.trace_ratio(min(50, count)),
        "t100": measured.trace_ratio(min(100, count)),
        "spectral_norm": measured.spectral_norm,
        "frobenius": measured.frobenius,
        "effective_rank50": float(ranks[:50].mean()),
        "effective_rank100": float(ranks.mean()),
        "kurtosis50": float(kurtoses[:50].mean()),
        "kurtosis100": float(kurtoses.mean()),
    }


def _point(item: Mapping[str, Any]) -> dict[str, float]:
    run = load_run(item)
    mask = select(
        run.final,
        run.initial,
        fraction=item["fraction"],
        criterion="random" if item["order"] == "random" else "change",
        order="largest" if item["order"] == "largest" else "smallest",
        include="all",
        seed=derive_seed(item["seed"], "random selection"),
    )
    if item["operation"] == "prune":
        state = prune(run.final, mask)
    else:
        state = reinitialize(run.final, run.initial, mask)
    measured = measure_anisotropy(
        run.model,
        train_data(item, item["samples"]).inputs,
        state=state,
        outputs=item["outputs"],
        vectors=item["vectors"],
    )
    accuracy = float(evaluate(run.model, [state], test_data(item)).mean())
    return {**summary_of(measured), "accuracy": accuracy}
