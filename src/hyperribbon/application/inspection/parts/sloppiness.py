"""How sloppy the data are: the spectrum of the inputs and the number of directions in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from hyperribbon.application.inspection.engine.notebook import Level, Notebook
from hyperribbon.application.inspection.engine.scheduler import Measurement
from hyperribbon.application.inspection.engine.subject import Subject
from hyperribbon.application.inspection.parts.matrices import spectral_chart
from hyperribbon.application.inspection.quantities import Part
from hyperribbon.core.checks import ArgumentError
from hyperribbon.operators.risk.batches import split
from hyperribbon.plots import Curve
from hyperribbon.spectra import summarize
from hyperribbon.theory.ribbons import slope

_SAMPLES = 4096
"""Samples whose inputs are looked at: fewer than the inputs' directions would hide some."""
_LARGEST = 2048
"""Largest matrix whose eigenvalues are computed; the rest of more samples is left out."""


def input_matrix(subject: Subject, most: float = np.inf) -> np.ndarray | None:
    """Return the inputs whose sloppiness is measured as rows (n, d); None if not numbers."""
    shares = subject.processes.gather(_own_inputs(subject, most))
    if any(share is None for share in shares):
        return None
    return np.concatenate([rows for share in shares for rows in share])


def _own_inputs(subject: Subject, most: float) -> list[np.ndarray] | None:
    rows, step, first = [], 1, 0
    for batch in subject.hessian.risk.source.batches():
        inputs = _real_inputs(batch)
        if inputs is None:
            return None
        if not rows:
            size = 8 * subject.samples * int(inputs[0].numel())
            step = max(1, int(np.ceil(size / most)))
        chosen = inputs[(-first) % step :: step]
        first += len(inputs)
        rows.append(chosen.flatten(1).double().cpu().numpy())
    return rows


def _real_inputs(batch: Any) -> torch.Tensor | None:
    inputs = split(batch)[0]
    return inputs if isinstance(inputs, torch.Tensor) and inputs.is_floating_point() else None


def sloppiness_part(level: Level, notebook: Notebook) -> Part:
    """Sloppiness part: measure the inputs' correlation eigenvalues and their slope."""
    subject = level.subject.of_given(_SAMPLES, notebook.seed)  # without products
    inputs = input_matrix(subject, notebook.memory / 8)
    if inputs is None:
        reason = "they are not tensors of real numbers"
        raise ArgumentError("data", "inputs", reason, "Nothing to do here.")
    if min(inputs.shape) > _LARGEST:
        inputs = inputs[np.linspace(0, len(inputs) - 1, _LARGEST).astype(int)]
    samples, dimension = inputs.shape
    smaller = inputs.T @ inputs if dimension <= samples else inputs @ inputs.T
    values = np.linalg.eigvalsh(smaller / samples)[::-1]
    values = values[values > 1e-12 * max(values[0], 1e-300)]
    summary = summarize(values) if len(values) else summarize(np.zeros(1))
    few, how = summary.dimensions(0.95), f"eigenvalues of XᵀX/n, {samples:,} samples"
    part = Part("sloppiness", "Sloppiness of the data", "Data")
    part.exact("data.dimension", "Input dimension", dimension, "shape of the inputs")
    part.exact("data.dimensions95", "Directions that hold 95% of the inputs", few, how)
    name, how = "Effective rank of the inputs", "exp of the entropy of the eigenvalues"
    part.exact("data.effective_rank", name, summary.effective_rank, how)
    part.readings.append(f"{few} of {dimension} input directions hold 95% of the inputs.")
    marks = [Curve(np.arange(1, len(values) + 1), values, "inputs", "points")]
    if len(values) >= 6:
        fit = slope(values)
        how = f"line through ln λ, indices {fit.first + 1} to {fit.last}"
        thirds = ", ".join(f"{c:.3g}" for c in fit.local)
        certainty = f"Newey-West standard error; slopes of the thirds {thirds}"
        name = "Sloppiness c: decay of ln λ per index"
        part.number("data.slope", name, fit.value, fit.stderr, how, certainty)
        how = "share of the variance of ln λ that one exponential explains"
        part.exact("data.straightness", "R² of that line", fit.r_squared, how)
        places, label = np.arange(fit.first, fit.last) + 1, f"slope c = {fit.value:.3g}"
        marks.append(Curve(places, fit.line(), label, dashed=True))
        part.readings.append(_read_slope(fit.value, fit.r_squared, fit.local))
    caption = "A straight line on the logarithmic scale is an exponentially decaying spectrum."
    chart = spectral_chart("inputs", "Eigenvalues of the inputs", marks, caption)
    part.charts.append(replace(chart, y_label="eigenvalue of XᵀX/n"))
    part.arrays["eigenvalues"] = values
    return part.on(samples)


def _read_slope(c: float, r_squared: float, local: np.ndarray) -> str:
    spread = float(np.max(local) / max(np.min(local), 1e-12))
    if r_squared > 0.95 and spread < 3:
        return f"Their eigenvalues fall exponentially, by a factor of {np.exp(c):.3g} per index."
    return (
        "Their eigenvalues do not fall along one exponential: the rate is "
        + ", ".join(f"{value:.3g}" for value in local)
        + " in the three thirds of the spectrum."
    )


def _no_numbers(level: Level, notebook: Notebook) -> str:
    batch = next(level.subject.risk.source.batches())
    return "the inputs are not tensors of real numbers" if _real_inputs(batch) is None else ""


MEASUREMENTS = (
    Measurement(
        "sloppiness",
        "Sloppiness of the data",
        order=60,
        run=sloppiness_part,
        products=lambda level, n: 50,
        size=512,
        obstacle=_no_numbers,
    ),
)
