"""Which weights carry the result: layers put back, entries pruned or re-initialised, overlap."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from hyperribbon.application.inspection.engine.notebook import Level, Notebook
from hyperribbon.application.inspection.engine.scheduler import Measurement
from hyperribbon.application.inspection.engine.subject import Subject
from hyperribbon.application.inspection.evaluating import is_classification, scores_at
from hyperribbon.application.inspection.quantities import Part
from hyperribbon.plots import Bars, Chart, Curve
from hyperribbon.plots import Level as HorizontalLine
from hyperribbon.subnetworks import (
    Criticality,
    layer_criticality,
    overlap_ratio,
    prune,
    rank,
    reinitialize,
    select,
)

__all__ = ["MEASUREMENTS", "subnetworks_part"]

_FRACTIONS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
_KEPT = 0.1
_FEWEST = 64
"""Samples on which a loss of a tenth of the accuracy, which is tolerated, is over two standard
errors: √(0.1/64) = 0.04 where one sample in ten changes."""
_COLORS = {"critical": 1, "robust": 2, "undecided": 4}


def subnetworks_part(level: Level, notebook: Notebook) -> Part:
    """Re-initialise layers, prune and re-initialise growing fractions, compare two selections."""
    assert notebook.initial is not None
    subject = level.subject
    labelled = is_classification(subject)
    measure = "accuracy" if labelled else "minus the loss"
    names = {n for n, _ in (*subject.model.named_parameters(), *subject.model.named_buffers())}
    state = {n: t for n, t in subject.model.state_dict().items() if n in names}
    start = {n: t.to(state[n].device) for n, t in notebook.initial.items() if n in state}

    def metric(changed: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return scores_at(subject, changed)

    baseline = float(metric(state).mean())
    allowed = 0.1 if labelled else 0.1 * max(abs(baseline), 1e-6)
    found = layer_criticality(state, start, metric, draws=2, seed=notebook.seed, tolerance=allowed)
    pruned = _curve(metric, state, start, "magnitude", "prune")
    returned = _curve(metric, state, start, "change", "reinitialize")
    at_random = _curve(metric, state, start, "random", "prune")
    prunable, returnable = (
        _largest_tolerated(v, baseline, found.tolerance) for v in (pruned, returned)
    )
    large, moved = (
        select(state, start, fraction=_KEPT, criterion=criterion, order="largest")
        for criterion in ("magnitude", "change")
    )
    overlap = overlap_ratio(large, moved)
    limit = f"at most {found.tolerance:.2g} of {measure} lost on {subject.samples:,} samples"
    critical = [subject.layer_label(x.layer) for x in found.layers if x.verdict == "critical"]
    part = Part("subnetworks", "Sub-networks", "Sub-networks")
    name = f"{measure.capitalize()} of the trained network"
    told = found.baseline_stderr, "forward pass", "standard error over samples"
    part.number("subnetworks.baseline", name, found.baseline, *told)
    how = f"{measure} drops by over {found.tolerance:.2g} when put back to the start"
    part.exact("subnetworks.critical", "Critical layers", len(critical), how)
    part.exact("subnetworks.prunable", "Weights that may be pruned", prunable, limit)
    name = "Weights that may return to their start"
    part.exact("subnetworks.returnable", name, returnable, limit)
    name = "Overlap of the largest and the most changed tenth"
    told = f"{overlap.expected:.0%} expected, z = {overlap.z:.3g}"
    certainty = f"standard deviation under independence; {told}"
    how = overlap.stderr, "shared entries over a tenth of all", certainty
    part.number("subnetworks.overlap", name, overlap.ratio, *how)
    part.readings.append(_read_layers(critical, len(found.layers)))
    part.readings.append(f"{returnable:.0%} of the weights can return to their start: {limit}.")
    part.charts.append(_layer_chart(subject, found, measure))
    curves = {
        "pruned, smallest weights first": pruned,
        "re-initialised, least changed first": returned,
        "pruned at random": at_random,
    }
    part.charts.append(_sweep_chart(curves, baseline, measure))
    part.tables["Layers put back to their start"] = found.table()
    return part


def _curve(metric, state, start, criterion: str, operation: str) -> np.ndarray:
    ranking = rank(state, start, criterion=criterion)
    values = []
    for fraction in _FRACTIONS:
        mask = ranking.select(fraction)
        changed = prune(state, mask) if operation == "prune" else reinitialize(state, start, mask)
        values.append(float(metric(changed).mean()))
    return np.array(values)


def _largest_tolerated(values: np.ndarray, baseline: float, tolerance: float) -> float:
    bad = np.flatnonzero(values < baseline - tolerance)
    last = len(values) if len(bad) == 0 else int(bad[0])
    return _FRACTIONS[last - 1] if last else 0.0


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


def _sweep_chart(curves: dict[str, np.ndarray], baseline: float, measure: str) -> Chart:
    fractions = np.array(_FRACTIONS)
    marks = tuple(Curve(fractions, values, label, "both") for label, values in curves.items())
    title, changed = "How much of the network is needed", "share of the weights changed"
    level = HorizontalLine(baseline, "trained network")
    return Chart("fractions", title, changed, measure, (*marks, level))


def _read_layers(critical: list[str], count: int) -> str:
    if not critical:
        return f"None of the {count} layers is critical by itself."
    named = ", ".join(critical[:4]) + (" and others" if len(critical) > 4 else "")
    verb, few = "is" if len(critical) == 1 else "are", len(critical)
    return f"{named} {verb} critical: {few} of {count} layers cannot go back to their start."


def _no_start(level: Level, notebook: Notebook) -> str:
    return "" if notebook.initial is not None else "pass initial= (the state before training)"


MEASUREMENTS = (
    Measurement(
        "subnetworks",
        "Sub-networks",
        order=10,
        run=subnetworks_part,
        products=lambda level, n: 3 * len(level.subject.risk.space.layers()) + 12,
        fewest=_FEWEST,
        obstacle=_no_start,
    ),
)
