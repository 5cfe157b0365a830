"""What is known of the weight fluctuations of a network and of its layers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Annotated as Bool
from typing import Annotated as Float

import numpy as np

from hyperribbon.core.result import Result, Summary, frame
from hyperribbon.core.store.atomic import write_text
from hyperribbon.noise.flatness import SEEN, VarianceFlatness
from hyperribbon.noise.stationarity import Stationarity

if TYPE_CHECKING:
    import pandas as pd

AGREES = 1.5  # factor up to which two numbers agree
_WIDE = 4.0  # an interval as long as from ψ = −2 to 2 does not even tell the sign


@dataclass(frozen=True)
class LayerFluctuations(Result, plot="plot_layer_fluctuations"):
    """Fluctuations of the weights of one layer.

    Attributes:
        name: Module whose weights they are.
        weights: Number of weights.
        variances: (k,), along the modes.
        curvatures: (k,), along the modes, at the mean weights; NaN where it was not measured.
        times: (k,), correlation times in records; see `VarianceFlatness.times`.
        resolved: (k,), whether the record spans ten of these times.
        flatness: The exponent ψ with its interval, or None where `reason` says why.
        reason: Why there is no ψ; empty where there is one.
        stationarity: Test of the mean weights along the resolved modes.
        predicted_variances: (k,), by `theory.fluctuations.stationary_state`, or None where
            `no_prediction` says why; NaN along modes that it does not hold for.
        predicted_times: (k,), predicted correlation times in records, or None; NaN for shuffled
            epochs, whose anticorrelated noise shortens them.
        no_prediction: Why nothing is predicted; empty where something is.
        captured: Share of the layer's variance along the modes.
        noise_change: Gradient noise along the modes in the first and in the last tenth of the
            steps, over its mean; both one in a stationary state. NaN for a trajectory
            and without a prediction.
        broken: Assumptions of the theory that do not hold here, one sentence each.
    """

    name: str
    weights: int
    variances: Float[np.ndarray, "k"]
    curvatures: Float[np.ndarray, "k"]
    times: Float[np.ndarray, "k"]
    resolved: Bool[np.ndarray, "k"]
    flatness: VarianceFlatness | None
    reason: str
    stationarity: Stationarity
    predicted_variances: Float[np.ndarray, "k"] | None
    predicted_times: Float[np.ndarray, "k"] | None
    no_prediction: str
    captured: float
    noise_change: tuple[float, float]
    broken: tuple[str, ...]

    @property
    def stationary(self) -> bool:
        """Whether the layer's ψ is of a stationary state: mean and noise of its modes stay."""
        return self.stationarity.stationary and self.constant_noise

    @property
    def constant_noise(self) -> bool:
        """Whether the gradient noise in a layer's fluctuations stays within 1.5 times its mean."""
        return not any(change > AGREES or change < 1 / AGREES for change in self.noise_change)

    @property
    def moments_needed(self) -> int:
        """Records, at least, in which all modes of a layer's fluctuations would be resolved.

        A lower bound, since the correlation time of a mode that is not resolved is one.
        """
        times = self.times
        if self.predicted_times is not None:
            times = np.fmax(times, self.predicted_times)
        return int(np.ceil(SEEN * times.max()))

    @property
    def unresolved(self) -> int:
        """Modes of a layer's fluctuations that correlate for more than a tenth of the record."""
        return int((~self.resolved).sum())

    @property
    def ratio(self) -> float:
        """Measured over predicted variance of a layer's fluctuations, over resolved modes."""
        if self.predicted_variances is None:
            return float("nan")
        use = self.resolved & np.isfinite(self.predicted_variances)
        whole = float(self.predicted_variances[use].sum())
        return float(self.variances[use].sum()) / whole if whole > 0 else float("nan")

    def to_frame(self) -> pd.DataFrame:
        """Return the modes of a layer's fluctuations as a table: measured and predicted."""
        return frame(
            {
                "variance": self.variances,
                "predicted_variance": self.predicted_variances,
                "correlation_time": self.times,
                "predicted_time": self.predicted_times,
                "curvature": self.curvatures,
                "resolved": self.resolved,
            },
            "mode",
        )

    def summary(self) -> str:
        """Return ψ of a layer's fluctuations with its interval, or what is not resolved."""
        if self.flatness is None:
            text = f"no ψ: {self.reason}"
        else:
            low, high = self.flatness.interval
            text = f"ψ = {self.flatness.corrected_exponent:.2f} ({low:.2f} to {high:.2f})"
            if high - low > _WIDE:
                text = f"ψ not determined ({low:.2g} to {high:.2g})"
            if not self.stationary:
                doubt = self.stationarity.doubt or "the gradient noise changes"
                text = f"not stationary: {doubt}; {text} of these steps only"
        text += f"; {int(self.resolved.sum())} of {len(self.variances)} modes resolved"
        if self.unresolved:
            text += f", all in at least {self.moments_needed:,} records"
        if np.isfinite(self.ratio):
            text += f"; variance {self.ratio:.2g} times the predicted one"
        return f"{self.name}: {text}"

    _headline = summary


