"""Thick-restart Lanczos: eigenpairs with residuals, and evidence that none was missed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from time import monotonic
from typing import Annotated as Bool
from typing import Annotated as Float
from typing import Any

import torch

from hyperribbon.spectra.krylov.basis import Basis
from hyperribbon.spectra.krylov.convergence import (
    End,
    Evidence,
    copies,
    directions,
    select,
    tolerances,
    wanted_ends,
)
from hyperribbon.spectra.products import Products, StoppedError
from hyperribbon.spectra.rounding import Audit, is_near_rounding, random_signs

_ROOM = 9  # vectors that should fit when a new chain begins
_MARGIN = 0.1  # of a tolerance, by which copies are excluded further inwards
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
    is_wide: bool = True,
) -> Pairs:
    """Return the k wanted eigenpairs of a symmetric operator by restarted Lanczos.

    The basis grows along the Krylov chain q, Aq, A²q, … of a random vector (thick-restart Lanczos
    with full reorthogonalisation) until all wanted residuals are below their `tolerances` and the
    chain has shown, see `Evidence`, that none lies beyond the outermost one.

    With `is_full` a second chain starts at a random vector orthogonal to the basis, and shows that
    nothing beside the basis is large enough for an eigenvalue to be missing, such as another copy
    of one that a chain sees only once (see `End`); or it finds it. Where many eigenvalues lie close
    to the wanted ones, the second chain looks for copies only, and the first one goes on until it
    has shown the rest by itself.

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
        is_wide: Whether rounding may be measured in float64, see `Audit`.

    Raises:
        StoppedError: `should_stop` returned True before there were k pairs.
    """
    deadline = monotonic() + max_seconds
    search = Search(products, k, which, tol, capacity, storage, is_wide=is_wide)
    start = None if start is None or not bool(start.any()) else start
    everything = torch.ones(k, dtype=torch.bool, device="cpu")
    first: Evidence | None = None
    is_complete = False  # whether it has been shown that nothing is missing
    try:
        is_random = start is None
        search.begin_chain(
            draw() if start is None else _warm_start(products, start, draw), random=is_random
        )
        first = search.evidence
        while True:
            search.rayleigh_ritz()
            if search.basis.is_complete or products.matvecs >= max_matvecs:
                break
            if search.basis.size >= k and products.is_late(deadline):
                break
            if search.ends:
                answer = search.nothing_is_missing()
                if answer is None:
                    search.extend_chain(draw)
                if not answer:
                    continue
                is_complete = True
            by_first_chain = not is_full or search.wants_ends_only
            is_first = first is not None and search.evidence is first
            if not search.is_solved:
                search.improve(draw)
            elif is_complete or (by_first_chain and search.ends_are_shown_by(first)):
                break
            elif is_first and (by_first_chain or search.first_chain_goes_on()):
                search.extend_chain(draw)
            elif is_first and search.first_chain_shows_all():
                is_complete = True
                break
            elif is_full:
                search.begin_second_chain(draw)
                is_complete = not search.ends
            else:
                break
    except StoppedError:
        if search.basis.size < k:
            raise
        products.should_stop = None  # the product that measures rounding is still made
        search.rayleigh_ritz()
        return search.pairs(shown=~everything)
    if is_complete or search.basis.is_complete:
        return search.pairs(shown=everything)
    return search.pairs(shown=search.shown_by(first))


def _warm_start(
    products: Products, rows: torch.Tensor, draw: Callable[[], torch.Tensor]
) -> torch.Tensor:
    """Return the start (1, P) of Lanczos from rows (b, P): their sum, each scaled, and noise."""
    rows = products.part(rows)
    tiny = torch.finfo(rows.dtype).tiny
    lengths = products.norms(rows).clamp(min=tiny)
    start = draw()
    start *= _NOISE / float(products.norms(start))
    for row, length in zip(rows, lengths.tolist(), strict=True):
        start[0].add_(row, alpha=1 / length)
    return start


class Search:
    """A basis that grows along Krylov chains, with the Ritz pairs that are wanted of it.

    Args:
        products: The operator.
        k: Pairs wanted.
        which: "LA", "SA", "LM" or "BE", as for `select`.
        tol: Relative accuracy, as for `tolerances`.
        capacity: Vectors the basis may hold; more than k unless it holds the whole space.
        storage: Where they are kept: "memory" or "disk".
        is_wide: Whether rounding may be measured in float64.
    """

    def __init__(
        self,
        products: Products,
        k: int,
        which: str,
        tol: float,
        capacity: int,
        storage: str = "memory",
        *,
        is_wide: bool = True,
    ) -> None:
        self._is_wide = is_wide
        self.basis = Basis(products, capacity, storage)
        self.k, self.which = k, which
        self.reachable = 20 * torch.finfo(products.dtype).eps
        self.tol = tol
        self.norm = 0.0
        self.chain: int | None = None  # first vector of the current chain; None: no chain
        self.evidence: Evidence | None = None  # of the current chain, when its start was random
        self.ends: list[End] = []  # what the current chain is to show beside the basis
        self._ritz_vectors = torch.zeros(0, 0, device="cpu")  # coefficients when the chain began
        self._first: tuple[Any, Evidence] | None = None  # the first chain, to go on with later
        self._levels = self._growths = -inf, -inf  # of both chains' evidence, last and now
        self._is_distinct = False  # whether only copies of wanted eigenvalues may be missing
        self._without_copies: dict[int, float] = {}  # from where on, see `copies`
        self._shown: set[int] = set()  # signs of the ends where nothing is missing
        self._is_patient = False  # whether the first chain goes on until it shows what it can
        self._strictness = 1.0  # part of the tolerances that residuals have to reach

    def begin_chain(self, row: torch.Tensor, *, random: bool = True) -> None:
        """Start a Lanczos chain at a new direction (1, P), with room to grow."""
        self.leave_chain()
        self._make_room()
        chain = self.basis.size
        self.basis.add(row)
        self.chain = chain
        self.evidence = Evidence(self.basis.products.size) if random else None

    def leave_chain(self) -> None:
        """Keep what the Lanczos chain has found, and go on without it."""
        self.chain, self.evidence, self.ends = None, None, []

    def rayleigh_ritz(self) -> None:
        """Update the Ritz pairs and what the Lanczos chain proves."""
        self.values, self.coefficients = self.basis.ritz()
        self.wanted = select(self.values, self.k, self.which)
        self.norm = max(self.norm, float(self.values.abs().max()))  # of all bases so far
        if self.chain is not None and self.evidence is not None:
            nodes, turned = self.values, self.coefficients
            if self.chain:
                nodes, turned = self._chain_ritz()
            coupling = torch.linalg.vector_norm(self._next_direction())
            self.evidence.update(nodes, turned[-1], coupling)
            if self.ends:
                point = torch.tensor([self.ends[0].sign * self.ends[0].limit], device="cpu")
                growth = float(self.evidence.growth(point.to(nodes)))
                self._growths = self._growths[1], growth
            elif not self.chain:
                level = self.evidence.level(self.wanted_values, self.slack, self.which)
                if level != self._levels[1]:  # there is a new product
                    self._levels = self._levels[1], level

    def _added(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows of R √w: what later directions add to Lanczos residuals of first pairs."""
        known = rows[:, : len(self._ritz_vectors)]
        return known @ self._ritz_vectors * self.ends[0].weights.sqrt()

    def _chain_ritz(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return Ritz values and coefficients of what a second Lanczos chain multiplies with."""
        assert self.chain is not None
        projected = self.basis.projected[self.chain :, self.chain :]
        if self.ends:
            added = self._added(self.basis.projected[self.chain :])
            projected = projected + self.ends[0].sign * added @ added.T
        return self.basis.products.eigh(projected)

    def _next_direction(self) -> torch.Tensor:
        """Return the part (c,) of the Lanczos chain's last image outside the basis."""
        direction = self.basis.weights[:, -1]
        if self.ends:
            last = self._added(self.basis.projected[-1:])[0]
            direction = direction + self.ends[0].sign * self._added(self.basis.weights) @ last
        return direction

    @property
    def wanted_values(self) -> torch.Tensor:
        """Ritz values of the pairs that Lanczos is to find, ascending."""
        return self.values[self.wanted]

    @property
    def slack(self) -> torch.Tensor:
        """Residuals at which Lanczos counts the wanted pairs as converged, given rounding."""
        tol = max(self.tol, self.reachable)
        return tolerances(self.wanted_values, self.norm, tol, self.reachable)

    @property
    def _outside(self) -> torch.Tensor:
        """W s (c, k), residuals of the wanted Lanczos pairs along the directions outside."""
        return self.basis.weights @ self.coefficients[:, self.wanted]

    @property
    def residual_norms(self) -> torch.Tensor:
        """Residual norms of the pairs wanted of Lanczos."""
        return torch.linalg.vector_norm(self._outside, dim=0)

    @property
    def is_solved(self) -> bool:
        """Whether Lanczos has all k wanted pairs, with residuals below the tolerance."""
        return len(self.wanted) == self.k and bool((self.residual_norms <= self._goal).all())

    @property
    def _goal(self) -> torch.Tensor:
        return self._strictness * self.slack

    @property
    def wants_ends_only(self) -> bool:
        """Whether Lanczos is to find outermost eigenvalues only, which a first chain shows."""
        return self.k <= (2 if self.which == "BE" else 1)

    def shown_by(self, evidence: Evidence | None) -> torch.Tensor:
        """Return which wanted values (k,) a Lanczos chain shows to be outermost."""
        values, slack = self.wanted_values, self.slack
        shown = torch.zeros(len(values), dtype=torch.bool, device="cpu")
        if evidence is None or not len(values):
            return shown
        if self.which == "LM":
            last = values.abs().argmax()
            reach = values[last].abs() + slack[last]
            shown[last] = evidence.excludes(torch.stack([reach, -reach])).all()
            return shown
        ends = directions(values, self.which)
        if ends[-1] > 0:
            shown[-1] = evidence.excludes(values[-1:] + slack[-1:])
        if ends[0] < 0:
            shown[0] = evidence.excludes(values[:1] - slack[:1])
        return shown

    def ends_are_shown_by(self, evidence: Evidence | None) -> bool:
        """Whether a Lanczos chain shows that nothing lies beyond the outermost wanted value."""
        count = 2 if self.which == "BE" and self.k > 1 else 1
        return int(self.shown_by(evidence).sum()) == count

    def first_chain_goes_on(self) -> bool:
        """Whether the first Lanczos chain goes on, rather than a second one to begin."""
        assert self.evidence is not None
        self._is_distinct = self._levels[1] >= self.evidence.needed
        values, slack = self.wanted_values, self.slack
        outer = directions(values, self.which) * values + slack
        places = copies(values, slack, self.which)
        is_dense = any(place <= float(outer.min()) for place in places.values())
        return not self._is_distinct and (self._is_patient or is_dense or self._has_no_copies)

    def first_chain_shows_all(self) -> bool:
        """Whether the first Lanczos chain, and an earlier second one, miss nothing."""
        return self._is_distinct and self._has_no_copies

    @property
    def _has_no_copies(self) -> bool:
        """Whether Lanczos misses no copies of wanted eigenvalues that would change another one."""
        known = self._without_copies
        places = copies(self.wanted_values, self.slack, self.which)
        return all(known.get(sign, inf) <= place for sign, place in places.items())

    def begin_second_chain(self, draw: Callable[[], torch.Tensor]) -> None:
        """Start a second Lanczos chain, to show whether something wanted is missing.

        Where the first chain shows that only copies may be, it looks for these.
        """
        first = self.evidence if self.chain == 0 else None
        if first is None:
            self.leave_chain()
        self._make_room()
        self.rayleigh_ritz()
        self._first = None if first is None or self._is_distinct else (self.basis.mark(), first)
        values, slack = self.wanted_values, self.slack
        margin = _MARGIN * float(slack.min())  # values still change a little
        places = {sign: p - margin for sign, p in copies(values, slack, self.which).items()}
        residuals = self.basis.weights @ self.coefficients
        ends = wanted_ends(self.values, residuals, values, slack, self.which, places)
        if self._is_distinct:
            ends = [replace(end, limit=end.place) for end in ends if end.sign in places]
        vectors = self.coefficients
        self.begin_chain(draw())
        self.ends = [end for end in ends if end.sign not in self._shown]
        self._ritz_vectors, self._growths = vectors, (-inf, -inf)

    def nothing_is_missing(self) -> bool | None:
        """Return whether Lanczos has shown it of all ends; None where the chain goes on.

        With the push of one end, the chain multiplies beside the basis by no more than the two
        pushes above what it would with that of the other end. Once there are no copies, the first
        chain goes on in its place where that takes fewer products.
        """
        assert self.evidence is not None
        end, *others = self.ends
        top, step = self.evidence.top(end.sign), float(self.slack.min())
        is_within = top <= end.limit
        is_apart = top <= min(end.limit, end.place)
        if self._first is not None and (not is_apart or self._first_is_faster()):
            self._is_patient = not is_apart
            mark, first = self._first
            self.basis.rewind(mark)
            self.leave_chain()
            self.chain, self.evidence, self._first = 0, first, None
            return False
        if not self._shows(end.sign, end.limit if is_within else top + step):
            return None
        if is_within:
            also = [o.sign for o in others if self._shows(o.sign, o.limit - o.push - end.push)]
            self._shown |= {end.sign, *also}
        else:
            self._shown, self._is_distinct = set(), False
            self._strictness /= 2 if self.is_solved else 1
        self.evidence, self.ends = None, []  # the chain may go on to improve what it found
        return is_within and len(also) == len(others)

    def _first_is_faster(self) -> bool:
        """Whether the first Lanczos chain is sooner done with the rest, without copies missing."""
        assert self.evidence is not None
        end, *others = self.ends
        shown = [self._shows(end.sign, end.place)]
        shown += [self._shows(o.sign, o.place - o.push - end.push) for o in others]
        chains = self._levels, self._growths
        rests = [(self.evidence.needed - now) / max(now - last, 1e-3) for last, now in chains]
        if not all(shown) or rests[0] >= rests[1]:
            return False
        self._without_copies = {end.sign: end.place for end in self.ends}
        return True

    def _shows(self, sign: int, limit: float) -> bool:
        """Whether the Lanczos chain shows that no eigenvalue times the sign is above a limit."""
        assert self.evidence is not None
        point = torch.tensor([sign * limit], dtype=torch.float64, device="cpu")
        return self.evidence.top(sign) <= limit and bool(self.evidence.excludes(point))

    def improve(self, draw: Callable[[], torch.Tensor]) -> None:
        """Bring the wanted pairs closer: along the Lanczos chain, or what it leaves of them."""
        if self.chain is not None:
            last = self.basis.coupling * self.coefficients[-1, self.wanted].abs()
            if len(self.wanted) < self.k or bool((last > self._goal).any()):
                self.extend_chain(draw)
                return
        self.reduce_residuals(draw)

    def extend_chain(self, draw: Callable[[], torch.Tensor]) -> None:
        """Add the next vector of the Lanczos chain, or a new direction when it is exhausted."""
        direction = self._next_direction()
        if not bool(direction.any()):
            self.begin_chain(draw())
            return
        if self.basis.capacity == self.basis.size:
            self._restart()
        self.basis.extend(direction)
        if self.evidence is not None:
            self.evidence.extend()

    def reduce_residuals(self, draw: Callable[[], torch.Tensor]) -> None:
        """Add the principal direction of Lanczos residuals that are too large."""
        large = self._outside[:, self.residual_norms > self._goal]
        self.leave_chain()
        if large.numel() == 0:
            self.begin_chain(draw())
            return
        if self.basis.capacity == self.basis.size:
            self._restart()
        self.basis.extend(torch.linalg.svd(large).U[:, 0])

    def runner_up(self) -> tuple[torch.Tensor, float]:
        """Return a direction (1, P) of what Lanczos would want next, and how far its value is.

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
        """Return the pairs that Lanczos found with their residuals, and give up the basis.

        Args:
            shown: (k,), whether they have been shown to be those that were asked for.
        """
        basis, values, coefficients = self.basis, self.wanted_values, self.coefficients
        residuals, bounds = self.residual_norms, torch.where(shown, self.slack, inf)
        limits = tolerances(values, self.norm, self.tol, self.reachable)
        rows = basis.combine(coefficients[:, self.wanted])
        floor = self.reachable * self.norm
        if is_near_rounding(basis.products, self.tol):
            signs = random_signs(self.k)
            residual = basis.give_up(coefficients[:, self.wanted] @ signs)
            audit = Audit(basis.products, signs, rows, values, residual, is_wide=self._is_wide)
            del residual
            # Without float64, errors that all products repeat are allowed for.
            floor = max(audit.floor(self.norm), 0.0 if self._is_wide else floor)
        else:
            basis.release()
        return Pairs(values, rows, residuals, bounds, residuals <= limits, floor)

    def _make_room(self) -> None:
        """Restart Lanczos where a new chain would have little room."""
        if self.basis.size and self.basis.capacity - self.basis.size < _ROOM:
            self._restart()

    def _restart(self) -> None:
        """Restart Lanczos with the outer Ritz vectors, using a third of the room beyond the wanted.

        A chain that began in a larger basis is shortened by itself, so that it stays a chain of the
        operator beside what was known before it.
        """
        known = self.chain or 0
        room = self.basis.capacity - known
        values, coefficients = self._chain_ritz() if known else self.basis.ritz()
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
