"""Trace, diagonal and Frobenius norm: exact where structure allows, else with a standard error."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, isfinite, sqrt
from typing import TYPE_CHECKING, Any
from typing import Annotated as Float

import torch

from hyperribbon.core.checks import check_finite, count, function, positive, validate
from hyperribbon.core.devices.modes import plain_arithmetic
from hyperribbon.core.devices.tensors import tensor_of
from hyperribbon.core.result import Result, frame
from hyperribbon.core.spectral_results import Estimate
from hyperribbon.spectra.estimates.confirmation import ProbeMoments, confirmed_trace, exactly
from hyperribbon.spectra.estimates.probing import SQUARES, TRACE, estimate
from hyperribbon.spectra.estimates.sketch import LEAST_VECTORS, Sketch
from hyperribbon.spectra.planning import affordable_vectors
from hyperribbon.spectra.products import Products, ShouldStop, StoppedError

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS = 64  # of the identity that are multiplied at once
_GRAM_LIMIT = 4096  # largest Gram matrix that is formed for a Frobenius norm


@dataclass(frozen=True)
class DiagonalEstimate(Result):
    """The estimated diagonal of an operator, with standard errors.

    Attributes:
        values: (P,), the diagonal.
        stderr: (P,), standard errors; zeros when exact.
        exact: Whether it was computed without sampling.
        matvecs: Operator products spent.
    """

    values: Float[torch.Tensor, "P"]
    stderr: Float[torch.Tensor, "P"]
    exact: bool
    matvecs: int

    def to_frame(self) -> pd.DataFrame:
        """Return the estimated diagonal and its standard errors, one row per coordinate."""
        return frame({"value": self.values, "stderr": self.stderr}, "coordinate", first=0)


@validate(precision=positive, max_matvecs=count, memory=positive, should_stop=function)
@plain_arithmetic()
def trace(
    op: Any,
    *,
    precision: float = 0.01,
    seed: int = 0,
    max_matvecs: int = 400,
    memory: float | None = None,
    should_stop: ShouldStop | None = None,
) -> Estimate:
    """Return the trace of a symmetric operator, estimated where it is not known.

    Exact for matrices, for operators that say `has_exact_trace` where four products confirm it, and
    for those with no more than `max_matvecs` coordinates. Otherwise the leading directions are
    deflated (Chen and Hallman, 2023): Q is an orthonormal Krylov basis of a random vector, and

        tr A = tr(QᵀAQ) + E[ωᵀAω],   ω ⟂ Q uniform on the sphere of radius √(P − rank Q).

    A pilot of probes ω shows how many bring the standard error below `precision` times the value,
    and Q grows while it saves more of them than it costs products; all probes count, and
    `interval()` has the coverage it says, rounding included. Where few are enough Q stays empty,
    and that is Hutchinson's estimator; `method` says which it was.

    Raises an ArgumentError when the trace is not finite, an argument does not fit, or the memory is
    too small for a product, and a StoppedError when `should_stop` returned True before two probes
    were multiplied.

    Args:
        op: Any object with `.shape` and `@`.
        precision: Relative standard error to aim at.
        seed: Seed of the probes.
        max_matvecs: Products that may be spent; the standard error shows what they reached.
        memory: Bytes that may be used; None for what the device has free. With less, fewer probes
            are multiplied at once and Q has fewer directions.
        should_stop: Called at the beginning and before every block of products; not inside one.
            Once it returns True, the estimate is that of the probes so far, with their standard
            error. With several processes all of them give one, and one that returns True stops all.

    >>> import torch
    >>> float(trace(torch.diag(torch.arange(4.0))))
    6.0
    """
    products = Products(op, should_stop)
    if products.is_explicit:
        return exactly(products, float(tensor_of(op).diagonal().double().sum()))
    vectors = affordable_vectors(products, memory, LEAST_VECTORS)
    if getattr(op, "has_exact_trace", False):
        found = confirmed_trace(products, Sketch(products, seed, "check", vectors))
        if found is not None:
            return found
    if products.size <= max_matvecs:
        columns = int(min(_COLUMNS, max(vectors // 3, 1)))
        return exactly(products, float(_diagonal_by_columns(products, columns).sum()))
    return estimate(Sketch(products, seed, "trace", vectors), TRACE, precision, max_matvecs)


@validate(matvecs=count, should_stop=function)
@plain_arithmetic()
def diagonal(
    op: Any, *, matvecs: int = 100, seed: int = 0, should_stop: ShouldStop | None = None
) -> DiagonalEstimate:
    """Return the diagonal of a symmetric operator, estimated where it is not known.

    Exact for matrices, for operators that say `has_exact_trace`, and for those with no more than
    `matvecs` coordinates. Otherwise a third of the products goes to a Krylov basis Q of the leading
    directions, whose part is exact, and the rest to Rademacher probes of what is left,
    B = (I − QQᵀ)A(I − QQᵀ):

        diag(A) = diag(QQᵀA + AQQᵀ − QQᵀAQQᵀ) + E[ω ⊙ Bω].

    Args:
        op: Any object with `.shape` and `@`.
        matvecs: Products to spend.
        seed: Seed of the probes.
        should_stop: As for `trace`.

    Raises:
        StoppedError: `should_stop` returned True before two probes were multiplied.
    """
    products = Products(op, should_stop)
    if products.is_explicit or getattr(op, "has_exact_trace", False):
        given = tensor_of(op.diagonal()).to(products.device, products.dtype)
        exact = check_finite("op", given)
        return DiagonalEstimate(exact, torch.zeros_like(exact), True, 0)
    if products.size <= matvecs:
        exact = _diagonal_by_columns(products).to(products.dtype)
        return DiagonalEstimate(exact, torch.zeros_like(exact), True, products.matvecs)
    sketch = Sketch(products, seed, "diagonal", inf)
    for _ in range(max(matvecs // 3, 1)):
        sketch.grow()
    Q, T = torch.cat(sketch.rows()), sketch.T
    twice = T.to(Q) @ Q  # 2AQ − QT
    twice[-1:] += 2 * sketch.coupling * sketch.following
    known = (Q * twice).sum(0)
    total = torch.zeros_like(known, dtype=torch.float64)
    squares, count = torch.zeros_like(total), 0
    while count < 2 or products.matvecs < matvecs:
        probe = sketch.signs()
        try:
            image = sketch.multiply(probe - probe @ Q.T @ Q)
        except StoppedError:
            if count < 2:
                raise
            break
        sample = (probe * (image - image @ Q.T @ Q))[0].double()
        total, squares, count = total + sample, squares + sample**2, count + 1
    mean = total / count
    variance = (squares / count - mean**2).clamp(min=0) / (count - 1)
    rounding = torch.finfo(known.dtype).eps * (Q.abs() * twice.abs()).sum(0).double()
    values, stderr = (known + mean).to(known), (variance + rounding.square()).sqrt().to(known)
    return DiagonalEstimate(values, stderr, False, products.matvecs)


@validate(precision=positive, max_matvecs=count, memory=positive, should_stop=function)
@plain_arithmetic()
def frobenius(
    op: Any,
    *,
    precision: float = 0.01,
    seed: int = 0,
    max_matvecs: int = 400,
    memory: float | None = None,
    should_stop: ShouldStop | None = None,
) -> Estimate:
    """Return the Frobenius norm of a symmetric operator, estimated where it is not known.

    Exact for matrices, from a Gram matrix of moderate size (‖FᵀF‖ = ‖FFᵀ‖), and for operators with
    no more than `max_matvecs` coordinates. Otherwise, with Q a basis of the leading directions,

        ‖A‖² = ‖AQ‖² + E‖Aω‖²,

    with as many probes ω ⟂ Q as for `trace`.

    Raises an ArgumentError or a StoppedError as `trace` does.

    Args:
        op: Any object with `.shape` and `@`.
        precision: Relative standard error to aim at.
        seed: Seed of the probes.
        max_matvecs: Products that may be spent.
        memory: As for `trace`.
        should_stop: As for `trace`.
    """
    products = Products(op, should_stop)
    if products.is_explicit:
        return exactly(products, float(torch.linalg.matrix_norm(tensor_of(op).double())))
    vectors = affordable_vectors(products, memory, LEAST_VECTORS)
    if (getattr(op, "gram_size", None) or _GRAM_LIMIT + 1) <= _GRAM_LIMIT:
        norm = float(torch.linalg.matrix_norm(op.gram().double()))
        if not isfinite(norm) or ProbeMoments(Sketch(products, seed, "check", vectors)).allow_norm(
            norm
        ):
            return exactly(products, norm)
    if products.size <= max_matvecs:
        return exactly(products, float(torch.linalg.matrix_norm(products.dense())))
    sketch = Sketch(products, seed, "frobenius", vectors)
    square = estimate(sketch, SQUARES, 2 * precision, max_matvecs)
    value = sqrt(square.value)
    return replace(square, value=value, stderr=square.stderr / (2 * value) if value else 0.0)


def _diagonal_by_columns(products: Products, count: int = _COLUMNS) -> torch.Tensor:
    pieces = [columns[some].diagonal().double() for some, columns in products.columns(count)]
    return torch.cat(pieces)
