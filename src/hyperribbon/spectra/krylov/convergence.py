"""When an eigenpair is converged: its residual is small, and it is where it was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log, pi, sqrt
from typing import Annotated as Float

import torch

DOUBT = 0.001
"""Probability allowed for an eigenvalue that was asked for to stay unseen."""

_SMALL = 0.1  # part of ‖A‖ below which eigenvalues are no longer wanted relative to themselves
_SEEN = 0.5  # of a tolerance: eigenvalues that close to a wanted one are not told from it
_INSIDE = 0.999  # points on an edge are outside
_POINTS = 8  # between a wanted value and the end of its tolerance, where eigenvalues are counted


def select(values: torch.Tensor, k: int, which: str) -> torch.Tensor:
    """Return the positions of the k wanted among ascending Ritz values, to judge convergence.

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


def tolerances(
    values: torch.Tensor, norm: float, tol: float, reachable: float = 0.0
) -> torch.Tensor:
    """Return the residuals (k,) that count as convergence of pairs with given values (k,).

        max(tol · max(|λ|, ‖A‖/10), min(tol, ε) · ‖A‖)

    Args:
        values: Eigenvalues λ.
        norm: ‖A‖.
        tol: Relative accuracy wanted.
        reachable: ε, residual relative to ‖A‖ that rounding allows.
    """
    scale = values.abs().clamp(min=_SMALL * norm)
    return (tol * scale).clamp(min=min(tol, reachable) * norm)


