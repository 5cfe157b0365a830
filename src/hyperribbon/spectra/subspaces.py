"""How two eigenspaces lie to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Annotated as Float

import numpy as np
import torch

from hyperribbon.core.checks import ArgumentError, check_finite, tensor, validate
from hyperribbon.core.devices.modes import plain_arithmetic
from hyperribbon.core.result import Result, frame
from hyperribbon.core.spectral_results import Spectrum

if TYPE_CHECKING:
    import pandas as pd

Subspace = Spectrum | torch.Tensor | np.ndarray


@dataclass(frozen=True)
class Alignment(Result):
    """Principal angles between two subspaces.

    Attributes:
        cosines: (min(a, b),), cosines of the principal angles, descending.
        chance: Expected overlap of random subspaces of these sizes: max(a, b)/P.
    """

    cosines: Float[torch.Tensor, "k"]
    chance: float

    def to_frame(self) -> pd.DataFrame:
        """Return the angles between two subspaces, one row per pair of directions."""
        return frame({"cosine": self.cosines, "angle": self.angles}, "direction")

    def _headline(self) -> str:
        beside = f"by chance {self.chance:.3g}; {len(self.cosines)} directions"
        return f"overlap {self.overlap:.4g}, {beside}"

    @property
    def angles(self) -> Float[torch.Tensor, "k"]:
        """The principal angles between the subspaces in radians, ascending."""
        return torch.arccos(self.cosines)

    @property
    def overlap(self) -> float:
        """Mean squared cosine of two subspaces: 1 when one lies in the other, 0 when orthogonal."""
        return float((self.cosines**2).mean())


@validate()
@plain_arithmetic()
def alignment(U: Subspace, V: Subspace) -> Alignment:
    """Return the principal angles between the subspaces of U (P, a) and V (P, b).

    With orthonormal bases Q_U and Q_V the cosines are the singular values of Q_UᵀQ_V, and

        overlap = ‖Q_Uᵀ Q_V‖_F² / min(a, b).

    Args:
        U: A `Spectrum` with eigenvectors, or columns that span the subspace.
        V: The same.

    Raises:
        ArgumentError: The columns are of different length, dependent or not finite.

    >>> import torch
    >>> alignment(torch.eye(4)[:, :2], torch.eye(4)[:, 1:3]).overlap
    0.5
    """
    first, second = _basis("U", U), _basis("V", V)
    if first.shape[0] != second.shape[0]:
        reason = f"U has {first.shape[0]} coordinates"
        raise ArgumentError("V", second, reason, "Compare subspaces of the same parameters.")
    cosines = torch.linalg.svdvals(first.T @ second.to(first)).clamp(max=1.0)
    return Alignment(cosines, max(first.shape[1], second.shape[1]) / first.shape[0])


def _basis(name: str, given: Subspace) -> torch.Tensor:
    vectors = given.eigenvectors if isinstance(given, Spectrum) else given
    if vectors is None:
        raise ArgumentError(
            name, given, "it has no eigenvectors", "Compute it with eigenvectors=True."
        )
    block = tensor(name, vectors)
    block = (block.unsqueeze(1) if block.ndim == 1 else block).double()
    if block.ndim != 2 or not 0 < block.shape[1] <= block.shape[0]:
        raise ArgumentError(
            name, vectors, "it does not hold columns (P, k) with k ≤ P", "Give shape (P, k)."
        )
    Q, R = torch.linalg.qr(check_finite(name, block))
    diagonal = R.diagonal().abs()
    if float(diagonal.min()) <= 1e-6 * float(diagonal.max()):
        raise ArgumentError(
            name, vectors, "its columns are linearly dependent", "Give independent columns."
        )
    return Q
