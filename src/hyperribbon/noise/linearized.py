"""Linearized networks: linear regression on the Jacobian at a solution (Appendix A)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated as Float
from typing import Any

import numpy as np
import torch
from torch import nn

from hyperribbon.core.checks import ArgumentError, check_choice, check_finite, validate
from hyperribbon.core.mask import Mask
from hyperribbon.core.parameters import ParameterFilter
from hyperribbon.core.result import Brief
from hyperribbon.operators import Jacobian
from hyperribbon.theory import fluctuations as theory

_ROUNDINGS = 8  # of an entry of a Jacobian, a product over layers


@dataclass(frozen=True)
class LinearizedNetwork(Brief):
    """f(x, w) ≈ f(x, w⁰) + Φ(w − w⁰) around weights w⁰, with squared loss.

    Attributes:
        design: (N, n·c), Φᵀ: the Jacobian's rows as columns, by sample, then by output.
        targets: (n·c,), y − f(x, w⁰): what a change of the weights should add.
        outputs: c, outputs of a sample.
        scale: Factor of the loss before Σ_c (f − y)²: ½, or 1/c for a mean over outputs.
    """

    design: Float[np.ndarray, "N outputs"]
    targets: Float[np.ndarray, "outputs"]
    outputs: int
    scale: float

    @property
    def samples(self) -> int:
        """Number of samples n of the linearised network."""
        return len(self.targets) // self.outputs

    def solution(self) -> Float[np.ndarray, "N"]:
        """Return the linearised network's weight change δw* to its minimum."""
        return theory.minimum_norm_solution(self.design, self.targets)

    def hessian(self) -> Float[np.ndarray, "N N"]:
        """Return the linearised network's Hessian (N×N), the Gauss–Newton matrix."""
        return 2 * self.scale * self.outputs * theory.hessian(self.design)

    def noise_covariance(
        self, batch_size: int, *, replacement: bool = True
    ) -> Float[np.ndarray, "N N"]:
        """Return the linearised network's mini-batch gradient covariance at its solution."""
        residual = theory.residuals(self.design, self.targets)
        gradients = (self.design * residual).T.reshape(self.samples, self.outputs, -1).sum(axis=1)
        return theory.minibatch_covariance(
            2 * self.scale * gradients, batch_size, replacement=replacement
        )

    def stationary_covariance(
        self, lr: float, batch_size: int, *, time: str = "continuous", replacement: bool = True
    ) -> Float[np.ndarray, "N N"]:
        """Return the linearised network's stationary covariance of the weights (N×N).

        Directions that change no output neither relax nor feel noise, and do not fluctuate. When
        the linearised network interpolates its data the covariance is exactly zero.
        """
        C = self.noise_covariance(batch_size, replacement=replacement)
        return theory.lyapunov_covariance(self.hessian(), C, lr, time=time)


@validate()
def linearize(
    model: nn.Module,
    data: Any,
    *,
    loss: str = "half_squares",
    params: ParameterFilter = None,
    mask: Mask | None = None,
) -> LinearizedNetwork:
    """Linearise a network at its current weights, for the one-layer theory.

    Implements Eqs. (A1)–(A3) of [fluctuations], for any number of outputs. Directions in which the
    outputs of a model in single precision change by rounding alone count as unchanged: solved for,
    they would carry the weights away.

    Args:
        model: Any module; it is not changed. Best at a minimum of the loss.
        data: As `hr.Risk` takes them; targets have the outputs' shape.
        loss: "half_squares", mean over samples of ½‖f − y‖², or "mse", as nn.MSELoss().
        params: Name pattern, list of names or predicate that chooses parameters.
        mask: Entries of the parameters that are coordinates.

    Returns:
        Features (N, n·c) and targets (n·c,) of the one-layer problem that it is near its weights.

    Raises:
        ArgumentError: Targets do not fit the outputs, or are not finite.
    """
    check_choice("loss", loss, ("half_squares", "mse"))
    J = Jacobian(model, data, params=params, mask=mask)
    chunks = [(chunk.point.outputs.detach(), chunk.targets) for chunk in J.risk.chunks()]
    if any(outputs.shape != getattr(targets, "shape", None) for outputs, targets in chunks):
        outputs, targets = chunks[0]
        reason, remedy = f"outputs have shape {tuple(outputs.shape)}", "Give a target for each."
        raise ArgumentError("data (targets)", targets, reason, remedy)
    outputs, targets = (torch.cat(parts) for parts in zip(*chunks, strict=True))
    check_finite("data (targets)", targets)
    count = outputs[0].numel()
    design = check_finite("model (derivatives)", J.to_dense())
    return LinearizedNetwork(
        _remove_rounding(design.double().cpu().numpy().T, torch.finfo(design.dtype).eps),
        (targets - outputs).double().reshape(-1).cpu().numpy(),
        count,
        0.5 if loss == "half_squares" else 1 / count,
    )


def _remove_rounding(design: np.ndarray, eps: float) -> np.ndarray:
    """Return the linearised design without singular values that are only rounding.

    Entries that are wrong by a few eps of themselves make a matrix of norm a few eps·‖Φ‖_F.
    """
    if eps <= np.finfo(float).eps:
        return design
    left, singular, right = np.linalg.svd(design, full_matrices=False)
    kept = singular > _ROUNDINGS * eps * np.linalg.norm(singular)
    return (left[:, kept] * singular[kept]) @ right[kept]
