"""Overlap of two selections, and its significance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hyperribbon.core import ArgumentError, Mask
from hyperribbon.core.checks import validate
from hyperribbon.core.result import Result, frame

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Overlap(Result, plot="plot_overlap"):
    """The overlap of two selections S₁, S₂ of n entries, against independence.

    Attributes:
        ratio: |S₁ ∩ S₂| / |S₁|.
        expected: |S₂| / n, its expectation if S₂ were drawn uniformly.
        stderr: Standard deviation of the ratio under independence.
        z: (ratio − expected) / stderr; 0 where the ratio cannot vary.
        shared: |S₁ ∩ S₂|.
        size: n.
    """

    ratio: float
    expected: float
    stderr: float
    z: float
    shared: int
    size: int

    def to_frame(self) -> pd.DataFrame:
        """Return every number of the overlap, in one row."""
        return frame(vars(self))


@validate()
def overlap_ratio(first: Mask, second: Mask) -> Overlap:
    r"""Return the overlap of two selections: the fraction of the first that is in the second.

    $$R = \frac{|S_1 \cap S_2|}{|S_1|},\qquad
      \operatorname{Var}|S_1\cap S_2| = \frac{k_1 k_2 (n-k_1)(n-k_2)}{n^2 (n-1)}$$

    Under independence the shared count is hypergeometric; for k₁ = k₂ = pn its variance is
    n p²(1−p)² up to n/(n−1). Implements Eq. (3.1) of [subnetworks], with the z-score that the text
    omits: there, R ≈ p is taken as independence, although R has a standard deviation of only about
    (1−p)/√n.

    Args:
        first: A mask that selects at least one entry.
        second: A mask over the same parameters.

    Raises:
        ArgumentError: The masks cover different parameters, or the first is empty.
    """
    for argument, mask in (("first", first), ("second", second)):
        if not isinstance(mask, Mask):
            raise ArgumentError(argument, mask, "expected a Mask", "Build one with hr.select.")
    if first.keys() != second.keys():
        reason = f"the first mask covers {list(first)}"
        raise ArgumentError("second", list(second), reason, "Select both from the same parameters.")
    for name in first:
        if first[name].shape != second[name].shape:
            reason = f"parameter {name!r} has shape {tuple(first[name].shape)} in the first mask"
            remedy = "Select both from the same parameters."
            raise ArgumentError("second", tuple(second[name].shape), reason, remedy)
    size, k1, k2 = first.size, first.count, second.count
    if k1 == 0:
        remedy = "Select a larger fraction."
        raise ArgumentError("first", first, "the mask is empty, so the ratio is 0/0", remedy)
    shared = (first & second).count
    variance = k1 * k2 * (size - k1) * (size - k2) / (size**2 * (size - 1)) if size > 1 else 0.0
    deviation = shared - k1 * k2 / size
    return Overlap(
        ratio=shared / k1,
        expected=k2 / size,
        stderr=math.sqrt(variance) / k1,
        z=deviation / math.sqrt(variance) if variance > 0 else 0.0,
        shared=shared,
        size=size,
    )
