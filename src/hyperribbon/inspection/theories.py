"""Theory beside the measurement: where it applies, and the assumption that breaks where not."""

from __future__ import annotations

import pandas as pd

from hyperribbon.core.checks import ArgumentError
from hyperribbon.inspection.linear_chains import find_chain
from hyperribbon.inspection.linear_comparison import TheoryComparison
from hyperribbon.inspection.linear_theory import compare_with_theory
from hyperribbon.inspection.notebook import Notebook
from hyperribbon.inspection.quantities import Part, Quantity, exact
from hyperribbon.inspection.subject import Subject

__all__ = ["no_chain", "theory_part"]

_SAMPLES = 256


def no_chain(subject: Subject, notebook: Notebook) -> str:
    """Return why linear-network theory cannot be laid beside the model, or ""."""
    batch = next(subject.hessian.risk.source.batches())
    if not (isinstance(batch, tuple | list) and len(batch) == 2):
        return "the data are not pairs (inputs, targets)"
    try:
        chain = find_chain(subject.model, subject.with_samples(16, notebook.seed).data)
    except ArgumentError as error:
        return f"linear-network theory needs a model that ends in linear layers: {error.reason}"
    owned = dict(subject.model.named_parameters())
    if any(f"{layer}.weight" not in owned for layer in chain.layers):
        return "the weights of its last linear layers are computed from other parameters"
    return ""


def theory_part(subject: Subject, notebook: Notebook, products: int) -> Part:
    """Compare the curvature with linear-network theory and list what other theories assume."""
    fewer = subject.with_samples(_SAMPLES, notebook.seed, 0.25)
    comparison = compare_with_theory(
        fewer.model, fewer.data, seed=notebook.seed, clock=notebook.clock, memory=fewer.memory
    )
    predicted, measured = comparison.predicted(), comparison.measured
    broken = comparison.responsible()
    quantities = (
        exact("theory.measured", "Sharpness under half the squared loss", measured.sharpness,
              f"Lanczos, {fewer.samples} samples, weights of the linear layers"),
        exact("theory.predicted", "Sharpness that linear-network theory predicts",
              predicted.sharpness, f"closed form from the weights, {comparison.depth} layers"),
        Quantity("theory.discrepancy", "Measured over predicted, minus one",
                 comparison.discrepancy(), 0.0, "from the two numbers above",
                 "no assumption is broken" if broken is None else f"mostly: {broken.name}"),
    )  # fmt: skip
    tables = {
        "From the measurement to the theory": comparison.table().reset_index(),
        "Assumptions of linear-network theory": comparison.assumptions_table().reset_index(),
    }
    others = _other_theories(notebook)
    if len(others):
        tables["Assumptions of the other theories"] = others
    return Part(
        "theory", "Theory beside the measurement", "Theory", quantities, (_read(comparison),),
        tables=tables,
        notes=("The comparison is made for the squared loss on one-hot labels, whatever the model "
               "was trained with.",),
    )  # fmt: skip


def _read(comparison: TheoryComparison) -> str:
    broken = comparison.responsible()
    if broken is None:
        return "Linear-network theory predicts the sharpness of this model."
    return (
        f"The sharpness is {1 + comparison.discrepancy():.3g} times what linear-network theory "
        f"predicts; the assumption that breaks is “{broken.name}” ({broken.meaning} is "
        f"{broken.value:.2g})."
    )


def _other_theories(notebook: Notebook) -> pd.DataFrame:
    """Return assumptions of the fluctuation and ribbon theories with the numbers that test them."""
    found = {q.key: q for part in notebook.parts.values() for q in part.quantities}
    rows = []
    if "hessian.negativity" in found:
        value = found["hessian.negativity"].value
        rows.append(("fluctuations", "a minimum: no negative curvature", value > -1e-3,
                     f"smallest over largest eigenvalue {value:.2g}"))  # fmt: skip
    if "noise.scale" in found and notebook.batch_size is not None:
        ratio = notebook.batch_size / found["noise.scale"].value
        rows.append(("fluctuations", "noise, not slope, moves the weights", ratio < 0.1,
                     f"batch size over noise scale {ratio:.2g}"))  # fmt: skip
    if "noise.proportionality" in found:
        value = found["noise.proportionality"].value
        rows.append(("fluctuations", "noise proportional to the Hessian", value < 0.1,
                     f"‖C − αH‖/‖C‖ = {value:.2g}"))  # fmt: skip
    if "data.slope" in found:
        straight = found["data.straightness"].value
        rows.append(("ribbons", "input eigenvalues fall exponentially", straight > 0.98,
                     f"R² of one line through ln λ: {straight:.3f}"))  # fmt: skip
    return pd.DataFrame(rows, columns=["theory", "assumption", "holds", "evidence"])
