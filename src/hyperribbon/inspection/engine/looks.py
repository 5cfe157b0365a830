"""Statistics that compare: each at a fixed number of samples and of directions, whatever the speed.

A statistic is named by what it is and the samples it is of, "sharpness@64". Two inspections of one
model and data with the same seed have the same samples, the first ones of the same draw, and the
same number for every name that both have: a slow machine has fewer names, not other numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

import numpy as np
import torch

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.generators import torch_generator
from hyperribbon.core.results import Estimate, Spectrum
from hyperribbon.inspection.engine.clock import OutOfTimeError
from hyperribbon.inspection.engine.notebook import Notebook
from hyperribbon.inspection.engine.quantities import (
    NOT_OVER_SAMPLES,
    PROBES,
    SPAN,
    Measured,
    Quantity,
    as_array,
    exact,
)
from hyperribbon.inspection.engine.sampling import (
    noise_scale_error,
    scale_certainty,
    sharpness_error,
    spread_of_sum,
    squared_length,
    standard_error,
)
from hyperribbon.inspection.engine.subject import Subject
from hyperribbon.inspection.evaluating import is_classification, scores_at
from hyperribbon.inspection.parts.matrices import COUNTS, eigenpair, how_found, rank_quantity
from hyperribbon.inspection.reaching import Reached
from hyperribbon.spectra import alignment

__all__ = ["RUNGS", "TASKS", "Look", "Task", "find_pairs", "rungs", "time_product"]

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
_CERTIFYING = 8
"""Products whose time the one in float64 takes that certifies what was found, with its graph."""
_LONG, _ROUGH = 2**22, 1e-2
"""Coordinates from which on the sharpness is found to a hundredth, which samples leave open anyway:
the products to a thousandth are twice as many, and each takes a second."""
_PROBES = 32
"""Random vectors from which the traces of layers are estimated, where they are not exact."""
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
        alignment: Overlap of the first ten directions of both, where both are known.
        layer_traces: Gauss-Newton trace by layer.
        layer_errors: Their standard errors where they are estimated; empty where they are exact.
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
    alignment: float | None = None
    layer_traces: dict[str, float] = field(default_factory=dict)
    layer_errors: dict[str, float] = field(default_factory=dict)
    missing: dict[str, float] = field(default_factory=dict)

    def add(self, quantity: Quantity) -> None:
        """Keep a number, with the samples and the mode it is of."""
        told = {"samples": self.samples, "mode": self.subject.manner}
        self.statistics[quantity.key] = replace(quantity, **told)

    def number(self, *values: Any) -> None:
        """Keep a `Quantity` of these values, in the same way."""
        self.add(Quantity(*values))

    def drop_vectors(self, finer: Look) -> None:
        """Give the memory of eigenvectors back that a look at more samples has too."""
        for kind in self.spectra.keys() & finer.spectra.keys():
            self.spectra[kind] = replace(self.spectra[kind], eigenvectors=None)
        if self.gauss_newton is not None and finer.gauss_newton is not None:
            values = replace(self.gauss_newton.spectrum, eigenvectors=None)
            self.gauss_newton = replace(self.gauss_newton, spectrum=values)


@dataclass(frozen=True)
class Task:
    """One kind of statistics.

    Attributes:
        name: Its name.
        title: What it measures.
        run: Adds its numbers to a look.
        products: Hessian products that it takes, about, given the notebook.
        is_first: Whether it is part of the first look at few samples.
        share: Share of the time left that it may take while its time is not known.
    """

    name: str
    title: str
    run: Callable[[Look, Notebook], None]
    products: Callable[[Notebook], float]
    is_first: bool = True
    share: float = 1.0


def _loss(look: Look, notebook: Notebook) -> None:
    subject = look.subject
    slope = torch.linalg.vector_norm(subject.gradient)
    look.add(exact("loss", "Loss", subject.risk.value(), "forward pass"))
    look.add(exact("gradient", "Norm of the gradient", slope, "one pass"))
    if is_classification(subject):
        right = scores_at(subject)
        error = float(right.std() / len(right) ** 0.5) if len(right) > 1 else float("nan")
        told = float(right.mean()), error, "forward pass", "standard error over samples"
        look.number("accuracy", "Accuracy", *told)


def _sharpness(look: Look, notebook: Notebook) -> None:
    time_product(look)
    left = notebook.clock.left
    left = max(min(_SHARE * left, left - _CERTIFYING * look.product), 1e-3)
    tol = _ROUGH if look.subject.dimension >= _LONG else 1e-3
    top = _ends_of(look, 1, "LA", tol, notebook, seconds=left if isfinite(left) else None)
    look.spectra["top"] = top
    if not bool(top.converged[0]):  # the time was up: another number under another name
        value = eigenpair("bound", "Sharpness, at least", top, 0)
        look.add(replace(value, certainty="curvature along one direction, so a lower bound"))
        raise OutOfTimeError("the largest eigenvalue had not settled when the time was up")
    value = eigenpair("sharpness", "Sharpness: largest eigenvalue of the Hessian", top, 0)
    look.add(_spread(value, _over_samples(look, top, notebook.seed)))


def _over_samples(look: Look, top: Spectrum, seed: int) -> float | None:
    """Return how much other samples would change the sharpness, on the coordinates it reaches."""
    assert top.eigenvectors is not None
    v, value = top.eigenvectors[:, 0], float(top.eigenvalues[0])
    if not isinstance(look.reached, Reached):
        return sharpness_error(look.subject, v, seed, value=value)
    v, on = look.reached.narrowed(v), look.reached.with_operator
    return sharpness_error(look.subject, v, seed, on, value)


def _trace(look: Look, notebook: Notebook) -> None:
    subject = look.subject
    if not subject.gauss_newton_rows.has_exact_trace:
        found = notebook.trace(subject.ggn, max_matvecs=_PRODUCTS)
        told = found.stderr, how_found(found), PROBES
        look.number("trace", "Trace of the Gauss-Newton matrix", found.value, *told)
        with suppress(OutOfTimeError):
            _estimate_layers(look, notebook)
        return
    by_name, by_sample = subject.gauss_newton_rows.trace_parts()
    layers = subject.risk.space.layers()
    look.layer_traces = {
        name: sum(by_name[own] for own in space.names) for name, space in layers.items()
    }
    total, how = float(by_sample.sum()), "sum of its exact diagonal"
    value = exact("trace", "Trace of the Gauss-Newton matrix", total, how)
    if subject.has_equal_samples:
        spread = spread_of_sum(by_sample)
    else:
        spread = standard_error(subject, lambda s: float(s.ggn.trace()), notebook.seed)
    look.add(_spread(value, spread))


def _estimate_layers(look: Look, notebook: Notebook) -> None:
    """Estimate the trace of each layer's block: the mean of v·(G v) over it, for random signs v."""
    subject, generator = look.subject, torch_generator(notebook.seed, "layer traces")
    slices, layers = subject.risk.space.slices(), subject.risk.space.layers()
    rows = []
    for _ in range(_PROBES):
        drawn = torch.randint(2, (subject.dimension,), generator=generator, device="cpu")
        signs = (2 * drawn - 1).to(subject.ggn.device, subject.ggn.dtype)
        terms = (subject.ggn @ signs).double() * signs
        rows.append([float(sum(terms[slices[n]].sum() for n in s.names)) for s in layers.values()])
    found = np.array(rows)
    errors = found.std(axis=0, ddof=1) / _PROBES**0.5
    look.layer_traces = dict(zip(layers, found.mean(axis=0).tolist(), strict=True))
    look.layer_errors = dict(zip(layers, errors.tolist(), strict=True))


