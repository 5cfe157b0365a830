"""`compare_with_theory`: measured curvature, predictions, and which assumption separates them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal

import numpy as np
import pandas as pd
from torch import nn

from hyperribbon.application.inspection.copies import as_source
from hyperribbon.application.inspection.engine.clock import Clock, InterruptibleRisk
from hyperribbon.application.inspection.linear.chains import (
    FoundChain,
    find_chain,
    numeric_targets,
    output_matrix,
)
from hyperribbon.application.inspection.linear.measurements import leading_eigenvalues
from hyperribbon.core.checks import (
    check_choice,
    check_positive_int,
    positive,
    torch_module,
    validate,
)
from hyperribbon.core.devices.modes import plain_arithmetic
from hyperribbon.operators import Hessian
from hyperribbon.operators.risk.batches import split
from hyperribbon.spectra import eigsh
from hyperribbon.spectra import trace as estimate_trace
from hyperribbon.theory import linear_networks as theory
from hyperribbon.theory.linear_networks.moments import Moments

__all__ = ["Assumption", "Rung", "TheoryComparison", "compare_with_theory"]

_HOLDS = 1e-3
Quantity = Literal["sharpness", "trace"]
Prediction = Literal["weights", "labels", "proportions"]


@dataclass(frozen=True)
class Rung:
    """One step from the measurement to the theory.

    Attributes:
        name: What is measured or assumed there.
        eigenvalues: (k,), leading ones, descending.
        trace: Sum of all.
    """

    name: str
    eigenvalues: np.ndarray
    trace: float

    @property
    def sharpness(self) -> float:
        """Largest eigenvalue."""
        return float(self.eigenvalues[0])


@dataclass(frozen=True)
class Assumption:
    """An assumption of the theory, how far it is from true, and what that costs.

    Attributes:
        name: The assumption.
        value: How far it is broken; 0 when it holds.
        meaning: What the number is.
        effects: What dropping it does to "sharpness" and "trace": value with all assumptions
            before it, minus value when it is assumed too. Effects add up to the discrepancy.
    """

    name: str
    value: float
    meaning: str
    effects: dict[str, float]

    @property
    def holds(self) -> bool:
        """Whether the number is below 0.1%."""
        return self.value < _HOLDS


@dataclass(frozen=True)
class TheoryComparison:
    """Measured curvature of a chain of linear layers, beside its predictions.

    Attributes:
        chain: The layers, their weights and the moments of their data.
        rungs: From the measured Hessian to Eq. (14), one assumption more at each.
        assumptions: What is assumed from each rung to the next.
        trace_stderr: Standard error of the measured trace.
    """

    chain: FoundChain
    rungs: tuple[Rung, ...]
    assumptions: tuple[Assumption, ...]
    trace_stderr: float

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.chain.weights)

    @property
    def measured(self) -> Rung:
        """The Hessian of (1/2n)‖f(X) − Y‖² in the chain's weights."""
        return self.rungs[0]

    def predicted(self, prediction: Prediction = "weights") -> Rung:
        """Return a prediction.

        Args:
            prediction: "weights" (Eq. 15 for two layers, Eq. 9 otherwise), "labels" (Eq. 13 in its
                general form) or "proportions" (Eqs. 13 and 14 as printed).
        """
        return self.rungs[self._position(prediction)]

    def discrepancy(
        self, quantity: Quantity = "sharpness", prediction: Prediction = "weights"
    ) -> float:
        """Return measured over predicted, minus one; infinite when zero is predicted."""
        check_choice("quantity", quantity, ("sharpness", "trace"))
        predicted = getattr(self.predicted(prediction), quantity)
        return getattr(self.measured, quantity) / predicted - 1 if predicted else math.inf

    def responsible(
        self, quantity: Quantity = "sharpness", prediction: Prediction = "weights"
    ) -> Assumption | None:
        """Return the broken assumption with the largest effect.

        None when prediction and model agree, or when every assumption that was made holds.
        """
        if self.agrees(quantity, prediction):
            return None
        made = self.assumptions[: self._position(prediction)]
        broken = [assumption for assumption in made if not assumption.holds]
        return max(broken, key=lambda assumption: abs(assumption.effects[quantity]), default=None)

    def agrees(self, quantity: Quantity = "sharpness", prediction: Prediction = "weights") -> bool:
        """Return whether prediction and model agree.

        They do when they differ by less than 0.1%, or by less than three standard errors of the
        measured trace.
        """
        allowed = _HOLDS
        if quantity == "trace" and self.measured.trace:
            allowed = max(allowed, 3 * self.trace_stderr / abs(self.measured.trace))
        return abs(self.discrepancy(quantity, prediction)) < allowed

    def table(self) -> pd.DataFrame:
        """Return sharpness, trace and leading eigenvalues, one row for each step."""
        rows = [(r.name, r.sharpness, r.trace, *r.eigenvalues) for r in self.rungs]
        numbered = [f"eigenvalue {i + 1}" for i in range(len(self.measured.eigenvalues))]
        columns = ["what", "sharpness", "trace", *numbered]
        return pd.DataFrame(rows, columns=columns).set_index("what")

    def assumptions_table(self) -> pd.DataFrame:
        """Return each assumption's number, and its effects relative to the measurement."""
        records = [
            {
                "assumption": a.name,
                "broken by": a.value,
                "holds": a.holds,
                "effect on sharpness": _relative(a.effects["sharpness"], self.measured.sharpness),
                "effect on trace": _relative(a.effects["trace"], self.measured.trace),
                "the number is": a.meaning,
            }
            for a in self.assumptions
        ]
        return pd.DataFrame(records).set_index("assumption")

    def summary(self) -> str:
        """Return the comparison in plain words."""
        chain = self.chain
        widths = [chain.weights[0].shape[1], *(len(w) for w in chain.weights)]
        lines = [
            f"Linear layers of widths {'-'.join(map(str, widths))}, {chain.samples} samples, "
            "loss (1/2n)‖f(X) − Y‖²."
        ]
        sources: tuple[tuple[Prediction, str], ...] = (
            ("weights", "the weights"),
            ("proportions", "the labels alone"),
        )
        for prediction, label in sources:
            predicted, measured = self.predicted(prediction), self.measured
            cause = self.responsible("sharpness", prediction)
            if cause is not None:
                verdict = f"mostly because of '{cause.name}' ({cause.meaning}: {cause.value:.3g})"
            elif self.agrees("sharpness", prediction):
                verdict = "they agree"
            else:
                verdict = "although every assumption holds to 0.1%"
            lines.append(
                f"Sharpness {measured.sharpness:.4g}, from {label} {predicted.sharpness:.4g} "
                f"({self.discrepancy('sharpness', prediction):+.1%}): {verdict}."
            )
        broken = [f"{a.name} ({a.value:.2g})" for a in self.assumptions if not a.holds]
        lines.append(f"Broken assumptions: {', '.join(broken) if broken else 'none'}.")
        return "\n".join(lines)

    def _position(self, prediction: Prediction) -> int:
        check_choice("prediction", prediction, ("weights", "labels", "proportions"))
        last = len(self.rungs) - 1
        from_weights = 3 if self.depth == 2 else 4
        return {"weights": from_weights, "labels": last - 1, "proportions": last}[prediction]


