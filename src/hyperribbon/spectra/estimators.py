"""Trace, diagonal and Frobenius norm: exact where structure allows, else with a standard error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, inf, isfinite, sqrt
from typing import Any

import torch

from hyperribbon.core.checks import ArgumentError, check_positive, check_positive_int
from hyperribbon.core.results import Estimate
from hyperribbon.spectra.planning import affordable_vectors
from hyperribbon.spectra.products import Products
from hyperribbon.spectra.sketch import LEAST_VECTORS, Sketch, row_products

__all__ = ["DiagonalEstimate", "diagonal", "frobenius", "trace"]

_FIRST_PROBES = 16
_COLUMNS = 64  # of the identity that are multiplied at once
_GRAM_LIMIT = 4096  # largest Gram matrix that is formed for a Frobenius norm


@dataclass(frozen=True)
class DiagonalEstimate:
    """The diagonal of an operator.

    Attributes:
        values: (P,), the diagonal.
        stderr: (P,), standard errors; zeros when exact.
        exact: Whether it was computed without sampling.
        matvecs: Operator products spent.
    """

    values: torch.Tensor
    stderr: torch.Tensor
    exact: bool
    matvecs: int


def trace(
    op: Any,
    *,
    precision: float = 0.01,
    seed: int = 0,
    max_matvecs: int = 400,
    memory: float | None = None,
) -> Estimate:
    """Return the trace of a symmetric operator.

    Exact for matrices, for operators that say `has_exact_trace`, and for those with no more than
    `max_matvecs` coordinates. Otherwise Hutch++ (Meyer, Musco, Musco and Woodruff, 2021) with an
    adaptive split: Q is an orthonormal basis of the leading directions, found from the images of
    earlier probes, and

        tr A = tr(QᵀAQ) + E[ωᵀAω],   ω ⟂ Q uniform on the sphere of radius √(P − rank Q).

    Probes are drawn until the standard error is below `precision` times the value. With few of them
    Q stays empty, and that is Hutchinson's estimator; `method` says which it was.

    Args:
        op: Any object with `.shape` and `@`.
        precision: Relative standard error to reach.
        seed: Seed of the probes.
        max_matvecs: Products that may be spent; the standard error tells what they reached.
        memory: Bytes that may be used; None for what the device has free. With less, fewer probes
            are multiplied at once and Q has fewer directions.

    Raises:
        ArgumentError: The trace is not finite, an argument does not fit, or the memory is too
            small for a product.

    >>> import torch
    >>> float(trace(torch.diag(torch.arange(4.0))))
    6.0
    """
    products = Products(op)
    precision = check_positive("precision", precision)
    max_matvecs = check_positive_int("max_matvecs", max_matvecs)
    memory = None if memory is None else check_positive("memory", memory)
    if products.is_explicit:
        return _exact(op, float(torch.as_tensor(op).diagonal().double().sum()), 0)
    if getattr(op, "has_exact_trace", False):
        return _exact(op, float(op.trace()), 0)
    vectors = affordable_vectors(products, memory, LEAST_VECTORS)
    if products.size <= max_matvecs:
        columns = int(min(_COLUMNS, max(vectors // 3, 1)))
        return _exact(op, float(_diagonal_by_columns(products, columns).sum()), products.matvecs)
    return _adaptive(
        Sketch(products, seed, "trace", vectors),
        Sketch.inner,
        row_products,
        precision,
        max_matvecs,
    )


def diagonal(op: Any, *, matvecs: int = 100, seed: int = 0) -> DiagonalEstimate:
    """Return the diagonal of a symmetric operator.

    Exact for matrices, for operators that say `has_exact_trace`, and for those with no more than
    `matvecs` coordinates. Otherwise a third of the products finds a basis Q of the leading
    directions (Y = AΩ, then AQ), whose part is exact, and the rest are Rademacher probes of what
    is left, B = (I − QQᵀ)A(I − QQᵀ):

        diag(A) = diag(QQᵀA + AQQᵀ − QQᵀAQQᵀ) + E[ω ⊙ Bω].

    Args:
        op: Any object with `.shape` and `@`.
        matvecs: Products to spend.
        seed: Seed of the probes.
    """
    products = Products(op)
    matvecs = check_positive_int("matvecs", matvecs)
    if products.is_explicit or getattr(op, "has_exact_trace", False):
        exact = torch.as_tensor(op.diagonal()).to(products.device, products.dtype)
        return DiagonalEstimate(exact, torch.zeros_like(exact), True, 0)
    if products.size <= matvecs:
        exact = _diagonal_by_columns(products).to(products.dtype)
        return DiagonalEstimate(exact, torch.zeros_like(exact), True, products.matvecs)
    sketch = Sketch(products, seed, "diagonal", inf)
    sketch.absorb([sketch.multiply(sketch.probes(max(matvecs // 6, 1)))])
    Q, Z = sketch.Q, sketch.Z
    known = 2 * (Q * Z).sum(0) - ((Q @ Z.T).T @ Q * Q).sum(0)
    total, squares, count = torch.zeros_like(known), torch.zeros_like(known), 0
    while count < 2 or products.matvecs < matvecs:
        probe = sketch.signs()
        sample = (probe * sketch.deflate(sketch.multiply(sketch.deflate(probe))))[0]
        total, squares, count = total + sample, squares + sample**2, count + 1
    mean = total / count
    variance = (squares / count - mean**2).clamp(min=0) / (count - 1)
    return DiagonalEstimate(known + mean, variance.sqrt(), False, products.matvecs)


def frobenius(
    op: Any,
    *,
    precision: float = 0.01,
    seed: int = 0,
    max_matvecs: int = 400,
    memory: float | None = None,
) -> Estimate:
    """Return the Frobenius norm of a symmetric operator.

    Exact for matrices, from a Gram matrix of moderate size (‖FᵀF‖ = ‖FFᵀ‖), and for operators with
    no more than `max_matvecs` coordinates. Otherwise, with Q a basis of the leading directions,

        ‖A‖² = ‖AQ‖² + E‖Aω‖²,

    with probes ω ⟂ Q as for `trace`, until the standard error is below `precision` times the value.

    Args:
        op: Any object with `.shape` and `@`.
        precision: Relative standard error to reach.
        seed: Seed of the probes.
        max_matvecs: Products that may be spent.
        memory: As for `trace`.

    Raises:
        ArgumentError: As for `trace`.
    """
    products = Products(op)
    precision = check_positive("precision", precision)
    max_matvecs = check_positive_int("max_matvecs", max_matvecs)
    memory = None if memory is None else check_positive("memory", memory)
    if products.is_explicit:
        return _exact(op, float(torch.linalg.matrix_norm(torch.as_tensor(op).double())), 0)
    if (getattr(op, "gram_size", None) or _GRAM_LIMIT + 1) <= _GRAM_LIMIT:
        return _exact(op, float(torch.linalg.matrix_norm(op.gram().double())), 0)
    vectors = affordable_vectors(products, memory, LEAST_VECTORS)
    if products.size <= max_matvecs:
        norm = float(torch.linalg.matrix_norm(products.dense()))
        return _exact(op, norm, products.matvecs)
    square = _adaptive(
        Sketch(products, seed, "frobenius", vectors),
        Sketch.squares,
        lambda omega, image: row_products(image, image),
        2 * precision,
        max_matvecs,
    )
    value = sqrt(square.value)
    return replace(square, value=value, stderr=square.stderr / (2 * value) if value else 0.0)


def _exact(op: Any, value: float, matvecs: int) -> Estimate:
    """Return an exact number, which must be one."""
    if not isfinite(value):
        raise ArgumentError(
            "op",
            type(op).__name__,
            f"the number it gives is {value}",
            "Check that the loss, the weights and the data are finite.",
        )
    return Estimate(value, 0.0, True, matvecs, "exact")


def _adaptive(
    sketch: Sketch,
    known: Callable[[Sketch], float],
    sample: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    precision: float,
    max_matvecs: int,
) -> Estimate:
    """Return known(Q, AQ) + E[sample(ω, Aω)] over ω orthogonal to Q.

    Each round either draws more probes, when few more are needed, or turns the images of those it
    has into directions of Q, which leaves less to probe. The probes that count are always drawn
    after Q, so they are independent of it and of each other.
    """
    products, count = sketch.products, _FIRST_PROBES
    while True:
        samples = torch.empty(0, dtype=torch.float64)
        images, base = [], known(sketch)
        while True:
            count = max(min(count, max_matvecs - products.matvecs), 2)
            for width in _widths(count, sketch.block):
                omega = sketch.probes(width)
                image = sketch.multiply(omega)
                samples = torch.cat([samples, sample(omega, image).cpu()])
                if sum(map(len, images)) < sketch.room:
                    images.append(image)
                del omega, image
            value = base + float(samples.mean())
            stderr = float(samples.std()) / sqrt(len(samples))
            if stderr <= precision * abs(value) or products.matvecs >= max_matvecs - 1:
                method = "hutch++" if sketch.rank else "hutchinson"
                return Estimate(value, stderr, False, products.matvecs, method)
            needed = len(samples) * (stderr / (precision * value)) ** 2 if value else inf
            count = int(min(ceil(min(needed, 1e9)) - len(samples), max_matvecs))
            kept = min(sum(map(len, images)), sketch.room)
            spent = products.matvecs + kept + len(samples)
            if kept and count > 2 * len(samples) and spent < max_matvecs:
                break
        sketch.absorb(images)
        count = max(len(samples), _FIRST_PROBES)


def _widths(count: int, block: int) -> list[int]:
    """Return the widths of the blocks in which `count` probes are multiplied."""
    return [min(block, count - start) for start in range(0, count, block)]


def _diagonal_by_columns(products: Products, columns: int = _COLUMNS) -> torch.Tensor:
    pieces = []
    for start in range(0, products.size, columns):
        width = min(columns, products.size - start)
        unit = torch.zeros(products.size, width, dtype=products.dtype, device=products.device)
        unit[start : start + width].fill_diagonal_(1)
        pieces.append(products(unit)[start : start + width].diagonal().double())
    return torch.cat(pieces)
