"""Frozen result types: what a measurement returns, with its certificate."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hyperribbon.core.checks import ArgumentError

__all__ = ["Density", "Estimate", "Spectrum"]


@dataclass(frozen=True)
class Spectrum:
    """Eigenpairs of a symmetric operator A, with the proof of their quality.

    Attributes:
        eigenvalues: (k,), descending.
        eigenvectors: (P, k), orthonormal columns, or None when they were not asked for.
        residuals: (k,), the true norms ‖A v − λ v‖. Every eigenvalue of A lies within its
            residual of some true eigenvalue.
        matvecs: Products with A that were spent, counting a block of k columns as k.
        method: "lanczos", "gram" or "dense".
        converged: (k,) booleans: the residual met the tolerance.
        zeros: Further eigenvalues known to be exactly zero that are not listed (rank of a Gram
            factor below P).
    """

    eigenvalues: torch.Tensor
    eigenvectors: torch.Tensor | None
    residuals: torch.Tensor
    matvecs: int
    method: str
    converged: torch.Tensor
    zeros: int = 0

    def __len__(self) -> int:
        """Return the number of listed eigenvalues."""
        return len(self.eigenvalues)


@dataclass(frozen=True)
class Estimate:
    """One number with its standard error.

    Attributes:
        value: The number.
        stderr: Its standard error; 0 when exact.
        exact: Whether it was computed without sampling.
        matvecs: Operator products spent.
    """

    value: float
    stderr: float
    exact: bool
    matvecs: int

    def __post_init__(self) -> None:
        if self.exact and self.stderr != 0:
            raise ArgumentError("stderr", self.stderr, "an exact number has none", "Give 0.")

    def __float__(self) -> float:
        """Return the value."""
        return float(self.value)


@dataclass(frozen=True)
class Density:
    """A spectral density on a grid with its band.

    Attributes:
        grid: (m,), eigenvalue axis.
        values: (m,), density, integrating to one.
        low: (m,), lower edge of the band over probes (mean − 2 standard errors).
        high: (m,), upper edge of the band.
        matvecs: Operator products spent.
        width: Standard deviation of the Gaussian kernel the density is smoothed with.
    """

    grid: torch.Tensor
    values: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor
    matvecs: int = 0
    width: float = 0.0
