"""Frozen result types: what a measurement returns, with its certificate."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf, isfinite

import torch
from scipy.special import stdtrit

from hyperribbon.core.checks import ArgumentError, check_fraction, check_positive

__all__ = ["Density", "Estimate", "Spectrum"]


def _none() -> torch.Tensor:
    return torch.empty(0, dtype=torch.float64, device="cpu")


@dataclass(frozen=True)
class Spectrum:
    """Eigenpairs of a symmetric operator A, with the proof of their quality.

    Attributes:
        eigenvalues: (k,), descending.
        eigenvectors: (P, k), orthonormal columns, or None when they were not asked for.
        residuals: (k,), ‖A v − λ v‖ of the values and vectors as they are listed, and `rounding`.
            Within its residual of each listed value lies an eigenvalue of A, that is of the same
            weights and data in exact arithmetic.
        matvecs: Products with A that were spent, counting a block of k columns as k.
        method: "lanczos", "gram" or "dense".
        converged: (k,) booleans: the residual met the tolerance, and the pair was shown to be one
            of those that were asked for.
        zeros: Further eigenvalues known to be exactly zero that are not listed (rank of a Gram
            factor below P).
        bounds: (k,), how far the eigenvalue that was asked for may be from the one listed in its
            place; infinite where that was not shown. None when it is not known.
        rounding: (k,), the part of the residuals that is not seen in the products themselves: what
            one further product, in a higher precision where there is one, shows of their rounding.
    """

    eigenvalues: torch.Tensor
    eigenvectors: torch.Tensor | None
    residuals: torch.Tensor
    matvecs: int
    method: str
    converged: torch.Tensor
    zeros: int = 0
    bounds: torch.Tensor | None = None
    rounding: torch.Tensor | None = None

    def __len__(self) -> int:
        """Return the number of listed eigenvalues."""
        return len(self.eigenvalues)

    def scaled(self, factor: float) -> Spectrum:
        """Return the spectrum of `factor` times the operator, for a positive factor."""
        check_positive("factor", factor)
        return replace(
            self,
            eigenvalues=factor * self.eigenvalues,
            residuals=factor * self.residuals,
            bounds=None if self.bounds is None else factor * self.bounds,
            rounding=None if self.rounding is None else factor * self.rounding,
        )


@dataclass(frozen=True)
class Estimate:
    """One number with its standard error.

    Attributes:
        value: The number.
        stderr: Its standard error; 0 when exact.
        exact: Whether it was computed without sampling.
        matvecs: Operator products spent.
        method: What it was computed by: "exact", "hutchinson" (random probes only) or "hutch++"
            (the leading directions exactly, probes for the rest).
        freedom: Degrees of freedom of the standard error; infinite where it is known well.

    Raises:
        ArgumentError: An exact number with a standard error, or that is not finite.
    """

    value: float
    stderr: float
    exact: bool
    matvecs: int
    method: str = ""
    freedom: float = inf

    def __post_init__(self) -> None:
        if self.exact and self.stderr != 0:
            raise ArgumentError("stderr", self.stderr, "an exact number has none", "Give 0.")
        if self.exact and not isfinite(self.value):
            raise ArgumentError(
                "value",
                self.value,
                "an exact number is finite",
                "Check that the loss, the weights and the data are finite.",
            )
        if self.exact and not self.method:
            object.__setattr__(self, "method", "exact")

    def __float__(self) -> float:
        """Return the value."""
        return float(self.value)

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return the interval value ± t·stderr, t the quantile of Student's distribution.

        Args:
            confidence: Part of such intervals that hold the true number.

        >>> Estimate(10.0, 1.0, False, 5, freedom=4).interval(0.95)
        (7.22..., 12.77...)
        """
        tail = (1 + check_fraction("confidence", confidence)) / 2
        reach = float(stdtrit(min(self.freedom, 1e9), tail)) * self.stderr if self.stderr else 0.0
        return self.value - reach, self.value + reach

    def scaled(self, factor: float) -> Estimate:
        """Return `factor` times the number."""
        return replace(self, value=factor * self.value, stderr=abs(factor) * self.stderr)


@dataclass(frozen=True)
class Density:
    """A spectral density on a grid with its band.

    Attributes:
        grid: (m,), eigenvalue axis.
        values: (m,), density, integrating to one.
        low: (m,), lower edge of the band, which holds the errors of probes and of quadrature and is
            meant to hold the exact density under the same kernel at 95% of points.
        high: (m,), upper edge of the band.
        nodes: (n,), ascending nodes of the quadrature rules of all probes together.
        weights: (n,), their weights, which sum to one: Σ weights · f(nodes) estimates tr f(A)/P.
        matvecs: Operator products spent.
        width: Standard deviation of the Gaussian kernel the density is smoothed with.
        method: What it was computed by: "stochastic lanczos quadrature".
    """

    grid: torch.Tensor
    values: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor
    matvecs: int = 0
    width: float = 0.0
    nodes: torch.Tensor = field(default_factory=_none)
    weights: torch.Tensor = field(default_factory=_none)
    method: str = ""
