"""What a list of eigenvalues says: how many directions carry how much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Annotated as Float

import numpy as np
import torch

from hyperribbon.core import checks
from hyperribbon.core.checks import check_array, check_fraction, check_positive_int, validate
from hyperribbon.core.result import Result, frame
from hyperribbon.core.spectral_results import Estimate, Spectrum

if TYPE_CHECKING:
    import pandas as pd


@validate(weights=checks.row)
def effective_rank(weights: torch.Tensor | np.ndarray) -> float:
    """Return exp(−Σ pᵢ ln pᵢ) with pᵢ = |wᵢ| / Σ|w| to sum a spectrum up by one number.

    Of eigenvalues it is the effective rank of Roy and Vetterli (2007); of the squared components
    of a vector, the number of coordinates it spreads over.

    >>> round(effective_rank(np.array([2.0, 2.0, 2.0, 0.0])), 6)
    3.0
    """
    magnitudes = np.abs(weights)
    total = magnitudes.sum()
    if total == 0:
        return 0.0
    shares = magnitudes[magnitudes > 0] / total
    return float(np.exp(-(shares * np.log(shares)).sum()))


@dataclass(frozen=True)
class Summary(Result):
    """Numbers that describe a spectrum. Eigenvalues are ordered by magnitude, largest first.

    Attributes:
        eigenvalues: (m,), those that are known.
        trace: Sum of all eigenvalues; of the known ones unless it was given.
    """

    eigenvalues: Float[np.ndarray, "m"]
    trace: float

    def to_frame(self) -> pd.DataFrame:
        """Return the eigenvalues summed up and the share of the leading ones in the trace."""
        share = np.cumsum(self.eigenvalues) / (self.trace or np.nan)
        return frame({"eigenvalue": self.eigenvalues, "trace_ratio": share}, "number")

    def trace_ratio(self, k: int) -> float:
        """Return Σ_{i≤k} λᵢ / tr A, a spectrum summed up by its k leading eigenvalues."""
        check_positive_int("k", k, maximum=len(self.eigenvalues))
        return float(self.eigenvalues[:k].sum() / self.trace) if self.trace else float("nan")

    @property
    def effective_rank(self) -> float:
        """Effective rank of the spectrum summarised: exp(−Σ pᵢ ln pᵢ), pᵢ = |λᵢ| / Σ|λ|."""
        return effective_rank(self.eigenvalues)

    @property
    def participation_ratio(self) -> float:
        """(Σλ)² / Σλ² of a summary: as many equal eigenvalues have this trace and norm."""
        squares = float((self.eigenvalues**2).sum())
        return float(self.eigenvalues.sum() ** 2 / squares) if squares else 0.0

    @property
    def stable_rank(self) -> float:
        """Stable rank in a summary of a spectrum: Σλ² / max λ² = ‖A‖_F² / ‖A‖²."""
        top = float(self.eigenvalues[0] ** 2)
        return float((self.eigenvalues**2).sum()) / top if top else 0.0

    @property
    def slope(self) -> float:
        """The rate c in a summary of ln λᵢ ≈ a − c·i, by least squares over positive eigenvalues.

        Eigenvalues below 1e-12 of the largest are rounding and are left out; nan with fewer than
        two. A sloppy spectrum, even on a logarithmic scale, has c well above zero.
        """
        positive = np.sort(self.eigenvalues[self.eigenvalues > 1e-12 * abs(self.eigenvalues[0])])
        if len(positive) < 2:
            return float("nan")
        return float(np.polyfit(np.arange(len(positive)), np.log(positive), 1)[0])

    def dimensions(self, fraction: float = 0.95) -> int:
        """Return in a summary the least d with Σ_{i≤d} |λᵢ| ≥ fraction · Σ|λ|."""
        check_fraction("fraction", fraction)
        cumulative = np.cumsum(np.abs(self.eigenvalues))
        threshold: float = fraction * cumulative[-1] * (1 - 1e-12)
        return int(np.searchsorted(cumulative, threshold)) + 1 if cumulative[-1] else 0


@validate(trace=checks.number)
def summarize(
    eigenvalues: Spectrum | torch.Tensor | np.ndarray, trace: float | Estimate | None = None
) -> Summary:
    """Return a summary of eigenvalues: effective ranks and shares of the trace.

    Raises an ArgumentError when there are none, or some are not finite.

    Args:
        eigenvalues: All eigenvalues, or the leading ones; a `Spectrum` or an array in any order.
        trace: The trace of the operator, where not all eigenvalues are known. `trace_ratio` uses
            it; the other numbers speak of the eigenvalues given.

    >>> summary = summarize(np.array([1.0, 8.0, 1.0]))
    >>> summary.trace_ratio(1), summary.dimensions(0.85)
    (0.8, 2)
    """
    given = eigenvalues.eigenvalues if isinstance(eigenvalues, Spectrum) else eigenvalues
    values = check_array("eigenvalues", given).reshape(-1)
    values = values[np.argsort(-np.abs(values), kind="stable")]
    return Summary(values, float(values.sum()) if trace is None else float(trace))
