"""Stationary weight covariance under SGD, from measured curvature and gradient noise."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, overload
from typing import Annotated as Float

import numpy as np
import torch

from hyperribbon.core import checks
from hyperribbon.core.checks import (
    ArgumentError,
    check_absent,
    check_array,
    check_choice,
    check_finite,
    check_positive,
    validate,
)
from hyperribbon.core.devices.modes import plain_arithmetic
from hyperribbon.core.devices.tensors import tensor_of
from hyperribbon.core.parameters import ParameterSpace
from hyperribbon.core.result import Result, frame
from hyperribbon.spectra import eigsh, trace
from hyperribbon.theory import fluctuations as theory

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class LeadingCovariance(Result, plot="plot_relation"):
    """The stationary weight covariance predicted in the curvature's leading subspace.

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
        correlation_steps: (k,), steps in which each mode's memory falls by e, in the order of
            `curvatures`, if known.
    """

    basis: Float[torch.Tensor, "P k"]
    curvatures: Float[np.ndarray, "k"]
    noise: Float[np.ndarray, "k k"]
    matrix: Float[np.ndarray, "k k"]
    lr: float
    time: str
    captured: float = float("nan")
    space: ParameterSpace | None = None
    correlation_steps: Float[np.ndarray, "k"] | None = None

    def to_frame(self) -> pd.DataFrame:
        """Return curvature and predicted stationary variance along each eigenvector."""
        own = {"curvature": self.curvatures, "variance": np.diag(self.matrix)}
        own |= {"noise": np.diag(self.noise), "correlation_steps": self.correlation_steps}
        return frame(own)

    @property
    def eigenvalues(self) -> Float[np.ndarray, "k"]:
        """Predicted stationary variances along the principal modes, descending."""
        return np.linalg.eigvalsh(self.matrix)[::-1]

    @property
    def modes(self) -> Float[torch.Tensor, "P k"]:
        """Principal modes of the predicted stationary fluctuations, (P, k)."""
        vectors = np.linalg.eigh(self.matrix)[1][:, ::-1]
        return self.basis @ torch.from_numpy(vectors.copy()).to(self.basis)

    @property
    def balance_defect(self) -> float:
        """‖Q‖/‖C‖ of the stationary state within the subspace: zero in detailed balance."""
        return detailed_balance_defect(np.diag(self.curvatures), self.noise)


@validate(H=checks.symmetric, C=checks.covariance)
def detailed_balance_defect(H: np.ndarray, C: np.ndarray) -> float:
    """Return ‖Q‖/‖C‖ of a stationary state, Q antisymmetric by Eq. (2.31) of [fluctuations].

    Zero when H and C commute, as for C ∝ H; at most one.

    >>> detailed_balance_defect(np.diag([2.0, 1.0]), np.diag([3.0, 4.0]))
    0.0
    """
    norm = np.linalg.norm(C)
    return float(np.linalg.norm(theory.antisymmetric_part(H, C)) / norm) if norm > 0 else 0.0


_Matrix = TypeVar("_Matrix", np.ndarray, torch.Tensor)


@overload
def stationary_covariance(
    H: np.ndarray,
    C: np.ndarray,
    lr: float | None = ...,
    time: str | None = ...,
    *,
    optimizer: torch.optim.Optimizer | None = ...,
    sampling: str = ...,
    batches: int | None = ...,
    k: int | None = ...,
    seed: int = ...,
) -> np.ndarray: ...
@overload
def stationary_covariance(
    H: torch.Tensor,
    C: torch.Tensor,
    lr: float | None = ...,
    time: str | None = ...,
    *,
    optimizer: torch.optim.Optimizer | None = ...,
    sampling: str = ...,
    batches: int | None = ...,
    k: int | None = ...,
    seed: int = ...,
) -> torch.Tensor: ...
@overload
def stationary_covariance(
    H: Any,
    C: Any,
    lr: float | None = ...,
    time: str | None = ...,
    *,
    optimizer: torch.optim.Optimizer | None = ...,
    sampling: str = ...,
    batches: int | None = ...,
    k: int | None = ...,
    seed: int = ...,
) -> LeadingCovariance: ...
@validate(H=checks.operator, C=checks.operator, batches=checks.count, k=checks.count)
@plain_arithmetic()
def stationary_covariance(
    H: Any,
    C: Any,
    lr: float | None = None,
    time: str | None = None,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    sampling: str = "independent",
    batches: int | None = None,
    k: int | None = None,
    seed: int = 0,
) -> Any:
    """Return the stationary covariance M of the weights under SGD, or under your optimiser.

        continuous: HM + MH = λC,   discrete: HM + MH − λHMH = λC

    For matrices the whole M, as an array or a tensor like H. For operators M in the span of the k
    leading eigenvectors of H, where both equations separate from the rest when C does not mix it
    with the remaining directions. Implements Eqs. (2.29)–(2.31) of [fluctuations]; with momentum,
    weight decay, Adam's preconditioner or shuffled epochs, `theory.fluctuations.stationary_state`.

    Args:
        H: Curvature at the solution: a matrix, or any operator with `.shape` and `@`.
        C: Covariance of a minibatch's gradient: `hr.GradientCovariance(..., batch_size=S)`.
        lr: Learning rate λ; None for the optimiser's.
        time: "continuous", the small-λ limit, or "discrete", the steps as they are. None for
            continuous time under plain SGD, else discrete.
        optimizer: torch's SGD, Adam, AdamW or RMSprop, whose settings (and preconditioner, as it is
            now) are used; None for plain SGD.
        sampling: "independent" batches, or "shuffled": every epoch goes once through all batches.
        batches: Batches of an epoch, for shuffled sampling.
        k: Size of the leading subspace, for operators; by default 20.
        seed: Seed of the eigensolver, for operators.

    Raises:
        ArgumentError: The learning rate is beyond stability in discrete time, H has negative
            directions, C has negative ones, noise acts where there is no curvature, shapes
            differ, or the optimiser is not one of those.

    >>> stationary_covariance(np.diag([2.0, 1.0]), np.eye(2), 0.1).diagonal()
    array([0.025, 0.05 ])
    """
    rule = read_rule(optimizer, sampling, batches)
    own = rule.pop("lr", None)
    lr = check_positive("lr", own if lr is None else lr)
    plain = not rule
    time = ("continuous" if plain else "discrete") if time is None else time
    check_choice("time", time, ("continuous", "discrete"))
    if time == "continuous" and not plain:
        reason = "momentum, decay, preconditioners and shuffling are treated step by step"
        raise ArgumentError("time", time, reason, 'Use time="discrete".')
    if isinstance(C, torch.Tensor | np.ndarray):
        _check_covariance(C)
    if isinstance(H, torch.Tensor | np.ndarray) and isinstance(C, type(H)):
        check_absent("k", k, "for matrices, the full covariance is returned")
    if isinstance(H, torch.Tensor) and isinstance(C, torch.Tensor):
        return torch.from_numpy(_solve(H.cpu(), C.cpu(), lr, time, rule)[0]).to(H)
    if isinstance(H, np.ndarray) and isinstance(C, np.ndarray):
        return _solve(H, C, lr, time, rule)[0]
    if tuple(H.shape) != tuple(C.shape):
        reason = f"H has shape {tuple(H.shape)}"
        raise ArgumentError("C", tuple(C.shape), reason, "Use the same parameters in both.")
    if "preconditioner" in rule:
        reason = "its preconditioner mixes the leading eigenvectors of H with the others"
        remedy = "Give H and C as matrices, for few parameters with params=."
        raise ArgumentError("optimizer", type(optimizer).__name__, reason, remedy)
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
    M, steps = _solve(np.diag(curvatures), noise, lr, time, rule)
    whole = float(trace(C, precision=0.05, seed=seed, max_matvecs=100))
    captured = float(np.trace(noise)) / whole if whole > 0 else float("nan")
    space = getattr(H, "space", None)
    return LeadingCovariance(basis, curvatures, noise, M, lr, time, captured, space, steps[::-1])


def _solve(
    H: Any, C: Any, lr: float, time: str, rule: dict[str, Any]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the stationary covariance, and correlation times in ascending order of curvature."""
    if rule or time == "discrete":
        state = theory.stationary_state(H, C, lr, **rule)
        return state.covariance, state.correlation_steps
    M = theory.lyapunov_covariance(H, C, lr)
    rates = np.linalg.eigvalsh(np.asarray(H, dtype=np.float64))
    if lr * rates[-1] >= 2:
        text = (
            f"lr={lr:g} is beyond the stability limit 2/λ₁ = {2 / rates[-1]:.3g}: SGD has no "
            'stationary state there, although continuous time has one. Use time="discrete".'
        )
        warnings.warn(text, StabilityWarning, stacklevel=4)
    with np.errstate(divide="ignore"):
        return M, np.where(rates > 0, 1 / (lr * np.maximum(rates, 1e-300)), np.inf)


