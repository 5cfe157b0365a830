"""`compare_with_theory`: a model's curvature beside what linear-network theory says of it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from torch import nn

from hyperribbon.core.boundary import checked, positive, torch_module
from hyperribbon.core.checks import check_positive_int
from hyperribbon.core.devices.ambient import plainly
from hyperribbon.inspection.engine.clock import Clock, TimedHessian, TimedRisk
from hyperribbon.inspection.engine.subject import source_of
from hyperribbon.inspection.linear.chains import (
    FoundChain,
    find_chain,
    numeric_targets,
    output_matrix,
)
from hyperribbon.inspection.linear.comparison import Assumption, Rung, TheoryComparison
from hyperribbon.inspection.linear.measurements import leading_eigenvalues
from hyperribbon.operators.risk.batches import split
from hyperribbon.spectra import eigsh
from hyperribbon.spectra import trace as estimate_trace
from hyperribbon.theory import linear_networks as theory
from hyperribbon.theory.linear_networks.moments import Moments

__all__ = ["compare_with_theory"]

_PRESENT = 1e-12  # variance over the largest below which inputs have no direction


@checked(model=torch_module, memory=positive)
@plainly
def compare_with_theory(
    model: nn.Module,
    data: Any,
    *,
    k: int = 5,
    seed: int = 0,
    clock: Clock | None = None,
    memory: float | None = None,
) -> TheoryComparison:
    """Compare a model's curvature with the closed forms of [linear_networks].

    The chain of linear layers that ends the model is taken; activations between them are allowed
    and measured as the broken assumption that they are. The loss is (1/2n)‖f(X) − Y‖², with class
    labels one-hot, whatever the model was trained with, in evaluation mode.

    From the measured Hessian, one assumption after the other is made: a linear chain (Eq. 1), a
    stationary residual (Gauss-Newton, Eq. 3), white inputs (Assumption 2), balanced layers
    (Assumption 3, Eq. 9), a minimum (Eq. 12, 13 in its general form), labels that can be
    interpolated (Eqs. 13 and 14 as printed). What each one changes is its effect, so effects add
    up to the difference between model and theory.

    Args:
        model: Any model that ends in linear layers; it is not changed.
        data: (inputs, targets), a Dataset, a DataLoader or batches, as for `Risk`.
        k: Leading eigenvalues to compare.
        seed: Seed of the eigensolver and of the trace estimate.
        clock: Looked at before every product; None lets it take what it takes.
        memory: Bytes to stay below; None for what is free.

    Raises:
        ArgumentError: The model does not end in linear layers, or the data do not fit it.
    """
    data = source_of(model, data, memory=memory)
    chain = find_chain(model, data)
    size = sum(weight.size for weight in chain.weights)
    k = check_positive_int("k", k, maximum=size)
    clock = clock or Clock()
    measured, stderr = _measure(model, data, chain, k, seed, clock, memory)
    white = _whiten(chain)
    weights, moments = chain.weights, chain.moments
    depth, d_out = len(weights), len(weights[-1])
    whitened = [weights[0] @ white.directions, *weights[1:]]

    def chain_rung(name: str, build: Any, layers: list[np.ndarray], where: Moments) -> Rung:
        limits = {"memory": memory, "should_stop": clock.check}
        values = leading_eigenvalues(layers, where, k, matrix=build, seed=seed, **limits)
        return Rung(name, _pad(values, k), theory.trace(layers, where))

    def balanced_rung(name: str, singular_values: np.ndarray) -> Rung:
        shared = singular_values[: min(d_out, white.rank)] ** (1 / depth)
        values = theory.balanced_eigenvalues(shared, depth, white.rank, d_out, white.sigma_x)
        return Rung(name, _pad(values, k), float(values.sum()))

    product = list(accumulate(whitened, lambda total, weight: weight @ total))[-1]
    solution = white.moments.cross / white.sigma_x**2
    labels = np.sqrt(np.maximum(np.linalg.eigvalsh(chain.target_moment)[::-1], 0)) / white.sigma_x
    rungs = (
        measured,
        chain_rung("linear chain", theory.hessian, weights, moments),
        chain_rung("Gauss-Newton", theory.ggn, weights, moments),
        chain_rung("white inputs", theory.ggn, whitened, white.moments),
        balanced_rung("balanced layers, Eq. (9)", _singular(product)),
        balanced_rung("at the minimum, Eq. (13) general", _singular(solution)),
        balanced_rung("interpolated labels, Eqs. (13), (14)", labels),
    )
    effects = [
        {q: getattr(a, q) - getattr(b, q) for q in ("sharpness", "trace")}
        for a, b in pairwise(rungs)
    ]
    departures = _departures(chain, white, product)
    assumptions = tuple(
        Assumption(*about, own) for about, own in zip(departures, effects, strict=True)
    )
    return TheoryComparison(chain, rungs, assumptions, stderr)


def _measure(
    model: nn.Module,
    data: Any,
    chain: FoundChain,
    k: int,
    seed: int,
    clock: Clock,
    memory: float | None,
) -> tuple[Rung, float]:
    def forward(module: nn.Module, batch: Any) -> Any:
        outputs = output_matrix(module, batch)
        return outputs, numeric_targets(outputs, split(batch)[1])

    names = [f"{layer}.weight" if layer else "weight" for layer in chain.layers]
    squares = nn.MSELoss(reduction="sum")
    graphs = None if memory is None else memory / 2
    risk = TimedRisk(model, squares, data, params=names, forward=forward, memory=graphs)
    hessian = TimedHessian(risk)
    risk.clock = hessian.clock = clock
    limits = {"seed": seed, "memory": memory, "should_stop": clock.check}
    top = eigsh(hessian, k, tol=1e-4, eigenvectors=False, **limits).eigenvalues
    total = estimate_trace(hessian, **limits)
    scale = 1 / (2 * chain.samples)
    rung = Rung("measured", top.double().cpu().numpy() * scale, total.value * scale)
    return rung, total.stderr * scale


@dataclass(frozen=True)
class _White:
    directions: np.ndarray
    variances: np.ndarray
    moments: Moments

    @property
    def rank(self) -> int:
        return len(self.variances)

    @property
    def sigma_x(self) -> float:
        return float(np.sqrt(self.variances.mean()))


def _whiten(chain: FoundChain) -> _White:
    """Return the inputs' directions, and moments as if all had the same variance."""
    variances, directions = np.linalg.eigh(chain.moments.inputs)
    present = variances > _PRESENT * variances[-1]
    variances, directions = variances[present], directions[:, present]
    mean = variances.mean()
    cross = chain.moments.cross @ directions * np.sqrt(mean / variances)
    white = Moments(np.full(len(variances), mean), cross, chain.moments.targets)
    return _White(directions, variances, white)


