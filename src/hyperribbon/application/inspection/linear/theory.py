"""`compare_with_theory`: measured curvature, predictions, and which assumption separates them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy.sparse.linalg import LinearOperator
from torch import nn

from hyperribbon.application.inspection.engine.clock import InterruptibleRisk
from hyperribbon.application.inspection.linear.measurements import leading_eigenvalues
from hyperribbon.core import checks, html
from hyperribbon.core.checks import check_choice, check_positive_int, validate
from hyperribbon.core.devices.modes import plain_arithmetic
from hyperribbon.core.parameters import ParameterSpace
from hyperribbon.core.result import Brief, Result, Summary
from hyperribbon.operators import Hessian
from hyperribbon.prediction.linear_layers import FoundChain, find_chain, names_of
from hyperribbon.spectra import eigsh
from hyperribbon.spectra import trace as estimate_trace
from hyperribbon.theory import linear_networks as theory
from hyperribbon.theory.linear_networks.moments import Moments

_HOLDS = 1e-3
_PRESENT = 1e-12  # variance over the largest below which inputs have no direction
_RANK = 1e-12  # singular value over the largest below which it counts as zero
Quantity = Literal["sharpness", "trace"]
Prediction = Literal["minimum", "white", "labels"]
_LINEAR, _SQUARED, _BIASES = "linear network", "squared loss", "biases as one input"
_BALANCED, _MINIMUM = "balanced layers", "minimum reached"
_WHITE, _INTERPOLATED = "white inputs", "interpolated labels"
_ORDER = (_LINEAR, _SQUARED, _BIASES, _BALANCED, _MINIMUM, _WHITE, _INTERPOLATED)
_PREDICTIONS = {"minimum": _MINIMUM, "white": _WHITE, "labels": _INTERPOLATED}
_RUNGS = {
    _LINEAR: "linear layers",
    _SQUARED: "squared loss",
    _BIASES: "biases as one constant input",
    _BALANCED: "balanced layers",
    _MINIMUM: "at the minimum, Eq. (9) for these inputs",
    _WHITE: "white inputs, Eq. (13) general",
    _INTERPOLATED: "interpolated labels, Eqs. (13), (14)",
}
_MEANINGS = {
    _LINEAR: "‖f(X) − W_L…W_1 X‖ over ‖f(X)‖",
    _SQUARED: "spread of the loss's curvature over outputs and samples, over its mean",
    _BIASES: "share of the trace in the biases of later layers",
    _BALANCED: "largest ‖W_ℓW_ℓᵀ − W_ℓ₊₁ᵀW_ℓ₊₁‖, relative",
    _MINIMUM: "‖(W − W*)X‖ over ‖Y‖, W* the least-squares map",
    _WHITE: "spread of the input variances over their mean",
    _INTERPOLATED: "‖W*X − Y‖ over ‖Y‖",
}


@dataclass(frozen=True)
class Rung(Brief):
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
        """Largest eigenvalue on one rung between the model and linear theory."""
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
        """Whether an assumption of linear theory holds: its number is below 0.1%."""
        return self.value < _HOLDS


@dataclass(frozen=True)
class TheoryComparison(Result):
    """Measured curvature of a chain of linear layers, beside its predictions.

    Attributes:
        chain: The layers, their weights, and the loss and the data as they see them.
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
        """Number of layers of the network that is compared with linear theory."""
        return len(self.chain.weights)

    @property
    def measured(self) -> Rung:
        """The measured Hessian, with which linear theory is compared."""
        return self.rungs[0]

    def predicted(self, prediction: Prediction = "minimum") -> Rung:
        """Return the eigenvalues and the trace that linear theory predicts.

        Args:
            prediction: "minimum" (a balanced minimum on these inputs, Eq. 9 for any covariance),
                "white" (Eq. 13 in its general form) or "labels" (Eqs. 13 and 14 as printed).
        """
        return self.rungs[self._position(prediction)]

    def discrepancy(
        self, quantity: Quantity = "sharpness", prediction: Prediction = "minimum"
    ) -> float:
        """Return measured over linear theory's value, minus one; infinite when that is zero."""
        check_choice("quantity", quantity, ("sharpness", "trace"))
        predicted = getattr(self.predicted(prediction), quantity)
        return getattr(self.measured, quantity) / predicted - 1 if predicted else math.inf

    def responsible(
        self, quantity: Quantity = "sharpness", prediction: Prediction = "minimum"
    ) -> Assumption | None:
        """Return linear theory's broken assumption with the largest effect.

        None when prediction and model agree, or when every assumption that was made holds.
        """
        if self.agrees(quantity, prediction):
            return None
        broken = self._broken(prediction)
        return max(broken, key=lambda assumption: abs(assumption.effects[quantity]), default=None)

    def agrees(self, quantity: Quantity = "sharpness", prediction: Prediction = "minimum") -> bool:
        """Return whether linear theory's prediction and the model agree.

        They do when they differ by less than 0.1%, or by less than three standard errors of the
        measured trace.
        """
        allowed = _HOLDS
        if quantity == "trace" and self.measured.trace:
            allowed = max(allowed, 3 * self.trace_stderr / abs(self.measured.trace))
        return abs(self.discrepancy(quantity, prediction)) < allowed

    def cancels(self, quantity: Quantity = "sharpness", prediction: Prediction = "minimum") -> bool:
        """Return whether broken assumptions of linear theory hide each other.

        They do when broken assumptions together change the number by less than half of what they
        change it one by one, and that is more than 1%.
        """
        effects = [assumption.effects[quantity] for assumption in self._broken(prediction)]
        apart, together = sum(map(abs, effects)), abs(sum(effects))
        return apart > max(2 * together, 0.01 * abs(getattr(self.measured, quantity)))

    def table(self) -> pd.DataFrame:
        """Return sharpness, trace and leading eigenvalues of theory and model, one row per rung."""
        rows = [(r.name, r.sharpness, r.trace, *r.eigenvalues) for r in self.rungs]
        numbered = [f"eigenvalue {i + 1}" for i in range(len(self.measured.eigenvalues))]
        columns = ["what", "sharpness", "trace", *numbered]
        return pd.DataFrame(rows, columns=columns).set_index("what")

    def to_frame(self) -> pd.DataFrame:
        """Return the comparison with linear theory as a DataFrame: its `table`."""
        return self.table()

    def assumptions_table(self) -> pd.DataFrame:
        """Return linear theory's assumptions, each with its number and the effect if broken.

        Effects are relative to the measurement, and NaN for assumptions that hold.
        """

        def effect(assumption: Assumption, quantity: Quantity) -> float:
            measured = getattr(self.measured, quantity)
            if assumption.holds or not measured:
                return float("nan")
            return assumption.effects[quantity] / abs(measured)

        records = [
            {
                "assumption": a.name,
                "broken by": a.value,
                "holds": a.holds,
                "effect on sharpness": effect(a, "sharpness"),
                "effect on trace": effect(a, "trace"),
                "the number is": a.meaning,
            }
            for a in self.assumptions
        ]
        return pd.DataFrame(records).set_index("assumption")

    def summary(self) -> Summary:
        """Return the comparison with linear theory in plain words."""
        chain = self.chain
        inputs = chain.weights[0].shape[1]
        widths = "-".join(map(str, [inputs, *(len(w) for w in chain.weights)]))
        lines = [f"Linear layers of widths {widths}, {chain.samples} samples, the model's loss."]
        sources: tuple[tuple[Prediction, str], ...] = (
            ("minimum", "a balanced minimum on these inputs"),
            ("labels", "the labels alone"),
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
        if self.cancels("sharpness", "labels"):
            lines.append(f"Effects cancel: {self._effects('labels')}.")
        broken = [f"{a.name} ({a.value:.2g})" for a in self.assumptions if not a.holds]
        lines.append(f"Broken assumptions: {', '.join(broken) if broken else 'none'}.")
        if chain.samples < inputs:
            lines.append(
                f"There are fewer samples ({chain.samples}) than inputs ({inputs}): some map "
                "reproduces any labels."
            )
        return Summary("\n".join(lines))

    def _headline(self) -> str:
        cause = self.responsible()
        why = "" if cause is None else f", {cause.name}"
        numbers = f"measured {self.measured.sharpness:.4g}, {self.predicted().sharpness:.4g}"
        return f"{numbers} predicted{why}"

    def _repr_html_(self) -> str:
        """Show the comparison with linear theory, step by step and in words, in a notebook."""
        rows = [(rung.name, rung.sharpness, rung.trace) for rung in self.rungs]
        steps = html.table(["step", "sharpness", "trace"], rows)
        return html.card("Linear-network theory", steps, html.bullets(self.summary().split("\n")))

    def _broken(self, prediction: Prediction) -> list[Assumption]:
        made = self.assumptions[: self._position(prediction)]
        return [assumption for assumption in made if not assumption.holds]

    def _effects(self, prediction: Prediction) -> str:
        measured = abs(self.measured.sharpness) or 1.0
        return ", ".join(
            f"{a.name} {a.effects['sharpness'] / measured:+.0%}" for a in self._broken(prediction)
        )

    def _position(self, prediction: Prediction) -> int:
        check_choice("prediction", prediction, tuple(_PREDICTIONS))
        names = [assumption.name for assumption in self.assumptions]
        return names.index(_PREDICTIONS[prediction]) + 1


@validate(model=checks.torch_module, precision=checks.positive, memory=checks.positive)
@plain_arithmetic()
def compare_with_theory(
    model: nn.Module,
    loss: Any,
    data: Any,
    *,
    k: int = 5,
    seed: int = 0,
    precision: float = 0.01,
    memory: float | None = None,
) -> TheoryComparison:
    """Compare a model's curvature with the theory of linear networks, in closed form.

    The chain of linear layers that ends the model is taken, with its biases; activations between
    them are allowed and measured as the broken assumption that they are. The Hessian is that of the
    given loss in the parameters of these layers, in evaluation mode.

    One assumption after the other is made: the layers are a linear network (Eq. 1); the loss is
    squared, with the mean curvature and the gradients of the given one (Eq. 2); all biases are one
    constant input of the first layer; layers are balanced (Assumption 3); a minimum is reached
    (Eqs. 3, 9 and 12, for any inputs); inputs are white (Assumption 2, Eq. 13 in its general form);
    labels can be interpolated (Eqs. 13 and 14 as printed). Each rung is a network of its own, with
    the same outputs where that is possible, so an assumption that holds has no effect. Effects add
    up to the difference between model and theory.

    Args:
        model: Any model that ends in linear layers; it is not changed.
        loss: As for `Risk`; None for the model's own.
        data: As for `Risk`.
        k: Leading eigenvalues to compare.
        seed: Seed of the eigensolver and of the trace estimate.
        precision: Relative standard error to aim at for the measured trace.
        memory: Bytes to stay below; None for what is free.

    Raises:
        ArgumentError: The model does not end in linear layers with weights of their own, or the
            loss is no sum over samples or has no curvature.
    """
    graphs = None if memory is None else memory / 2
    risk = InterruptibleRisk(model, loss, data, memory=graphs)
    risk.take_logits()
    return compare_risk(risk, k=k, seed=seed, precision=precision, memory=memory)


def compare_risk(
    risk: InterruptibleRisk,
    *,
    k: int,
    seed: int,
    precision: float,
    memory: float | None,
    order: Sequence[str] = _ORDER,
) -> TheoryComparison:
    """Compare a risk with linear theory; see `compare_with_theory`.

    Args:
        risk: Model, loss and data; its clock is read before every product.
        k: Leading eigenvalues, at most.
        seed: Of the eigensolver and of the trace estimate.
        precision: Relative standard error to aim at for the measured trace.
        memory: Bytes to stay below; None for what is free.
        order: Of the assumptions; the last two may change places.
    """
    chain = find_chain(risk)
    problem = _Problem(chain)
    k = check_positive_int("k", k, maximum=problem.parameters)
    limits = {"memory": memory, "should_stop": risk.clock.check, "seed": seed}
    measured, stderr = _measure(risk, chain, k, precision, limits)
    rungs = [measured, problem.affine(_RUNGS[_LINEAR], k, limits, own_loss=True)]
    made: set[str] = set()
    for name in order[1:]:
        made.add(name)
        if name == _SQUARED:
            rungs.append(problem.affine(_RUNGS[name], k, limits, own_loss=False))
        else:
            rungs.append(problem.rung(_RUNGS[name], made, k, limits))
    values = problem.departures()
    assumptions = []
    for name, (before, after) in zip(order, pairwise(rungs), strict=True):
        effects = {q: getattr(before, q) - getattr(after, q) for q in ("sharpness", "trace")}
        assumptions.append(Assumption(name, values[name], _MEANINGS[name], effects))
    return TheoryComparison(chain, tuple(rungs), tuple(assumptions), stderr)


def _measure(
    risk: InterruptibleRisk, chain: FoundChain, k: int, precision: float, limits: dict[str, Any]
) -> tuple[Rung, float]:
    module = risk.function.module
    names = [n for layer in chain.layers for n in names_of(layer, module.get_submodule(layer))]
    hessian = Hessian(risk.on(ParameterSpace.of_model(module, names)))
    options = {"certificate": "full", "eigenvectors": False} | limits
    top = eigsh(hessian, k, tol=1e-4, **options).eigenvalues
    total = estimate_trace(hessian, precision=precision, **limits)
    return Rung("measured", top.double().cpu().numpy(), total.value), total.stderr


class _AffineCurvature(LinearOperator):
    """The Hessian of linear layers with biases, under the user's loss or its squared stand-in."""

    def __init__(self, chain: FoundChain, *, own_loss: bool) -> None:
        self._chain, self._own_loss = chain, own_loss
        layers, trained = chain.augmented()
        self._shapes = [layer.shape for layer in layers]
        self._before, self._after = theory.chain_products(layers)
        self._squared = theory.hessian(layers, chain.moments)
        self._entries = np.flatnonzero(np.concatenate([mask.ravel() for mask in trained]))
        super().__init__(np.float64, (len(self._entries), len(self._entries)))

    def _matvec(self, x: np.ndarray) -> np.ndarray:
        every, c = np.zeros(self._squared.shape[0]), self._chain.curvature
        every[self._entries] = np.asarray(x).ravel()
        found = c * (self._squared @ every)
        if self._own_loss:
            found += self._of_loss(every)
        return found[self._entries]

    def _of_loss(self, x: np.ndarray) -> np.ndarray:
        """Return Jᵀ (A − c) J x / n, how the loss departs from linear theory's squared one."""
        sizes = np.cumsum([rows * columns for rows, columns in self._shapes])[:-1]
        parts = [v.reshape(s) for v, s in zip(np.split(x, sizes), self._shapes, strict=True)]
        triples = list(zip(self._after, parts, self._before, strict=True))
        inputs = self._chain.inputs
        moved = inputs @ np.sum([S @ V @ P for S, V, P in triples], axis=0).T
        error = self._chain.curve(moved) - self._chain.curvature * moved
        slope = error.T @ inputs / len(inputs)
        return np.concatenate([(S.T @ slope @ P.T).ravel() for S, _, P in triples])


class _Problem:
    """The networks that the assumptions lead to, on the principal axes of the inputs."""

    def __init__(self, chain: FoundChain) -> None:
        self.chain = chain
        self.widths = [len(weight) for weight in chain.weights]
        self.parameters = sum(int(mask.sum()) for mask in chain.augmented()[1])
        variances, directions = np.linalg.eigh(chain.moments.inputs)
        self.present = variances > _PRESENT * variances[-1]
        self.variances = np.where(self.present, variances, 0.0)
        self.roots = np.sqrt(self.variances[self.present])
        self.sigma_x = float(np.sqrt(self.variances[self.present].mean()))
        self.layers = [self._first() @ directions, *chain.weights[1:]]
        self.product = theory.end_to_end(self.layers)
        # In whitened inputs Σ^(-1/2) x the least-squares map is the cross moment.
        self.solution = (chain.moments.cross @ directions)[:, self.present] / self.roots

    def _first(self) -> np.ndarray:
        """Return W1 with a column for the constant input, to hold linear theory's biases."""
        chain = self.chain
        if not chain.has_biases:
            return chain.weights[0]
        total = np.zeros(chain.weights[0].shape[0])
        rest = np.zeros(len(chain.weights[-1]))
        if chain.biases[0] is not None:
            total = chain.biases[0]
        after = theory.chain_products(chain.weights)[1]
        for bias, S in zip(chain.biases[1:], after[1:], strict=True):
            rest = rest + (0 if bias is None else S @ bias)
        return np.column_stack([chain.weights[0], total + np.linalg.pinv(after[0]) @ rest])

    def affine(self, name: str, k: int, limits: dict[str, Any], *, own_loss: bool) -> Rung:
        """Return linear theory's curvature with all biases, by its own or a squared loss."""
        operator = _AffineCurvature(self.chain, own_loss=own_loss)
        options = {"certificate": "full", "eigenvectors": False, "tol": 1e-5} | limits
        values = eigsh(operator, k, **options).eigenvalues.numpy()
        return Rung(name, values, self._traces(own_loss).sum())

    def _traces(self, own_loss: bool) -> np.ndarray:
        """Return for linear theory the trace of each layer's weights and bias: (L, 2)."""
        chain, inputs = self.chain, self.chain.inputs
        layers, trained = chain.augmented()
        before, after = theory.chain_products(layers)
        grams = []
        for S, mask in zip(after, trained, strict=True):
            moved = S[:, mask.any(1)]
            grams.append(moved @ moved.T)
        curved = np.zeros((len(layers), len(inputs)))
        for j, unit in enumerate(np.eye(len(grams[0]))):
            column = np.broadcast_to(unit, (len(inputs), len(unit)))
            column = chain.curve(column.copy()) if own_loss else chain.curvature * column
            curved += np.array([column @ gram[j] for gram in grams])
        found = np.zeros((len(layers), 2))
        for place, (P, mask) in enumerate(zip(before, trained, strict=True)):
            squares = (inputs @ P.T) ** 2
            weights = squares.shape[1] - chain.has_biases
            found[place, 0] = curved[place] @ squares[:, :weights].sum(1) / len(inputs)
            if mask[0, weights:].any():
                found[place, 1] = curved[place].mean()
        return found

    def rung(self, name: str, made: set[str], k: int, limits: dict[str, Any]) -> Rung:
        """Return the curvature under some of linear theory's assumptions."""
        layers, moments = self.network(made)
        values = leading_eigenvalues(layers, moments, k, **limits)[:k]
        values = np.concatenate([values, np.zeros(k - len(values))])
        c = self.chain.curvature
        return Rung(name, c * values, c * theory.trace(layers, moments))

    def network(self, made: set[str]) -> tuple[list[np.ndarray], Moments]:
        """Return layers and moments that satisfy some assumptions of linear theory."""
        present, roots, sigma = self.present, self.roots, self.sigma_x
        solution = self.solution
        if _INTERPOLATED in made:
            left, found, right = np.linalg.svd(solution, full_matrices=False)
            labels = np.sqrt(np.maximum(np.linalg.eigvalsh(self.chain.target_moment)[::-1], 0))
            solution = left * labels[: len(found)] @ right
        product = self.product[:, present] * roots  # in whitened inputs
        if _MINIMUM in made:
            product = _cut_rank(solution, min(self.widths))
        if _WHITE in made:
            product, cross = product / sigma, solution * sigma
            variances = np.full(len(roots), sigma**2)
        else:
            variances = self.variances
            cross, whole = np.zeros_like(self.product), self.product.copy()
            cross[:, present], whole[:, present] = solution * roots, product / roots
            product = whole
        moments = Moments(variances, cross, self.chain.moments.targets)
        layers = theory.balance_layers(product, self.widths) if _BALANCED in made else self.layers
        return layers, moments

    def departures(self) -> dict[str, float]:
        """Return how far each assumption of linear theory is broken."""
        chain, power = self.chain, self.chain.moments.targets
        traces = self._traces(own_loss=False)
        solution = _cut_rank(self.solution, min(self.widths))
        above = np.sum((self.product[:, self.present] * self.roots - solution) ** 2)
        left = max(power - float(np.sum(self.solution**2)), 0.0)
        left += float(np.sum((self.solution - solution) ** 2))
        # Directions that the inputs never take count where the first layer has weights there.
        columns = np.linalg.norm(self.layers[0], axis=0)
        counted = self.variances[self.present | (columns > _RANK * columns.max())]
        return {
            _LINEAR: chain.deviation,
            _SQUARED: chain.spread,
            _BIASES: float(traces[1:, 1].sum() / traces.sum()) if traces.any() else 0.0,
            _BALANCED: theory.balance_defect(self.layers),
            _MINIMUM: float(np.sqrt(above / power)),
            _WHITE: float(counted.std() / counted.mean()),
            _INTERPOLATED: float(np.sqrt(left / power)),
        }


def _cut_rank(matrix: np.ndarray, rank: int) -> np.ndarray:
    """Return for linear theory the nearest matrix of a rank that a narrow layer lets through."""
    if rank >= min(matrix.shape):
        return matrix
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    return left[:, :rank] * values[:rank] @ right[:rank]
