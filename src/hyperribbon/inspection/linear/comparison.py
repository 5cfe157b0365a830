"""`TheoryComparison`: measured curvature, predictions, and which assumption parts them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from hyperribbon.core.checks import check_choice
from hyperribbon.inspection.linear.chains import FoundChain

__all__ = ["Assumption", "Rung", "TheoryComparison"]

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