def _departures(
    chain: FoundChain, white: _White, product: np.ndarray
) -> list[tuple[str, float, str]]:
    """Return each assumption's name, number and meaning, in the order in which they are made."""
    moments, variances = chain.moments, white.variances
    residual = moments.times_inputs(product @ white.directions.T) - moments.cross
    power = moments.targets / 2
    floor = power - 0.5 * float(np.sum(white.moments.cross**2)) / white.sigma_x**2
    loss = moments.loss(product @ white.directions.T)
    slope = float(np.linalg.norm(residual) / np.linalg.norm(moments.cross))
    spread = float(variances.std() / variances.mean())
    defect = theory.balance_defect(chain.weights)
    above, left = ((max(0.0, part) / power) ** 0.5 for part in (loss - floor, floor))
    return [
        ("linear network", chain.deviation, "‖f(X) − W_L…W_1 X‖ over ‖f(X)‖"),
        ("stationary residual", slope, "‖(W X − Y)Xᵀ‖ over ‖Y Xᵀ‖"),
        ("white inputs", spread, "spread of the input variances over their mean"),
        ("balanced layers", defect, "largest ‖W_ℓW_ℓᵀ − W_ℓ₊₁ᵀW_ℓ₊₁‖, relative"),
        ("minimum reached", above, "‖(W − W*)X‖ over ‖Y‖, W* the least-squares map"),
        ("interpolated labels", left, "‖W*X − Y‖ over ‖Y‖"),
    ]


def _singular(matrix: np.ndarray) -> np.ndarray:
    return np.linalg.svd(matrix, compute_uv=False)


def _pad(values: np.ndarray, k: int) -> np.ndarray:
    return np.concatenate([values[:k], np.zeros(max(0, k - len(values)))])