def directions(values: torch.Tensor, which: str) -> torch.Tensor:
    """Return the end, +1 or −1, from which each wanted value reaches convergence, ascending."""
    if which == "LM":
        return torch.where(values < 0, -1.0, 1.0).to(values)
    low = {"LA": 0, "SA": len(values)}.get(which, len(values) // 2)
    return torch.cat(
        [-torch.ones(low, device="cpu"), torch.ones(len(values) - low, device="cpu")]
    ).to(values)


def beyond(
    points: torch.Tensor, values: torch.Tensor, slack: torch.Tensor, which: str
) -> torch.Tensor:
    """Return (k, n), whether points (n,) lie beyond values at convergence (k,) by a slack."""
    if which == "LM":
        return points.abs().unsqueeze(0) >= (values.abs() + slack).unsqueeze(1)
    signs = directions(values, which)
    return signs.unsqueeze(1) * points.unsqueeze(0) >= (signs * values + slack).unsqueeze(1)


class Evidence:
    """What the Krylov chain of a random vector proves of eigenvalues that it missed.

    After j products with couplings β and Ritz values θ the next vector of the chain of v is
    q = p(A) v with p(x) = ∏ (x − θ_i)/β_i. It has unit length, so an eigenvector u of λ has

        |uᵀv| = |uᵀq| / |p(λ)| ≤ 1/|p(λ)|,

    and a random unit vector v has so small a part along a given u with a probability of at most
    √(2P/π)/|p(λ)|. Where that is below `DOUBT`, eigenvalues are excluded. Since log|p| is concave
    between Ritz values and monotone outside, an interval without Ritz values is excluded when its
    edges are. (van Dorsselaer, Hochstenbach and van der Vorst, SIAM J. Matrix Anal. Appl. 22, 2000,
    bound the largest eigenvalue so.)

    The Ritz vectors y_i, with residuals ρ_i q, share the unit length of u with q. Their parts are
    uᵀy_i = ρ_i uᵀq/(λ − θ_i), so outside all Ritz values, where it is monotone too, p² may be
    replaced by p² (1 + Σ ρ_i²/(λ − θ_i)²).

    A thick restart keeps some Ritz vectors and the next vector of the chain. The arrow-shaped
    projection that follows has det(x − T) in the place of the kept factors, so p goes on: it has
    the Ritz values that were dropped, the current ones, and all couplings.

    Args:
        size: P.
    """

    def __init__(self, size: int) -> None:
        self.needed = log(sqrt(2 * size / pi) / DOUBT)
        self._dropped: list[torch.Tensor] = []
        self._passed = 0.0  # sum of the logarithms of all couplings but the last
        self.nodes = torch.empty(0, dtype=torch.float64, device="cpu")
        self.coupling = torch.tensor(1.0, dtype=torch.float64, device="cpu")
        self._residuals = self.nodes

    def update(self, nodes: torch.Tensor, last: torch.Tensor, coupling: torch.Tensor) -> None:
        """Update the evidence of convergence from the state of the chain.

        Args:
            nodes: Its current Ritz values (m,).
            last: Parts (m,) of the Ritz vectors along its last vector.
            coupling: Length of what comes next.
        """
        self.nodes, self.coupling = nodes, coupling
        self._residuals = coupling * last

    def extend(self) -> None:
        """Extend the evidence of convergence: the chain goes on along what comes next."""
        self._passed += float(self.coupling.log())

    def drop(self, nodes: torch.Tensor) -> None:
        """Note in the convergence evidence that these values' Ritz vectors are given up."""
        self._dropped.append(nodes)

    def top(self, sign: int) -> float:
        """Return the convergence evidence's largest Ritz value times a sign, given up or not."""
        return float((sign * torch.cat([*self._dropped, self.nodes])).max())

    def excludes(self, points: torch.Tensor) -> torch.Tensor:
        """Return whether the evidence excludes eigenvalues at points (n,), with doubt for each."""
        if float(self.coupling) == 0:
            return torch.ones(len(points), dtype=torch.bool, device="cpu")
        return self.growth(points) >= self.needed

    def growth(self, points: torch.Tensor) -> torch.Tensor:
        """Return the logarithm (n,) of |p| at points, the evidence that nothing there is unseen."""
        nodes = torch.cat([*self._dropped, self.nodes])
        growth = (points.unsqueeze(1) - nodes.unsqueeze(0)).abs().log().sum(1)
        growth -= self._passed + float(self.coupling.log())
        shares = (self._residuals / (points.unsqueeze(1) - self.nodes)).square().sum(1)
        is_outside = (points < nodes.min()) | (points > nodes.max())
        return torch.where(is_outside, growth + shares.log1p() / 2, growth)

    def level(self, values: torch.Tensor, slack: torch.Tensor, which: str) -> float:
        """Return the growth at which convergence is shown: no unseen eigenvalue changes a value.

        From `needed` on nothing unseen lies beyond a wanted value by its slack. Eigenvalues within
        half the slack of a wanted one count as copies of it, see `copies`.
        """
        near = _SEEN * slack
        points = torch.cat([values + slack, values - slack, values + near, values - near])
        if which == "LM":
            outer = values.abs() + slack
            points = torch.cat([points, outer, -outer])
        gaps = (points.unsqueeze(1) - values.unsqueeze(0)).abs()
        matters = beyond(points, values, slack, which).any(0) & ~(gaps < _INSIDE * near).any(1)
        if float(self.coupling) == 0 or not bool(matters.any()):
            return inf
        return float(self.growth(points[matters]).min())


def copies(values: torch.Tensor, slack: torch.Tensor, which: str) -> dict[int, float]:
    """Return from where on copies would change values at convergence (k,), by an end's sign.

    A copy of the second value counts for the first one when it may lie further out by more than
    the slack: if it had not been seen, the first value would be another than was asked for.

    Returns:
        The least such place, times the sign; nothing for an end where no copy counts.
    """
    signs = directions(values, which)
    outwards = signs * _SEEN * slack
    matter = (beyond(values + outwards, values, slack, which) & (slack > 0)).any(0)
    starts = {sign: sign * (values - outwards)[matter & (signs == sign)] for sign in (1, -1)}
    return {sign: float(some.min()) for sign, some in starts.items() if len(some)}


@dataclass(frozen=True)
class End:
    """What is to be shown of an operator A beside a basis, so that nothing is missing at one end.

    With Ritz values θ of a basis V, the residuals U R of its Ritz vectors, with orthonormal U, and
    A's part B on what is orthogonal to V, A − x is congruent to

        (θ − x) ⊕ (B + U Γ(x) Uᵀ − x),    Γ(x) = R (x − θ)⁻¹ Rᵀ.

    So, by Sylvester's law of inertia, A has as many eigenvalues above x as there are Ritz values
    if B + U Γ(x) Uᵀ < x. A wanted value λ is right where that holds for some x between λ and
    λ + slack. It holds for all of them at once if

        B + U R diag(w) Rᵀ Uᵀ < limit,    w_j = max over the x of 1/(x − θ_j), at least 0,

    with the smallest x as the limit. Where only copies may be missing, the place from which on they
    count takes the part of it, see `copies`. At the lower end all signs are reversed.

    Attributes:
        sign: 1 for the upper end, −1 for the lower one.
        limit: The limit, of A times the sign.
        place: Where copies begin to count, times the sign; infinite where none do.
        weights: w, (m,).
        push: The largest eigenvalue of R diag(w) Rᵀ.
    """

    sign: int
    limit: float
    place: float
    weights: Float[torch.Tensor, "m"]
    push: float


def wanted_ends(
    ritz: torch.Tensor,
    residuals: torch.Tensor,
    values: torch.Tensor,
    slack: torch.Tensor,
    which: str,
    places: dict[int, float],
) -> list[End]:
    """Return at each end what the evidence of convergence has to show.

    Args:
        ritz: θ, (m,).
        residuals: R, (c, m).
        values: Wanted Ritz values (k,).
        slack: (k,), how far eigenvalues may be from them.
        which: Where they are wanted.
        places: From where on copies count, see `copies`.
    """
    signs, squares = directions(values, which), residuals.square().sum(0)
    parts = torch.arange(1, _POINTS + 1, dtype=values.dtype, device="cpu") / _POINTS
    ends: list[End] = []
    for sign in (1, -1):
        mine = torch.ones_like(signs, dtype=torch.bool) if which == "LM" else signs == sign
        if not bool(mine.any()):
            continue
        sizes = values[mine].abs() if which == "LM" else sign * values[mine]
        points = sizes.unsqueeze(1) + slack[mine].unsqueeze(1) * parts
        inverse = torch.where(squares > 0, 1 / (points.unsqueeze(2) - sign * ritz), 0.0)
        inverse = inverse.clamp(min=0)
        best = (points - (inverse * squares).sum(2)).argmax(1, keepdim=True)
        weights = inverse.take_along_dim(best.unsqueeze(2), 1).amax((0, 1))
        at_place = torch.where(squares > 0, 1 / (places.get(sign, inf) - sign * ritz), 0.0)
        weights = torch.maximum(weights, at_place)
        pushes = torch.linalg.svdvals(residuals * weights.sqrt())
        push = float(pushes[0]) ** 2 if len(pushes) else 0.0
        limit = float(points.take_along_dim(best, 1).min())
        ends.append(End(sign, limit, places.get(sign, inf), weights, push))
    return ends
