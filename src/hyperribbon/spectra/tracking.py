"""Spectra along a sequence of weights, each started from the one before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch

from hyperribbon.core.checks import ArgumentError, check_positive_int
from hyperribbon.core.generators import torch_generator
from hyperribbon.core.results import Spectrum
from hyperribbon.spectra.eigensolvers import as_spectrum, eigsh, products_limit
from hyperribbon.spectra.lanczos import Search, blend
from hyperribbon.spectra.planning import agreed_capacity
from hyperribbon.spectra.products import Products

__all__ = ["Tracker", "track"]

_GUARD = 0.01  # part of the next wanted vector in each start, relative to one eigenvector
_NOISE = 0.01  # random part of each start, relative to one eigenvector


class Tracker:
    """The leading eigenpairs of an operator that changes, each time started from the last ones.

    Each call follows the Krylov chain of the sum of the last eigenvectors, of the one that would be
    wanted next, and of a little noise, in which an eigenvalue that grows into the wanted ones shows
    within a few steps. Every spectrum has its true residuals. With `make`, it is a measurement for
    a Recorder, which stores its state with every record:

        curvature = hr.Tracker(5, lambda model: hr.Hessian(model, loss, data))
        hr.Recorder("run", measure=[hr.training.Measurement("curvature", curvature)])

    Args:
        k: Pairs wanted.
        make: Makes the operator from what the tracker is called with; None: it is the operator.
        which: As for `eigsh`.
        tol: As for `eigsh`.
        seed: As for `eigsh`.

    >>> import torch
    >>> tracker = Tracker(1)
    >>> [round(float(tracker(s * torch.diag(torch.arange(5.0))).eigenvalues), 4) for s in (1, 2)]
    [4.0, 8.0]
    """

    def __init__(
        self,
        k: int,
        make: Callable[[Any], Any] | None = None,
        *,
        which: str = "LA",
        tol: float = 1e-4,
        seed: int = 0,
    ) -> None:
        self.k, self.make = check_positive_int("k", k), make
        self.which, self.tol, self.seed = which, tol, seed
        self.reset()

    def reset(self) -> None:
        """Forget what was seen: the next call starts cold."""
        self.calls = 0
        self._vectors: torch.Tensor | None = None  # (P, k), the last eigenvectors
        self._guard: torch.Tensor | None = None  # (1, P) or (0, P), what would be wanted next

    def __call__(self, item: Any) -> Spectrum:
        """Return the k eigenpairs of the next operator.

        Args:
            item: The operator, or what `make` makes it from.

        Raises:
            ArgumentError: It is not of the size of the one before it.
        """
        op = item if self.make is None else self.make(item)
        guard = None
        if self._vectors is None:
            spectrum = eigsh(op, self.k, self.which, self.tol, "lanczos", seed=self.seed)
        else:
            spectrum, guard = self._follow(Products(op), self._vectors)
        self.calls += 1
        self._vectors, self._guard = spectrum.eigenvectors, guard
        return spectrum

    def state_dict(self) -> dict[str, Any]:
        """Return what the next call starts from."""
        return {"calls": self.calls, "vectors": self._vectors, "guard": self._guard}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.calls, self._vectors, self._guard = state["calls"], state["vectors"], state["guard"]

    def _follow(self, products: Products, vectors: torch.Tensor) -> tuple[Spectrum, torch.Tensor]:
        """Return the next operator's spectrum and the Ritz vector that would be wanted next."""
        if len(vectors) != products.size:
            raise ArgumentError(
                "operators",
                products.op,
                f"it is of size {products.size}, and the one before it of size {len(vectors)}",
                "Track one parameter space.",
            )
        generator = torch_generator(self.seed, "track", self.calls)

        def draw() -> torch.Tensor:
            row = torch.randn(1, products.size, generator=generator, dtype=products.dtype)
            return products.part(row / torch.linalg.vector_norm(row)).to(products.device)

        start = blend(vectors.T.to(products.device, products.dtype))
        if self._guard is not None:
            start = start + _GUARD * self._guard.to(products.device, products.dtype).sum(0)
        start = products.part(start) + _NOISE * draw()
        capacity = agreed_capacity(products, self.k)
        search = Search(products, self.k, self.which, self.tol, capacity)
        search.begin_chain(start)
        search.rayleigh_ritz()
        while not (search.basis.is_complete or search.is_solved()):
            if products.matvecs >= products_limit(self.k):
                break
            search.improve(draw)
            search.rayleigh_ritz()
        guard = products.whole(search.next_best())
        return as_spectrum(products, search.pairs(), self.tol, True), guard


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

    The operators are made and used one at a time, so a generator keeps only one of them alive; see
    `Tracker` for the method.

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
    items, make = (weights, operators) if callable(operators) else (operators, None)
    tracker = Tracker(k, make, which=which, tol=tol, seed=seed)
    spectra = map(tracker, items or ())
    return [s if eigenvectors else replace(s, eigenvectors=None) for s in spectra]
