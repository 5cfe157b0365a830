"""Stationary weight covariance under SGD, from measured curvature and gradient noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated as Float
from typing import Any, overload

import numpy as np
import torch

from hyperribbon.core.boundary import checked, count, operator
from hyperribbon.core.checks import (
    ArgumentError,
    check_absent,
    check_choice,
    check_finite,
    check_positive,
)
from hyperribbon.core.devices.ambient import plainly
from hyperribbon.core.devices.tensors import tensor_of
from hyperribbon.core.parameters import ParameterSpace
from hyperribbon.spectra import eigsh, trace
from hyperribbon.theory import fluctuations as theory

__all__ = ["LeadingCovariance", "project", "stationary_covariance"]


@dataclass(frozen=True)
class LeadingCovariance:
    """A predicted weight covariance in the leading subspace of the curvature.

    Attributes:
        basis: (P, k), leading eigenvectors of H.
        curvatures: (k,), their eigenvalues, descending.
        noise: (k, k), C in that basis.
        matrix: (k, k), M in that basis.
        lr: Learning rate.
        time: "continuous" or "discrete".
        captured: Fraction of tr C in that subspace, if known. If it is small, results for the
            subspace say little about the whole.
        space: Which coordinate is which weight, where H knows it.
    """

    basis: Float[torch.Tensor, "P k"]
    curvatures: Float[np.ndarray, "k"]
    noise: Float[np.ndarray, "k k"]
    matrix: Float[np.ndarray, "k k"]
    lr: float
    time: str
    captured: float = float("nan")
    space: ParameterSpace | None = None

    @property
    def eigenvalues(self) -> Float[np.ndarray, "k"]:
        """Predicted variances along the principal modes, descending."""
        return np.linalg.eigvalsh(self.matrix)[::-1]

    @property
    def modes(self) -> Float[torch.Tensor, "P k"]:
        """Principal modes of the predicted fluctuations, (P, k)."""
        vectors = np.linalg.eigh(self.matrix)[1][:, ::-1]
        return self.basis @ torch.from_numpy(vectors.copy()).to(self.basis)

    @property
    def balance_defect(self) -> float:
        """‖Q‖/‖C‖ in the subspace: zero when detailed balance holds there; see `captured`."""
        norm = np.linalg.norm(self.noise)
        Q = theory.antisymmetric_part(np.diag(self.curvatures), self.noise)
        return float(np.linalg.norm(Q) / norm) if norm > 0 else 0.0


@overload
def stationary_covariance(
    H: np.ndarray,
    C: np.ndarray,
    lr: float,
    time: str = ...,
    *,
    k: int | None = ...,
    seed: int = ...,
) -> np.ndarray: ...
@overload
def stationary_covariance(
    H: torch.Tensor,
    C: torch.Tensor,
    lr: float,
    time: str = ...,
    *,
    k: int | None = ...,
    seed: int = ...,
) -> torch.Tensor: ...
@overload
def stationary_covariance(
    H: Any, C: Any, lr: float, time: str = ..., *, k: int | None = ..., seed: int = ...
) -> LeadingCovariance: ...
@checked(H=operator, C=operator, k=count)
@plainly
def stationary_covariance(
    H: Any, C: Any, lr: float, time: str = "continuous", *, k: int | None = None, seed: int = 0
) -> Any:
    """Return the stationary covariance M of the weights under SGD.

        continuous: HM + MH = λC,   discrete: HM + MH − λHMH = λC

    For matrices the whole M, as an array or a tensor like H. For operators M in the span of the k
    leading eigenvectors of H, where both equations separate from the rest when C does not mix it
    with the remaining directions. Implements Eqs. (2.29)–(2.31) of [fluctuations].

    Args:
        H: Curvature at the solution: a matrix, or any operator with `.shape` and `@`.
        C: Covariance of a minibatch's gradient: `hr.GradientCovariance(..., batch_size=S)`.
        lr: Learning rate λ.
        time: "continuous", the small-λ limit, or "discrete", the steps as they are.
        k: Size of the leading subspace, for operators; by default 20.
        seed: Seed of the eigensolver, for operators.

    Raises:
        ArgumentError: The learning rate is beyond stability in discrete time, H has negative
            directions, C has negative ones, noise acts where there is no curvature, or shapes
            differ.

    >>> stationary_covariance(np.diag([2.0, 1.0]), np.eye(2), 0.1).diagonal()
    array([0.025, 0.05 ])
    """
    check_choice("time", time, ("continuous", "discrete"))
    lr = check_positive("lr", lr)
    if isinstance(C, torch.Tensor | np.ndarray):
        _check_covariance(C)
    if isinstance(H, torch.Tensor | np.ndarray) and isinstance(C, type(H)):
        check_absent("k", k, "for matrices, the full covariance is returned")
    if isinstance(H, torch.Tensor) and isinstance(C, torch.Tensor):
        M = theory.stationary_covariance(H.cpu(), C.cpu(), lr, time=time)
        return torch.from_numpy(M).to(H)
    if isinstance(H, np.ndarray) and isinstance(C, np.ndarray):
        return theory.stationary_covariance(H, C, lr, time=time)
    if tuple(H.shape) != tuple(C.shape):
        reason = f"H has shape {tuple(H.shape)}"
        raise ArgumentError("C", tuple(C.shape), reason, "Use the same parameters in both.")
    spectrum = eigsh(H, min(20 if k is None else k, H.shape[0]), seed=seed)
    keep = spectrum.eigenvalues > 1e-6 * spectrum.eigenvalues[0].clamp(min=0)
    if not bool(keep.any()):
        reason = "its largest eigenvalue is not positive"
        raise ArgumentError("H", H, reason, "Measure the curvature at a minimum.")
    assert spectrum.eigenvectors is not None
    basis = spectrum.eigenvectors[:, keep]
    curvatures = spectrum.eigenvalues[keep].double().cpu().numpy()
    noise = project(C, basis)
    _check_covariance(noise)
    M = theory.stationary_covariance(np.diag(curvatures), noise, lr, time=time)
    whole = float(trace(C, precision=0.05, seed=seed, max_matvecs=100))
    captured = float(np.trace(noise)) / whole if whole > 0 else float("nan")
    space = getattr(H, "space", None)
    return LeadingCovariance(basis, curvatures, noise, M, lr, time, captured, space)


def _check_covariance(C: torch.Tensor | np.ndarray) -> None:
    """Raise unless the noise has no negative variance in any direction, but for rounding."""
    matrix = tensor_of(C).detach().cpu()
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        return  # the shapes are compared with H's
    precision = torch.finfo(matrix.dtype).eps if matrix.is_floating_point() else 0.0
    whole = check_finite("C", matrix.double())
    values = torch.linalg.eigvalsh((whole + whole.T) / 2)
    if float(values[0]) < -max(1e-9, 10 * len(matrix) * precision) * float(values.abs().max()):
        lowest = float(values[0])
        reason = f"it has a negative eigenvalue, {lowest:.4g}, so it is not a covariance"
        remedy = "Give the covariance of the gradient noise, such as hr.GradientCovariance."
        raise ArgumentError("C", C, reason, remedy)


def project(operator: Any, basis: torch.Tensor | np.ndarray) -> Float[np.ndarray, "k k"]:
    """Return BᵀAB (k, k) of an operator, array or tensor A, in double precision."""
    block = tensor_of(basis)
    if isinstance(operator, np.ndarray):
        product = torch.from_numpy(operator @ block.double().cpu().numpy())
    elif isinstance(getattr(operator, "dtype", None), torch.dtype):
        product = operator @ block.to(getattr(operator, "device", "cpu"), operator.dtype)
    else:
        product = torch.from_numpy(np.asarray(operator @ block.cpu().numpy()))
    small = (block.double().cpu().T @ product.double().cpu()).numpy()
    return (small + small.T) / 2
