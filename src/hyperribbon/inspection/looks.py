"""Statistics that compare: each at a fixed number of samples and of directions, whatever the speed.

A statistic is named by what it is and the samples it is of, "sharpness@64". Two inspections of one
model and data with the same seed have the same samples, the first ones of the same draw, and the
same number for every name that both have: a slow machine has fewer names, not other numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

import numpy as np
import torch

from hyperribbon.core.generators import torch_generator
from hyperribbon.core.results import Estimate, Spectrum
from hyperribbon.inspection.clock import OutOfTimeError
from hyperribbon.inspection.evaluating import is_classification, scores_at
from hyperribbon.inspection.matrices import COUNTS, eigenpair
from hyperribbon.inspection.notebook import Notebook
from hyperribbon.inspection.quantities import NOT_OVER_SAMPLES, Measured, Quantity, as_array, exact
from hyperribbon.inspection.reaching import Reached
from hyperribbon.inspection.sampling import (
    noise_scale_error,
    sharpness_error,
    spread_of_sum,
    standard_error,
)
from hyperribbon.inspection.subject import Subject
from hyperribbon.spectra import effective_rank, eigsh, trace

__all__ = ["TASKS", "Look", "Task", "rungs", "time_product"]

RUNGS = (8, 64, 512, 4096)
"""Samples of the looks; the last one is at all of them."""
FEW, MANY = COUNTS
"""Directions of the Hessian and of the Gauss-Newton matrix that statistics speak of."""
_DENSE = 2048
"""Size up to which a matrix, or a Gram matrix, is written out."""
_COPIES = 5
"""Copies of the eigenvectors that there are at once while a Gram matrix's are lifted."""
_SHARE = 0.7
"""Share of the time left after which an eigenvalue that has not settled is a lower bound."""
_PRODUCTS = 400
"""Products after which an eigenvalue that has not settled is given up."""


def rungs(total: int | None) -> tuple[int, ...]:
    """Return the numbers of samples of the looks, each a part of the next.

    >>> rungs(240), rungs(5)
    ((8, 64, 240), (5,))
    """
    if total is None:
        return RUNGS
    return (*(number for number in RUNGS if number < total), total)


@dataclass
class Look:
    """What is known of a model on some of its samples.

    Attributes:
        subject: The model on these samples.
        samples: How many.
        product: Seconds of a Hessian product on them; 0 before one was timed.
        images: Hessian products with random vectors, until the coordinates they reach are known.
        reached: The Hessian on the coordinates that these samples reach, see `Reached`.
        statistics: Numbers by name.
        spectra: Eigenpairs of the Hessian: "top" the first, "hessian" ten, "smallest" the last.
        gauss_newton: Eigenpairs and trace of the Gauss-Newton matrix.
        layer_traces: Gauss-Newton trace by layer.
        missing: What the budget did not allow: name of the task, and seconds it needs.
    """

    subject: Subject
    samples: int
    product: float = 0.0
    images: list[torch.Tensor] = field(default_factory=list)
    reached: Any = None
    statistics: dict[str, Quantity] = field(default_factory=dict)
    spectra: dict[str, Spectrum] = field(default_factory=dict)
    gauss_newton: Measured | None = None
    layer_traces: dict[str, float] = field(default_factory=dict)
    missing: dict[str, float] = field(default_factory=dict)

    def add(self, *quantities: Quantity) -> None:
        """Keep numbers, with the samples they are of."""
        for quantity in quantities:
            self.statistics[quantity.key] = replace(quantity, samples=self.samples)


@dataclass(frozen=True)
class Task:
    """One kind of statistics.

    Attributes:
        name: Its name.
        title: What it measures.
        run: Adds its numbers to a look.
        products: Hessian products that it takes, about, given the look and the notebook.
        is_first: Whether it is part of the first look at few samples.
        share: Share of the time left that it may take while its time is not known.
    """

    name: str
    title: str
    run: Callable[[Look, Notebook], None]
    products: Callable[[Look, Notebook], float]
    is_first: bool = True
    share: float = 1.0


def _loss(look: Look, notebook: Notebook) -> None:
    subject = look.subject
    gradient = subject.gradient
    look.add(
        exact("loss", "Loss", subject.risk.value(), "forward pass"),
        exact("gradient", "Norm of the gradient", float(torch.linalg.vector_norm(gradient)),
              "one pass"),
    )  # fmt: skip
    if is_classification(subject):
        right = scores_at(subject)
        error = float(right.std() / len(right) ** 0.5) if len(right) > 1 else float("nan")
        look.add(Quantity("accuracy", "Accuracy", float(right.mean()), error, "forward pass",
                          "standard error over samples"))  # fmt: skip


