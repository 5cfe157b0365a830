"""Trace, diagonal and Frobenius norm: exact where structure allows, else with a standard error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any

import torch

from hyperribbon.core.checks import check_positive, check_positive_int
from hyperribbon.core.generators import torch_generator
from hyperribbon.core.results import Estimate
from hyperribbon.spectra.products import Products

__all__ = ["DiagonalEstimate", "diagonal", "frobenius", "trace"]

_FIRST_PROBES = 16
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


def trace(op: Any, *, precision: float = 0.01, seed: int = 0, max_matvecs: int = 400) -> Estimate:
    """Return the trace of a symmetric operator.

    Exact for matrices, for operators that say `has_exact_trace`, and for those with no more than
    `max_matvecs` coordinates. Otherwise Hutch++ (Meyer, Musco, Musco and Woodruff, 2021) with an
    adaptive split: Q is an orthonormal basis of the leading directions, found from the images of
    earlier probes, and

        tr A = tr(QᵀAQ) + E[ωᵀAω],   ω ⟂ Q uniform on the sphere of radius √(P − rank Q).

    Probes are drawn until the standard error is below `precision` times the value.

    Args:
        op: Any object with `.shape` and `@`.
        precision: Relative standard error to reach.
        seed: Seed of the probes.
        max_matvecs: Products that may be spent; the standard error tells what they reached.

    >>> import torch
    >>> float(trace(torch.diag(torch.arange(4.0))))
    6.0
    """
    products = Products(op)
    precision = check_positive("precision", precision)
    max_matvecs = check_positive_int("max_matvecs", max_matvecs)
    if products.is_explicit:
        return Estimate(float(torch.as_tensor(op).diagonal().double().sum()), 0.0, True, 0)
    if getattr(op, "has_exact_trace", False):
        return Estimate(float(op.trace()), 0.0, True, 0)
    if products.size <= max_matvecs:
        return Estimate(float(_diagonal_by_columns(products).sum()), 0.0, True, products.matvecs)
    value, stderr = _adaptive(
        products,
        lambda Q, Z: (Q * Z).sum(dtype=torch.float64),
        lambda omega, image: (omega * image).sum(0),
        precision,
        max_matvecs,
        _Sketch(products, seed, "trace"),
    )
    return Estimate(value, stderr, False, products.matvecs)


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
    sketch = _Sketch(products, seed, "diagonal")
    sketch.absorb(products(sketch.probes(max(matvecs // 6, 1))))
    Q, Z = sketch.Q, sketch.Z
    known = 2 * (Q * Z).sum(1) - ((Q @ (Q.T @ Z)) * Q).sum(1)
    total, squares, count = torch.zeros_like(known), torch.zeros_like(known), 0
    while count < 2 or products.matvecs < matvecs:
        probe = sketch.signs()
        sample = probe * sketch.deflate(products(sketch.deflate(probe)))
        total, squares, count = total + sample, squares + sample**2, count + 1
    mean = total / count
    variance = (squares / count - mean**2).clamp(min=0) / (count - 1)
    return DiagonalEstimate(known + mean, variance.sqrt(), False, products.matvecs)


def frobenius(
    op: Any, *, precision: float = 0.01, seed: int = 0, max_matvecs: int = 400
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
    """
    products = Products(op)
    precision = check_positive("precision", precision)
    max_matvecs = check_positive_int("max_matvecs", max_matvecs)
    if products.is_explicit:
        return Estimate(float(torch.linalg.matrix_norm(torch.as_tensor(op).double())), 0.0, True, 0)
    if (getattr(op, "gram_size", None) or _GRAM_LIMIT + 1) <= _GRAM_LIMIT:
        return Estimate(float(torch.linalg.matrix_norm(op.gram().double())), 0.0, True, 0)
    if products.size <= max_matvecs:
        norm = float(torch.linalg.matrix_norm(products.dense()))
        return Estimate(norm, 0.0, True, products.matvecs)
    square, stderr = _adaptive(
        products,
        lambda Q, Z: (Z.double() ** 2).sum(),
        lambda omega, image: (image**2).sum(0),
        2 * precision,
        max_matvecs,
        _Sketch(products, seed, "frobenius"),
    )
    value = sqrt(square)
    return Estimate(value, stderr / (2 * value) if value else 0.0, False, products.matvecs)


