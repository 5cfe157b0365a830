"""Curvature layer by layer: ranked by exact traces, the first few measured by themselves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from hyperribbon.application.inspection.engine.clock import OutOfTimeError
from hyperribbon.application.inspection.engine.notebook import Level, Notebook
from hyperribbon.application.inspection.engine.scheduler import Measurement
from hyperribbon.application.inspection.memory import lacking_room
from hyperribbon.application.inspection.quantities import PROBES, Part, exact
from hyperribbon.core.checks import ArgumentError
from hyperribbon.plots import Bars, Chart

_SHOWN = 30
"""Layers of a chart; the table has all of them."""


def traces_part(notebook: Notebook) -> Part | None:
    """Layers part: compare them by their share in the Gauss–Newton trace, largest first.

    Estimated traces do not name a first layer unless it is ahead of all others by two standard
    errors of the difference.
    """
    level = notebook.finest("layer_traces")
    if level is None:
        return None
    table = _rank_layers(level)
    few = table.head(_SHOWN)
    part = Part("layer_traces", "Layer by layer: trace", tables={"Trace by layer": table})
    if len(table) > 1 and _is_ahead(table):
        for place, rank in enumerate(("first", "second")):
            name = f"Share of the trace in its {rank} layer, {table['layer'][place]}"
            how = "exact diagonal of the Gauss-Newton matrix"
            share = exact(f"layers.{rank}_share", name, table["trace share"][place], how)
            if level.layer_errors:
                how = {"method": "random signs", "certainty": PROBES}
                share = replace(share, error=table["standard error"].to_numpy()[place], **how)
            part.quantities.append(replace(share, samples=level.samples))
    errors = few["standard error"].to_numpy() if level.layer_errors else None
    bars = Bars(tuple(few["layer"]), few["trace share"].to_numpy(), errors)
    texts = "Share of the Gauss-Newton trace by layer", "share of the trace", ""
    some = "" if len(few) == len(table) else f"The first {len(few)} of {len(table)} layers."
    part.charts.append(Chart("layer-trace", *texts, (bars,), caption=some))
    return part


def layers_part(level: Level, notebook: Notebook) -> Part:
    """Layers part: compare them by the sharpness of their own blocks.

    The eigenvalue of a block of a positive semidefinite matrix is at most its trace, so layers
    below a trace cannot be sharper than that, apart from the curvature of the model itself.
    """
    subject = level.subject
    blocks = subject.hessian.layers()
    ranking = sorted(blocks, key=lambda name: -notebook.layer_traces.get(name, 0.0))
    if not notebook.layer_traces:
        ranking = sorted(blocks, key=lambda name: -blocks[name].shape[0])
    pairs, too_long = {}, []
    for name in ranking:
        try:
            pairs[name] = notebook.eigsh(
                blocks[name], 1, tol=1e-2, max_matvecs=100, eigenvectors=False
            )
        except OutOfTimeError:
            break
        except ArgumentError as error:
            if not lacking_room(error):
                raise
            too_long.append(f"{subject.layer_label(name)}: {lacking_room(error)}.")
    if not pairs:
        raise OutOfTimeError("time budget exceeded before the first layer was done")
    labels = [subject.layer_label(name) for name in pairs]
    values = np.array([float(pair.eigenvalues[0]) for pair in pairs.values()])
    errors = np.array([float(pair.residuals[0]) for pair in pairs.values()])
    sizes = [blocks[name].shape[0] for name in pairs]
    part = Part("layers", "Layer by layer: sharpness")
    columns = {"layer": labels, "parameters": sizes, "sharpness": values, "residual": errors}
    part.tables["Sharpness by layer"] = pd.DataFrame(columns)
    bars = Bars(tuple(labels[:_SHOWN]), values[:_SHOWN], errors[:_SHOWN])
    texts = "Sharpness of each layer's own block", "largest eigenvalue", ""
    part.charts.append(Chart("layer-sharpness", *texts, (bars,)))
    if len(pairs) == len(blocks):
        top = int(values.argmax())
        how = "Lanczos on every layer's block", "residual of the eigenpair"
        name = f"Sharpest layer: {labels[top]}"
        part.number("layers.sharpest", name, values[top], errors[top], *how)
        sharpest = f"{labels[top]}, with curvature {values[top]:.3g} by itself"
        part.readings.append(f"The sharpest layer is {sharpest} on {subject.samples:,} samples.")
    else:
        by = "the largest traces" if notebook.layer_traces else "the most weights"
        some = f"Sharpness of {len(pairs)} of {len(blocks)} layers, those with {by}."
        part.shortened += [some, *too_long]
    return part


def _rank_layers(level: Level) -> pd.DataFrame:
    subject, traces = level.subject, level.layer_traces
    sizes = {name: space.dimension for name, space in subject.risk.space.layers().items()}
    total = sum(traces.values())
    names = sorted(traces, key=lambda name: -traces[name])
    columns = {
        "layer": [subject.layer_label(name) for name in names],
        "parameters": [sizes[name] for name in names],
        "trace": [traces[name] for name in names],
        "trace share": [traces[name] / total if total > 0 else 0.0 for name in names],
    }
    if level.layer_errors:
        each = [level.layer_errors[name] / total if total > 0 else 0.0 for name in names]
        columns["standard error"] = each
    return pd.DataFrame(columns)


def _is_ahead(table: pd.DataFrame) -> bool:
    """Whether one of the layers is surely the sharpest."""
    if "standard error" not in table:
        return True
    first, second = table["trace share"][:2]
    return first - second > 2 * float(np.hypot(*table["standard error"][:2]))


MEASUREMENTS = (
    Measurement(
        "layers",
        "Layer by layer",
        order=30,
        run=layers_part,
        products=lambda level, n: 25 * len(level.subject.risk.space.layers()),
    ),
)
