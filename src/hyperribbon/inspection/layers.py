"""Curvature layer by layer."""

from __future__ import annotations

import numpy as np
import pandas as pd

from hyperribbon.inspection.clock import OutOfTimeError
from hyperribbon.inspection.notebook import Notebook
from hyperribbon.inspection.quantities import Part, Quantity
from hyperribbon.inspection.subject import Subject
from hyperribbon.plots import Bars, Chart
from hyperribbon.spectra import eigsh

__all__ = ["layers_part"]

_LAYER_PRODUCTS = 20


def layers_part(subject: Subject, notebook: Notebook, products: int) -> Part:
    """Measure the sharpness and the Gauss-Newton trace of every layer's own block."""
    blocks = subject.hessian.layers()
    sizes = {name: block.shape[0] for name, block in blocks.items()}
    each = max(_LAYER_PRODUCTS, products // len(blocks))
    measured = sorted(sizes, key=lambda name: -sizes[name])[: max(1, products // each)]
    pairs = {}
    for name in measured:
        try:
            pairs[name] = eigsh(
                blocks[name], 1, tol=1e-2, seed=notebook.seed, max_matvecs=each,
                eigenvectors=False, memory=notebook.solver_memory,
            )  # fmt: skip
        except OutOfTimeError:
            break
    if not pairs:
        raise OutOfTimeError("the time of the budget was used up before the first layer was done")
    pairs = {name: pairs[name] for name in blocks if name in pairs}
    labels = {name: subject.layer_label(name) for name in blocks}
    values = np.array([float(pair.eigenvalues[0]) for pair in pairs.values()])
    errors = np.array([float(pair.residuals[0]) for pair in pairs.values()])
    shown = tuple(labels[name] for name in pairs)
    table = pd.DataFrame({"layer": labels.values(), "parameters": sizes.values()})
    table["sharpness"] = [float(pairs[n].eigenvalues[0]) if n in pairs else None for n in blocks]
    table["residual"] = [float(pairs[n].residuals[0]) if n in pairs else None for n in blocks]
    charts = [
        Chart("layer-sharpness", "Sharpness of each layer's own block", "largest eigenvalue", "",
              (Bars(shown, values, errors),))
    ]  # fmt: skip
    if subject.ggn.has_exact_trace:
        traces = _traces(subject, list(sizes.values()))
        table["trace"] = traces
        table["trace share"] = traces / traces.sum() if traces.sum() > 0 else 0.0
        charts.append(
            Chart("layer-trace", "Share of the Gauss-Newton trace by layer", "share of the trace",
                  "", (Bars(tuple(labels.values()), table["trace share"].to_numpy()),))
        )  # fmt: skip
    top = int(values.argmax())
    note = f"Sharpness of the {len(pairs)} largest of {len(blocks)} layers."
    sharpest = Quantity(
        "layers.sharpest", f"Sharpest layer: {shown[top]}", values[top], errors[top],
        "Lanczos on the layer's block", "residual of the eigenpair",
    )  # fmt: skip
    return Part(
        "layers", "Layer by layer", "Curvature", (sharpest,),
        (f"The sharpest layer is {shown[top]}, with curvature {values[top]:.3g} by itself.",),
        tuple(charts), {"Curvature by layer": table},
        shortened=() if len(pairs) == len(blocks) else (note,),
    )  # fmt: skip


def _traces(subject: Subject, sizes: list[int]) -> np.ndarray:
    diagonal = subject.ggn.diagonal().double().cpu()
    return np.array([float(piece.sum()) for piece in diagonal.split(sizes)])
