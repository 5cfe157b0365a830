"""How far weights wander: their covariance over checkpoints, read one block at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch

from hyperribbon.core.checks import ArgumentError, check_finite, check_positive
from hyperribbon.core.trajectory import Trajectory
from hyperribbon.noise.stationarity import Stationarity, autocorrelation_time, stationarity
from hyperribbon.noise.stationary import LeadingCovariance
from hyperribbon.training import RunningMoments

__all__ = ["CovarianceComparison", "WeightCovariance", "compare_covariance", "weight_covariance"]

_LARGEST_DENSE = 4096


@dataclass(frozen=True)
class WeightCovariance:
    """Principal modes of weights over time.

    Attributes:
        mean: (P,), mean weights.
        eigenvalues: (k,), variances along the principal modes, descending.
        modes: (P, k), principal modes.
        projections: (n, k), weights minus mean along the modes, in order of time.
        total: Total variance over all weights.
        samples: n, moments read.
        effective_samples: Independent moments that carry as much information, mean over modes.
        stationarity: Test of the mean.
        projected: (b, b), covariance in the basis that was asked for, or None.
    """

    mean: np.ndarray
    eigenvalues: np.ndarray
    modes: np.ndarray
    projections: np.ndarray
    total: float
    samples: int
    effective_samples: float
    stationarity: Stationarity
    projected: np.ndarray | None = None


@dataclass(frozen=True)
class CovarianceComparison:
    """A measured covariance beside a predicted one, in the leading subspace of the curvature.

    Attributes:
        discrepancy: ‖measured − predicted‖/‖predicted‖ (Frobenius).
        sampling_error: What the discrepancy would be if the prediction were exact, from the number
            of effective samples.
        variance_ratio: Trace of measured over predicted.
        measured: (k, k).
        predicted: (k, k).
    """

    discrepancy: float
    sampling_error: float
    variance_ratio: float
    measured: np.ndarray
    predicted: np.ndarray


def weight_covariance(
    trajectory: Any,
    *,
    k: int | None = None,
    start: int = 0,
    params: str | Sequence[str] | None = None,
    basis: np.ndarray | torch.Tensor | None = None,
    memory: float = 512 * 2**20,
) -> WeightCovariance:
    """Return the principal modes of weights over the moments of a trajectory.

    Exact, and streaming: with fewer weights than moments one pass accumulates the P×P covariance;
    otherwise blocks of checkpoints give the n×n Gram matrix, whose eigenvectors a second pass turns
    into modes, so never more than `memory` bytes of weights are held.

    Args:
        trajectory: A `Trajectory`, a `Recorder`, the folder of one, or an array (n, P).
        k: Modes to return; by default all, at most 50.
        start: First record that counts (leave the transient out).
        params: Name pattern or names of the parameters that count, for trajectories.
        basis: (P, b), directions in which the covariance is also wanted.
        memory: Bytes of weights to hold at once.

    Raises:
        ArgumentError: Fewer than 12 moments, or no parameter of that name.
    """
    rows = _Rows(trajectory, start, params, check_positive("memory", memory))
    if len(rows) < 12:
        raise ArgumentError(
            "trajectory", f"{len(rows)} moments", "a covariance needs at least 12", "Record more."
        )
    mean = np.sum([block.sum(axis=0) for block in rows.blocks()], axis=0) / len(rows)
    rank = min(rows.width, len(rows) - 1)
    count = min(rank, 50) if k is None else min(k, rank)
    dense = rows.width <= min(len(rows), _LARGEST_DENSE)
    values, modes = (_dense_modes if dense else _gram_modes)(rows, mean)
    values, modes = values[:count].copy(), np.ascontiguousarray(modes[:, :count])
    projections = np.concatenate([(block - mean) @ modes for block in rows.blocks()])
    total = sum(float(np.sum((block - mean) ** 2)) for block in rows.blocks()) / (len(rows) - 1)
    effective = float(np.mean(len(rows) / autocorrelation_time(projections)))
    projected = None
    if basis is not None:
        B = torch.as_tensor(basis).double().cpu().numpy()
        seen = np.concatenate([(block - mean) @ B for block in rows.blocks()])
        projected = seen.T @ seen / (len(rows) - 1)
    return WeightCovariance(
        mean,
        values,
        modes,
        projections,
        total,
        len(rows),
        effective,
        stationarity(projections[:, : min(count, 10)]),
        projected,
    )


def compare_covariance(
    trajectory: Any, predicted: LeadingCovariance, *, start: int = 0, **options: Any
) -> CovarianceComparison:
    """Lay the measured weight covariance beside the one predicted from curvature and noise.

    Args:
        trajectory: As for `weight_covariance`, on the same parameters in the same order as the
            operators behind `predicted`.
        predicted: From `stationary_covariance` of operators.
        start: First record that counts.
        **options: Passed to `weight_covariance`.
    """
    found = weight_covariance(trajectory, start=start, basis=predicted.basis, **options)
    assert found.projected is not None
    M = predicted.matrix
    norm = float(np.linalg.norm(M))
    # Var of a sample covariance's entry: (M_ii M_jj + M_ij²)/n, summed over all entries.
    sampling = np.sqrt((np.trace(M) ** 2 + norm**2) / found.effective_samples) / norm
    return CovarianceComparison(
        discrepancy=float(np.linalg.norm(found.projected - M)) / norm,
        sampling_error=float(sampling),
        variance_ratio=float(np.trace(found.projected) / np.trace(M)),
        measured=found.projected,
        predicted=M,
    )


class _Rows:
    """Weights at successive moments, as blocks (m, P) of at most `memory`/2 bytes."""

    def __init__(self, source: Any, start: int, params: Any, memory: float) -> None:
        source = getattr(source, "trajectory", source)
        if isinstance(source, str) or hasattr(source, "__fspath__"):
            source = Trajectory.open(source)
        self._start, self._params = start, [params] if isinstance(params, str) else params
        if isinstance(source, Trajectory):
            self._source: Any = source
            self._count = len(source)
        else:
            array = torch.as_tensor(source).double().cpu().numpy()
            if array.ndim != 2:
                raise ArgumentError(
                    "trajectory", array, "it is not (n, P)", "Give one row a moment."
                )
            self._source = check_finite("trajectory", array)
            self._count = len(array)
        self.width = len(self._row(start)) if len(self) > 0 else 0
        self._block = max(1, int(memory / 2 / 8 / max(self.width, 1)))

    def __len__(self) -> int:
        return max(0, self._count - self._start)

    def ranges(self) -> list[tuple[int, int]]:
        """Return the first and one past the last row of every block."""
        return [
            (first, min(first + self._block, self._count))
            for first in range(self._start, self._count, self._block)
        ]

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield the rows in order."""
        for first, last in self.ranges():
            yield self.block(first, last)

    def block(self, first: int, last: int) -> np.ndarray:
        """Return rows [first, last)."""
        if isinstance(self._source, np.ndarray):
            return self._source[first:last]
        return np.stack([self._row(index) for index in range(first, last)])

    def _row(self, index: int) -> np.ndarray:
        if isinstance(self._source, np.ndarray):
            return self._source[index]
        state = self._source.weights(index)
        chosen = [
            tensor.double().reshape(-1)
            for name, tensor in state.items()
            if tensor.is_floating_point()
            and (self._params is None or any(fnmatchcase(name, p) for p in self._params))
        ]
        if not chosen:
            raise ArgumentError(
                "params",
                self._params,
                "no recorded weight has that name",
                f"There are: {list(state)}.",
            )
        return torch.cat(chosen).numpy()