def _noise(look: Look, notebook: Notebook) -> None:
    subject = look.subject
    if not subject.gradient_rows.has_exact_trace:
        return
    _, squares = subject.gradient_rows.trace_parts()
    signal = squared_length(subject.gradient)
    scale = (float(squares.sum()) - signal) / signal if signal > 0 else float("inf")
    error = noise_scale_error(scale, subject, notebook.seed)
    how = "squared gradients of single samples over that of the mean"
    told = scale, error, how, scale_certainty(scale, look.samples)
    look.number("noise_scale", "Noise scale tr C / ‖∇L‖²", *told)


def _shares(look: Look, notebook: Notebook) -> None:
    ggn, subject = look.subject.ggn, look.subject
    number = min(MANY, notebook.k, subject.dimension)
    found = find_pairs(ggn, number, "LA", 1e-3, notebook)
    if "trace" in look.statistics:
        given = look.statistics["trace"]
        exactly = "sum of" in given.method
        how = "exact" if exactly else "probes"
        whole = Estimate(given.value, 0.0 if exactly else given.error, exactly, 0, how)
    else:
        whole = notebook.trace(ggn, max_matvecs=_PRODUCTS)
    told = whole, subject.dimension, look.samples
    look.gauss_newton = Measured(notebook.trimmed(found), *told)
    _align(look)
    values, total = as_array(found.eigenvalues), whole.value
    certainty = "residuals of the eigenpairs; exact on these samples"
    rows = getattr(ggn, "gram_size", None)
    if rows is not None and rows < 2 * MANY:
        certainty += f", {SPAN} {rows} directions"
    told = how_found(found), certainty
    for count in (FEW, MANY) if total else ():
        if count <= len(values):
            error = float(found.residuals.double().sum()) / total + whole.stderr / total
            share = float(values[:count].sum()) / total
            name = f"Share of the trace in {count} directions"
            look.number(f"share{count}", name, share, error, *told)
    if len(values) == MANY and values.sum() > 0:
        look.add(rank_quantity("rank50", "the", values))