@dataclass(frozen=True)
class Fluctuations(Result, plot="plot_fluctuations"):
    """Weight fluctuations of a network, layer by layer.

    Attributes:
        layers: By name.
        steps: Optimisation steps, or records of a trajectory.
        along: "covariance" or "hessian".
        samples: Samples behind the curvature.
        losses: Training loss over the first and over the last tenth of the steps, and the standard
            error of their difference; NaN for a trajectory.
        training_seconds: Time of the steps alone.
        recording_seconds: Time of keeping the weights beside them.
        curvature_seconds: Time of curvature and prediction.
    """

    layers: dict[str, LayerFluctuations]
    steps: int
    along: str
    samples: int
    losses: tuple[float, float, float]
    training_seconds: float
    recording_seconds: float
    curvature_seconds: float

    def __getitem__(self, layer: str) -> LayerFluctuations:
        """Return the fluctuations of one layer."""
        return self.layers[layer]

    def to_frame(self) -> pd.DataFrame:
        """Return the layers' fluctuations as a table: ψ and its interval, one row per layer."""
        rows = self.layers.values()
        known = [row.flatness for row in rows]
        table = frame(
            {
                "psi": [np.nan if f is None else f.corrected_exponent for f in known],
                "low": [np.nan if f is None else f.interval[0] for f in known],
                "high": [np.nan if f is None else f.interval[1] for f in known],
                "stationary": [row.stationary for row in rows],
                "resolved": [int(row.resolved.sum()) for row in rows],
                "unresolved": [row.unresolved for row in rows],
                "ratio": [row.ratio for row in rows],
                "captured": [row.captured for row in rows],
                "weights": [row.weights for row in rows],
            }
        )
        return table.set_axis(list(self.layers)).rename_axis("layer")

    def summary(self) -> Summary:
        """Return the layers' fluctuations in words, a line each, then broken assumptions."""
        lines = [row.summary() for row in self.layers.values()]
        first, last, error = self.losses
        low, high = min(first, last), max(first, last)
        if low > 0 and high > AGREES * low and high - low > 3 * error:
            lines.append(f"the training loss went from {first:.3g} to {last:.3g}: not stationary")
        lines += [f"{row.name}: {text}" for row in self.layers.values() for text in row.broken]
        return Summary("\n".join(lines))

    def report(self, path: str | Path) -> Path:
        """Write a page with all layers' fluctuations, the figure and tables; return its path."""
        parts = [f"<p>{'<br>'.join(self.summary().splitlines())}</p>", self._repr_html_()]
        parts += [row._repr_html_() for row in self.layers.values()]
        page = "<!doctype html><meta charset='utf-8'><title>Weight fluctuations</title>"
        write_text(Path(path), page + "".join(parts))
        return Path(path)

    def _headline(self) -> str:
        known = [row for row in self.layers.values() if row.flatness is not None]
        moving = sum(not row.stationary for row in known)
        found = f"ψ of {len(known)} of {len(self.layers)} layers"
        found += f" ({moving} not stationary)" if moving else ""
        return f"{found}, {self.steps} steps, along {self.along}"
