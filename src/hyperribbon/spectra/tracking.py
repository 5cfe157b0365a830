"""Spectra along a sequence of weights, each started from the one before."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.results import Spectrum
from hyperribbon.spectra.eigensolvers import eigsh

__all__ = ["track"]


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
    Every spectrum still has its true residuals, and new directions are looked for at every step.

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
    last: Spectrum | None = None
    for position, op in enumerate(sequence):
        last = eigsh(op, k, which, tol, "lanczos", seed=seed + position, v0=last)
        spectra.append(last if eigenvectors else replace(last, eigenvectors=None))
    return spectra