def _ends(look: Look, notebook: Notebook) -> None:
    number = min(FEW, notebook.k, look.subject.dimension)
    time_product(look)
    top = _ends_of(look, number, "LA", 1e-3, notebook)
    look.spectra["hessian"] = notebook.trimmed(top)
    _align(look)
    if "top" in look.spectra:
        look.spectra["top"] = replace(look.spectra["top"], eigenvectors=None)
    low = replace(_ends_of(look, 1, "SA", 1e-2, notebook), eigenvectors=None)
    look.spectra["smallest"] = low
    first = float(top.eigenvalues[0])
    smallest = eigenpair("smallest", "Smallest eigenvalue of the Hessian", low, -1)
    look.add(smallest)
    certainty = "residuals of the eigenpairs"
    if first > 0:
        told = smallest.value / first, smallest.error / first, "from the two ends", certainty
        look.number("negativity", "Smallest over largest eigenvalue", *told)
    if number == FEW and float(top.eigenvalues[-1]) > 0:
        last, residual = float(top.eigenvalues[-1]), float(top.residuals[-1])
        told = first / last, first / last * residual / last, how_found(top), certainty
        look.number("ratio10", f"Largest over {FEW}th eigenvalue of the Hessian", *told)


def _align(look: Look) -> None:
    """Lay the sharpest directions of the Hessian and of the Gauss-Newton matrix together."""
    hessian = look.spectra.get("hessian")
    if hessian is None or look.gauss_newton is None:
        return
    first, second = hessian.eigenvectors, look.gauss_newton.spectrum.eigenvectors
    if first is not None and second is not None and min(first.shape[1], second.shape[1]) >= FEW:
        look.alignment = alignment(first[:, :FEW], second[:, :FEW]).overlap


TASKS = (
    Task("loss", "Loss and gradient", _loss, lambda n: 1),
    Task("noise", "Noise of the gradient", _noise, lambda n: 4, share=0.3),
    Task("trace", "Trace and layers", _trace, lambda n: 15, share=0.4),
    Task("sharpness", "Sharpness", _sharpness, lambda n: 45),
    Task("shares", "Gauss-Newton spectrum", _shares, lambda n: 2.5 * min(MANY, n.k) + 15, False),
    Task("ends", "Ends of the Hessian spectrum", _ends, lambda n: 5 * min(FEW, n.k) + 30, False),
)


def find_pairs(
    op: Any, k: int, which: str, tol: float, notebook: Notebook, seconds: float | None = None
) -> Spectrum:
    """Return eigenpairs by a route that depends on sizes alone, never on speed."""
    size, rows = op.shape[0], getattr(op, "gram_size", None)
    method = "lanczos"
    if k > FEW and rows is not None and k <= rows <= min(_DENSE, size):
        method = "gram"
    elif size <= (_DENSE if k > FEW else _DENSE // 4):
        method = "dense"
    if method != "lanczos":
        room = notebook.solver_memory
        wanted = method == "dense" or _COPIES * k * size * op.dtype.itemsize <= room
        options = {"method": method, "eigenvectors": wanted}
        options["memory"] = room if wanted else notebook.counted_memory
        try:
            return notebook.eigsh(op, k, which, tol=tol, **options)
        except ArgumentError as error:
            if error.argument != "memory":
                raise
            method = "lanczos"
    memory = notebook.counted_memory if k == 1 else notebook.solver_memory
    limits = {"max_seconds": seconds, "max_matvecs": max(_PRODUCTS, 6 * k), "memory": memory}
    return notebook.eigsh(op, k, which, tol=tol, method=method, **limits)


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
        return find_pairs(whole, k, which, tol, notebook, seconds)
    found = find_pairs(look.reached, k, which, tol, notebook, seconds)
    last = float(found.eigenvalues[0 if which == "SA" else -1])
    if (last > 0) if which == "SA" else (last < 0):
        return find_pairs(whole, k, which, tol, notebook, seconds)
    found = notebook.trimmed(found, whole.shape[0])
    assert found.eigenvectors is not None
    return replace(found, eigenvectors=look.reached.lifted(found.eigenvectors))


def time_product(look: Look) -> None:
    """Note the time of a Hessian product, once; the first one prepares what the others use."""
    if look.product:
        return
    subject, generator = look.subject, torch_generator(0, "first products")
    hessian, took = subject.hessian, 0.0
    for _ in range(2):
        options: dict[str, Any] = {"dtype": hessian.dtype, "device": "cpu"}
        vector = torch.randn(subject.dimension, generator=generator, **options)
        began = time.monotonic()
        look.images.append(hessian @ vector.to(hessian.device))
        float(look.images[-1][0])
        took = time.monotonic() - began
    look.product = subject.processes.largest(took)


def _spread(value: Quantity, spread: float | None) -> Quantity:
    if spread is None:
        return replace(value, certainty=f"{value.certainty}; {NOT_OVER_SAMPLES}")
    beside = "exact" if value.error == 0 else f"an eigenvalue lies within {value.error:.1g}"
    certainty = f"standard error over samples; on these samples {beside}"
    return replace(value, error=spread, certainty=certainty)
