"""The state of one search: a basis, its Ritz pairs, and the chain that extends it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Annotated as Bool
from typing import Annotated as Float

import torch

from hyperribbon.spectra.krylov.basis import Basis
from hyperribbon.spectra.krylov.convergence import Evidence, copies, directions, tolerances
from hyperribbon.spectra.products import Products
from hyperribbon.spectra.rounding import Audit

__all__ = ["Pairs", "Search", "select"]

_PRINCIPAL = 0.5  # residual directions weaker than this part of the strongest wait their turn
_ROOM = 9  # vectors that should fit when a new chain begins


@dataclass(frozen=True)
class Pairs:
    """Ritz pairs, ascending.

    Attributes:
        values: (k,).
        rows: (k, P), their vectors.
        residuals: (k,), true residual norms.
        bounds: (k,), how far the eigenvalues that were asked for may be from these; infinite
            where that has not been shown.
        norm: Largest magnitude of a Ritz value, an estimate of ‖A‖ from below.
        reachable: Residual, relative to the norm, that rounding allows.
        floor: What rounding may hide from each residual, see `Audit`.
    """

    values: Float[torch.Tensor, "k"]
    rows: Float[torch.Tensor, "k P"]
    residuals: Float[torch.Tensor, "k"]
    bounds: Float[torch.Tensor, "k"]
    norm: float
    reachable: float
    floor: float

    def converged(self, tol: float) -> Bool[torch.Tensor, "k"]:
        """Return which (k,) are known, with residuals below the `tolerances`."""
        limits = tolerances(self.values, self.norm, tol, self.reachable)
        return self.bounds.isfinite() & (self.residuals <= limits)


def select(values: torch.Tensor, k: int, which: str) -> torch.Tensor:
    """Return the positions of the k wanted among ascending values, in ascending order.

    "LA" are the largest, "SA" the smallest, "LM" the largest in magnitude, "BE" half of them from
    each end (one more from the upper end when k is odd).
    """
    size = len(values)
    k = min(k, size)
    if which == "LA":
        return torch.arange(size - k, size, device="cpu")
    if which == "SA":
        return torch.arange(k, device="cpu")
    if which == "LM":
        return values.abs().argsort(descending=True, stable=True)[:k].sort().values
    low = k // 2
    return torch.cat(
        [torch.arange(low, device="cpu"), torch.arange(size - (k - low), size, device="cpu")]
    )


class Search:
    """A basis that grows along Krylov chains, with the Ritz pairs that are wanted of it.

    Args:
        products: The operator.
        k: Pairs wanted.
        which: "LA", "SA", "LM" or "BE", as for `select`.
        tol: Relative accuracy, as for `tolerances`.
        capacity: Vectors the basis may hold; more than k unless it holds the whole space.
        storage: Where they are kept: "memory", "half" or "disk".
    """

    def __init__(
        self,
        products: Products,
        k: int,
        which: str,
        tol: float,
        capacity: int,
        storage: str = "memory",
    ) -> None:
        self.basis = Basis(products, capacity, storage)
        self.k, self.which = k, which
        exact = self.basis.is_exact
        self.reachable = 20 * torch.finfo(products.dtype).eps if exact else self.basis.eps
        self.tol = max(tol, self.reachable)
        self.chain: int | None = None  # first vector of the current chain; None: no chain
        self.evidence: Evidence | None = None  # of the current chain, when its start was random
        # The direction (1, P) of its next vector, (0, P) for none,
        self.tail = torch.empty(0, device="cpu")
        self.coupling = torch.empty(0, device="cpu")  # and the last one's image along it
        self._residuals: torch.Tensor | None = None

    def begin_chain(self, rows: torch.Tensor, *, random: bool = True) -> None:
        """Start a chain at a new direction (1, P), with room to grow."""
        self._leave_chain()
        if self.basis.size and self.basis.capacity - self.basis.size < _ROOM:
            self._restart()
        self.chain = self.basis.size
        self.evidence = Evidence(self.basis.products.size) if random else None
        self.basis.expand(rows)

    def rayleigh_ritz(self) -> None:
        """Update the Ritz pairs, the chain's tail and what it proves."""
        self.values, self.coefficients = self.basis.ritz()
        self.wanted = select(self.values, self.k, self.which)
        self.norm = float(self.values.abs().max())
        if self.chain is not None:
            self.tail, self.coupling = self.basis.remainder(noise=True)
            if self.evidence is not None:
                nodes, turned = self.values, self.coefficients
                if self.chain:
                    nodes, turned = self.basis.ritz(self.chain)
                self.evidence.update(nodes, turned[-1], self.coupling)
        self._residuals = None

    @property
    def wanted_values(self) -> torch.Tensor:
        """Ritz values of the wanted pairs, ascending."""
        return self.values[self.wanted]

    @property
    def slack(self) -> torch.Tensor:
        """Residuals at which the wanted pairs are converged, as far as rounding allows."""
        return tolerances(self.wanted_values, self.norm, self.tol, self.reachable)

    @property
    def residuals(self) -> torch.Tensor:
        """A v − θ v of the wanted pairs, as rows."""
        if self._residuals is None:
            self._residuals = self.basis.residual_rows(
                self.wanted_values, self.coefficients[:, self.wanted]
            )
        return self._residuals

    @property
    def residual_norms(self) -> torch.Tensor:
        """True residual norms of the wanted pairs."""
        return self.basis.products.norms(self.residuals)

    @property
    def looks_solved(self) -> bool:
        """Whether nothing but what the basis has yet to see along the chain speaks against it."""
        if len(self.wanted) < self.k:
            return False
        if self.chain is None:
            return True
        estimates = self.coupling * self.coefficients[-1, self.wanted].abs()  # along the tail
        return bool((estimates <= self.slack).all())

    def is_solved(self) -> bool:
        """Whether all k wanted pairs are there with true residuals below the tolerance."""
        return self.looks_solved and bool((self.residual_norms <= self.slack).all())

    def shown_by(self, evidence: Evidence | None) -> torch.Tensor:
        """Return for each wanted value whether nothing unseen, copies apart, lies further out."""
        if evidence is None:
            return torch.zeros(len(self.wanted), dtype=torch.bool, device="cpu")
        return evidence.shows(self.wanted_values, self.slack, self.which)

    def has_rivals(self) -> torch.Tensor:
        """Return for each wanted value whether a copy of another one, if unseen, would count."""
        return copies(self.wanted_values, self.slack, self.which)[1].any(1)

    def agrees_with(self, expected: torch.Tensor) -> bool:
        """Whether the wanted values are still the expected ones, to the tolerance."""
        found, slack = self.wanted_values, self.slack
        if self.which == "LM":  # of opposite values either may be listed
            expected, found, slack = (x.abs().sort().values for x in (expected, found, slack))
        return bool(((found - expected).abs() <= slack).all())

    def boundaries(self, *, any_value: bool) -> list[tuple[int, float]]:
        """Return the ends at which something wanted may be missing, and from where on.

        Args:
            any_value: Whether any eigenvalue may be missing, or only copies of those that are
                there.

        Returns:
            The sign of each end, and where it starts, times the sign.
        """
        values, slack = self.wanted_values, self.slack
        signs = directions(values, self.which)
        if any_value and self.which == "LM":
            return [(sign, float((values.abs() + slack).min())) for sign in (1, -1)]
        starts, count = copies(values, slack, self.which)
        matter = count.any(0)
        if any_value:
            starts, matter = values + signs * slack, torch.ones_like(matter)
        ends = [(sign, sign * starts[matter & (signs == sign)]) for sign in (1, -1)]
        return [(sign, float(some.min())) for sign, some in ends if len(some)]

    def chain_is_over(self, *, any_value: bool) -> bool:
        """Whether the current chain has found all there is beyond the boundaries."""
        if self.chain is None or self.evidence is None:
            return True
        step, nodes = float(self.slack.min()), self.evidence.nodes
        for sign, boundary in self.boundaries(any_value=any_value):
            edge = max(boundary, float((sign * nodes).max()) + step)
            if not bool(
                self.evidence.excludes(torch.tensor([sign * edge], device="cpu").to(nodes))
            ):
                return False
        return True

    def improve(self, draw: Callable[[], torch.Tensor]) -> None:
        """Bring the wanted pairs closer: along the chain, or what it leaves of the residuals."""
        if self.chain is not None and not self.looks_solved:
            self.extend_chain(draw)
        else:
            self.reduce_residuals(draw)

    def extend_chain(self, draw: Callable[[], torch.Tensor]) -> None:
        """Add the next vector of the chain, or a new direction when the chain is exhausted."""
        if len(self.tail) == 0:
            self.begin_chain(draw())
            return
        if self.evidence is not None:
            self.evidence.extend()
        if self.basis.capacity == self.basis.size:
            self._restart()
        self.basis.expand(self.tail, orthonormal=True)

    def reduce_residuals(self, draw: Callable[[], torch.Tensor]) -> None:
        """Add the leading principal directions of the residuals that are too large."""
        large = self.residuals[(self.residual_norms > self.slack).to(self.residuals.device)]
        products = self.basis.products
        squares, mixing = products.eigh(products.summed((large @ large.T).double().cpu()))
        sizes = squares.clamp(min=0).sqrt()
        floor = (
            max(_PRINCIPAL * float(sizes.max()), 0.5 * float(self.slack.min())) if len(sizes) else 0
        )
        rows = mixing[:, sizes >= floor].T.to(large) @ large
        self._leave_chain()
        if self.basis.capacity - self.basis.size < len(rows):
            self._restart()
        if len(rows) == 0 or not self.basis.expand(rows):
            self.begin_chain(draw())

    def take_in(self, rows: torch.Tensor) -> None:
        """Add whole directions (b, P) to the basis, in place of a chain."""
        self._leave_chain()
        self.basis.expand(rows)

    def runner_up(self) -> tuple[torch.Tensor, float]:
        """Return a direction (1, P) of what would be wanted next, and how far its value is.

        It is the next Ritz vector, or one step of gradient ascent (descent for "SA") from it when
        there is no chain to refine it. None (0, P), infinitely far, when all values are wanted.
        """
        more = select(self.values, self.k + 1, self.which)
        others = more[~torch.isin(more, self.wanted)][:1]
        order = self.values.abs() if self.which == "LM" else self.values
        gaps = (order[self.wanted].unsqueeze(1) - order[others]).abs()
        nearest = float(gaps.min()) if gaps.numel() else inf
        coefficients = self.coefficients[:, others]
        direction = self.basis.combine(coefficients)
        if self.chain is None and len(others):
            slope = self.basis.residual_rows(self.values[others], coefficients)
            length = max(float(self.basis.products.norms(slope)), self.basis.rounding)
            direction += slope * ((-1 if self.which == "SA" else 1) / length)
        return direction, nearest

    def pairs(self, shown: torch.Tensor) -> Pairs:
        """Return the wanted pairs with their true residuals, and give up the basis.

        Args:
            shown: (k,), whether they have been shown to be those that were asked for.
        """
        values, bounds = self.wanted_values, torch.where(shown, self.slack, inf)
        residuals, audit = self.residual_norms, Audit(self.basis.products, len(values))
        if self.basis.is_exact:
            audit.add_residuals(self.residuals)
        self._residuals = None  # frees their memory for the vectors
        rows = self.basis.combine(self.coefficients[:, self.wanted])
        if not self.basis.is_exact:
            values, residuals = _measured(self.basis.products, rows, audit)
        audit.add_vectors(rows, values)
        if not self.basis.is_exact:
            order = values.argsort()
            values, residuals, bounds = values[order], residuals[order], bounds[order]
            rows = rows if bool((order.diff() == 1).all()) else rows[order.to(rows.device)]
        self.tail = rows[:0]
        self.basis.release()  # a product in float64 needs the room
        floor = audit.floor(self.norm)
        return Pairs(values, rows, residuals, bounds, self.norm, self.reachable, floor)

    def _leave_chain(self) -> None:
        self.chain, self.evidence = None, None

    def _restart(self) -> None:
        """Keep the outer Ritz vectors, so that a third of the room beyond the wanted ones is used.

        A chain that began in a larger basis is shortened by itself, so that it stays a chain of the
        operator beside what was known before it.
        """
        known = self.chain or 0
        room = self.basis.capacity - known
        values, coefficients = self.basis.ritz(known) if known else (self.values, self.coefficients)
        kept = room // 3 if known else self.k + (room - self.k) // 3
        if kept >= len(values) or self.basis.capacity == self.basis.products.size:
            return
        outer = select(values, kept, self.which)
        if self.evidence is not None:
            dropped = torch.ones(len(values), dtype=torch.bool, device="cpu")
            dropped[outer] = False
            self.evidence.drop(values[dropped])
        old = torch.eye(known, dtype=coefficients.dtype, device="cpu")
        self.basis.compress(torch.block_diag(old, coefficients[:, outer]))


def _measured(
    products: Products, rows: torch.Tensor, audit: Audit
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale rows to unit length; return their Rayleigh quotients and true residuals.

    That takes one more product per row.

    Returns:
        Rayleigh quotients (b,) and norms of the residuals (b,), float64 on the CPU.
    """
    values: list[float] = []
    residuals: list[float] = []
    for place, row in enumerate(rows):
        row /= float(products.norms(row.unsqueeze(0)))
        image = products.images(row.unsqueeze(0))[0]
        values.append(float(products.summed(row @ image)))
        image.sub_(row, alpha=values[-1])
        residuals.append(float(products.norms(image.unsqueeze(0))))
        audit.add_residuals(image.unsqueeze(0), place)
    pairs = torch.tensor([values, residuals], dtype=torch.float64, device="cpu")
    return pairs[0], pairs[1]
