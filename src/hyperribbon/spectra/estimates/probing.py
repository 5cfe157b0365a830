"""Sums over all directions from random probes: Hutchinson's estimator and XTrace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, inf, sqrt

import torch

from hyperribbon.core.spectral_results import Estimate
from hyperribbon.spectra.estimates.sketch import Sketch, cross_products, row_products, widths
from hyperribbon.spectra.products import StoppedError

_FIRST = 12  # probes of the pilot
_LEAST = 20  # probes orthogonal to Q where the variance of a value is not known from its image
_AMPLE = 1.1  # by which a deviation is raised, so that the precision is mostly reached
_DEPENDENT = 1.5  # variance of a mean of leave-one-out values over that of independent ones
_PAIRED = 6  # probes together from which a deviation is taken from pairs


@dataclass(frozen=True)
class Target:
    """A sum over all directions: exact on those of a basis Q, a mean over probes on the others.

    Attributes:
        samples: The values (b,) of probes ω, from them and their images, as rows.
        variances: What each of some probes (b,) adds to the variance of such a value, which is
            their mean, from a sketch, the probes and their images; none (0,) for too few of them.
        order: How many probes are behind each of these.
        matrix: QᵀAQ or QᵀA²Q of a sketch, whose trace is the part of Q.
        forms: The values (n,) of ωᵢ − Q xᵢ, from a sketch and the columns xᵢ.
    """

    samples: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    variances: Callable[[Sketch, torch.Tensor, torch.Tensor], torch.Tensor]
    order: int
    matrix: Callable[[Sketch], torch.Tensor]
    forms: Callable[[Sketch, torch.Tensor], torch.Tensor]


def _form_variances(sketch: Sketch, omega: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
    """Return 2‖(I − ωωᵀ/‖ω‖²) B ω‖², whose mean over probes is Var(ωᵀBω) on a sphere."""
    parts: list[torch.Tensor] = []
    for probe, row in zip(omega.split(1), image.split(1), strict=True):  # one copy of one image
        inside = sketch.deflate(row)
        along = row_products(probe, inside).square() / row_products(probe, probe)
        parts.append(row_products(inside, inside) - along)
    return 2 * torch.cat(parts).clamp(min=0)


def _square_variances(sketch: Sketch, omega: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
    """Return by pairs of probes what gives Var(ωᵀCω) of C = A² on what is left.

    Of two independent probes, 2·E(ω'ᵀ(I − ωωᵀ/‖ω‖²)Cω)² is that variance, and ω'ᵀCω is the inner
    product of their images.
    """
    count = len(omega)
    if count < _PAIRED:
        return torch.empty(0, dtype=torch.float64, device="cpu")
    inner, overlap = cross_products(image, image), cross_products(omega, omega)
    own = inner.diagonal() / overlap.diagonal()
    across = inner - overlap * own.unsqueeze(1)
    across.fill_diagonal_(0)
    return (across.square().sum(0) + across.square().sum(1)) / (count - 1)


def _trace_forms(sketch: Sketch, x: torch.Tensor) -> torch.Tensor:
    """Return (ω − Qx)ᵀA(ω − Qx) of random probes ω."""
    R, W, H = sketch.R, sketch.W, sketch.H
    return (W * R).sum(0) - 2 * (x * R).sum(0) + (x * (H @ x)).sum(0)


def _square_forms(sketch: Sketch, x: torch.Tensor) -> torch.Tensor:
    """Return ‖A(ω − Qx)‖² of random probes ω."""
    R, H, G = sketch.R, sketch.H, sketch.G
    return R.square().sum(0) - 2 * (R * (H @ x)).sum(0) + (x * (G @ x)).sum(0)


TRACE = Target(row_products, _form_variances, 1, lambda sketch: sketch.H, _trace_forms)
"""tr A = tr(QᵀAQ) + E[ωᵀAω]."""
SQUARES = Target(
    lambda _, image: row_products(image, image),
    _square_variances,
    2,
    lambda sketch: sketch.G,
    _square_forms,
)
"""‖A‖² = ‖AQ‖² + E‖Aω‖²."""


@dataclass(frozen=True)
class _Mean:
    """A mean of some values, the variance of one, and the degrees of freedom of that variance.

    The count is that of independent values whose mean is as uncertain.
    """

    value: float
    variance: float
    count: float
    freedom: float

    @property
    def error(self) -> float:
        """The variance of the mean over random probes."""
        return self.variance / self.count

    def needed(self, precision: float) -> float:
        """Return how many probes reach a relative standard error."""
        if self.variance == 0:
            return 0.0
        return inf if self.value == 0 else self.variance * (_AMPLE / (precision * self.value)) ** 2

    def join(self, other: _Mean) -> _Mean:
        """Return the mean over both sets of probes."""
        count = self.count + other.count
        value = (self.count * self.value + other.count * other.value) / count
        own, theirs = self.count * self.variance, other.count * other.variance
        both = own + theirs
        spread = own**2 / self.freedom + theirs**2 / other.freedom
        return _Mean(value, both / count, count, both**2 / spread if spread > 0 else inf)


def estimate(sketch: Sketch, target: Target, precision: float, max_matvecs: int) -> Estimate:
    """Return the estimate of a target from random probing, with its standard error.

    A pilot of probes shows how many more bring the standard error below `precision`; so many are
    drawn, and all of them count, as in Stein's two-stage procedure: Hutchinson's estimator. The
    variance is taken from the images of the probes, since that of few skewed values is uncertain,
    with Satterthwaite's degrees of freedom, ν = 2/(relative variance of the variance).

    Where many would be needed, their images become directions of Q, more and more until it is
    cheaper to draw probes orthogonal to Q, and each probe gives an estimate beside the Q of all the
    others: XTrace (Epperly, Tropp and Webber, 2024). These depend on each other, so their mean
    counts as one of fewer values; the further probes that it still takes are independent, and join
    it. Rounding adds to the standard error, see `Sketch.rounding`.

    Args:
        sketch: Where probes come from, with no directions yet.
        target: What is wanted.
        precision: Relative standard error to aim at.
        max_matvecs: Products that may be spent; at least two are.

    Raises:
        StoppedError: `should_stop` returned True before two probes were multiplied. Later the
            probes so far are the estimate: when to stop was not decided by their values.
    """
    products, omegas, images = sketch.products, [], []
    mean = _draw(sketch, target, max(min(_FIRST, max_matvecs), 2), omegas, images)
    more, least = mean.needed(precision) - mean.count, 0 if target.order == 1 else _LEAST
    try:
        while more > 2 * (count := sketch.rank or _FIRST):
            waiting = sum(map(len, omegas))  # probes that are not in the sketch yet
            left = max_matvecs - products.matvecs - least
            if left < (waiting or 2 * count) or (waiting or sketch.room) < count:
                break
            if not waiting:
                _draw(sketch, target, count, omegas, images, plain=True)
            while omegas:
                sketch.absorb(omegas[0], images[0])
                del omegas[0], images[0]
            mean = _leave_one_out(sketch, target)
            more = max(mean.needed(precision) - mean.count, least)
        omegas.clear()
        images.clear()
        more = int(min(ceil(min(more, 1e9)), max_matvecs - products.matvecs))
        if more > 1:
            known = float(target.matrix(sketch).diagonal().sum())
            mean = mean.join(_draw(sketch, target, more, known=known))
    except StoppedError:
        pass  # the mean is that of the probes so far
    floor = sketch.rounding(target.order, mean.value)
    stderr = sqrt(max(mean.error, 0.0) + floor**2)
    freedom = mean.freedom if mean.error > floor**2 else inf
    method = "xtrace" if sketch.rank else "hutchinson"
    return Estimate(mean.value, stderr, False, products.matvecs, method, freedom)


def _draw(
    sketch: Sketch,
    target: Target,
    count: int,
    omegas: list[torch.Tensor] | None = None,
    images: list[torch.Tensor] | None = None,
    *,
    known: float = 0.0,
    plain: bool = False,
) -> _Mean:
    """Return the mean over probes orthogonal to Q, added to the known part of Q.

    Args:
        sketch: Where they come from.
        target: What their values are.
        count: How many.
        omegas: Where to keep them, block by block, if they fit.
        images: Where to keep their images.
        known: The part of Q.
        plain: Whether they are not to be orthogonal to Q.

    Raises:
        StoppedError: `should_stop` returned True before there were two.
    """
    values: list[torch.Tensor] = []
    shown: list[torch.Tensor] = []
    for width in widths(count, sketch.block):
        omega = sketch.draw(width) if plain else sketch.probes(width)
        try:
            image = sketch.multiply(omega)
        except StoppedError:
            if plain or sum(map(len, values)) < 2:
                raise
            break
        if omegas is not None and images is not None:
            kept = slice(max(sketch.room - sum(map(len, omegas)), 0))
            if len(omega[kept]):
                omegas.append(omega[kept])
                images.append(image[kept])
        if not plain:
            values.append(target.samples(omega, image).cpu())
            shown.append(target.variances(sketch, omega, image).cpu())
        del omega, image
    if plain:
        return _Mean(0.0, 0.0, count, inf)
    return _mean(known + torch.cat(values), torch.cat(shown), target.order)


def _mean(values: torch.Tensor, parts: torch.Tensor, order: int) -> _Mean:
    """Return the mean of the probes' values (n,), its variance the mean of parts (m,)."""
    count = len(values)
    if len(parts) < 2 or 2 * len(parts) < count:
        variance = float(values.var()) if count > 1 else inf
        return _Mean(float(values.mean()), variance, count, max(count - 1.0, 1.0))
    variance, spread = float(parts.mean()), order**2 * float(parts.var()) / len(parts)
    freedom = inf if spread == 0 else max(2 * variance**2 / spread, 2.0)
    return _Mean(float(values.mean()), variance, count, freedom)


def _leave_one_out(sketch: Sketch, target: Target) -> _Mean:
    """Return XTrace: the mean of the estimates by each probe beside the directions of the others.

    Without the image of the i-th probe Q spans what is orthogonal to Q sᵢ, with sᵢ the i-th column
    of R⁻ᵀ scaled to unit length.
    """
    K, H, G, W, R = target.matrix(sketch), sketch.H, sketch.G, sketch.W, sketch.R
    known, count, size = float(K.diagonal().sum()), len(R), sketch.products.size
    sizes = torch.linalg.svdvals(R)
    if float(sizes[-1]) <= 100 * torch.finfo(sketch.products.dtype).eps * float(sizes[0]):
        return _Mean(known, 0.0, count, inf)  # Q spans the range of the operator
    S = torch.linalg.inv(R).T
    S = S / torch.linalg.vector_norm(S, dim=0)
    X = W - S * (S * W).sum(0)
    lengths = size - X.square().sum(0)
    scale = (size - count + 1) / lengths
    forms = target.forms(sketch, X)
    values = known - (S * (K @ S)).sum(0) + scale * forms
    if target.order > 1:
        return replace(_mean(values, values[:0], target.order), count=count / _DEPENDENT)
    beyond = (X * ((G - H @ H) @ X)).sum(0) + (S * (R - H @ X)).sum(0).square()
    parts = 2 * scale.square() * (beyond - forms.square() / lengths).clamp(min=0)
    return replace(_mean(values, parts, target.order), count=count / _DEPENDENT)
