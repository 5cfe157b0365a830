"""Which weights carry the result: layers put back, entries pruned or re-initialised, overlap."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch

from hyperribbon.application.inspection.engine.notebook import Level, Notebook
from hyperribbon.application.inspection.engine.scheduler import Measurement
from hyperribbon.application.inspection.engine.subject import Subject
from hyperribbon.application.inspection.evaluating import is_classification, scores_at
from hyperribbon.application.inspection.quantities import Part
from hyperribbon.operators.risk.objective import Objective
from hyperribbon.plots import Bars, Chart, Curve
from hyperribbon.plots import Level as HorizontalLine
from hyperribbon.subnetworks import (
    Criticality,
    Prunable,
    Statistics,
    find_prunable,
    layer_criticality,
    overlap_ratio,
    prune,
    rank,
    reinitialize,
    select,
)

_FRACTIONS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
_KEPT = 0.1
_CRITICAL = 0.1
"""Drop of the accuracy, or relative increase of the loss, by which a layer is critical."""
_FEWEST = 64
"""Samples on which such a drop is over two standard errors: √(0.1/64) = 0.04 where one sample in
ten changes."""
_COLORS = {"critical": 1, "robust": 2, "undecided": 4}


class _Metric:
    """The accuracy or the loss of every sample at a state, as `layer_criticality` takes it.

    Attributes:
        name: "accuracy" or "loss".
        model: The architecture.
    """

    def __init__(self, subject: Subject) -> None:
        self._subject, self.model = subject, subject.model
        self.name = "accuracy" if is_classification(subject) else "loss"
        call = Objective(None, subject.forward).outputs
        self._statistics = Statistics(subject.model, subject.source, call)

    def __call__(self, state: Mapping[str, torch.Tensor]) -> torch.Tensor:
        scores = scores_at(self._subject, state)
        return scores if self.name == "accuracy" else -scores

    def reestimate(self, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return a sub-network's state for the inspection's part, with statistics of its own."""
        return self._statistics(state)

    @property
    def is_normalised(self) -> bool:
        """Whether the part on sub-networks has normalisation statistics in use."""
        return bool(self._statistics) and self._subject.mode == "eval"


def subnetworks_part(level: Level, notebook: Notebook) -> Part:
    """Sub-networks part: prune a growing fraction, reset layers and entries to the start."""
    subject = level.subject
    names = {n for n, _ in (*subject.model.named_parameters(), *subject.model.named_buffers())}
    state = {n: t.detach() for n, t in subject.model.state_dict().items() if n in names}
    metric, part = _Metric(subject), Part("subnetworks", "Sub-networks", "Sub-networks")
    ranking = rank(subject.model, params=_weight_names(subject))
    found = find_prunable(
        metric,
        metric.reestimate if metric.is_normalised else None,
        state,
        ranking,
        tolerance=notebook.tolerance,
        metric=metric.name,
        seed=notebook.seed,
    )
    random = rank(
        subject.model, params=_weight_names(subject), criterion="random", seed=notebook.seed
    )
    curves = {"pruned at random": _curve(metric, lambda f: prune(state, random.select(f)))}
    _add_prunable(part, found, notebook.tolerance)
    if notebook.initial is not None:
        start = {n: t.to(state[n].device) for n, t in notebook.initial.items() if n in state}
        curves |= _add_start(part, level, notebook, metric, state, start, found.baseline)
    part.charts.append(_sweep_chart(found, curves))
    part.tables["Layers pruned alone"] = found.layer_frame()
    part.readings.append(found.summary().replace("\n", " "))
    return part


def _add_prunable(part: Part, found: Prunable, tolerance: float) -> None:
    metric, how = found.metric, "forward pass"
    name = f"{metric.capitalize()} of the trained network"
    part.exact("subnetworks.baseline", name, found.baseline, how)
    name = f"{metric.capitalize()} with these weights zero"
    part.exact("subnetworks.pruned", name, found.value, how)
    (low, high), kind = found.interval, "increase" if metric == "loss" else "drop"
    limit = f"smallest first, {kind} of {metric} at most {tolerance:.3g}"
    certainty = f"{found.confidence:.0%} interval over samples: {low:.0%} to {high:.0%}"
    told = (high - low) / 2, limit, certainty
    part.number("subnetworks.prunable", "Weights that may be pruned", found.fraction, *told)


