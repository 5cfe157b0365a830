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
from hyperribbon.spectra.lanczos import Search, blend
from hyperribbon.spectra.planning import free_memory, lanczos_capacity
from hyperribbon.spectra.products import Products

__all__ = ["track"]

_GUARD = 0.01  # part of the next wanted vector in each start, relative to one eigenvector
_NOISE = 0.01  # random part of each start, relative to one eigenvector


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
    Each step follows the Krylov chain of the sum of the last eigenvectors, of the one that would be
    wanted next, and of a little noise, in which an eigenvalue that grows into the wanted ones shows
    within a few steps. Every spectrum has its true residuals.

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
    guard: torch.Tensor | None = None
    for op in sequence:
        if last is None:
            last = eigsh(op, k, which, tol, "lanczos", seed=seed)
        else:
            last, guard = _follow(Products(op), last, guard, which, tol, generator)
        spectra.append(last if eigenvectors else replace(last, eigenvectors=None))
    return spectra


def _follow(
    products: Products,
    last: Spectrum,
    guard: torch.Tensor | None,
    which: str,
    tol: float,
    generator: torch.Generator,
) -> tuple[Spectrum, torch.Tensor]:
    """Return the spectrum of the next operator and the Ritz vector that would be wanted next."""
    if last.eigenvectors is None or last.eigenvectors.shape[0] != products.size:
        raise ArgumentError(
            "operators",
            products.op,
            "it is not of the size of the operator before it",
            "Track one parameter space.",
        )

    def draw() -> torch.Tensor:
        row = torch.randn(1, products.size, generator=generator, dtype=products.dtype)
        return (row / torch.linalg.vector_norm(row)).to(products.device)

    k = len(last)
    start = blend(last.eigenvectors.T.to(products.device, products.dtype)) + _NOISE * draw()
    if guard is not None:
        start = start + _GUARD * guard.sum(0)
    capacity = lanczos_capacity(products, k, free_memory(products.device))
    search = Search(products, k, which, tol, capacity)
    search.begin_chain(start)
    search.rayleigh_ritz()
    while not (search.basis.is_complete or search.is_solved()):
        if products.matvecs >= products_limit(k):
            break
        search.improve(draw)
        search.rayleigh_ritz()
    return as_spectrum(products, search.pairs(), tol, True), search.next_best()
