"""Sums over all directions from random probes, deflated by a Krylov basis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil, inf, sqrt

import torch

from hyperribbon.core.spectral_results import Estimate
from hyperribbon.spectra.estimates.sketch import Sketch, cross_products, row_products, widths
from hyperribbon.spectra.products import StoppedError

_AMPLE = 1.1  # by which a deviation is raised, so that the precision is mostly reached
_PAIRED = 6  # probes together from which a deviation is taken from pairs
_FEWEST = 12  # probes at least where no direction is deflated: fewer may all miss a large one
_BEGIN, _FEW = 10, 4  # further probes that are drawn without directions, or without more of them
_LOOK = 3  # directions at least, by which it is judged what another one is worth

Found = tuple[torch.Tensor, torch.Tensor]
"""The values (b,) of some probes, and what they show of the variance of a value."""


class Probes:
    """Random probes ω with their images Aω, to be seen beside a sketch's basis Q.

    With c = Qᵀω, d = uᵀω, and the sketch's T, u and β, of the rest ω' = ω − Qc

        ω'ᵀAω' = ωᵀAω − cᵀTc − 2β d c_m,
        Aω' = Aω − Q T c − β u c_m,    QᵀAω' = β d e,

    so a basis that grows later takes no product with them. Scaled to the sphere of radius
    √(P − rank) they have E[ω'ω'ᵀ] = I − QQᵀ, whatever Q is: it does not depend on them.

    Args:
        sketch: Where they come from.
        count: How many.
    """

    def __init__(self, sketch: Sketch, count: int) -> None:
        self._omega = sketch.draw(count)
        self._image = sketch.multiply(self._omega)
        self._inner = torch.zeros(count, 0, dtype=torch.float64, device="cpu")
        self._forms = row_products(self._omega, self._image).cpu()
        self._overlap = cross_products(self._omega, self._omega)
        self._gram = cross_products(self._image, self._image)

    def beside(self, sketch: Sketch, target: Target) -> Found:
        """Return the probes' values beside the sketch's basis, and what they show of a variance."""
        new = [cross_products(self._omega, Q) for Q in sketch.rows(self._inner.shape[1])]
        self._inner = c = torch.cat([self._inner, *new], 1)
        forms, overlap, gram = self._forms, self._overlap - c @ c.T, self._gram
        coupled = torch.zeros(1, dtype=torch.float64, device="cpu")
        if sketch.rank:
            d, along = (
                cross_products(some, sketch.following) for some in (self._omega, self._image)
            )
            inside, last, coupled = c @ sketch.T, sketch.coupling * c[:, -1:], sketch.coupling * d
            forms = forms - (inside * c).sum(1) - 2 * (last * d)[:, 0]
            mixed = inside @ inside.T + coupled @ inside[:, -1:].T + along @ last.T
            gram = gram - mixed - mixed.T + inside @ inside.T + last @ last.T
        scales = (sketch.products.size - sketch.rank) / overlap.diagonal()
        both = scales.sqrt().outer(scales.sqrt())
        beyond = (gram.diagonal() - coupled.square().flatten()) * scales
        values, parts = target.values(forms * scales, beyond, gram * both, overlap * both)
        return float(target.matrix(sketch).diagonal().sum()) + values, parts


def _trace_values(
    forms: torch.Tensor, beyond: torch.Tensor, gram: torch.Tensor, overlap: torch.Tensor
) -> Found:
    """Return ωᵀBω, and 2‖(I − ωωᵀ/‖ω‖²)Bω‖², whose mean over probes is Var(ωᵀBω) on a sphere."""
    return forms, 2 * (beyond - forms.square() / overlap.diagonal()).clamp(min=0)


def _square_values(
    forms: torch.Tensor, beyond: torch.Tensor, gram: torch.Tensor, overlap: torch.Tensor
) -> Found:
    """Return ‖Aω‖², and by pairs of probes what gives Var(ωᵀCω) of C = A² on what is left.

    Of two independent probes, 2·E(ω'ᵀ(I − ωωᵀ/‖ω‖²)Cω)² is that variance, and ω'ᵀCω is the inner
    product of their images.
    """
    values, count = gram.diagonal(), len(gram)
    if count < _PAIRED:
        return values, values[:0]
    across = gram - overlap * (values / overlap.diagonal()).unsqueeze(1)
    across.fill_diagonal_(0)
    return values, (across.square().sum(0) + across.square().sum(1)) / (count - 1)


def _squared(sketch: Sketch) -> torch.Tensor:
    square = sketch.T @ sketch.T
    if sketch.rank:
        square[-1, -1] += sketch.coupling**2
    return square


@dataclass(frozen=True)
class Target:
    """A sum over all directions: exact on those of a basis Q, a mean over probes on the others.

    Attributes:
        values: The values of probes and what shows their variance, from ωᵀAω, the squares of Aω
            outside Q, and the inner products of the images and of the probes.
        matrix: QᵀAQ or QᵀA²Q of a sketch, whose trace is the part of Q.
        order: How many probes are behind each of the numbers that show the variance.
        first: Probes of the pilot.
        least: Further ones that are drawn beside Q at least, where values are skewed.
    """

    values: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], Found]
    matrix: Callable[[Sketch], torch.Tensor]
    order: int
    first: int
    least: int = 0


TRACE = Target(_trace_values, lambda sketch: sketch.T, order=1, first=6)
"""tr A = tr(QᵀAQ) + E[ωᵀAω]."""
SQUARES = Target(_square_values, _squared, order=2, first=12, least=20)
"""‖A‖² = ‖AQ‖² + E‖Aω‖²."""


@dataclass(frozen=True)
class _Mean:
    """A mean of probes' values, the variance of one, and the degrees of freedom of that variance.

    The sum of the values has the variance of so many independent ones.
    """

    value: float
    variance: float
    count: int
    freedom: float

    @classmethod
    def of(cls, found: list[Found], order: int) -> _Mean:
        """Return the mean of the probes' values (n,), its variance the mean of parts (m,)."""
        values, parts = (torch.cat(list(some)) for some in zip(*found, strict=True))
        count = len(values)
        if len(parts) < 2 or 2 * len(parts) < count:
            variance = float(values.var()) if count > 1 else inf
            return cls(float(values.mean()), variance, count, max(count - 1.0, 1.0))
        variance, spread = float(parts.mean()), order**2 * float(parts.var()) / len(parts)
        # Few parts seldom show how skewed they are, and no probes follow where they are small.
        freedom = min(inf if spread == 0 else max(2 * variance**2 / spread, 2.0), count - 1.0)
        return cls(float(values.mean()), variance, count, freedom)

    def needed(self, precision: float) -> float:
        """Return how many probes reach a relative standard error."""
        if self.variance == 0:
            return 0.0
        return inf if self.value == 0 else self.variance * (_AMPLE / (precision * self.value)) ** 2


def estimate(sketch: Sketch, target: Target, precision: float, max_matvecs: int) -> Estimate:
    """Return the estimate of a target from random probing, with its standard error.

    A pilot of probes shows how many more bring the standard error below `precision`; so many are
    drawn, and all of them count, as in Stein's two-stage procedure: Hutchinson's estimator. The
    variance is taken from the images of the probes, since that of few skewed values is uncertain,
    with Satterthwaite's degrees of freedom, ν = 2/(relative variance of the variance).

    Where many would be needed, the leading directions are taken out first, by the Krylov basis Q of
    another random vector (Chen and Hallman, 2023). A direction that takes μ from
    ‖(I − QQᵀ)A(I − QQᵀ)‖² takes 2μ from the variance of all probes, those of the pilot included,
    and Q grows while that saves more probes than it costs products. Rounding adds to the standard
    error, see `Sketch.rounding`.

    Args:
        sketch: Where probes come from, with no directions yet.
        target: What is wanted.
        precision: Relative standard error to aim at.
        max_matvecs: Products that may be spent; at least two are.

    Raises:
        StoppedError: `should_stop` returned True before two probes were multiplied. Later the
            probes so far are the estimate: when to stop was not decided by their values.
    """
    products, order = sketch.products, target.order
    first = max(min(target.first, max_matvecs), 2)
    room = sketch.room - 2 * first  # for directions beside the pilot
    pilot: list[Probes] = []
    done: list[Found] = []
    try:
        for probes in _draw(sketch, first):
            if room > _LOOK:
                pilot.append(probes)
            else:
                done.append(probes.beside(sketch, target))
            del probes  # before others are drawn
        mean = _Mean.of(done or [probes.beside(sketch, target) for probes in pilot], order)
        sizes = [0.0]
        while pilot and sketch.rank < room:
            left = max_matvecs - products.matvecs - target.least
            planned = min(mean.needed(precision) - mean.count, left)
            gain = 2 * (sizes[-1] - sizes[-_LOOK - 1]) / _LOOK if len(sizes) > _LOOK else inf
            worth = gain * (mean.count + planned)  # in variance, of what all probes have
            if planned <= (_FEW if sketch.rank else _BEGIN) or worth <= mean.variance:
                break
            sketch.grow()
            sizes.append(float(target.matrix(sketch).square().sum()))
            mean = _Mean.of([probes.beside(sketch, target) for probes in pilot], order)
        done += [probes.beside(sketch, target) for probes in pilot]
        pilot.clear()
        least = target.least if sketch.rank else _FEWEST - first
        more = max(mean.needed(precision) - first, least)
        for probes in _draw(sketch, min(ceil(min(more, 1e9)), max_matvecs - products.matvecs)):
            done.append(probes.beside(sketch, target))
            del probes
    except StoppedError:
        done += [probes.beside(sketch, target) for probes in pilot]
        if sum(len(values) for values, _ in done) < 2:
            raise
    mean = _Mean.of(done, order)
    floor = sketch.rounding(order, mean.value)
    error = max(mean.variance, 0.0) / mean.count
    method = "krylov" if sketch.rank else "hutchinson"
    freedom = mean.freedom if error > floor**2 else inf
    stderr = sqrt(error + floor**2)
    return Estimate(mean.value, stderr, False, products.matvecs, method, freedom)


def _draw(sketch: Sketch, count: int) -> Iterator[Probes]:
    """Yield so many new probes in blocks that fit in memory."""
    for width in widths(count, sketch.block):
        yield Probes(sketch, width)
