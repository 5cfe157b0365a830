"""Curvature layer by layer: ranked by exact traces, the first few measured by themselves."""

from __future__ import annotations

import numpy as np
import pandas as pd

from hyperribbon.inspection.clock import OutOfTimeError
from hyperribbon.inspection.notebook import Notebook
from hyperribbon.inspection.quantities import Part, Quantity
from hyperribbon.inspection.rounds import Rounds
from hyperribbon.inspection.subject import Subject
from hyperribbon.plots import Bars, Chart
from hyperribbon.spectra import eigsh

__all__ = ["layers_part", "traces_part"]

_SHOWN = 30
"""Layers of a chart; the table has all of them."""


def traces_part(rounds: Rounds) -> Part | None:
    """Return the share of each layer in the Gauss-Newton trace, largest first; None without any."""
    look = next((entry for entry in reversed(rounds.looks) if entry.layer_traces), None)
    if look is None:
        return None
    table = _ranked(look.subject, look.layer_traces)
    shares = table["trace share"].to_numpy()
    first = Quantity(
        "layers.first_share", f"Share of the trace in its first layer, {table['layer'][0]}",
        float(shares[0]), 0.0, "exact diagonal of the Gauss-Newton matrix",
        "exact on the data used", look.samples,
    )  # fmt: skip
    few = table.head(_SHOWN)
    chart = Chart(
        "layer-trace", "Share of the Gauss-Newton trace by layer", "share of the trace", "",
        (Bars(tuple(few["layer"]), few["trace share"].to_numpy()),),
        caption="" if len(few) == len(table) else f"The first {len(few)} of {len(table)} layers.",
    )  # fmt: skip
    return Part(
        "layer_traces", "Layer by layer: trace", "Curvature", (first,), (), (chart,),
        {"Trace by layer": table},
    )  # fmt: skip


def layers_part(subject: Subject, notebook: Notebook, products: int) -> Part:
    """Measure the sharpness of the own blocks of the layers with the largest traces.

    The eigenvalue of a block of a positive semidefinite matrix is at most its trace, so layers
    below a trace cannot be sharper than that, apart from the curvature of the model itself.
    """
    blocks = subject.hessian.layers()
    ranking = sorted(blocks, key=lambda name: -notebook.layer_traces.get(name, 0.0))
    if not notebook.layer_traces:
        ranking = sorted(blocks, key=lambda name: -blocks[name].shape[0])
    pairs = {}
    for name in ranking:
        try:
            pairs[name] = eigsh(
                blocks[name], 1, tol=1e-2, seed=notebook.seed, max_matvecs=100,
                eigenvectors=False, memory=notebook.solver_memory,
            )  # fmt: skip
        except OutOfTimeError:
            break
        if notebook.clock.share_left <= 2e-3:
            break
    if not pairs:
        raise OutOfTimeError("the time of the budget was used up before the first layer was done")
    labels = {name: subject.layer_label(name) for name in pairs}
    values = np.array([float(pair.eigenvalues[0]) for pair in pairs.values()])
    errors = np.array([float(pair.residuals[0]) for pair in pairs.values()])
    shown = tuple(labels[name] for name in list(pairs)[:_SHOWN])
    table = pd.DataFrame(
        {
            "layer": list(labels.values()),
            "parameters": [blocks[name].shape[0] for name in pairs],
            "sharpness": values,
            "residual": errors,
        }
    )
    charts = (
        Chart("layer-sharpness", "Sharpness of each layer's own block", "largest eigenvalue", "",
              (Bars(shown, values[:_SHOWN], errors[:_SHOWN]),)),
    )  # fmt: skip
    quantities, readings, note = (), (), ()
    if len(pairs) == len(blocks):
        top = int(values.argmax())
        quantities = (
            Quantity("layers.sharpest", f"Sharpest layer: {labels[list(pairs)[top]]}", values[top],
                     errors[top], "Lanczos on every layer's block", "residual of the eigenpair"),
        )  # fmt: skip
        readings = (
            f"The sharpest layer is {labels[list(pairs)[top]]}, with curvature {values[top]:.3g} "
            "by itself.",
        )
    else:
        by = "the largest traces" if notebook.layer_traces else "the most weights"
        note = (f"Sharpness of {len(pairs)} of {len(blocks)} layers, those with {by}.",)
    return Part(
        "layers", "Layer by layer: sharpness", "Curvature", quantities, readings, charts,
        {"Sharpness by layer": table}, shortened=note,
    )  # fmt: skip


def _ranked(subject: Subject, traces: dict[str, float]) -> pd.DataFrame:
    sizes = {name: space.dimension for name, space in subject.risk.space.layers().items()}
    total = sum(traces.values())
    names = sorted(traces, key=lambda name: -traces[name])
    return pd.DataFrame(
        {
            "layer": [subject.layer_label(name) for name in names],
            "parameters": [sizes[name] for name in names],
            "trace": [traces[name] for name in names],
            "trace share": [traces[name] / total if total > 0 else 0.0 for name in names],
        }
    )
