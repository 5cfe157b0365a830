"""How much of a network may be pruned within a tolerance, and how certain that is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import nn

from hyperribbon.core import ArgumentError, Mask, ParameterFilter, html, numpy_generator
from hyperribbon.core.checks import (
    check_choice,
    check_fraction,
    check_positive,
    flag,
    optional,
    text,
    torch_module,
    validate,
)
from hyperribbon.core.devices.tensors import host_array
from hyperribbon.core.result import Result, Summary, frame
from hyperribbon.core.store import Kept, content_digest
from hyperribbon.operators import Risk
from hyperribbon.operators.risk.data import Data
from hyperribbon.operators.risk.forward import Forward
from hyperribbon.operators.risk.objective import Objective
from hyperribbon.subnetworks.evaluation import Measure, StateMetric
from hyperribbon.subnetworks.operations import prune
from hyperribbon.subnetworks.saliency import SALIENCIES
from hyperribbon.subnetworks.scores import SampleScores
from hyperribbon.subnetworks.selection import Criterion, Ranking, rank, rank_units
from hyperribbon.subnetworks.shrinking import UnitRanking
from hyperribbon.subnetworks.states import State, layer_of, state_of
from hyperribbon.subnetworks.statistics import Statistics
from hyperribbon.subnetworks.units import KINDS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_GRID = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0)
_RESOLUTION = 1e-3  # of the fraction
_EVALUATIONS = len(_GRID) + 3 * 7  # of the grid and of three bisections of a tenth
_RESAMPLINGS = 999
_ENTRIES = 10**6  # drawn at once
Scores = Callable[[State], torch.Tensor]


@dataclass(frozen=True)
class LayerSensitivity:
    """The effect of pruning one layer alone, as much as the whole selection prunes of it.

    Attributes:
        layer: Its name.
        parameters: Number of its entries that may be pruned.
        pruned: Share of them that is zero.
        drop: How much the metric gets worse: a drop of the accuracy, an increase of the loss.
        drop_stderr: Its standard error over the samples.
    """

    layer: str
    parameters: int
    pruned: float
    drop: float
    drop_stderr: float


@dataclass(frozen=True)
class Prunable(Result, plot="plot_prunable"):
    """The largest fraction of the weights that can be zero within a tolerance.

    Attributes:
        fraction: The fraction; all smaller ones are within the tolerance too, as far as measured.
        interval: Confidence interval of the fraction over samples: at its lower end the drop is
            below the tolerance with confidence, at its upper end above it.
        confidence: Its level.
        tolerance: The drop that was tolerated; of the loss, relative to the baseline.
        metric: "accuracy", "loss", or the name of your function.
        baseline: The metric of the unpruned network. It and every pruned one have the normalisation
            statistics, stored or re-estimated, with which they are better.
        value: The metric of the pruned network.
        samples: Number of samples.
        data: Which samples, in words.
        fractions: (s,) all fractions that were measured, ascending.
        values: (s,) the metric there.
        drop_stderr: (s,) standard error of its difference from the baseline, over samples.
        stored_values: (s,) the metric with the normalisation statistics of the unpruned network,
            which do not fit pruned weights; NaN without such layers.
        layers: Sensitivity layer by layer.
        mask: The entries that are zero.
        state: The pruned weights with their normalisation statistics.
        unit: What is pruned: "weights", "channels" or "heads".
        statistics_drop: The drop from re-estimating normalisation statistics without pruning; 0
            without such layers.
    """

    fraction: float
    interval: tuple[float, float]
    confidence: float
    tolerance: float
    metric: str
    baseline: float
    value: float
    samples: int
    data: str
    fractions: np.ndarray
    values: np.ndarray
    drop_stderr: np.ndarray
    stored_values: np.ndarray
    layers: tuple[LayerSensitivity, ...]
    mask: Mask = field(repr=False)
    state: dict[str, torch.Tensor] = field(repr=False)
    unit: str = "weights"
    statistics_drop: float = 0.0

    def _headline(self) -> str:
        low, high = self.interval
        return f"fraction={self.fraction:.3f}, interval=({low:.3f}, {high:.3f})"

    def summary(self) -> Summary:
        """Return how much can be pruned, in sentences."""
        low, high = self.interval
        verb = "raises" if self.metric == "loss" else "lowers"
        change = describe_change(self.metric, self.baseline, self.value)
        share = f"the {_RANKED[self.unit]} {self.fraction:.1%} of the {self.unit}"
        if self.fraction == 1:
            share = f"all {self.unit}"
        sentences = [
            f"Zeroing {share} {change} ({self.data}, no retraining).",
            f"{self.confidence:.0%} confidence interval for a tolerance of {self._tolerated()}: "
            f"{low:.1%} to {high:.1%}.",
        ]
        if self.fraction == 1:
            reason = f"With all of them zero the {self.metric} is within the tolerance"
            sentences.append(f"{reason}: by this metric the network has not learned anything.")
        if low == 0 and self.fraction > 0:
            reason = f"{self.samples:,} samples are too few to confirm any fraction"
            sentences.append(f"{reason} at this tolerance.")
        alone = "Re-estimating the normalisation statistics without any pruning already"
        size = self._format(abs(self.statistics_drop))
        if self.statistics_drop > self.tolerance:
            remedy = "give training samples as calibration=."
            sentences.append(f"{alone} {verb} {self.metric} by {size}: {remedy}")
        elif self.statistics_drop < -self.tolerance:
            better = "lowers" if verb == "raises" else "raises"
            sentences.append(f"{alone} {better} {self.metric} by {size}.")
        if not self.data.endswith("held-out samples"):
            sentences.append(
                "On samples that the network was not trained on, the drop can be larger: check the "
                "answer on held-out data."
            )
        worst = max(self.layers, key=lambda layer: layer.drop, default=None)
        if worst is not None and worst.drop > 2 * worst.drop_stderr > 0:
            sentences.append(
                f"The most sensitive layer is {worst.layer}: pruning {worst.pruned:.0%} of it "
                f"alone {verb} {self.metric} by {self._format(worst.drop)}."
            )
        return Summary("\n".join(sentences))

    def to_frame(self) -> pd.DataFrame:
        """Return the pruning curve, one row per fraction that was measured."""
        return frame(
            {
                "fraction": self.fractions,
                self.metric: self.values,
                "drop_stderr": self.drop_stderr,
                f"stored_{self.metric}": self.stored_values,
            }
        )

    def layer_frame(self) -> pd.DataFrame:
        """Return the pruning sensitivity, one row per layer."""
        import pandas as pd

        return pd.DataFrame([vars(layer) for layer in self.layers])

    def _repr_html_(self) -> str:
        """Show how much can be pruned, the curve and the layers, in a notebook."""
        picture = html.picture(cast("Figure", self.plot().figure), "Prunable")
        title = f"{self.fraction:.1%} of the {self.unit} can be zero"
        layers = html.details("layers", html.frame(self.layer_frame(), 12, 200))
        return html.card(title, html.bullets(self.summary().splitlines()), picture, layers)

    def _format(self, value: float) -> str:
        return _format(self.metric, value)

    def _tolerated(self) -> str:
        if self.metric == "loss":
            return f"{self.tolerance:.3g} of the loss"
        return f"{self.tolerance:.3g} in {self.metric}"


_RANKED = {"weights": "smallest", **dict.fromkeys(KINDS.values(), "least important")}


def describe_change(metric: str, before: float, after: float) -> str:
    """Return what pruning does to a metric: "lowers accuracy from 92.0% to 90.2%".

    >>> describe_change("loss", 1.1746, 1.0812), describe_change("accuracy", 0.4, 0.4)
    ('lowers loss from 1.175 to 1.081', 'leaves accuracy at 40.0%')
    """
    first, second = _format(metric, before), _format(metric, after)
    if first == second:
        return f"leaves {metric} at {first}"
    return f"{'lowers' if after < before else 'raises'} {metric} from {first} to {second}"


def _format(metric: str, value: float) -> str:
    return f"{value:.1%}" if metric == "accuracy" else f"{value:.4g}"


def _share(argument: str, value: Any) -> float:
    if not 0 < check_fraction(argument, value) < 1:
        raise ArgumentError(argument, value, "expected a number in (0, 1)", "Give 0.95.")
    return value


@validate(tolerance=check_positive, held_out=optional(flag), confidence=_share)
def prunable(
    model: nn.Module,
    loss: Callable[..., Any] | None = None,
    data: Data = None,
    tolerance: float = 0.01,
    *,
    metric: Measure | None = None,
    criterion: Criterion = "magnitude",
    granularity: str = "weight",
    scope: str = "global",
    include: str = "weights",
    params: ParameterFilter = None,
    frozen: bool = False,
    initial: nn.Module | State | None = None,
    calibration: Data = None,
    held_out: bool | None = None,
    confidence: float = 0.95,
    forward: Forward | None = None,
    folder: str | Path | None = None,
    seed: int = 0,
) -> Prunable:
    r"""Find how much of a network can be pruned, without retraining.

    The smallest weights are set to zero, a growing fraction f of them. With the metric $m_i(f)$ of
    sample i, the answer is the largest f up to which the mean drop is within the tolerance,

    $$\frac1N\sum_i \bigl[m_i(0) - m_i(f)\bigr] \le \text{tolerance},$$

    found by bisection. The samples are the same before and after, so the interval uses paired
    differences: it holds all f at which a test of "the drop equals the tolerance" does not reject.
    For right and wrong labels that is the score test of two paired proportions (Tango 1998); for
    other metrics a studentised bootstrap of the differences. The statistics of normalisation layers
    are re-estimated for the pruned weights; the curve without that is kept beside it. The whole
    network and the pruned ones are treated alike: each has the statistics with which it is better.
    So pruning is neither credited for re-estimating stale statistics nor blamed for the noise of
    re-estimating good ones.

    Use held-out data: on training samples the drop is too small.

    Args:
        model: Any module, not modified; evaluated in evaluation mode.
        loss: As `hr.Risk` takes it; None for the model's own.
        data: As `hr.Risk` takes them.
        tolerance: Drop of the accuracy or of your metric that is allowed; for the loss, increase
            relative to its mean.
        metric: "accuracy", "loss", or a function of (outputs, targets) that gives one number per
            sample, larger being better. By default the accuracy where targets are labels, else the
            loss.
        criterion: As in `select`; or "gradient", "fisher" or "hessian" for the scores of
            `gradient_saliency`, `fisher_saliency` and `hessian_saliency` on these data.
        granularity: "weight", "channel", "head" or "unit", as in `select`: what is zeroed, and what
            the fraction counts. `shrink` then removes channels and heads.
        scope: As in `select`.
        include: As in `select`.
        params: As in `select`.
        frozen: As in `select`.
        initial: The initial state, for criterion "change".
        calibration: Data for re-estimating the statistics of normalisation layers, see
            `Statistics`; by default the inputs of `data`.
        held_out: True if the network was not trained on the data, False if it was; None if unknown.
            It only changes how the answer names them.
        confidence: Level of the interval.
        forward: forward(model, batch) -> outputs or (outputs, targets), for other calls.
        folder: Where every evaluation is kept: the same call continues there after it was killed.
        seed: Seed of the criterion "random" and of the bootstrap.

    Returns:
        `.fraction`, `.interval`, the curve, the layers; `.summary()`, `.plot()`, `.to_frame()`.

    Raises:
        ArgumentError: A choice is unknown, or as for `hr.Risk` and `select`.
    """
    from hyperribbon.core.progress import Console, progress_bar

    check_choice("granularity", granularity, ("weight", *KINDS))
    if metric is not None and not callable(metric):
        check_choice("metric", metric, ("accuracy", "loss"))
    module = torch_module("model", model)
    names = [name for name, _ in module.named_parameters()]
    risk = Risk(module, loss, data, params=names, forward=forward)
    if callable(metric):
        own: Scores = StateMetric(module, risk.source, metric, forward=forward)
        name = getattr(metric, "__name__", "metric")
    else:
        own = SampleScores(risk, metric)
        name = own.metric
    given = risk.source if calibration is None else calibration
    statistics = Statistics(module, given, Objective(None, forward).outputs)
    if isinstance(criterion, str) and criterion in SALIENCIES:
        criterion = SALIENCIES[criterion](module, loss, risk.source)
    how = {"criterion": criterion, "scope": scope, "params": params, "frozen": frozen, "seed": seed}
    if granularity == "weight":
        ranking = rank(module, initial, include=include, **how)
    else:
        ranking = rank_units(module, initial, kind=granularity, **how)
    whole = state_of("model", module)
    kept = Kept(folder, None if folder is None else own(whole))
    with progress_bar(Console(stderr=True)) as progress:
        task = progress.add_task("pruning", total=_EVALUATIONS * (1 + bool(statistics)))

        def observe(state: State) -> torch.Tensor:
            progress.advance(task)
            return kept(content_digest(state), lambda: own(state))

        return find_prunable(
            observe,
            statistics if statistics else None,
            whole,
            ranking,
            tolerance=tolerance,
            metric=name,
            held_out=held_out,
            confidence=confidence,
            unit={"weight": "weights", **KINDS}[granularity],
            seed=seed,
        )


@validate(
    tolerance=check_positive, metric=text, held_out=optional(flag), confidence=_share, unit=text
)
def find_prunable(
    scores: Scores,
    reestimate: Callable[[State], State] | None,
    state: State,
    ranking: Ranking | UnitRanking,
    *,
    tolerance: float,
    metric: str,
    held_out: bool | None = None,
    confidence: float = 0.95,
    unit: str = "weights",
    seed: int = 0,
) -> Prunable:
    """Find the largest fraction that can be pruned within a tolerance.

    Args:
        scores: Gives the metric (n,) of a state's samples; for "loss" the losses, for all others
            larger is better.
        reestimate: Gives a state normalisation statistics of its own weights; None without any.
        state: The network.
        ranking: The entries, first pruned first.
        tolerance: The drop allowed, see `prunable`.
        metric: "accuracy", "loss" or another name.
        held_out: Whether the samples are held out, see `prunable`.
        confidence: Level of the interval.
        unit: What is ranked.
        seed: Seed of the bootstrap.

    Returns:
        As `prunable`.

    Raises:
        ArgumentError: The tolerated drop of the accuracy is 1 or more.
    """
    if metric == "accuracy" and tolerance >= 1:
        reason = "the accuracy cannot drop by that much"
        raise ArgumentError("tolerance", tolerance, reason, "Give 0.01 for one percentage point.")
    curve = _Curve(scores, reestimate, state, ranking, tolerance, metric == "loss")
    decide = _Decision(confidence, tolerance, metric == "accuracy", seed)
    fraction = curve.last(lambda f: bool(curve.excess(f).mean() <= 0))
    low = curve.last(lambda f: f == 0 or decide(curve.drops(f), curve.excess(f)) < 0)
    high = curve.last(lambda f: decide(curve.drops(f), curve.excess(f)) <= 0)
    mask = ranking.select(fraction)
    fractions = sorted(curve.known)
    drops = [curve.drops(f) for f in fractions]
    kind = {True: "held-out ", False: "training ", None: ""}[held_out]
    count = len(curve.baseline)
    return Prunable(
        fraction=fraction,
        interval=(min(low, fraction), max(high, fraction)),
        confidence=confidence,
        tolerance=tolerance,
        metric=metric,
        baseline=float(curve.baseline.mean()),
        value=float(curve.known[fraction].mean()),
        samples=count,
        data=f"{count:,} {kind}samples",
        fractions=np.array(fractions),
        values=np.array([float(curve.known[f].mean()) for f in fractions]),
        drop_stderr=np.array([_stderr(drop) for drop in drops]),
        stored_values=np.array([curve.stored.get(f, np.nan) for f in fractions]),
        layers=tuple(_sensitivities(curve, mask)),
        mask=mask,
        state=dict(curve.best(prune(state, mask))[0]),
        unit=unit,
        statistics_drop=curve.statistics_drop,
    )


class _Curve:
    """The metric of every sample over fractions, measured when it is needed.

    Attributes:
        known: The metric (n,) by fraction.
        stored: Its mean with stored normalisation statistics, by fraction; empty without any.
        baseline: The metric (n,) at 0.
        statistics_drop: As of `Prunable`.
    """

    def __init__(
        self,
        scores: Scores,
        reestimate: Callable[[State], State] | None,
        state: State,
        ranking: Ranking | UnitRanking,
        tolerance: float,
        is_loss: bool,
    ) -> None:
        self._scores, self._reestimate = scores, reestimate
        self.state, self._ranking = state, ranking
        self._tolerance, self._is_loss = tolerance, is_loss
        self.known, self.stored = dict[float, np.ndarray](), dict[float, float]()
        _, self.baseline, stored, renewed = self.best(state)
        self.statistics_drop = float((renewed - stored if is_loss else stored - renewed).mean())
        self._keep(0.0, self.baseline, stored)
        for fraction in _GRID[1:]:
            self._at(fraction)

    def drops(self, fraction: float) -> np.ndarray:
        """Return by how much pruning makes each sample worse, (n,)."""
        return self.worse(self._at(fraction))

    def worse(self, values: np.ndarray) -> np.ndarray:
        """Return how much worse each sample is when pruned than in the whole network, (n,)."""
        return values - self.baseline if self._is_loss else self.baseline - values

    def excess(self, fraction: float) -> np.ndarray:
        """Return pruning's drops minus what is allowed, (n,)."""
        if not self._is_loss:
            return self.drops(fraction) - self._tolerance
        scale = np.sign(self.baseline.mean()) * self._tolerance
        return self.drops(fraction) - scale * self.baseline

    def best(self, state: State) -> tuple[State, np.ndarray, np.ndarray, np.ndarray]:
        """Choose the normalisation statistics, stored or re-estimated, that suit pruning best.

        Returns:
            The state with them, its metric (n,), and the metric with stored and re-estimated ones.
        """
        stored = host_array(self._scores(state)).astype(np.float64)
        if self._reestimate is None:
            return state, stored, stored, stored
        again = self._reestimate(state)
        renewed = host_array(self._scores(again)).astype(np.float64)
        first, second = (renewed, stored) if self._is_loss else (stored, renewed)
        if first.mean() < second.mean():
            return again, renewed, stored, renewed
        return state, stored, stored, renewed

    def last(self, holds: Callable[[float], bool]) -> float:
        """Return the largest pruned fraction before the first at which something does not hold."""
        failing = next((f for f in _GRID if not holds(f)), None)
        if failing is None:
            return 1.0
        if failing == 0.0:
            return 0.0
        low, high = _GRID[_GRID.index(failing) - 1], failing
        while high - low > _RESOLUTION:
            middle = (low + high) / 2
            low, high = (middle, high) if holds(middle) else (low, middle)
        return low

    def _at(self, fraction: float) -> np.ndarray:
        if fraction not in self.known:
            _, values, stored, _ = self.best(prune(self.state, self._ranking.select(fraction)))
            self._keep(fraction, values, stored)
        return self.known[fraction]

    def _keep(self, fraction: float, values: np.ndarray, stored: np.ndarray) -> None:
        self.known[fraction] = values
        if self._reestimate is not None:
            self.stored[fraction] = float(stored.mean())


