"""Operators s·Σ_n J_nᵀ M_n J_n with M_n = R_nᵀR_n: products, Gram matrix, trace and diagonal."""

from __future__ import annotations

from abc import abstractmethod
from math import sqrt
from typing import TypeVar

import torch

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.devices.modes import plain_arithmetic
from hyperribbon.operators.derivatives.linearisation import Block
from hyperribbon.operators.gram import squared_parts
from hyperribbon.operators.gram_tiles import tiled_gram_matrix
from hyperribbon.operators.risk import Chunk, Risk
from hyperribbon.operators.risk.contract import tolerance
from hyperribbon.operators.risk.memory import Meter
from hyperribbon.operators.risk.risk import GradientSums
from hyperribbon.operators.risk_operator import RiskOperator

Self = TypeVar("Self", bound="FactoredOperator")

_JOINED = 1.5  # memory of factors while those of pieces of the data are joined, over their own
_ROWS = 1024  # rows a sample up to which single rows pay off against random ones
_SLOWER = 16  # times that a row takes where samples go one by one: parameters without factors


class FactoredOperator(RiskOperator):
    """A positive semidefinite matrix FᵀF with F = √s·R·J, one group of rows a sample.

    Subclasses give the middle matrix M_n in output space as products (`_middle`) and as rows
    (`_rows`), and the scale s. The rows of F are ordered by sample, then by row of R_n.
    """

    _gram_sizes: list[int | None] | None = None
    _is_exact: bool | None = None
    _is_cheap: bool | None = None
    _fewer_rows: int | None = None  # rows of R_n where it has fewer than outputs

    @abstractmethod
    def _middle(self, chunk: Chunk, block: torch.Tensor) -> torch.Tensor:
        """Return M u of a factored matrix JᵀMJ, for a block u (k, n, …) of output vectors."""

    @abstractmethod
    def _rows(self, chunk: Chunk) -> torch.Tensor:
        """Return rows R (m, n, …) of a factored matrix with Σ_j R_j R_jᵀ = M_n per sample."""

    def _rows_each(self, outputs: torch.Tensor) -> int:
        """Return the number of rows of a factored matrix's R_n."""
        return outputs[0].numel()

    def _product(self, chunk: Chunk, v: Block) -> Block:
        """Return a factored product Jᵀ M J v: a jvp, M, and a vjp."""
        return chunk.point.vjp(self._middle(chunk, chunk.point.jvp(v)), self.space.names)

    @property
    def has_exact_trace(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether a factored matrix has a cheap trace: samples apart, of few outputs.

        Of fewer ones where parameters have no factors, whose gradients are taken sample by sample.
        """
        if self._is_cheap is None:
            self._is_cheap = self._has_rows and self._has_cheap_rows()
        return self._is_cheap

    def _has_cheap_rows(self) -> bool:
        chunk = self.risk.probe()
        if chunk is None:
            return True
        rows = self._fewer_rows or self._rows_each(chunk.point.outputs)
        if _SLOWER * rows <= _ROWS:
            return True
        return set(self.space.names) <= self.risk.structured(chunk)

    @property
    def _has_rows(self) -> bool:
        """Whether the factored operator's M_n has a root R_n of a size that can be handled."""
        if self._is_exact is None:
            self._is_exact = self._finds_rows()
        return self._is_exact

    def _finds_rows(self) -> bool:
        if self.risk.mixes_samples:
            return False
        chunk = self.risk.probe()
        if chunk is None:
            return True
        if self._rows_each(chunk.point.outputs) > _ROWS:
            return False
        try:
            rows = self._rows(chunk)
        except ArgumentError:
            return False
        if len(rows) < self._rows_each(chunk.point.outputs):
            self._fewer_rows = len(rows)
        return self._is_root(chunk, rows)

    def _is_root(self, chunk: Chunk, rows: torch.Tensor) -> bool:
        """Whether a factored operator's root has RᵀR u = M u on a few samples."""
        outputs = chunk.point.outputs
        generator = torch.Generator("cpu").manual_seed(0)
        drawn = torch.randn(outputs.shape, generator=generator, dtype=torch.float64, device="cpu")
        u = drawn.to(outputs).unsqueeze(0)
        flat = rows.reshape(*rows.shape[:2], -1).double()
        along = torch.einsum("jni,ni->jn", flat, u.reshape(len(outputs), -1).double())
        found = torch.einsum("jn,jni->ni", along, flat)
        expected = self._middle(chunk, u).reshape(len(outputs), -1).double()
        limit = tolerance(outputs.dtype) * flat.shape[-1] ** 0.5
        return float((found - expected).norm()) <= limit * float(expected.norm()) + 1e-30

    @property
    def gram_size(self) -> int | None:
        """Number of rows of F of a factored matrix FᵀF; None when M has no real root."""
        if self._gram_sizes is None:
            with self.processes.together("the counting of the rows"):
                own = self._count_rows()
            self._gram_sizes = self.processes.gather(own)
        known = [size for size in self._gram_sizes if size is not None]
        return sum(known) if len(known) == len(self._gram_sizes) else None

    def gram_bytes(self) -> int:
        """Return about what all factors take while a factored matrix's Gram matrix is formed.

        It is measured on a few samples; the matrix itself is not counted.
        """
        chunk = self.risk.probe()
        if chunk is None:
            return 0
        names = self.risk.structured(chunk)
        with Meter(self.risk.function.state.values()) as meter:
            held = chunk.point.factors(self._rows(chunk), names)
        taken = meter.live if held else 0
        return int(_JOINED * taken / chunk.count * self.risk.samples)

    @plain_arithmetic()
    def gram(self) -> torch.Tensor:
        """Return the factored operator's Gram matrix F Fᵀ, with the same nonzero eigenvalues."""
        return tiled_gram_matrix(self.risk, self._rows) * self._scale()

    @plain_arithmetic()
    def lift(self, coefficients: torch.Tensor) -> torch.Tensor:
        """Return FᵀU of a factored operator FᵀF: eigenvectors in weight space.

        When F Fᵀ u = λu with unit u, the unit eigenvector of the operator is Fᵀu/√λ.
        """
        single = coefficients.ndim == 1
        block = coefficients.unsqueeze(1) if single else coefficients
        sizes = self._gram_sizes if self.gram_size is not None else None
        start = sum(size or 0 for size in (sizes or ())[: self.processes.rank])
        with self.processes.together("the lifting of eigenvectors"):
            total = self._lift_own(block, start)
        total = self.processes.sum(total) * sqrt(self._scale())
        return total.squeeze(1) if single else total

    def _lift_own(self, block: torch.Tensor, start: int) -> torch.Tensor:
        """Return the unscaled lift of a factored matrix from this rank's rows, from `start` on."""
        if block.shape[1] == 0:
            return block.new_zeros(self.shape[0], 0)
        step = self.risk.columns_at_once()
        sums = [GradientSums() for _ in range(0, block.shape[1], step)]
        for chunk in self.risk.chunks():
            rows = self._rows(chunk).to(block.dtype)
            stop = start + chunk.count * len(rows)
            weights = block[start:stop].reshape(chunk.count, len(rows), -1)
            seeds = torch.einsum("nmk,mn...->kn...", weights, rows)
            seeds = seeds.to(chunk.point.outputs.dtype)
            for some, total in zip(seeds.split(step), sums, strict=True):
                total.add(chunk.point.vjp(some, self.space.names))
            start = stop
        return self.risk.flatten(sums, block.shape[1])

    def trace_parts(self) -> tuple[dict[str, float], torch.Tensor]:
        """Return a factored matrix's trace by parameter and by sample (N,), in one pass.

        Both sum up to the trace. It needs `has_exact_trace`.
        """
        by_name, by_sample = squared_parts(self.risk, self._rows)
        values = (by_name * self._scale()).tolist()
        return dict(zip(self.space.names, values, strict=True)), by_sample * self._scale()

    def _with(self: Self, risk: Risk) -> Self:
        other = super()._with(risk)
        other._gram_sizes = None
        return other

    def _count_rows(self) -> int | None:
        if not self._has_rows:
            return None
        return sum(
            chunk.count * (self._fewer_rows or self._rows_each(chunk.point.outputs))
            for chunk in self.risk.chunks()
        )
