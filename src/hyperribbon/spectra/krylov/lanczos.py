"""Thick-restart Lanczos that certifies its pairs and looks for the ones it may have missed."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from time import monotonic

import torch

from hyperribbon.spectra.krylov.search import Pairs, Search
from hyperribbon.spectra.products import Products

__all__ = ["blend", "lanczos"]


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
    with full reorthogonalisation) until all wanted residuals are below their `tolerances` and the
    chain has shown, see `Evidence`, that no eigenvalue further out has gone unseen. A chain sees
    only one copy of an eigenvalue, so where another copy would count, a second chain starts at a
    random vector orthogonal to everything known, and shows that there is none, or finds it.

    A warm start begins a chain at the sum of the vectors given: k products then span what k old
    eigenvectors span, and every further one improves all of them at once. It proves nothing of
    eigenvalues it does not see, so the second chain then looks for any.

    Args:
        products: The operator.
        k: Pairs wanted.
        which: "LA", "SA", "LM" or "BE", as for `select`.
        tol: Relative accuracy, as for `tolerances`.
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
    else:
        search.begin_chain(products.part(blend(start)), random=False)
    first = search.evidence
    expected, confirmed = None, False  # the values that a second chain, if any, should not change
    while True:
        search.rayleigh_ritz()
        if search.basis.is_complete:
            return search.pairs(shown=torch.ones(k, dtype=torch.bool, device="cpu"))
        if products.matvecs >= max_matvecs:
            break
        if search.basis.size > k and products.is_late(deadline):
            break
        is_shown = bool(search.shown_by(first).all())
        if expected is not None and search.chain_is_over(any_value=not is_shown):
            confirmed = search.agrees_with(expected)
            expected = None
        if expected is not None or (search.evidence is first and first and not is_shown):
            search.extend_chain(draw)
        elif not search.is_solved():
            search.improve(draw)
        elif confirmed or not search.boundaries(any_value=not is_shown):
            return search.pairs(shown=torch.ones(k, dtype=torch.bool, device="cpu"))
        else:
            expected = search.wanted_values
            search.begin_chain(draw())
    return search.pairs(shown=search.shown_by(first) & (confirmed | ~search.has_rivals()))