class StabilityWarning(UserWarning):
    """Continuous time was asked for where the discrete steps diverge."""


_ADAPTIVE = (torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop)


def read_rule(
    optimizer: torch.optim.Optimizer | None, sampling: str, batches: int | None
) -> dict[str, Any]:
    """Return an optimiser's lr and what of its stationary covariance differs from plain SGD's."""
    check_choice("sampling", sampling, ("independent", "shuffled"))
    rule: dict[str, Any] = {}
    if sampling == "shuffled":
        if batches is None:
            reason = "shuffled sampling needs the number of batches of an epoch"
            raise ArgumentError("batches", batches, reason, "Give len(loader).")
        rule["batches"] = batches
    elif batches is not None:
        check_absent("batches", batches, "it applies to shuffled sampling")
    if optimizer is None:
        return rule
    kinds = (torch.optim.SGD, *_ADAPTIVE)
    if type(optimizer) not in kinds or len(optimizer.param_groups) != 1:
        known = ", ".join(kind.__name__ for kind in kinds)
        reason = f"expected one of {known}, with one group of parameters"
        raise ArgumentError("optimizer", type(optimizer).__name__, reason, "Give momentum=0 SGD.")
    group = optimizer.param_groups[0]
    rule["lr"] = float(group["lr"])
    if isinstance(optimizer, torch.optim.SGD):
        options = {name: group[name] for name in ("momentum", "dampening", "weight_decay")}
        if group["nesterov"]:
            options["nesterov"] = True
    else:
        options = {"preconditioner": _preconditioner(optimizer, group)}
        if isinstance(optimizer, torch.optim.RMSprop):
            options |= {"momentum": group["momentum"], "weight_decay": group["weight_decay"]}
        else:
            options |= {"momentum": group["betas"][0], "dampening": group["betas"][0]}
            # AdamW is a subclass of Adam in recent versions of torch.
            decoupled = isinstance(optimizer, torch.optim.AdamW)
            options["decoupled_decay" if decoupled else "weight_decay"] = group["weight_decay"]
    return rule | {name: v for name, v in options.items() if np.ndim(v) or v}


