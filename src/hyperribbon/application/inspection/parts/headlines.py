"""Statistics that compare: each at a fixed number of samples and of directions, whatever the speed.

A statistic is named by what it is and the samples it is of, "sharpness@64". Two inspections of one
model and data with the same seed have the same samples, the first ones of the same draw, and the
same number for every name that both have: a slow machine has fewer names, not other numbers.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from hyperribbon.application.inspection.engine.clock import OutOfTimeError
from hyperribbon.application.inspection.engine.notebook import Level, Notebook
from hyperribbon.application.inspection.engine.scheduler import Measurement
from hyperribbon.application.inspection.evaluating import is_classification, scores_at
from hyperribbon.application.inspection.parts.matrices import (
    COUNTS,
    eigenpair,
    eigenpairs,
    how_found,
    rank_quantity,
)
from hyperribbon.application.inspection.quantities import (
    NOT_OVER_SAMPLES,
    PROBES,
    SPAN,
    Measured,
    Quantity,
    as_array,
    exact,
)
from hyperribbon.application.inspection.sampling import (
    noise_scale_error,
    scale_certainty,
    sharpness_error,
    spread_of_sum,
    squared_length,
    standard_error,
)
from hyperribbon.core.generators import torch_generator
from hyperribbon.core.spectral_results import Estimate, Spectrum
from hyperribbon.spectra import alignment

_WORTH = 0.95
"""Share of the coordinates below which leaving the others out pays off."""


class Reached:
    """The Hessian, for a headline number, on the coordinates whose rows are not zero.

    Rows of an embedding that no sample reads, weights of pixels that are always black and of units
    that never fire have rows of zeros. The other eigenvalues are those of the rest, whose vectors
    are shorter: a half as long for a language model on a few sentences.

    Args:
        operator: The matrix, with processes that are one alone.
        places: Coordinates (r,) whose rows are not zero.
    """

    def __init__(self, operator: Any, places: torch.Tensor) -> None:
        self._operator, self._places = operator, places
        self.shape = (len(places), len(places))
        self.dtype, self.device = operator.dtype, operator.device
        self._lifted: torch.Tensor | None = None  # of one product at a time

    @classmethod
    def of(cls, operator: Any, images: list[torch.Tensor]) -> Any:
        """Return a headline's matrix without its zero rows, or itself where there are few.

        A row that is zero has a zero in every image. That of another one is zero in the image of a
        random vector by chance alone, which float32 has about once in 10⁷ entries, and in two
        images once in 10¹⁴.
        """
        reached = torch.stack([image != 0 for image in images]).any(0)
        if operator.processes.is_parallel or int(reached.sum()) > _WORTH * len(reached):
            return operator
        return cls(operator, reached.nonzero()[:, 0])

    def with_operator(self, operator: Any) -> Reached:
        """Return another matrix on the coordinates that a headline's Hessian reaches."""
        other = Reached(operator, self._places)
        other._lifted = self._lifted
        return other

    def __matmul__(self, other: torch.Tensor) -> torch.Tensor:
        if other.ndim > 1:
            return self.narrow(self._operator @ self.lift(other))
        if self._lifted is None or self._lifted.dtype != other.dtype:
            self._lifted = other.new_zeros(self._operator.shape[0])
        self._lifted.index_copy_(0, self._places, other)
        return self.narrow(self._operator @ self._lifted)

    def lift(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return a headline's vectors (r, …) with zeros outside of the Hessian, (P, …)."""
        whole = vectors.new_zeros(self._operator.shape[0], *vectors.shape[1:])
        return whole.index_copy_(0, self._places, vectors)

    def narrow(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return a headline's vectors (P, …) on the coordinates the Hessian reaches, (r, …)."""
        return vectors.index_select(0, self._places)

    def in_precision(self, dtype: torch.dtype) -> Reached | None:
        """Return a headline's matrix in another precision, where it has that."""
        precise = self._operator.in_precision(dtype)
        return None if precise is None else Reached(precise, self._places)

    def cost(self) -> Any:
        """Return the cost of a headline's product, on the coordinates the Hessian reaches."""
        return self._operator.cost()


FEW, MANY = COUNTS
"""Directions of the Hessian and of the Gauss-Newton matrix that statistics speak of."""
_LONG, _ROUGH = 2**22, 1e-2
"""Coordinates from which on the sharpness is found to a hundredth, which samples leave open anyway:
the products to a thousandth are twice as many, and each takes a second."""
_PROBES = 32
"""Random vectors from which the traces of layers are estimated, where they are not exact."""


def measure_loss(level: Level, notebook: Notebook) -> None:
    """Measure headlines: the loss, the norm of its gradient and the accuracy."""
    subject = level.subject
    level.add(exact("loss", "Loss", subject.risk.value(), "forward pass"))
    slope = torch.linalg.vector_norm(subject.gradient)
    level.add(exact("gradient", "Norm of the gradient", slope, "one pass"))
    if is_classification(subject):
        right = scores_at(subject)
        error = float(right.std() / len(right) ** 0.5) if len(right) > 1 else float("nan")
        how = "forward pass", "standard error over samples"
        level.number("accuracy", "Accuracy", float(right.mean()), error, *how)


def measure_noise_scale(level: Level, notebook: Notebook) -> None:
    """Measure a headline: the gradient noise scale, where squared gradients take one pass."""
    subject = level.subject
    if not subject.gradient_rows.has_exact_trace:
        return
    _, squares = subject.gradient_rows.trace_parts()
    signal = squared_length(subject.gradient)
    scale = (float(squares.sum()) - signal) / signal if signal > 0 else float("inf")
    error = noise_scale_error(scale, subject, notebook.seed)
    how = "squared gradients of single samples over that of the mean"
    certainty = scale_certainty(scale, level.samples)
    level.number("noise_scale", "Noise scale tr C / ‖∇L‖²", scale, error, how, certainty)


def measure_trace(level: Level, notebook: Notebook) -> None:
    """Measure a headline: the trace of the Gauss-Newton matrix, whole and by layer."""
    subject, name = level.subject, "Trace of the Gauss-Newton matrix"
    if not subject.gauss_newton_rows.has_exact_trace:
        found = notebook.trace(subject.ggn)
        level.number("trace", name, found.value, found.stderr, how_found(found), PROBES)
        with suppress(OutOfTimeError):
            _estimate_layers(level, notebook)
        return
    by_name, by_sample = subject.gauss_newton_rows.trace_parts()
    level.layer_traces = {
        layer: sum(by_name[own] for own in space.names)
        for layer, space in subject.risk.space.layers().items()
    }
    value = exact("trace", name, float(by_sample.sum()), "sum of its exact diagonal")
    if subject.has_equal_samples:
        spread = spread_of_sum(by_sample)
    else:
        spread = standard_error(subject, lambda s: float(s.ggn.trace()), notebook.seed)
    level.add(_with_sampling_error(value, spread))


def _estimate_layers(level: Level, notebook: Notebook) -> None:
    """Estimate a headline by layer: the trace of each block, the mean of v·(G v) for signs v."""
    subject, generator = level.subject, torch_generator(notebook.seed, "layer traces")
    slices, layers = subject.risk.space.slices(), subject.risk.space.layers()
    rows = []
    for _ in range(_PROBES):
        drawn = torch.randint(2, (subject.dimension,), generator=generator, device="cpu")
        signs = (2 * drawn - 1).to(subject.ggn.device, subject.ggn.dtype)
        terms = (subject.ggn @ signs).double() * signs
        rows.append([float(sum(terms[slices[n]].sum() for n in s.names)) for s in layers.values()])
    found = np.array(rows)
    errors = found.std(axis=0, ddof=1) / _PROBES**0.5
    level.layer_traces = dict(zip(layers, found.mean(axis=0).tolist(), strict=True))
    level.layer_errors = dict(zip(layers, errors.tolist(), strict=True))


def measure_sharpness(level: Level, notebook: Notebook) -> None:
    """Measure the headline sharpness: the largest Hessian eigenvalue, or a lower bound."""
    tol = _ROUGH if level.subject.dimension >= _LONG else 1e-3
    try:
        time_product(level, notebook)
        top = hessian_end(level, 1, "LA", tol, notebook, partial=True)
    except OutOfTimeError:
        if level.curvature:
            _add_bound(level, level.curvature, "one product")
        raise
    level.spectra["top"] = top
    if not bool(top.converged[0]):  # the time was up: another number under another name
        _add_bound(level, float(top.eigenvalues[0]), how_found(top))
        raise OutOfTimeError("the largest eigenvalue had not converged when the time was up")
    value = eigenpair("sharpness", "Sharpness: largest eigenvalue of the Hessian", top, 0)
    level.add(_with_sampling_error(value, _sharpness_error(level, top, notebook.seed)))


def _add_bound(level: Level, value: float, how: str) -> None:
    certainty = "curvature along one direction, so a lower bound"
    level.number("bound", "Sharpness, at least", value, 0.0, how, certainty)


def _sharpness_error(level: Level, top: Spectrum, seed: int) -> float | None:
    """Return the headline sharpness's error over samples, on the coordinates it reaches."""
    assert top.eigenvectors is not None
    v, value = top.eigenvectors[:, 0], float(top.eigenvalues[0])
    if not isinstance(level.reached, Reached):
        return sharpness_error(level.subject, v, seed, value=value)
    v, on = level.reached.narrow(v), level.reached.with_operator
    return sharpness_error(level.subject, v, seed, on, value)


def measure_gauss_newton(level: Level, notebook: Notebook) -> None:
    """Measure a headline: the leading Gauss-Newton eigenvalues and their shares of the trace."""
    ggn, subject = level.subject.ggn, level.subject
    found = eigenpairs(ggn, min(MANY, notebook.k, subject.dimension), "LA", 1e-3, notebook)
    if "trace" in level.statistics:
        known = level.statistics["trace"]
        is_exact = "sum of" in known.method
        error, how = (0.0, "exact") if is_exact else (known.error, "probes")
        whole = Estimate(known.value, error, is_exact, 0, how)
    else:
        whole = notebook.trace(ggn)
    level.gauss_newton = Measured(notebook.trim(found), whole, subject.dimension, level.samples)
    _align(level)
    values, total = as_array(found.eigenvalues), whole.value
    certainty = "residuals of the eigenpairs; exact on these samples"
    rows = getattr(ggn, "gram_size", None)
    if rows is not None and rows < 2 * MANY:
        certainty += f", {SPAN} {rows} directions"
    is_positive = total > 0 and _has_no_negative_eigenvalues(level, notebook, float(values[0]))
    for count in (FEW, MANY) if is_positive else ():
        if count <= len(values):
            error = float(found.residuals.double().sum()) / total + whole.stderr / total
            share = float(values[:count].sum()) / total
            name = f"Share of the trace in {count} directions"
            level.number(f"share{count}", name, share, error, how_found(found), certainty)
    if len(values) == MANY and values.sum() > 0:
        level.add(rank_quantity("rank50", "the", values))


def _has_no_negative_eigenvalues(level: Level, notebook: Notebook, largest: float) -> bool:
    """Whether a headline may take shares of the Gauss–Newton trace: it has no negative parts."""
    if level.subject.risk.criterion.is_convex:
        return True
    low = eigenpairs(level.subject.ggn, 1, "SA", 0.1, notebook)
    return float(low.eigenvalues[0]) > -1e-3 * largest


def measure_ends(level: Level, notebook: Notebook) -> None:
    """Measure headlines: ten eigenvalues at the upper end of the Hessian and the smallest one."""
    number = min(FEW, notebook.k, level.subject.dimension)
    time_product(level, notebook)
    top = hessian_end(level, number, "LA", 1e-3, notebook)
    level.spectra["hessian"] = notebook.trim(top)
    _align(level)
    if "top" in level.spectra:
        level.spectra["top"] = replace(level.spectra["top"], eigenvectors=None)
    low = replace(hessian_end(level, 1, "SA", 1e-2, notebook), eigenvectors=None)
    level.spectra["smallest"] = low
    first = float(top.eigenvalues[0])
    smallest = eigenpair("smallest", "Smallest eigenvalue of the Hessian", low, -1)
    level.add(smallest)
    certainty = "residuals of the eigenpairs"
    if first > 0:
        ratio = smallest.value / first, smallest.error / first, "from the two ends", certainty
        level.number("negativity", "Smallest over largest eigenvalue", *ratio)
    if number == FEW and float(top.eigenvalues[-1]) > 0:
        last, residual = float(top.eigenvalues[-1]), float(top.residuals[-1])
        ratio = first / last, first / last * residual / last, how_found(top), certainty
        level.number("ratio10", f"Largest over {FEW}th eigenvalue of the Hessian", *ratio)


def _align(level: Level) -> None:
    """Compare sharpest directions of Hessian and Gauss-Newton matrix, for the headlines."""
    hessian = level.spectra.get("hessian")
    if hessian is None or level.gauss_newton is None:
        return
    first, second = hessian.eigenvectors, level.gauss_newton.spectrum.eigenvectors
    if first is not None and second is not None and min(first.shape[1], second.shape[1]) >= FEW:
        level.alignment = alignment(first[:, :FEW], second[:, :FEW]).overlap


def hessian_end(
    level: Level, k: int, which: str, tol: float, notebook: Notebook, *, partial: bool = False
) -> Spectrum:
    """Return eigenpairs of an end of the Hessian for the headlines, where it is not zero.

    The others have eigenvalues of zero: where these are among the asked for, all are kept.
    """
    whole = level.subject.hessian
    if level.reached is None:
        level.reached = Reached.of(whole, level.images)
        level.images = []
    if not isinstance(level.reached, Reached) or k > level.reached.shape[0]:
        return eigenpairs(whole, k, which, tol, notebook, partial=partial)
    found = eigenpairs(level.reached, k, which, tol, notebook, partial=partial)
    last = float(found.eigenvalues[0 if which == "SA" else -1])
    if (last > 0) if which == "SA" else (last < 0):
        return eigenpairs(whole, k, which, tol, notebook, partial=partial)
    found = notebook.trim(found, whole.shape[0])
    assert found.eigenvectors is not None
    return replace(found, eigenvectors=level.reached.lift(found.eigenvectors))


def time_product(level: Level, notebook: Notebook) -> None:
    """Note for the headlines the time of a Hessian product and the faster number of threads.

    Threads that wait for each other are slower than one where other processes use the cores too.
    """
    if level.product:
        return
    subject, generator = level.subject, torch_generator(0, "first products")
    hessian = subject.hessian

    def multiply(threads: int) -> float:
        torch.set_num_threads(threads)
        options: dict[str, Any] = {"dtype": hessian.dtype, "device": "cpu"}
        vector = torch.randn(subject.dimension, generator=generator, **options)
        began = time.monotonic()
        level.images = [*level.images[-1:], hessian @ vector.to(hessian.device)]
        float(level.images[-1][0])
        return time.monotonic() - began

    slope = subject.gradient
    if bool(slope.any()):  # the first product prepares what the others use
        level.curvature = float(slope @ (hessian @ slope)) / squared_length(slope)
    seconds = {threads: multiply(threads) for threads in (notebook.threads, 1)}
    level.threads = min(seconds, key=lambda threads: seconds[threads])
    torch.set_num_threads(level.threads)
    level.product = max(subject.processes.largest(seconds[level.threads]), 1e-6)


def _with_sampling_error(value: Quantity, spread: float | None) -> Quantity:
    if spread is None:
        return replace(value, certainty=f"{value.certainty}; {NOT_OVER_SAMPLES}")
    beside = "exact" if value.error == 0 else f"an eigenvalue lies within {value.error:.1g}"
    certainty = f"standard error over samples; on these samples {beside}"
    return replace(value, error=spread, certainty=certainty)


MEASUREMENTS = (
    Measurement("loss", "Loss and gradient", 1, measure_loss, lambda level, n: 1, refine=8),
    Measurement(
        "noise_scale", "Noise scale", 2, measure_noise_scale, lambda level, n: 4, refine=87
    ),
    Measurement("trace", "Trace and layers", 3, measure_trace, lambda level, n: 15, refine=88),
    Measurement(
        "sharpness",
        "Sharpness",
        order=4,
        run=measure_sharpness,
        products=lambda level, n: 45,
        refine=89,
        share=1.0,
    ),
    Measurement(
        "shares",
        "Gauss-Newton spectrum",
        order=6,
        run=measure_gauss_newton,
        products=lambda level, n: 2.5 * min(MANY, n.k) + 15,
        fewest=64,
        refine=126,
    ),
    Measurement(
        "ends",
        "Ends of the Hessian spectrum",
        order=7,
        run=measure_ends,
        products=lambda level, n: 5 * min(FEW, n.k) + 30,
        fewest=64,
        refine=127,
    ),
)