def _add_start(
    part: Part,
    level: Level,
    notebook: Notebook,
    metric: _Metric,
    state: Mapping[str, torch.Tensor],
    start: Mapping[str, torch.Tensor],
    baseline: float,
) -> dict[str, np.ndarray]:
    """Add to the part on sub-networks what needs initial weights: critical layers."""
    subject, is_loss = level.subject, metric.name == "loss"
    scale = max(abs(baseline), 1e-6) if is_loss else 1.0
    options = {"tolerance": _CRITICAL * scale, "higher_is_better": not is_loss}
    found = layer_criticality(state, start, metric, draws=2, seed=notebook.seed, **options)
    chosen = {"model": subject.model, "params": _weight_names(subject)}
    ranking = rank(state, start, criterion="change", **chosen)
    returned = _curve(metric, lambda f: reinitialize(state, start, ranking.select(f)))
    worse = returned - baseline if is_loss else baseline - returned
    bad = np.flatnonzero(worse > notebook.tolerance * scale)
    last = len(returned) if len(bad) == 0 else int(bad[0])
    returnable = _FRACTIONS[last - 1] if last else 0.0
    large, moved = (
        select(state, start, fraction=_KEPT, criterion=criterion, order="largest", **chosen)
        for criterion in ("magnitude", "change")
    )
    overlap = overlap_ratio(large, moved)
    critical = [subject.layer_label(x.layer) for x in found.layers if x.verdict == "critical"]
    how = f"{metric.name} gets worse by over {found.tolerance:.2g} at the initial weights"
    part.exact("subnetworks.critical", "Critical layers", len(critical), how)
    limit = f"at most {notebook.tolerance * scale:.2g} of {metric.name} lost"
    name = "Weights that can be reset"
    part.exact("subnetworks.returnable", name, returnable, f"{limit}, on a grid of fractions")
    name = "Overlap of the largest and the most changed tenth"
    chance = f"{overlap.expected:.0%} under independence, z = {overlap.z:.3g}"
    part.exact("subnetworks.overlap", name, overlap.ratio, f"shared entries; {chance}")
    cost = f"{found.tolerance:.2g} of {metric.name}"
    part.readings.append(_read_layers(critical, len(found.layers), cost))
    reset = f"{returnable:.0%} of the weights, the least changed, can be reset to initial ones"
    part.readings.append(f"{reset}: {limit}.")
    part.charts.append(_layer_chart(subject, found, metric.name))
    part.tables["Layers put back to their start"] = found.to_frame()
    return {"re-initialised, least changed first": returned}


def _weight_names(subject: Subject) -> list[str] | None:
    """Return the matrices that the part on sub-networks chooses from; None for all trained."""
    if subject.params is None:
        return None
    space = subject.risk.space
    named = zip(space.names, space.shapes, strict=True)
    return [name for name, shape in named if len(shape) >= 2] or list(space.names)


def _curve(metric: _Metric, change: Callable[[float], Mapping[str, torch.Tensor]]) -> np.ndarray:
    values = []
    for fraction in _FRACTIONS:
        changed = change(fraction)
        renewed = metric.reestimate(changed) if metric.is_normalised else changed
        values.append(float(metric(renewed).mean()))
    return np.array(values)


def _layer_chart(subject: Subject, criticality: Criticality, measure: str) -> Chart:
    layers = criticality.layers
    bars = Bars(
        tuple(subject.layer_label(layer.layer) for layer in layers),
        np.array([layer.drop for layer in layers]),
        np.array([2 * layer.drop_stderr for layer in layers]),
        colors=tuple(_COLORS[layer.verdict] for layer in layers),
    )
    marks = (bars, HorizontalLine(criticality.tolerance, "tolerance", "x"))
    title, drop = "Drop when a layer is put back to its start", f"drop of the {measure}"
    caption = "Orange: critical. Green: robust. Yellow: undecided. Bars: 2 standard errors."
    return Chart("criticality", title, drop, "", marks, caption=caption)


def _sweep_chart(found: Prunable, curves: dict[str, np.ndarray]) -> Chart:
    marks = [Curve(found.fractions, found.values, "pruned, smallest weights first", "both")]
    known = np.isfinite(found.stored_values)
    if known.any():
        stored = found.fractions[known], found.stored_values[known]
        marks.append(Curve(*stored, "the same, stored normalisation statistics", "both"))
    shares = np.array(_FRACTIONS)
    marks += [Curve(shares, values, label, "both") for label, values in curves.items()]
    title, changed = "How much of the network is needed", "share of the weights changed"
    level = HorizontalLine(found.baseline, "trained network")
    return Chart("fractions", title, changed, found.metric, (*marks, level))


def _read_layers(critical: list[str], count: int, cost: str) -> str:
    if not critical:
        return f"None of the {count} layers is critical by itself."
    named = ", ".join(critical[:4]) + (" and others" if len(critical) > 4 else "")
    few = len(critical)
    verb = "is" if few == 1 else "are"
    reset = f"resetting {'it' if few == 1 else 'any of them'} to initial weights"
    return f"{few} of {count} layers {verb} critical, {named}: {reset} costs over {cost}."


def _no_scores(level: Level, notebook: Notebook) -> str:
    """Return why the part on sub-networks has no score for this loss to prune by, or ""."""
    subject = level.subject
    if subject.risk.criterion.reduction != "whole" or is_classification(subject):
        return ""
    return "pruning needs a loss per sample, and here it depends on the others of the batch"


def _products(level: Level, notebook: Notebook) -> float:
    """Return what the part on sub-networks costs; a forward pass is a quarter of a product."""
    layers = len(level.subject.risk.space.layers())
    return 16 + layers / 4 + (0 if notebook.initial is None else 4 + layers)


MEASUREMENTS = (
    Measurement(
        "subnetworks",
        "Sub-networks",
        order=10,
        run=subnetworks_part,
        products=_products,
        fewest=_FEWEST,
        obstacle=_no_scores,
    ),
)