def _preconditioner(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> np.ndarray:
    """Return Adam's preconditioner 1/(√v̂ + ε) of every weight, for the stationary covariance."""
    factors = []
    for parameter in group["params"]:
        state = optimizer.state.get(parameter, {})
        squares = state.get("exp_avg_sq", state.get("square_avg"))
        if squares is None:
            reason = "it has taken no step yet, so its preconditioner is not known"
            raise ArgumentError("optimizer", type(optimizer).__name__, reason, "Train first.")
        beta = group["betas"][1] if "betas" in group else 0.0
        unbiased = squares.double() / (1 - beta ** float(state["step"]) if beta else 1.0)
        factors.append((1 / (unbiased.sqrt() + group["eps"])).flatten().cpu().numpy())
    return np.concatenate(factors)


def _check_covariance(C: torch.Tensor | np.ndarray) -> None:
    """Raise unless noise for a stationary state has no negative variance, but for rounding."""
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
    """Return BᵀAB (k, k) of curvature or noise A, for the stationary covariance."""
    block = tensor_of(basis)
    if isinstance(operator, np.ndarray):
        operator = check_array("operator", operator, ndim=2)
        product = torch.from_numpy(operator @ block.double().cpu().numpy())
    elif isinstance(getattr(operator, "dtype", None), torch.dtype):
        product = operator @ block.to(getattr(operator, "device", "cpu"), operator.dtype)
    else:
        product = torch.from_numpy(np.asarray(operator @ block.cpu().numpy()))
    small = (block.double().cpu().T @ product.double().cpu()).numpy()
    return (small + small.T) / 2