def _sharpness(look: Look, notebook: Notebook) -> None:
    time_product(look)
    left = max(_SHARE * notebook.clock.left, 1e-3)
    top = _ends_of(look, 1, "LA", 1e-3, notebook, seconds=left if isfinite(left) else None)
    look.spectra["top"] = top
    if not bool(top.converged[0]):  # the time was up: another number under another name
        value = eigenpair("bound", "Sharpness, at least", top, 0)
        look.add(replace(value, certainty="curvature along one direction, so a lower bound"))
        raise OutOfTimeError("the largest eigenvalue had not settled when the time was up")
    value = eigenpair("sharpness", "Sharpness: largest eigenvalue of the Hessian", top, 0)
    look.add(_spread(value, sharpness_error(look.subject, _column(top, 0), notebook.seed)))


def _trace(look: Look, notebook: Notebook) -> None:
    subject = look.subject
    if not subject.gauss_newton_rows.has_exact_trace:
        found = trace(subject.ggn, precision=0.02, seed=notebook.seed, max_matvecs=_PRODUCTS,
                      memory=notebook.solver_memory)  # fmt: skip
        look.add(Quantity("trace", "Trace of the Gauss-Newton matrix", found.value, found.stderr,
                          f"{found.method}, {found.matvecs} products",
                          "standard error over random probes"))  # fmt: skip
        return
    by_name, by_sample = subject.gauss_newton_rows.trace_parts()
    layers = subject.risk.space.layers()
    look.layer_traces = {
        name: sum(by_name[own] for own in space.names) for name, space in layers.items()
    }
    value = exact("trace", "Trace of the Gauss-Newton matrix", float(by_sample.sum()),
                  "sum of its exact diagonal")  # fmt: skip
    if subject.has_equal_samples:
        spread = spread_of_sum(by_sample)
    else:
        spread = standard_error(subject, lambda s: float(s.ggn.trace()), notebook.seed)
    look.add(_spread(value, spread))


def _noise(look: Look, notebook: Notebook) -> None:
    subject = look.subject
    if not subject.gradient_rows.has_exact_trace:
        return
    _, squares = subject.gradient_rows.trace_parts()
    signal = float(subject.gradient.double().square().sum())
    scale = (float(squares.sum()) - signal) / signal if signal > 0 else float("inf")
    error = noise_scale_error(scale, subject, notebook.seed)
    look.add(Quantity("noise_scale", "Noise scale tr C / ‖∇L‖²", scale, error,
                      "squared gradients of single samples over that of the mean",
                      "standard error over samples; grows without bound towards a minimum",
                      ))  # fmt: skip


def _shares(look: Look, notebook: Notebook) -> None:
    ggn, subject = look.subject.ggn, look.subject
    number = min(MANY, notebook.k, subject.dimension)
    found = _pairs(ggn, number, "LA", 1e-3, notebook)
    if "trace" in look.statistics:
        given = look.statistics["trace"]
        exactly = "sum of" in given.method
        whole = _estimate(given.value, 0.0 if exactly else given.error, exactly)
    else:
        whole = trace(ggn, precision=0.02, seed=notebook.seed, max_matvecs=_PRODUCTS,
                      memory=notebook.solver_memory)  # fmt: skip
    look.gauss_newton = Measured(found, whole, subject.dimension)
    values, total = as_array(found.eigenvalues), whole.value
    how = f"{found.method}, {found.matvecs} products"
    bound = float(found.residuals.double().sum()) / total if total else 0.0
    for count in (FEW, MANY):
        if count <= len(values) and total:
            look.add(Quantity(f"share{count}", f"Share of the trace in {count} directions",
                              float(values[:count].sum()) / total,
                              bound + whole.stderr / total, how,
                              "residuals of the eigenpairs; exact on these samples"))  # fmt: skip
    if len(values) == MANY and values.sum() > 0:
        rank = effective_rank(np.clip(values, 0.0, None))
        look.add(exact("rank50", f"Effective rank of the first {MANY} directions", rank,
                       "exp of the entropy of their eigenvalues"))  # fmt: skip


def _ends(look: Look, notebook: Notebook) -> None:
    number = min(FEW, notebook.k, look.subject.dimension)
    time_product(look)
    top = _ends_of(look, number, "LA", 1e-3, notebook)
    look.spectra["hessian"] = top
    low = _ends_of(look, 1, "SA", 1e-2, notebook)
    look.spectra["smallest"] = low
    first = float(top.eigenvalues[0])
    smallest = eigenpair("smallest", "Smallest eigenvalue of the Hessian", low, -1)
    look.add(smallest)
    if first > 0:
        look.add(Quantity("negativity", "Smallest over largest eigenvalue", smallest.value / first,
                          smallest.error / first, "from the two ends",
                          "residuals of the eigenpairs"))  # fmt: skip
    if number == FEW and float(top.eigenvalues[-1]) > 0:
        last, residual = float(top.eigenvalues[-1]), float(top.residuals[-1])
        look.add(Quantity("ratio10", f"Largest over {FEW}th eigenvalue of the Hessian",
                          first / last, first / last * residual / last,
                          f"{top.method}, {top.matvecs} products",
                          "residuals of the eigenpairs"))  # fmt: skip


