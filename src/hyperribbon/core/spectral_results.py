"""Result types of measurements, with error bounds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf, isfinite
from typing import TYPE_CHECKING
from typing import Annotated as Bool
from typing import Annotated as Float

import torch

from hyperribbon.core import html
from hyperribbon.core.checks import ArgumentError, check_fraction, check_positive
from hyperribbon.core.devices.tensors import host_array
from hyperribbon.core.result import Result, frame

if TYPE_CHECKING:
    import pandas as pd


def _none() -> torch.Tensor:
    return torch.empty(0, dtype=torch.float64, device="cpu")


@dataclass(frozen=True)
class Spectrum(Result, plot="plot_spectrum"):
    """Eigenpairs of a symmetric operator A, with residuals and error bounds.

    Attributes:
        eigenvalues: (k,), descending.
        eigenvectors: (P, k), orthonormal columns, or None if they were not requested; for cached
            results, only the leading columns.
        residuals: (k,), ‖A v − λ v‖ of the values and vectors as they are listed, and `rounding`.
            Within its residual of each listed value lies an eigenvalue of A, that is of the same
            weights and data in exact arithmetic.
        matvecs: Number of products with A; a block of k columns counts as k.
        method: "lanczos", "gram" or "dense".
        converged: (k,) booleans: the residual met the tolerance and, where certificate="full" was
            requested, the pair was shown to be one of those requested.
        zeros: Further eigenvalues known to be exactly zero that are not listed (rank of a Gram
            factor below P).
        bounds: (k,), bound on the distance between the requested eigenvalue and the listed one;
            infinite where it was not shown. None if unknown.
        rounding: (k,), the part of the residuals that is not seen in the products themselves: what
            one further product, in a higher precision where there is one, shows of their rounding.
            At tolerances far above rounding, where that product is not made, an allowance of 20
            units of rounding of ‖A‖.
        certificate: "full": all `bounds` are finite, so no requested eigenvalue is missing.
            "residual": each value is close to some eigenvalue, and one that was requested may be
            missing.
    """

    eigenvalues: Float[torch.Tensor, "k"]
    eigenvectors: Float[torch.Tensor, "P kept"] | None
    residuals: Float[torch.Tensor, "k"]
    matvecs: int
    method: str
    converged: Bool[torch.Tensor, "k"]
    zeros: int = 0
    bounds: Float[torch.Tensor, "k"] | None = None
    rounding: Float[torch.Tensor, "k"] | None = None
    certificate: str = "full"

    def __len__(self) -> int:
        """Return the number of eigenvalues in a `Spectrum` result."""
        return len(self.eigenvalues)

    def scaled(self, factor: float) -> Spectrum:
        """Return the `Spectrum` of `factor` times the operator, for a positive factor."""
        check_positive("factor", factor)
        return replace(
            self,
            eigenvalues=factor * self.eigenvalues,
            residuals=factor * self.residuals,
            bounds=None if self.bounds is None else factor * self.bounds,
            rounding=None if self.rounding is None else factor * self.rounding,
        )

    def to_frame(self) -> pd.DataFrame:
        """Return a `Spectrum` result as a table, one row per eigenvalue with its bound."""
        own = {"eigenvalue": self.eigenvalues, "bound": self.bounds, "residual": self.residuals}
        return frame(own | {"converged": self.converged}, "number")

    def _headline(self) -> str:
        values = host_array(self.eigenvalues)
        first = ", ".join(f"{value:.5g}" for value in values[:3])
        rest = f", …, {values[-1]:.3g}" if len(values) > 3 else ""
        count = f"{len(values)} eigenvalue{'' if len(values) == 1 else 's'}"
        settled = int(self.converged.sum())
        doubt = "" if settled == len(values) else f"; {settled} converged"
        return f"{count}: {first}{rest}; {self.method}, {self.matvecs:,} products{doubt}"


@dataclass(frozen=True)
class Estimate(Result, plot="plot_estimate"):
    """A number with its standard error.

    Attributes:
        value: The number.
        stderr: Its standard error; 0 when exact.
        exact: Whether it was computed without sampling.
        matvecs: Number of operator products.
        method: "exact", "hutchinson" (random probes only) or "krylov" (random probes beside a
            Krylov basis of leading directions).
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
            reason = "an exact number has no standard error"
            raise ArgumentError("stderr", self.stderr, reason, "Give 0.")
        if self.exact and not isfinite(self.value):
            remedy = "Check that the loss, the weights and the data are finite."
            raise ArgumentError("value", self.value, "an exact number is finite", remedy)
        if self.exact and not self.method:
            object.__setattr__(self, "method", "exact")

    def __float__(self) -> float:
        """Return the value of an `Estimate` result."""
        return float(self.value)

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return an `Estimate` result's confidence interval: value ± t·stderr, by Student's t.

        Args:
            confidence: Part of such intervals that hold the true number.

        >>> Estimate(10.0, 1.0, False, 5, freedom=4).interval(0.95)
        (7.22..., 12.77...)
        """
        from scipy.special import stdtrit  # its import takes as long as many a spectrum

        tail = (1 + check_fraction("confidence", confidence)) / 2
        reach = float(stdtrit(min(self.freedom, 1e9), tail)) * self.stderr if self.stderr else 0.0
        return self.value - reach, self.value + reach

    def scaled(self, factor: float) -> Estimate:
        """Return an `Estimate` result times `factor`."""
        return replace(self, value=factor * self.value, stderr=abs(factor) * self.stderr)

    def to_frame(self) -> pd.DataFrame:
        """Return an `Estimate` result's value, standard error and 95% interval, in one row."""
        low, high = self.interval()
        own = {"value": self.value, "stderr": self.stderr, "low": low, "high": high}
        own |= {"exact": self.exact, "matvecs": self.matvecs, "method": self.method}
        return frame(own)

    def _headline(self) -> str:
        shown = html.number(self.value, 6)
        if not self.exact:
            low, high = (html.number(edge) for edge in self.interval())
            shown += f" ± {html.number(self.stderr, 2)} (95%: {low} to {high})"
        return f"{shown}; {self.method or 'estimated'}, {self.matvecs:,} products"

    def _repr_html_(self) -> str:
        """Show an `Estimate` result with its interval, in a notebook."""
        return html.card(self._headline())


@dataclass(frozen=True)
class Density(Result, plot="plot_density"):
    """A spectral density on a grid, with a confidence band.

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

    grid: Float[torch.Tensor, "m"]
    values: Float[torch.Tensor, "m"]
    low: Float[torch.Tensor, "m"]
    high: Float[torch.Tensor, "m"]
    matvecs: int = 0
    width: float = 0.0
    nodes: Float[torch.Tensor, "n"] = field(default_factory=_none)
    weights: Float[torch.Tensor, "n"] = field(default_factory=_none)
    method: str = ""

    def to_frame(self) -> pd.DataFrame:
        """Return a `Density` result with its band, one row per point of the grid."""
        own = {"eigenvalue": self.grid, "density": self.values}
        return frame(own | {"low": self.low, "high": self.high})

    def _headline(self) -> str:
        ends = f"{float(self.grid[0]):.3g} to {float(self.grid[-1]):.3g}"
        how = f"smoothed over {html.number(self.width, 3)}; {self.matvecs:,} products"
        return f"spectral density from {ends}, {how}"
