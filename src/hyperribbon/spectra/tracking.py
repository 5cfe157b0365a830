"""Spectra along a sequence of weights, each started from the one before."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.generators import torch_generator
from hyperribbon.core.results import Spectrum
from hyperribbon.spectra.eigensolvers import as_spectrum, eigsh, products_limit
from hyperribbon.spectra.lanczos import Search
from hyperribbon.spectra.planning import free_memory, lanczos_capacity
from hyperribbon.spectra.products import Products

__all__ = ["track"]

_FADED = 1e-6  # image of the scout, relative to ‖A‖, below which it starts again at random


def track(
    operators: Iterable[Any] | Callable[[Any], Any],
    k: int,
    *,
    weights: Iterable[Any] | None = None,
    which: str = "LA",
    tol: float = 1e-4,
    seed: int = 0,
    eigenvectors: bool = True,
) -> list[Spectrum]:
    """Return k eigenpairs of each of a sequence of operators, each warm-started from the last.

    The operators are made and used one at a time, so a generator keeps only one of them alive.
    Each step multiplies the last eigenvectors, and one scout: a vector outside their span that
    follows the power iteration s ← A s from one operator to the next, starting at random, and so
    turns towards an eigenvalue that grows into the wanted ones. Then the basis grows along the
    residuals until they meet the tolerance. Every spectrum has its true residuals.

    Args:
        operators: Operators in order, or a function that makes one from an item of `weights`.
        k: Pairs wanted of each.
        weights: What to call the function with.
        which: As for `eigsh`.
        tol: As for `eigsh`.
        seed: As for `eigsh`.
        eigenvectors: Whether to keep the eigenvectors of every step.

    Raises:
        ArgumentError: A function without weights, or weights without a function.

    >>> import torch
    >>> spectra = track(lambda s: s * torch.diag(torch.arange(5.0)), 1, weights=[1.0, 2.0])
    >>> [round(float(spectrum.eigenvalues[0]), 4) for spectrum in spectra]
    [4.0, 8.0]
    """
    if callable(operators) != (weights is not None):
        raise ArgumentError(
            "weights",
            weights,
            "a function needs weights to be called with, and a sequence of operators none",
            "Give track(make_operator, k, weights=[...]) or track([operator, ...], k).",
        )
    if callable(operators):
        make = operators
        sequence = (make(item) for item in weights or ())
    else:
        sequence = iter(operators)
    spectra: list[Spectrum] = []
    generator = torch_generator(seed, "track")
    last: Spectrum | None = None
    scout: torch.Tensor | None = None
    for op in sequence:
        if last is None:
            last = eigsh(op, k, which, tol, "lanczos", seed=seed)
        else:
            last, scout = _follow(Products(op), last, scout, which, tol, generator)
        spectra.append(last if eigenvectors else replace(last, eigenvectors=None))
    return spectra


def _follow(
    products: Products,
    last: Spectrum,
    scout: torch.Tensor | None,
    which: str,
    tol: float,
    generator: torch.Generator,
) -> tuple[Spectrum, torch.Tensor | None]:
    """Return the spectrum of the next operator and the scout's image."""
    k = len(last)
    if last.eigenvectors is None or last.eigenvectors.shape[0] != products.size:
        raise ArgumentError(
            "operators",
            products.op,
            "it is not of the size of the operator before it",
            "Track one parameter space.",
        )

    def draw() -> torch.Tensor:
        row = torch.randn(1, products.size, generator=generator, dtype=products.dtype)
        return row.to(products.device)

    capacity = lanczos_capacity(products, k, free_memory(products.device))
    search = Search(products, k, which, tol, capacity)
    known = last.eigenvectors.T.to(products.device, products.dtype)
    search.begin(torch.cat([known, draw() if scout is None else scout]))
    image = search.basis.images[k].clone() if search.basis.size > k else None
    limit = products_limit(k)
    while True:
        search.rayleigh_ritz()
        if search.basis.is_complete or search.is_solved() or products.matvecs >= limit:
            break
        search.reduce_residuals(draw)
    outside = None
    if image is not None and not search.basis.is_complete:
        vectors = search.basis.combine(search.coefficients[:, search.wanted])
        rest = image - (vectors @ image) @ vectors
        moved = float(torch.linalg.vector_norm(rest)) > _FADED * search.norm
        outside = rest.unsqueeze(0) if moved else None
    return as_spectrum(products, search.pairs(), tol, True), outside