TASKS = (
    Task("loss", "Loss and gradient", _loss, lambda look, n: 1),
    Task("noise", "Noise of the gradient", _noise, lambda look, n: 4, share=0.3),
    Task("trace", "Trace and layers", _trace, lambda look, n: 15, share=0.4),
    Task("sharpness", "Sharpness", _sharpness, lambda look, n: 45),
    Task("shares", "Gauss-Newton spectrum", _shares,
         lambda look, n: 2.5 * min(MANY, n.k) + 15, is_first=False),
    Task("ends", "Ends of the Hessian spectrum", _ends,
         lambda look, n: 5 * min(FEW, n.k) + 30, is_first=False),
)  # fmt: skip


def _pairs(
    op: Any, k: int, which: str, tol: float, notebook: Notebook, seconds: float | None = None
) -> Spectrum:
    """Return eigenpairs by a route that depends on sizes alone, never on speed."""
    size, rows = op.shape[0], getattr(op, "gram_size", None)
    method = "lanczos"
    if k > FEW and rows is not None and k <= rows <= min(_DENSE, size):
        method = "gram"
    elif size <= (_DENSE if k > FEW else _DENSE // 4):
        method = "dense"
    if method != "lanczos" and 40 * min(size, rows or size) ** 2 > notebook.solver_memory:
        method = "lanczos"
    if method != "lanczos":
        has_room = _COPIES * k * size * op.dtype.itemsize <= notebook.solver_memory
        return eigsh(op, k, which, tol=tol, method=method, seed=notebook.seed,
                     eigenvectors=method == "dense" or has_room)  # fmt: skip
    return eigsh(
        op, k, which, tol=tol, method=method, seed=notebook.seed, max_seconds=seconds,
        max_matvecs=max(_PRODUCTS, 6 * k), memory=notebook.solver_memory,
    )  # fmt: skip


def _ends_of(
    look: Look, k: int, which: str, tol: float, notebook: Notebook, seconds: float | None = None
) -> Spectrum:
    """Return eigenpairs of an end of the Hessian, found on the coordinates that it reaches.

    The others have eigenvalues of zero: where these are among the asked for, all are kept.
    """
    whole = look.subject.hessian
    if look.reached is None:
        look.reached = Reached.of(whole, look.images)
        look.images = []
    if not isinstance(look.reached, Reached) or k > look.reached.shape[0]:
        return _pairs(whole, k, which, tol, notebook, seconds)
    found = _pairs(look.reached, k, which, tol, notebook, seconds)
    last = float(found.eigenvalues[0 if which == "SA" else -1])
    if (last > 0) if which == "SA" else (last < 0):
        return _pairs(whole, k, which, tol, notebook, seconds)
    assert found.eigenvectors is not None
    return replace(found, eigenvectors=look.reached.lifted(found.eigenvectors))


def time_product(look: Look) -> None:
    """Note the time of a Hessian product, once; the first one prepares what the others use."""
    if look.product:
        return
    subject, generator = look.subject, torch_generator(0, "first products")
    hessian, took = subject.hessian, 0.0
    for _ in range(2):
        vector = torch.randn(subject.dimension, generator=generator, dtype=hessian.dtype,
                             device="cpu").to(hessian.device)  # fmt: skip
        began = time.monotonic()
        look.images.append(hessian @ vector)
        float(look.images[-1][0])
        took = time.monotonic() - began
    look.product = subject.processes.largest(took)


def _spread(value: Quantity, spread: float | None) -> Quantity:
    if spread is None:
        return replace(value, certainty=f"{value.certainty}; {NOT_OVER_SAMPLES}")
    beside = "exact" if value.error == 0 else f"an eigenvalue lies within {value.error:.1g}"
    return replace(
        value, error=spread, certainty=f"standard error over samples; on these samples {beside}"
    )


def _column(spectrum: Spectrum, index: int) -> torch.Tensor:
    assert spectrum.eigenvectors is not None
    return spectrum.eigenvectors[:, index]


def _estimate(value: float, stderr: float, exactly: bool) -> Estimate:
    return Estimate(value, stderr, exactly, 0, "exact" if exactly else "probes")
