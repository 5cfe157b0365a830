"""Measurements of a linear network's curvature through the engine's eigensolver."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hyperribbon.core.linear_moments import Moments, reduce_chain
from hyperribbon.spectra import eigsh
from hyperribbon.theory.linear_networks import hessian


def top_eigenvalues(
    weights: Sequence[np.ndarray], moments: Moments, k: int = 1, tol: float = 1e-5, seed: int = 0
) -> np.ndarray:
    """Return the k largest eigenvalues of the loss Hessian, by Lanczos, descending."""
    reduced = reduce_chain(weights, moments, hidden=False)
    operator = hessian(reduced.weights, reduced.moments)
    spectrum = eigsh(operator, k, tol=tol, method="lanczos", seed=seed, eigenvectors=False)
    return spectrum.eigenvalues.numpy()


def sharpness(weights: Sequence[np.ndarray], moments: Moments) -> float:
    """Return the largest eigenvalue of the loss Hessian."""
    return float(top_eigenvalues(weights, moments)[0])
