"""Thick-restart Lanczos that certifies its pairs and looks for the ones it may have missed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, log, pi, sqrt
from time import monotonic

import torch

from hyperribbon.spectra.basis import Basis
from hyperribbon.spectra.products import Products

__all__ = ["Pairs", "Search", "blend", "lanczos", "select"]

_DOUBT = 0.01  # probability allowed for a missed eigenvalue to stay unseen
_SETTLED = 0.01  # relative residual at which the top of a confirming chain is known well enough
_NEAR = 0.02  # part of the spectrum's width within which a chain need not tell eigenvalues apart
_PRINCIPAL = 0.5  # residual directions weaker than this part of the strongest wait their turn


@dataclass(frozen=True)
class Pairs:
    """Ritz pairs: ascending values (k,), vectors as rows (k, P), true residual norms (k,).

    `norm` is the largest magnitude of a Ritz value, an estimate of ‖A‖ from below.
    """

    values: torch.Tensor
    rows: torch.Tensor
    residuals: torch.Tensor
    norm: float


def select(values: torch.Tensor, k: int, which: str) -> torch.Tensor:
    """Return the positions of the k wanted among ascending values, in ascending order.

    "LA" are the largest, "SA" the smallest, "LM" the largest in magnitude, "BE" half of them from
    each end (one more from the upper end when k is odd).
    """
    size = len(values)
    k = min(k, size)
    if which == "LA":
        return torch.arange(size - k, size)
    if which == "SA":
        return torch.arange(k)
    if which == "LM":
        return values.abs().argsort(descending=True, stable=True)[:k].sort().values
    low = k // 2
    return torch.cat([torch.arange(low), torch.arange(size - (k - low), size)])


def blend(rows: torch.Tensor) -> torch.Tensor:
    """Return the sum (1, P) of rows, each scaled to unit length."""
    lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return (rows / lengths.clamp(min=torch.finfo(rows.dtype).tiny)).sum(0, keepdim=True)


def lanczos(
    products: Products,
    k: int,
    which: str,
    tol: float,
    *,
    capacity: int,
    start: torch.Tensor | None,
    draw: Callable[[], torch.Tensor],
    max_matvecs: int,
    max_seconds: float = inf,
    storage: str = "memory",
) -> Pairs:
    """Return the k wanted eigenpairs of a symmetric operator.

    The basis grows along the Krylov chain q, Aq, A²q, … of a random vector (thick-restart Lanczos
    with full reorthogonalisation). A warm start begins a chain at the sum of the vectors given: k
    products then span what k old eigenvectors span, and every further one improves all of them at
    once. When all wanted residuals are below tol·‖A‖, a confirming chain starts at a random vector
    v orthogonal to everything known. A wanted eigenvalue that was missed would show there: another
    copy of one that is repeated (after a cold start), or any (after a warm one). After j products
    with couplings β_i and Ritz values θ_i, an eigenvector u of λ that is still unseen has
    |uᵀv| ≤ ∏ β_i/|λ − θ_i|, since its part uᵀv ∏ (λ − θ_i)/β_i in the next vector of the chain is
    at most one. The chain ends when a random v has so small a part with probability below 0.01.

    Args:
        products: The operator.
        k: Pairs wanted.
        which: "LA", "SA", "LM" or "BE", as for `select`.
        tol: Residuals to reach, relative to the spectral norm.
        capacity: Vectors the basis may hold; more than k unless it holds the whole space.
        start: Rows (b, P) to start from, or None.
        draw: Gives this rank's part of a random direction (1, P).
        max_matvecs: Products after which the best pairs so far are returned.
        max_seconds: Time after which they are, once there are k.
        storage: Where the basis is kept: "memory", "half" or "disk".
    """
    deadline = monotonic() + max_seconds
    search = Search(products, k, which, tol, capacity, storage)
    if start is None or not bool(start.any()):
        search.begin_chain(draw())
        spared = 1  # every eigenvalue shows in a random chain, once: the last one needs no copy
    else:
        search.begin_chain(products.part(blend(start)))
        spared = 0
    confirmed, expected = False, None  # the values the confirming chain, if any, should not change
    while True:
        search.rayleigh_ritz()
        if search.basis.is_complete or products.matvecs >= max_matvecs:
            break
        if search.basis.size > k and products.is_late(deadline):
            break
        if expected is not None and search.chain_is_over(spared):
            confirmed = search.agrees_with(expected)
            expected = None
        if expected is None and search.is_solved():
            if confirmed or not search.boundaries(spared):
                break
            expected = search.wanted_values
            search.begin_chain(draw())
        elif expected is not None:
            search.extend_chain(draw)
        else:
            search.improve(draw)
    return search.pairs()


class Search:
    """The state of one search: the basis, its Ritz pairs, and the Krylov chain that extends it."""

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
        reachable = 20 * torch.finfo(products.dtype).eps if self.basis.is_exact else self.basis.eps
        self.tol = max(tol, reachable)
        self.chain: int | None = None  # first vector of the current chain; None: no chain
        self.length = 0  # vectors of the chain after its first
        self.tail = torch.empty(0)  # the direction (1, P) of the next one, (0, P) for none,
        self.coupling = torch.empty(0)  # and the last one's image along it
        self._residuals: torch.Tensor | None = None

    def begin_chain(self, rows: torch.Tensor) -> None:
        """Start a chain at a new direction (1, P), with room to grow."""
        if self.basis.capacity - self.basis.size < self._needed / sqrt(2):
            self._restart()
        self.chain, self.length = self.basis.size, 0
        self.basis.expand(rows)

    def rayleigh_ritz(self) -> None:
        """Update the Ritz pairs and the chain's tail."""
        self.values, self.coefficients = self.basis.ritz()
        self.wanted = select(self.values, self.k, self.which)
        self.norm = float(self.values.abs().max())
        if self.chain is not None:
            self.tail, self.coupling = self.basis.remainder()
        self._residuals = None

    @property
    def wanted_values(self) -> torch.Tensor:
        """Ritz values of the wanted pairs, ascending."""
        return self.values[self.wanted]

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
        estimates = self._along_tail(self.coefficients[:, self.wanted])
        return float(estimates.max()) <= self.tol * self.norm

    def is_solved(self) -> bool:
        """Whether all k wanted pairs are there with true residuals below the tolerance."""
        return self.looks_solved and float(self.residual_norms.max()) <= self.tol * self.norm

    def agrees_with(self, expected: torch.Tensor) -> bool:
        """Whether the wanted values are still the expected ones, to the tolerance."""
        change = (self.wanted_values - expected).abs().max()
        return float(change) <= 2 * self.tol * self.norm

    def chain_is_over(self, spared: int) -> bool:
        """Whether the current chain has shown that nothing is beyond the wanted values.

        Or that something is; or it is so long that nothing clearly beyond them can be left.
        """
        if self.chain is None or sqrt(_NEAR) * (2 * self.length + 1) >= self._needed:
            return True
        values, coefficients = self.basis.ritz(self.chain)
        links = torch.cat([self.basis.links(self.chain), self.coupling.reshape(1)])
        shrinking = float(links.log().sum()) + log(sqrt(2 * self.basis.products.size / pi) / _DOUBT)
        for sign, boundary in self.boundaries(spared):
            position = -1 if sign > 0 else 0
            if sign * float(values[position]) >= boundary:
                error = float(self._along_tail(coefficients[:, position]))
                if error > max(_SETTLED * abs(float(values[position])), self.basis.rounding):
                    return False
            elif shrinking > float((boundary - sign * values).log().sum()):
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
        if self.basis.capacity - self.basis.size < len(self.tail):
            self._restart()
            self.chain = self.basis.size
        self.length += 1
        self.basis.expand(self.tail, orthonormal=True)

    def reduce_residuals(self, draw: Callable[[], torch.Tensor]) -> None:
        """Add the leading principal directions of the residuals that are too large."""
        large = self.residuals[
            (self.residual_norms > self.tol * self.norm).to(self.residuals.device)
        ]
        products = self.basis.products
        squares, mixing = products.eigh(products.summed((large @ large.T).double().cpu()))
        sizes = squares.clamp(min=0).sqrt()
        floor = (
            max(_PRINCIPAL * float(sizes.max()), 0.5 * self.tol * self.norm) if len(sizes) else 0
        )
        rows = mixing[:, sizes >= floor].T.to(large) @ large
        self.chain = None
        if self.basis.capacity - self.basis.size < len(rows):
            self._restart()
        if len(rows) == 0 or not self.basis.expand(rows):
            self.begin_chain(draw())

    def take_in(self, rows: torch.Tensor) -> None:
        """Add whole directions (b, P) to the basis, in place of a chain."""
        self.chain = None
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

    def pairs(self) -> Pairs:
        """Return the wanted pairs with their true residuals."""
        rows = self.basis.combine(self.coefficients[:, self.wanted])
        if self.basis.is_exact:
            return Pairs(self.wanted_values, rows, self.residual_norms, self.norm)
        return _with_true_residuals(self.basis.products, rows, self.norm)

    def _along_tail(self, coefficients: torch.Tensor) -> torch.Tensor:
        """Return the size of the residuals' parts along the chain's tail."""
        return self.coupling * coefficients[-1].abs()

    @property
    def _needed(self) -> float:
        """√ε (2j − 1) at which 1.648 √P exp(−√ε (2j − 1)) falls to `_DOUBT`.

        The bound of Kuczyński and Woźniakowski (SIAM J. Matrix Anal. Appl. 13, 1992) on missing an
        eigenvalue by the relative distance ε, before anything is known of the chain.
        """
        return log(1.648 * sqrt(self.basis.products.size) / _DOUBT)

    def boundaries(self, spared: int) -> list[tuple[int, float]]:
        """Return for each end that is wanted its sign and where it starts, times the sign.

        Args:
            spared: How many of the wanted values furthest inside each end are left out.
        """
        values = self.wanted_values
        if self.which == "LM":
            inner = values.abs().sort().values[spared:]
            return [(sign, float(inner[0])) for sign in (1, -1) if len(inner)]
        low = {"LA": 0, "SA": len(values)}.get(self.which, len(values) // 2)
        lower, upper = -values[: max(low - spared, 0)], values[low + spared :]
        ends = [(-1, float(lower[-1]))] if len(lower) else []
        return ends + ([(1, float(upper[0]))] if len(upper) else [])

    def _restart(self) -> None:
        """Keep the wanted Ritz vectors and the next ones, a third of the room beyond them."""
        kept = self.k + (self.basis.capacity - self.k) // 3
        if kept < self.basis.size and self.basis.capacity < self.basis.products.size:
            self.basis.compress(self.coefficients[:, select(self.values, kept, self.which)])


def _with_true_residuals(products: Products, rows: torch.Tensor, norm: float) -> Pairs:
    """Return pairs with Rayleigh quotients and true residuals, from one more product a row."""
    values, residuals = [], []
    for row in rows:
        row /= float(products.norms(row.unsqueeze(0)))
        image = products.images(row.unsqueeze(0))[0]
        values.append(float(products.summed(row @ image)))
        image.sub_(row, alpha=values[-1])
        residuals.append(float(products.norms(image.unsqueeze(0))))
    order = torch.tensor(values).argsort()
    ordered = rows if bool((order.diff() == 1).all()) else rows[order.to(rows.device)]
    pairs = torch.tensor([values, residuals], dtype=torch.float64)[:, order]
    return Pairs(pairs[0], ordered, pairs[1], norm)
