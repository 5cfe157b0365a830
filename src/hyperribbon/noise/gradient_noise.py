"""Gradient noise compared with curvature: scale, alignment, and detailed balance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from typing import Annotated as Float

import numpy as np
from torch import nn

from hyperribbon.core import checks
from hyperribbon.core.checks import (
    ArgumentError,
    check_choice,
    check_positive_int,
    check_shape,
    validate,
)
from hyperribbon.core.devices.modes import plain_arithmetic
from hyperribbon.core.mask import Mask
from hyperribbon.core.parameters import ParameterFilter
from hyperribbon.core.result import Result, frame
from hyperribbon.noise.stationary import detailed_balance_defect, project
from hyperribbon.operators import GGN, GradientCovariance, Hessian, Risk
from hyperribbon.spectra import alignment, eigsh

if TYPE_CHECKING:
    import pandas as pd

_FIRST = 10  # directions that are tried first
_MOST = 160  # directions that are compared at the most
_ENOUGH = 0.9  # share of the noise that they should hold
_covariance = checks.instance(GradientCovariance, "Give hr.GradientCovariance(model, loss, data).")


@dataclass(frozen=True)
class GradientNoise(Result, plot="plot_relation"):
    """The noise of single-sample gradients against the curvature.

    Attributes:
        scale: Gradient noise scale tr C/‖∇L‖²; infinite where the gradient vanishes.
        total: tr C.
        gradient_norm: ‖∇L‖.
        overlap: Mean squared cosine between the k noisiest and the k sharpest directions.
        chance: That overlap for random directions.
        factor: α that brings αH closest to C in the subspace of sharpest directions.
        proportionality_defect: ‖C − αH‖/‖C‖ there: 0 when C ∝ H.
        balance_defect: ‖Q‖/‖C‖ there: 0 when detailed balance holds.
        curvatures: (k,), eigenvalues of the curvature, descending.
        noise: (k, k), C in their eigenbasis.
        noise_eigenvalues: (k,), leading eigenvalues of C, descending.
        captured: Share of tr C in the subspace. The two defects are those of the subspace; where it
            holds little of the noise they say little of the whole.
    """

    scale: float
    total: float
    gradient_norm: float
    overlap: float
    chance: float
    factor: float
    proportionality_defect: float
    balance_defect: float
    curvatures: Float[np.ndarray, "k"]
    noise: Float[np.ndarray, "k k"]
    noise_eigenvalues: Float[np.ndarray, "_"]
    captured: float

    def to_frame(self) -> pd.DataFrame:
        """Return curvature and gradient noise along each eigenvector of the curvature."""
        return frame({"curvature": self.curvatures, "noise": np.diag(self.noise)})


@validate()
@plain_arithmetic()
def measure_noise(
    model: nn.Module,
    loss: Any,
    data: Any,
    *,
    k: int | None = None,
    curvature: str = "hessian",
    params: ParameterFilter = None,
    mask: Mask | None = None,
    seed: int = 0,
) -> GradientNoise:
    """Measure a model's gradient noise and compare it with its curvature.

    Args:
        model: Any module; it is not changed.
        loss: As for `hr.Hessian`.
        data: As for `hr.Hessian`.
        k: Directions compared; None for as many as hold nine tenths of the noise, see
            `compare_noise`.
        curvature: "hessian" or "ggn".
        params: Name pattern, list of names or predicate that chooses parameters.
        mask: Entries of the parameters that are coordinates.
        seed: Seed of the eigensolvers.

    Returns:
        Curvature and noise along the directions compared, as `compare_noise` gives them.
    """
    check_choice("curvature", curvature, ("hessian", "ggn"))
    kind = Hessian if curvature == "hessian" else GGN
    risk = Risk(model, loss, data, params=params, mask=mask)
    return compare_noise(kind(risk), GradientCovariance(risk), k=k, seed=seed)


@validate(H=checks.operator, C=_covariance)
@plain_arithmetic()
def compare_noise(
    H: Any, C: GradientCovariance, *, k: int | None = None, seed: int = 0
) -> GradientNoise:
    """Compare gradient noise, a covariance, with a curvature operator on the same parameters.

    Directions of zero or negative curvature are omitted: no stationary state exists along them.

    Args:
        H: The curvature.
        C: The covariance of gradients.
        k: Sharpest directions compared. None: from 10 on twice as many until they hold nine tenths
            of the noise, at most 160; `captured` says how much they hold.
        seed: Seed of the eigensolvers.

    Returns:
        Curvatures (k,) and noise (k, k) along the directions compared, and how well they agree.

    Raises:
        ArgumentError: Shapes differ, or no direction has a positive curvature.
    """
    if tuple(H.shape) != tuple(C.shape):
        reason = f"H has shape {tuple(H.shape)}"
        raise ArgumentError("C", tuple(C.shape), reason, "Use the same parameters in both.")
    count = min(_FIRST if k is None else check_positive_int("k", k), H.shape[0])
    whole = float(C.trace())
    while True:
        sharp = eigsh(H, count, certificate="full", seed=seed)
        keep = sharp.eigenvalues > 1e-6 * abs(sharp.eigenvalues).max()
        assert sharp.eigenvectors is not None
        noise = _without_negative(project(C, sharp.eigenvectors[:, keep]))
        captured = float(np.trace(noise)) / whole if whole > 0 else 1.0
        if k is not None or captured >= _ENOUGH or not bool(keep.all()):
            break
        if count >= min(_MOST, H.shape[0]):
            break
        count = min(2 * count, _MOST, H.shape[0])
    noisy = eigsh(C, count, certificate="full", seed=seed)
    if not bool(keep.any()):
        reason = "its largest eigenvalue is not positive"
        raise ArgumentError("H", H, reason, "Measure the curvature at a minimum.")
    assert noisy.eigenvectors is not None
    basis = sharp.eigenvectors[:, keep]
    curvatures = sharp.eigenvalues[keep].double().cpu().numpy()
    angles = alignment(basis, noisy.eigenvectors[:, : basis.shape[1]])
    factor, defect = proportionality(np.diag(curvatures), noise)
    total, norm = whole / C.factor, float(C.mean_gradient().double().norm())
    return GradientNoise(
        scale=noise_scale(C),
        total=total,
        gradient_norm=norm,
        overlap=angles.overlap,
        chance=angles.chance,
        factor=factor,
        proportionality_defect=defect,
        balance_defect=detailed_balance_defect(np.diag(curvatures), noise),
        curvatures=curvatures,
        noise=noise,
        noise_eigenvalues=noisy.eigenvalues.double().cpu().numpy(),
        captured=captured,
    )


def _without_negative(noise: np.ndarray) -> np.ndarray:
    """Return measured gradient noise without the negative variances of rounding."""
    variances, basis = np.linalg.eigh((noise + noise.T) / 2)
    return (basis * variances.clip(0.0)) @ basis.T if variances.size and variances[0] < 0 else noise


@validate(C=_covariance)
def noise_scale(C: GradientCovariance) -> float:
    """Return the gradient noise scale tr C₁/‖∇L‖², with C₁ the per-sample gradient covariance.

    At this batch size, gradient noise equals the signal. Infinite where ∇L = 0.
    """
    square = float(C.mean_gradient().double().square().sum())
    total = C.trace() / C.factor + (0.0 if C.centered else -square)
    total = max(total, 0.0)  # rounding of two equal numbers
    return total / square if square > 0 else float("inf")


@validate(H=checks.symmetric, C=checks.covariance)
def proportionality(H: np.ndarray, C: np.ndarray) -> tuple[float, float]:
    """Return α = tr(HC)/tr(H²) of gradient noise C, and the defect ‖C − αH‖/‖C‖ in [0, 1].

    >>> proportionality(np.diag([1.0, 2.0]), np.diag([3.0, 6.0]))
    (3.0, 0.0)
    """
    H, C = np.asarray(H, dtype=np.float64), np.asarray(C, dtype=np.float64)
    check_shape("C", C, H.shape, f"H has shape {H.shape}")
    square, norm = float(np.sum(H * H)), float(np.linalg.norm(C))
    if square == 0 or norm == 0:
        return 0.0, 0.0 if norm == 0 else 1.0
    factor = float(np.sum(H * C)) / square
    return factor, float(np.linalg.norm(C - factor * H)) / norm