def _dense_modes(rows: _Rows, mean: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    moments = RunningMoments(rows.width)
    for block in rows.blocks():
        moments.add(block - mean)
    scale = len(rows) / (len(rows) - 1)
    values, vectors = np.linalg.eigh(scale * moments.covariance(about_zero=True))
    return np.maximum(values[::-1], 0.0), vectors[:, ::-1]


def _gram_modes(rows: _Rows, mean: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    n, ranges = len(rows), rows.ranges()
    first = ranges[0][0]
    gram = np.empty((n, n))
    for position, (a, b) in enumerate(ranges):
        left = rows.block(a, b) - mean
        for c, d in ranges[position:]:
            right = left if c == a else rows.block(c, d) - mean
            product = left @ right.T
            gram[a - first : b - first, c - first : d - first] = product
            gram[c - first : d - first, a - first : b - first] = product.T
    values, vectors = np.linalg.eigh(gram / (n - 1))
    values, vectors = np.maximum(values[::-1], 0.0), vectors[:, ::-1]
    keep = values > 1e-14 * max(values[0], 1e-300)
    values, vectors = values[keep], vectors[:, keep]
    modes = np.zeros((rows.width, len(values)))
    for a, b in ranges:
        modes += (rows.block(a, b) - mean).T @ vectors[a - first : b - first]
    return values, modes / np.sqrt(values * (n - 1))
