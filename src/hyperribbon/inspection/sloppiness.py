"""How sloppy the data are: the spectrum of the inputs and the number of directions in it."""

from __future__ import annotations

import numpy as np
import torch

from hyperribbon.core.checks import ArgumentError
from hyperribbon.inspection.notebook import Notebook
from hyperribbon.inspection.quantities import Part, Quantity, exact
from hyperribbon.inspection.subject import Subject
from hyperribbon.plots import Chart, Curve
from hyperribbon.spectra import summarize
from hyperribbon.theory.ribbons import slope

__all__ = ["input_matrix", "sloppiness_part"]

_LARGEST = 2048
"""Largest matrix whose eigenvalues are computed; the rest of more samples is left out."""


def input_matrix(subject: Subject, most: float = np.inf) -> np.ndarray | None:
    """Return the inputs as rows (n, d), or None when they are not tensors of numbers.

    Args:
        subject: What is inspected.
        most: Bytes of them; of more, evenly chosen samples are taken.
    """
    shares = subject.processes.gather(_own_inputs(subject, most))
    if any(share is None for share in shares):
        return None
    return np.concatenate([rows for share in shares for rows in share])


def _own_inputs(subject: Subject, most: float) -> list[np.ndarray] | None:
    rows, step, first = [], 1, 0
    for batch in subject.hessian.risk.source.batches():
        inputs = batch[0] if isinstance(batch, tuple | list) else batch
        if not isinstance(inputs, torch.Tensor) or not inputs.is_floating_point():
            return None
        if not rows:
            size = 8 * subject.samples * int(inputs[0].numel())
            step = max(1, int(np.ceil(size / most)))
        chosen = inputs[(-first) % step :: step]
        first += len(inputs)
        rows.append(chosen.flatten(1).double().cpu().numpy())
    return rows


def sloppiness_part(subject: Subject, notebook: Notebook, products: int) -> Part:
    """Measure the eigenvalues of the inputs' correlation matrix and their slope."""
    inputs = input_matrix(subject, notebook.memory / 8)
    if inputs is None:
        raise ArgumentError(
            "data", "inputs", "they are not tensors of real numbers", "Nothing to do here."
        )
    if min(inputs.shape) > _LARGEST:
        inputs = inputs[np.linspace(0, len(inputs) - 1, _LARGEST).astype(int)]
    samples, dimension = inputs.shape
    smaller = inputs.T @ inputs if dimension <= samples else inputs @ inputs.T
    values = np.linalg.eigvalsh(smaller / samples)[::-1]
    values = values[values > 1e-12 * max(values[0], 1e-300)]
    summary = summarize(values) if len(values) else summarize(np.zeros(1))
    quantities = [
        exact("data.dimension", "Input dimension", dimension, "shape of the inputs"),
        exact("data.dimensions95", "Directions that hold 95% of the inputs",
              summary.dimensions(0.95), f"eigenvalues of XᵀX/n, {samples:,} samples"),
        exact("data.effective_rank", "Effective rank of the inputs", summary.effective_rank,
              "exp of the entropy of the eigenvalues"),
    ]  # fmt: skip
    marks = [Curve(np.arange(1, len(values) + 1), values, "inputs", "points")]
    readings = [
        f"{summary.dimensions(0.95)} of {dimension} input directions hold 95% of the inputs."
    ]
    if len(values) >= 6:
        fit = slope(values)
        quantities.append(
            Quantity("data.slope", "Sloppiness c: decay of ln λ an index", fit.value, fit.stderr,
                     f"line through ln λ, indices {fit.first + 1} to {fit.last}",
                     "Newey-West standard error; slopes of the thirds "
                     + ", ".join(f"{c:.3g}" for c in fit.local))
        )  # fmt: skip
        quantities.append(
            exact("data.straightness", "R² of that line", fit.r_squared, "share of the variance of "
                  "ln λ that one exponential explains")
        )  # fmt: skip
        marks.append(
            Curve(np.arange(fit.first, fit.last) + 1, fit.line(), f"slope c = {fit.value:.3g}",
                  dashed=True)
        )  # fmt: skip
        readings.append(_read_slope(fit.value, fit.r_squared, fit.local))
    chart = Chart(
        "inputs", "Eigenvalues of the inputs", "index", "eigenvalue of XᵀX/n", tuple(marks),
        log_y=True, toggles=("x", "y"),
        caption="A straight line on the logarithmic scale is an exponentially decaying spectrum.",
    )  # fmt: skip
    return Part(
        "sloppiness", "Sloppiness of the data", "Data", tuple(quantities), tuple(readings),
        (chart,), arrays={"eigenvalues": values},
    )  # fmt: skip


def _read_slope(c: float, r_squared: float, local: np.ndarray) -> str:
    spread = float(np.max(local) / max(np.min(local), 1e-12))
    if r_squared > 0.95 and spread < 3:
        return f"Their eigenvalues fall exponentially, by a factor {np.exp(c):.3g} an index."
    return (
        "Their eigenvalues do not fall along one exponential: the rate is "
        + ", ".join(f"{value:.3g}" for value in local)
        + " in the three thirds of the spectrum."
    )