def _relative(effect: float, measured: float) -> float:
    """Return an effect over what was measured; NaN where that is zero, as without any curvature."""
    return effect / abs(measured) if measured else float("nan")


_PRESENT = 1e-12  # variance over the largest below which inputs have no direction


@validate(model=torch_module, precision=positive, memory=positive)
@plain_arithmetic()
def compare_with_theory(
    model: nn.Module,
    data: Any,
    *,
    k: int = 5,
    seed: int = 0,
    precision: float = 0.01,
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
        precision: Relative standard error to aim at for the measured trace.
        clock: Read before every product; None lets it take what it takes.
        memory: Bytes to stay below; None for what is free.

    Raises:
        ArgumentError: The model does not end in linear layers, or the data do not fit it.
    """
    data = as_source(model, data, memory=memory)
    chain = find_chain(model, data)
    size = sum(weight.size for weight in chain.weights)
    k = check_positive_int("k", k, maximum=size)
    clock = clock or Clock()
    measured, stderr = _measure(model, data, chain, k, seed, precision, clock, memory)
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
    precision: float,
    clock: Clock,
    memory: float | None,
) -> tuple[Rung, float]:
    def forward(module: nn.Module, batch: Any) -> Any:
        outputs = output_matrix(module, batch)
        return outputs, numeric_targets(outputs, split(batch)[1])

    names = [f"{layer}.weight" if layer else "weight" for layer in chain.layers]
    squares = nn.MSELoss(reduction="sum")
    graphs = None if memory is None else memory / 2
    options = {"params": names, "forward": forward, "memory": graphs}
    risk = InterruptibleRisk(model, squares, data, **options)
    risk.clock = clock
    hessian = Hessian(risk)
    limits = {"seed": seed, "memory": memory, "should_stop": clock.check}
    options = {"certificate": "full", "eigenvectors": False} | limits
    top = eigsh(hessian, k, tol=1e-4, **options).eigenvalues
    total = estimate_trace(hessian, precision=precision, **limits)
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
