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
    shared_results,
    test_data,
    train_data,
    trained_runs,
)
from hyperribbon.inspection import Anisotropy, measure_anisotropy
from hyperribbon.subnetworks import evaluate, prune, rank, reinitialize

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
    items = [
        {
            **run,
            "operation": operation,
            "order": order,
            "fractions": fractions_of(config, order),
            "samples": config.samples,
            "outputs": config.outputs,
        }
        for run in trained_runs(config, context)
    ]
    curves = shared_results(context, _curve, items, f"spectra, {operation} {order} first")
    return {key: np.array([curve[key] for curve in curves]) for key in curves[0]}


def summary_of(measured: Anisotropy) -> dict[str, float]:
    """Return the numbers of one spectrum that the figures show."""
    assert measured.effective_ranks is not None and measured.kurtoses is not None
    count = len(measured.eigenvalues)
    return {
        "t50": measured.trace_ratio(min(50, count)),
        "t100": measured.trace_ratio(min(100, count)),
        "spectral_norm": measured.spectral_norm,
        "frobenius": measured.frobenius,
        "effective_rank50": float(measured.effective_ranks[:50].mean()),
        "effective_rank100": float(measured.effective_ranks.mean()),
        "kurtosis50": float(measured.kurtoses[:50].mean()),
        "kurtosis100": float(measured.kurtoses.mean()),
    }


def _curve(item: Mapping[str, Any]) -> dict[str, np.ndarray]:
    run = load_run(item)
    ranking = rank(
        run.final,
        run.initial,
        criterion="random" if item["order"] == "random" else "change",
        order="largest" if item["order"] == "largest" else "smallest",
        include="all",
        seed=derive_seed(item["seed"], "random selection"),
    )
    inputs = train_data(item, item["samples"]).inputs
    rows = []
    for fraction in item["fractions"]:
        mask = ranking.select(fraction)
        if item["operation"] == "prune":
            state = prune(run.final, mask)
        else:
            state = reinitialize(run.final, run.initial, mask)
        measured = measure_anisotropy(run.model, inputs, state=state, outputs=item["outputs"])
        accuracy = float(evaluate(run.model, [state], test_data(item)).mean())
        rows.append({**summary_of(measured), "accuracy": accuracy})
    return {key: np.array([row[key] for row in rows]) for key in rows[0]}
