"""Thick-restart Lanczos: eigenpairs with residuals, and evidence that none was missed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Annotated as Bool
from typing import Annotated as Float

import torch

from hyperribbon.spectra.krylov.basis import Basis
from hyperribbon.spectra.krylov.convergence import (
    Evidence,
    copies,
    directions,
    select,
    tolerances,
)
from hyperribbon.spectra.products import Products, StoppedError
from hyperribbon.spectra.rounding import Audit, is_near_rounding, random_signs

_ROOM = 9  # vectors that should fit when a new chain begins
_NOISE = 1e-2  # random part of a warm start


@dataclass(frozen=True)
class Pairs:
    """Ritz pairs of Lanczos, ascending.

    Attributes:
        values: (k,).
        rows: (k, P), their vectors.
        residuals: (k,), residual norms.
        bounds: (k,), how far the eigenvalues that were asked for may be from these; infinite
            where that has not been shown.
        converged: (k,), whether the residuals are below the tolerances.
        floor: What rounding may hide from each residual, see `Audit`.
    """

    values: Float[torch.Tensor, "k"]
    rows: Float[torch.Tensor, "k P"]
    residuals: Float[torch.Tensor, "k"]
    bounds: Float[torch.Tensor, "k"]
    converged: Bool[torch.Tensor, "k"]
    floor: float


def lanczos(
    products: Products,
    k: int,
    which: str,
    tol: float,
    *,
    is_full: bool,
    capacity: int,
    start: torch.Tensor | None,
    draw: Callable[[], torch.Tensor],
    max_matvecs: int,
    max_seconds: float = inf,
    storage: str = "memory",
) -> Pairs:
    """Return the k wanted eigenpairs of a symmetric operator.

    The basis grows along the Krylov chain q, Aq, A²q, … of a random vector (thick-restart Lanczos
    with full reorthogonalisation) until all wanted residuals are below their `tolerances` and the
    chain has shown, see `Evidence`, that none lies beyond the outermost one.

    With `is_full` it goes on until the chain has shown that no eigenvalue beyond any of them has
    gone unseen. A chain sees only one copy of an eigenvalue, so where another copy would
    count, a second chain starts at a random vector orthogonal to everything known, and shows that
    there is none, or finds it.

    A warm start begins a chain at the sum of the vectors given: k products then span what k old
    eigenvectors span, and every further one improves all of them at once. It proves nothing of
    eigenvalues it does not see: a little noise lets those show that lie further out, and with
    `is_full` the second chain looks for any.

    Args:
        products: The operator.
        k: Pairs wanted.
        which: "LA", "SA", "LM" or "BE", as for `select`.
        tol: Relative accuracy, as for `tolerances`.
        is_full: Whether it has to be shown that no pair is missing.
        capacity: Vectors the basis may hold; more than k unless it holds the whole space.
        start: Rows (b, P) to start from, or None.
        draw: Gives this rank's part of a random direction (1, P).
        max_matvecs: Products after which the best pairs so far are returned.
        max_seconds: Time after which they are, once there are k.
        storage: Where the basis is kept: "memory" or "disk".

    Raises:
        StoppedError: `should_stop` returned True before there were k pairs.
    """
    deadline = monotonic() + max_seconds
    search = Search(products, k, which, tol, capacity, storage)
    start = None if start is None or not bool(start.any()) else start
    confirmed = False  # whether a second chain has found no other copies
    try:
        is_random = start is None
        search.begin_chain(
            draw() if start is None else _warm_start(products, start, draw), random=is_random
        )
        first = search.evidence
        expected = None  # the values that a second chain, if any, should not change
        while True:
            search.rayleigh_ritz()
            if search.basis.is_complete or products.matvecs >= max_matvecs:
                break
            if search.basis.size >= k and products.is_late(deadline):
                break
            shown = search.shown_by(first)
            if not is_full:
                if not search.is_solved:
                    search.improve(draw)
                elif search.evidence is not first or first is None or search.ends_are(shown):
                    break
                else:
                    search.extend_chain(draw)
                continue
            is_shown = bool(shown.all())
            if expected is not None and search.chain_is_over(any_value=not is_shown):
                confirmed = search.agrees_with(expected)
                expected = None
            if expected is not None or (search.evidence is first and first and not is_shown):
                search.extend_chain(draw)
            elif not search.is_solved:
                search.improve(draw)
            elif confirmed or not search.boundaries(any_value=not is_shown):
                return search.pairs(shown=torch.ones(k, dtype=torch.bool, device="cpu"))
            else:
                expected = search.wanted_values
                search.begin_chain(draw())
    except StoppedError:
        if search.basis.size < k:
            raise
        products.should_stop = None  # the product that measures rounding is still made
        search.rayleigh_ritz()
        return search.pairs(shown=torch.zeros(k, dtype=torch.bool, device="cpu"))
    if search.basis.is_complete:
        return search.pairs(shown=torch.ones(k, dtype=torch.bool, device="cpu"))
    return search.pairs(shown=search.shown_by(first) & (confirmed | ~search.has_rivals()))


def _warm_start(
    products: Products, rows: torch.Tensor, draw: Callable[[], torch.Tensor]
) -> torch.Tensor:
    """Return the sum (1, P) of rows (b, P), each scaled to unit length, with a little noise."""
    rows = products.part(rows)
    tiny = torch.finfo(rows.dtype).tiny
    lengths = products.norms(rows).clamp(min=tiny).to(rows).unsqueeze(1)
    noise = draw()
    return (rows / lengths).sum(0, keepdim=True) + _NOISE / float(products.norms(noise)) * noise


class Search:
    """A basis that grows along Krylov chains, with the Ritz pairs that are wanted of it.

    Args:
        products: The operator.
        k: Pairs wanted.
        which: "LA", "SA", "LM" or "BE", as for `select`.
        tol: Relative accuracy, as for `tolerances`.
        capacity: Vectors the basis may hold; more than k unless it holds the whole space.
        storage: Where they are kept: "memory" or "disk".
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
        self.reachable = 20 * torch.finfo(products.dtype).eps
        self.tol = tol
        self.chain: int | None = None  # first vector of the current chain; None: no chain
        self.evidence: Evidence | None = None  # of the current chain, when its start was random

    def begin_chain(self, row: torch.Tensor, *, random: bool = True) -> None:
        """Start a chain at a new direction (1, P), with room to grow."""
        self.leave_chain()
        if self.basis.size and self.basis.capacity - self.basis.size < _ROOM:
            self._restart()
        chain = self.basis.size
        self.basis.add(row)
        self.chain = chain
        self.evidence = Evidence(self.basis.products.size) if random else None

    def leave_chain(self) -> None:
        """Keep what the chain has found, and go on without it."""
        self.chain, self.evidence = None, None

    def rayleigh_ritz(self) -> None:
        """Update the Ritz pairs and what the chain proves."""
        self.values, self.coefficients = self.basis.ritz()
        self.wanted = select(self.values, self.k, self.which)
        self.norm = float(self.values.abs().max())
        if self.chain is not None and self.evidence is not None:
            nodes, turned = self.values, self.coefficients
            if self.chain:
                nodes, turned = self.basis.ritz(self.chain)
            self.evidence.update(nodes, turned[-1], self.basis.coupling)

    @property
    def wanted_values(self) -> torch.Tensor:
        """Ritz values of the wanted pairs, ascending."""
        return self.values[self.wanted]

    @property
    def slack(self) -> torch.Tensor:
        """Residuals at which the wanted pairs are converged, as far as rounding allows."""
        tol = max(self.tol, self.reachable)
        return tolerances(self.wanted_values, self.norm, tol, self.reachable)

    @property
    def _outside(self) -> torch.Tensor:
        """W s (c, k), the residuals of the wanted pairs along the directions outside the basis."""
        return self.basis.weights @ self.coefficients[:, self.wanted]

    @property
    def residual_norms(self) -> torch.Tensor:
        """Residual norms of the wanted pairs."""
        return torch.linalg.vector_norm(self._outside, dim=0)

    @property
    def is_solved(self) -> bool:
        """Whether all k wanted pairs are there with residuals below the tolerance."""
        return len(self.wanted) == self.k and bool((self.residual_norms <= self.slack).all())

    def shown_by(self, evidence: Evidence | None) -> torch.Tensor:
        """Return for each wanted value whether nothing unseen, copies apart, lies further out."""
        if evidence is None:
            return torch.zeros(len(self.wanted), dtype=torch.bool, device="cpu")
        return evidence.shows(self.wanted_values, self.slack, self.which)

    def ends_are(self, shown: torch.Tensor) -> bool:
        """Whether the outermost wanted value, or both for "BE", is among those shown (k,)."""
        values = self.wanted_values
        if self.which == "LM":
            return bool(shown[values.abs().argmax()])
        ends = directions(values, self.which)
        return bool((shown[-1] | (ends[-1] < 0)) & (shown[0] | (ends[0] > 0)))

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
        if self.chain is not None:
            last = self.basis.coupling * self.coefficients[-1, self.wanted].abs()
            if len(self.wanted) < self.k or bool((last > self.slack).any()):
                self.extend_chain(draw)
                return
        self.reduce_residuals(draw)

    def extend_chain(self, draw: Callable[[], torch.Tensor]) -> None:
        """Add the next vector of the chain, or a new direction when the chain is exhausted."""
        if float(self.basis.coupling) == 0:
            self.begin_chain(draw())
            return
        direction = self.basis.weights[:, -1]
        if self.basis.capacity == self.basis.size:
            self._restart()
        self.basis.extend(direction)
        if self.evidence is not None:
            self.evidence.extend()

    def reduce_residuals(self, draw: Callable[[], torch.Tensor]) -> None:
        """Add the leading principal direction of the residuals that are too large."""
        large = self._outside[:, self.residual_norms > self.slack]
        self.leave_chain()
        if large.numel() == 0:
            self.begin_chain(draw())
            return
        if self.basis.capacity == self.basis.size:
            self._restart()
        self.basis.extend(torch.linalg.svd(large).U[:, 0])

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
            slope = self.basis.residual(coefficients[:, 0])
            length = max(float(self.basis.products.norms(slope)), self.basis.rounding)
            direction += slope * ((-1 if self.which == "SA" else 1) / length)
        return direction, nearest

    def pairs(self, shown: torch.Tensor) -> Pairs:
        """Return the wanted pairs with their residuals, and give up the basis.

        Args:
            shown: (k,), whether they have been shown to be those that were asked for.
        """
        basis, values, coefficients = self.basis, self.wanted_values, self.coefficients
        residuals, bounds = self.residual_norms, torch.where(shown, self.slack, inf)
        limits = tolerances(values, self.norm, self.tol, self.reachable)
        rows = basis.combine(coefficients[:, self.wanted])
        if is_near_rounding(basis.products, self.tol):
            signs = random_signs(self.k)
            residual = basis.residual(coefficients[:, self.wanted] @ signs)
            basis.release()  # a product in float64 needs the room
            floor = Audit(basis.products, signs, rows, values, residual).floor(self.norm)
        else:
            basis.release()
            floor = self.reachable * self.norm
        return Pairs(values, rows, residuals, bounds, residuals <= limits, floor)

    def _restart(self) -> None:
        """Keep the outer Ritz vectors, so that a third of the room beyond the wanted ones is used.

        A chain that began in a larger basis is shortened by itself, so that it stays a chain of the
        operator beside what was known before it.
        """
        known = self.chain or 0
        room = self.basis.capacity - known
        values, coefficients = self.basis.ritz(known)
        kept = room // 3 if known else self.k + (room - self.k) // 3
        if kept >= len(values) or self.basis.capacity == self.basis.products.size:
            return
        inner = torch.ones(len(values), dtype=torch.bool, device="cpu")
        inner[select(values, kept, self.which)] = False
        if self.evidence is not None:
            self.evidence.drop(values[inner])
        old = torch.eye(known, dtype=torch.float64, device="cpu")
        dropped = torch.nn.functional.pad(coefficients[:, inner], (0, 0, known, 0))
        self.basis.compress(torch.block_diag(old, coefficients[:, ~inner]), dropped)
