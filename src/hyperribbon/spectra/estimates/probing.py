"""Estimates from random probes whose number is fixed before the ones that count are drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, inf, sqrt

import torch

from hyperribbon.core.results import Estimate
from hyperribbon.spectra.estimates.sketch import Sketch, row_products, widths

__all__ = ["SQUARES", "TRACE", "Target", "estimate"]

_PILOT = 12  # probes of the first pilot
_LEAST = 20  # probes that count
_AMPLE = 1.2  # by which a pilot's deviation is raised, so that the precision is mostly reached
_PAIRED = 6  # probes together from which a deviation is taken from pairs


@dataclass(frozen=True)
class Target:
    """A sum over all directions: exact on those of a basis Q, a mean over probes on the others.

    Attributes:
        known: The part of Q, from a sketch.
        samples: The values (b,) of probes ω ⟂ Q, from them and their images, as rows.
        variances: What each of some probes (b,) adds to the variance of such a value, which is
            their mean, from a sketch, the probes and their images; none (0,) for too few of them.
        order: How many probes are behind each of these.
    """

    known: Callable[[Sketch], float]
    samples: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    variances: Callable[[Sketch, torch.Tensor, torch.Tensor], torch.Tensor]
    order: int


def _form_variances(sketch: Sketch, omega: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
    """Return 2‖(I − ωωᵀ/‖ω‖²) B ω‖², whose mean is Var(ωᵀBω) for ω uniform on a sphere."""
    parts: list[torch.Tensor] = []
    for probe, row in zip(omega.split(1), image.split(1), strict=True):  # one copy of one image
        inside = sketch.deflate(row)
        along = row_products(probe, inside).square() / row_products(probe, probe)
        parts.append(row_products(inside, inside) - along)
    return 2 * torch.cat(parts).clamp(min=0)


def _square_variances(sketch: Sketch, omega: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
    """Return what gives Var(ωᵀCω) of C = A² on what is left, from pairs of probes.

    Of two independent probes, 2·E(ω'ᵀ(I − ωωᵀ/‖ω‖²)Cω)² is that variance, and ω'ᵀCω is the inner
    product of their images.
    """
    count = len(omega)
    if count < _PAIRED:
        return torch.empty(0, dtype=torch.float64, device="cpu")
    inner, overlap = _gram(image), _gram(omega)
    own = inner.diagonal() / overlap.diagonal()
    across = inner - overlap * own.unsqueeze(1)
    across.fill_diagonal_(0)
    return (across.square().sum(0) + across.square().sum(1)) / (count - 1)


def _gram(rows: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for piece in rows.split(1 << 16, dim=1):
        total += piece.double() @ piece.double().T
    return total


TRACE = Target(Sketch.inner, row_products, _form_variances, 1)
"""tr A = tr(QᵀAQ) + E[ωᵀAω]."""
SQUARES = Target(Sketch.squares, lambda _, image: row_products(image, image), _square_variances, 2)
"""‖A‖² = ‖AQ‖² + E‖Aω‖²."""


def estimate(sketch: Sketch, target: Target, precision: float, max_matvecs: int) -> Estimate:
    """Return a target with its standard error.

    A pilot of probes shows how many are needed. Where they are many, the pilot's images become
    directions of Q, which leaves less to probe, and another pilot follows. Then the number of
    probes is fixed, and these are drawn anew: a deviation that decides when to stop is too small on
    average, and so would be the error. The deviation of skewed values is itself uncertain, so it is
    taken from the images, not from the values, and its degrees of freedom from what the single
    probes add to it: ν = 2/(relative variance of the estimated variance) (Satterthwaite).

    Args:
        sketch: Where probes come from, with no directions yet.
        target: What is wanted.
        precision: Relative standard error to aim at.
        max_matvecs: Products that may be spent; at least two are.
    """
    products, count = sketch.products, _PILOT
    while True:
        base = target.known(sketch)
        left = max_matvecs - products.matvecs
        pilot = _Draw(sketch, target, min(count, left // 3), keep=True)
        left = max_matvecs - products.matvecs
        needed = pilot.needed(base, precision)
        kept = min(sum(map(len, pilot.images)), sketch.room)
        if not (kept and needed > 3 * count and left > kept + 2 * count + _LEAST):
            break
        sketch.absorb(pilot.images)
        count = min(2 * count, 64)
    pilot.images.clear()
    last = _Draw(sketch, target, int(max(min(max(needed, _LEAST), left), 2)))
    value = base + float(last.values.mean())
    stderr = sqrt(last.variance / len(last.values))
    method = "hutch++" if sketch.rank else "hutchinson"
    return Estimate(value, stderr, False, products.matvecs, method, last.freedom)


class _Draw:
    """Values of some probes and the variance that their images show.

    Args:
        sketch: Where they come from.
        target: What their values are.
        count: How many.
        keep: Whether to keep images, as many as fit in memory.
    """

    def __init__(self, sketch: Sketch, target: Target, count: int, *, keep: bool = False) -> None:
        values = [torch.empty(0, dtype=torch.float64, device="cpu")]
        self.images: list[torch.Tensor] = []
        shown: list[torch.Tensor] = []
        for width in widths(count, sketch.block):
            omega = sketch.probes(width)
            image = sketch.multiply(omega)
            values.append(target.samples(omega, image).cpu())
            shown.append(target.variances(sketch, omega, image).cpu())
            if keep and sum(map(len, self.images)) < sketch.room:
                self.images.append(image)
            del omega, image
        self.values, parts = torch.cat(values), torch.cat(shown or values)
        self.variance = float(self.values.var()) if len(self.values) > 1 else inf
        self.freedom = max(float(len(self.values) - 1), 1.0)
        if 2 * len(parts) > len(self.values) and len(parts) > 1:
            self.variance = float(parts.mean())
            spread = target.order**2 * float(parts.var()) / len(parts)
            if spread > 0:
                self.freedom = max(min(self.freedom, 2 * self.variance**2 / spread), 2.0)

    def needed(self, base: float, precision: float) -> float:
        """Return the probes that reach a relative standard error."""
        if len(self.values) == 0:
            return inf
        value = abs(base + float(self.values.mean()))
        if self.variance == 0 or value == 0:
            return 0.0 if self.variance == 0 else inf
        return ceil(min(self.variance * (_AMPLE / (precision * value)) ** 2, 1e9))