class _Decision:
    """Whether the mean drop is above (1) or below (−1) the tolerance, or either (0)."""

    def __init__(self, confidence: float, tolerance: float, is_share: bool, seed: int) -> None:
        self._tail, self._tolerance = (1 - confidence) / 2, tolerance
        self._is_share, self._seed = is_share, seed

    def __call__(self, drops: np.ndarray, excess: np.ndarray) -> int:
        if self._is_share and np.isin(drops, (-1.0, 0.0, 1.0)).all():
            lost, gained = int((drops > 0).sum()), int((drops < 0).sum())
            z = paired_score(lost, gained, len(drops), self._tolerance)
            limit = NormalDist().inv_cdf(1 - self._tail)
            return int(z > limit) - int(z < -limit)
        mean, error = excess.mean(), _stderr(excess)
        if error <= np.finfo(np.float64).eps * np.abs(excess).max():
            return 1 if mean > 0 else -1
        low, high = np.quantile(self._studentised(excess), (self._tail, 1 - self._tail))
        return int(mean - high * error > 0) - int(mean - low * error < 0)

    def _studentised(self, values: np.ndarray) -> np.ndarray:
        """Return (mean* − mean)/stderr* of resampled drops by pruning, equal in every call."""
        generator = numpy_generator(self._seed, "paired bootstrap")
        count, found = len(values), []
        for rows in np.array_split(np.arange(_RESAMPLINGS), 1 + _RESAMPLINGS * count // _ENTRIES):
            drawn = values[generator.integers(count, size=(len(rows), count))]
            errors = drawn.std(1, ddof=1) / sqrt(count)
            shifts = drawn.mean(1) - values.mean()
            found.append(np.divide(shifts, errors, out=np.zeros_like(errors), where=errors > 0))
        return np.concatenate(found)


def paired_score(lost: int, gained: int, count: int, difference: float) -> float:
    r"""Return the score statistic of two paired proportions, before and after pruning.

    $$z = \frac{b - c - n\delta}{\sqrt{n\,[2\tilde q + \delta(1-\delta)]}}$$

    with b samples that are right before and wrong after, c the reverse, and the maximum-likelihood
    estimate q̃ of P(wrong → right) if the difference of the proportions is δ (Tango 1998).

    >>> round(paired_score(0, 0, 400, 0.01), 3)  # no change in 400 samples: the drop is below 1%
    -2.01
    """
    b = -lost - gained + (2 * count - lost + gained) * difference
    c = -gained * difference * (1 - difference)
    root = sqrt(b * b - 8 * count * c)
    share = (root - b) / (4 * count) if b <= 0 else -2 * c / (root + b)
    return (lost - gained - count * difference) / sqrt(
        count * (2 * share + difference * (1 - difference))
    )


def _sensitivities(curve: _Curve, mask: Mask) -> list[LayerSensitivity]:
    by_layer: dict[str, dict[str, torch.Tensor]] = {}
    for name, entry in mask.items():
        by_layer.setdefault(layer_of(name), {})[name] = entry
    found = []
    for layer, entries in by_layer.items():
        own = Mask(entries)
        drops = curve.worse(curve.best(prune(curve.state, own))[1])
        size = own.size, own.fraction
        found.append(LayerSensitivity(layer, *size, float(drops.mean()), _stderr(drops)))
    return found


def _stderr(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / sqrt(len(values))) if len(values) > 1 else 0.0
