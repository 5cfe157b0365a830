"""Which weights carry the result: layers put back, entries pruned or re-initialised, overlap."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from hyperribbon.inspection.evaluating import is_classification, scores_at
from hyperribbon.inspection.notebook import Notebook
from hyperribbon.inspection.quantities import Part, Quantity, exact
from hyperribbon.inspection.subject import Subject
from hyperribbon.plots import Bars, Chart, Curve, Level
from hyperribbon.subnetworks import (
    Criticality,
    layer_criticality,
    overlap_ratio,
    prune,
    rank,
    reinitialize,
    select,
)

__all__ = ["subnetworks_part"]

_FRACTIONS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
_KEPT = 0.1
_COLORS = {"critical": 1, "robust": 2, "undecided": 4}


def subnetworks_part(subject: Subject, notebook: Notebook, products: int) -> Part:
    """Re-initialise layers, prune and re-initialise growing fractions, compare two selections."""
    assert notebook.initial is not None
    labelled = is_classification(subject)
    measure = "accuracy" if labelled else "minus the loss"
    names = {n for n, _ in (*subject.model.named_parameters(), *subject.model.named_buffers())}
    state = {n: t for n, t in subject.model.state_dict().items() if n in names}
    start = {n: t.to(state[n].device) for n, t in notebook.initial.items() if n in state}

    def metric(changed: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return scores_at(subject, changed)

    baseline = float(metric(state).mean())
    criticality = layer_criticality(
        state, start, metric, draws=2, seed=notebook.seed,
        tolerance=0.1 if labelled else 0.1 * max(abs(baseline), 1e-6),
    )  # fmt: skip
    curves = {
        "pruned, smallest weights first": _curve(metric, state, start, "magnitude", "prune"),
        "re-initialised, least changed first": _curve(
            metric, state, start, "change", "reinitialize"
        ),
        "pruned at random": _curve(metric, state, start, "random", "prune"),
    }
    large, moved = (
        select(state, start, fraction=_KEPT, criterion=criterion, order="largest")
        for criterion in ("magnitude", "change")
    )
    overlap = overlap_ratio(large, moved)
    limit = f"at most {criticality.tolerance:.2g} of {measure} lost on {subject.samples:,} samples"
    prunable = _tolerated(curves["pruned, smallest weights first"], baseline, criticality.tolerance)
    returnable = _tolerated(
        curves["re-initialised, least changed first"], baseline, criticality.tolerance
    )
    verdicts = {layer.layer: layer.verdict for layer in criticality.layers}
    critical = [
        subject.layer_label(name) for name, verdict in verdicts.items() if verdict == "critical"
    ]
    quantities = (
        Quantity("subnetworks.baseline", f"{measure.capitalize()} of the trained network",
                 criticality.baseline, criticality.baseline_stderr, "forward pass",
                 "standard error over samples"),
        exact("subnetworks.critical", "Critical layers", len(critical),
              f"{measure} drops by over {criticality.tolerance:.2g} when put back to the start"),
        exact("subnetworks.prunable", "Weights that may be pruned", prunable,
              limit),
        exact("subnetworks.returnable", "Weights that may return to their start", returnable,
              limit),
        Quantity("subnetworks.overlap", "Overlap of the largest and the most changed tenth",
                 overlap.ratio, overlap.stderr, "shared entries over a tenth of all",
                 f"standard deviation under independence; {overlap.expected:.0%} expected, "
                 f"z = {overlap.z:.3g}"),
    )  # fmt: skip
    return Part(
        "subnetworks", "Sub-networks", "Sub-networks", quantities,
        (_read_layers(critical, len(verdicts)),
         f"{returnable:.0%} of the weights can return to their start: {limit}."),
        (_layer_chart(subject, criticality, measure), _sweep_chart(curves, baseline, measure)),
        {"Layers put back to their start": criticality.table()},
    )  # fmt: skip


def _curve(metric, state, start, criterion: str, operation: str) -> np.ndarray:
    ranking = rank(state, start, criterion=criterion)
    values = []
    for fraction in _FRACTIONS:
        mask = ranking.select(fraction)
        changed = prune(state, mask) if operation == "prune" else reinitialize(state, start, mask)
        values.append(float(metric(changed).mean()))
    return np.array(values)


def _tolerated(values: np.ndarray, baseline: float, tolerance: float) -> float:
    bad = np.flatnonzero(values < baseline - tolerance)
    last = len(values) if len(bad) == 0 else int(bad[0])
    return _FRACTIONS[last - 1] if last else 0.0


def _layer_chart(subject: Subject, criticality: Criticality, measure: str) -> Chart:
    layers = criticality.layers
    return Chart(
        "criticality", "Drop when a layer is put back to its start", f"drop of the {measure}", "",
        (
            Bars(
                tuple(subject.layer_label(layer.layer) for layer in layers),
                np.array([layer.drop for layer in layers]),
                np.array([2 * layer.drop_stderr for layer in layers]),
                colors=tuple(_COLORS[layer.verdict] for layer in layers),
            ),
            Level(criticality.tolerance, "tolerance", "x"),
        ),
        caption="Orange: critical. Green: robust. Yellow: undecided. Bars: 2 standard errors.",
    )  # fmt: skip


def _sweep_chart(curves: dict[str, np.ndarray], baseline: float, measure: str) -> Chart:
    fractions = np.array(_FRACTIONS)
    marks = tuple(Curve(fractions, values, label, "both") for label, values in curves.items())
    return Chart(
        "fractions", "How much of the network is needed", "share of the weights changed", measure,
        (*marks, Level(baseline, "trained network")),
    )  # fmt: skip


def _read_layers(critical: list[str], count: int) -> str:
    if not critical:
        return f"None of the {count} layers is critical by itself."
    named = ", ".join(critical[:4]) + (" and others" if len(critical) > 4 else "")
    verb = "is" if len(critical) == 1 else "are"
    return (
        f"{named} {verb} critical: {len(critical)} of {count} layers cannot go back to their start."
    )