class _Sketch:
    """An orthonormal basis Q of leading directions with Z = AQ, and probes of what is left."""

    def __init__(self, products: Products, seed: int, name: str) -> None:
        self.products = products
        self._generator = torch_generator(seed, name)
        self.Q = torch.empty(products.size, 0, dtype=products.dtype, device=products.device)
        self.Z = self.Q

    def absorb(self, images: torch.Tensor) -> None:
        """Add the span of images AΩ to Q."""
        basis = torch.linalg.qr(self.deflate(images)).Q
        basis = torch.linalg.qr(self.deflate(basis)).Q
        self.Z = torch.cat([self.Z, self.products(basis)], 1)
        self.Q = torch.cat([self.Q, basis], 1)

    def probes(self, count: int) -> torch.Tensor:
        """Return random vectors orthogonal to Q, uniform on the sphere where E[ωωᵀ] = I − QQᵀ."""
        size, products = self.products.size, self.products
        block = torch.randn(size, count, generator=self._generator, dtype=products.dtype)
        block = self.deflate(self.deflate(block.to(products.device)))
        length = sqrt(max(size - self.Q.shape[1], 0))
        return block * (length / torch.linalg.vector_norm(block, dim=0))

    def signs(self) -> torch.Tensor:
        """Return one vector of random signs."""
        bits = torch.randint(0, 2, (self.products.size,), generator=self._generator)
        return (2 * bits - 1).to(self.products.device, self.products.dtype)

    def deflate(self, block: torch.Tensor) -> torch.Tensor:
        """Return (I − QQᵀ) block."""
        return block - self.Q @ (self.Q.T @ block)


def _adaptive(
    products: Products,
    known: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    sample: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    precision: float,
    max_matvecs: int,
    sketch: _Sketch,
) -> tuple[float, float]:
    """Return known(Q, AQ) + E[sample(ω, Aω)] over ω orthogonal to Q, and its standard error.

    Each round either draws more probes, when few more are needed, or turns the images of those it
    has into directions of Q, which leaves less to probe. The probes that count are always drawn
    after Q, so they are independent of it and of each other.
    """
    count = _FIRST_PROBES
    while True:
        samples = torch.empty(0, dtype=torch.float64)
        images, base = [], float(known(sketch.Q, sketch.Z))
        while True:
            count = max(min(count, max_matvecs - products.matvecs), 2)
            omega = sketch.probes(count)
            images.append(products(omega))
            samples = torch.cat([samples, sample(omega, images[-1]).double().cpu()])
            value = base + float(samples.mean())
            stderr = float(samples.std()) / sqrt(len(samples))
            if stderr <= precision * abs(value) or products.matvecs >= max_matvecs - 1:
                return value, stderr
            needed = len(samples) * (stderr / (precision * value)) ** 2 if value else float("inf")
            count = ceil(needed) - len(samples)
            if count > 2 * len(samples) and products.matvecs + 2 * len(samples) < max_matvecs:
                break
        sketch.absorb(torch.cat(images, 1))
        count = max(len(samples), _FIRST_PROBES)


def _diagonal_by_columns(products: Products, columns: int = 64) -> torch.Tensor:
    pieces = []
    for start in range(0, products.size, columns):
        width = min(columns, products.size - start)
        unit = torch.zeros(products.size, width, dtype=products.dtype, device=products.device)
        unit[start : start + width].fill_diagonal_(1)
        pieces.append(products(unit)[start : start + width].diagonal().double())
    return torch.cat(pieces)
