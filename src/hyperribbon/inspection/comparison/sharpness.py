"""The largest eigenvalue on groups of samples, free of most of what the maximum adds to noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hyperribbon.inspection.comparison.sides import Grouped
from hyperribbon.spectra import eigsh

__all__ = ["Sharpness", "measure_sharpness"]

TOLERANCE = 1e-3
_STEPS = 3


@dataclass(frozen=True)
class Sharpness:
    """The largest eigenvalue of a mean over samples, and what each group of them says of it.

    Attributes:
        basis: (P, k) leading eigenvectors on all samples.
        groups: (G,) one number per group, whose mean estimates the eigenvalue for endless data.
        rounding: Bound of the eigenvalue's error on the data at hand.
    """

    basis: torch.Tensor
    groups: np.ndarray
    rounding: float


def measure_sharpness(matrix: Grouped, k: int, seed: int) -> Sharpness:
    """Return the largest eigenvalue with the numbers of the groups.

    The eigenvector v of all samples fits their noise, so λ = vᵀHv is too high by some b for
    endless data, and the curvature of a group of samples along the eigenvector of all the others is
    too low by about the same b. Each group counts with the mean of the two,

        x_g = ½ (vᵀH_g v + v_gᵀH_g v_g),    v_g: top eigenvector without group g.

    v_g comes from three steps of Lanczos that start at v.
    """
    spectrum = eigsh(matrix.whole, min(k, matrix.whole.shape[0]), tol=TOLERANCE, seed=seed)
    assert spectrum.eigenvectors is not None
    v = spectrum.eigenvectors[:, 0]
    inside = np.array([float(v @ (group @ v)) for group in matrix.groups])
    outside = np.empty_like(inside)
    for g, group in enumerate(matrix.groups):
        other = _top_vector(matrix, g, v)
        outside[g] = float(other @ (group @ other))
    bounds = spectrum.residuals if spectrum.bounds is None else spectrum.bounds
    rounding = float(bounds[0])
    if not np.isfinite(rounding):
        rounding = float(spectrum.residuals[0])
    return Sharpness(spectrum.eigenvectors, (inside + outside) / 2, rounding)


def _top_vector(matrix: Grouped, group: int, start: torch.Tensor) -> torch.Tensor:
    """Return the top Ritz vector without a group, after a few steps of Lanczos."""
    basis = start[:, None]
    images = matrix.without(group, start)[:, None]
    for _ in range(_STEPS - 1):
        rest = images[:, -1]
        for _ in range(2):
            rest = rest - basis @ (basis.T @ rest)
        norm = float(torch.linalg.vector_norm(rest))
        if norm <= 1e-5 * float(torch.linalg.vector_norm(images[:, -1])):
            break
        basis = torch.cat([basis, rest[:, None] / norm], dim=1)
        images = torch.cat([images, matrix.without(group, basis[:, -1])[:, None]], dim=1)
    small = (basis.T @ images).double()
    weights = torch.linalg.eigh((small + small.T) / 2).eigenvectors[:, -1]
    vector = basis @ weights.to(basis.dtype)
    return vector / torch.linalg.vector_norm(vector)
