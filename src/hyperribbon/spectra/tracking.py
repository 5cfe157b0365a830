"""Spectra along a sequence of weights, each started from the one before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hyperribbon.core import checks
from hyperribbon.core.checks import ArgumentError, check_choice, validate
from hyperribbon.core.devices.modes import plain_arithmetic
from hyperribbon.core.generators import derive_seed, torch_generator
from hyperribbon.core.spectral_results import Spectrum
from hyperribbon.core.store import Kept, content_digest
from hyperribbon.spectra.eigensolvers import ENDS, as_spectrum, eigsh, products_limit
from hyperribbon.spectra.krylov.convergence import tolerances
from hyperribbon.spectra.krylov.lanczos import Search
from hyperribbon.spectra.planning import agreed_capacity
from hyperribbon.spectra.products import Products

_SCOUT = (1e-4, 1e-2)  # bounds of the tolerance as the part of what may be wanted next in a start
_NOISE = 0.3  # random part of a start, relative to that part
_STATE = ("calls", "_values", "_vectors", "_guard", "_room")  # of a Tracker between its calls
_LOOK = 10  # calls after which the next one starts cold
_SLOW = 1.4  # drift, in units of what is tolerated, below which the last vectors are nearly right


class Tracker:
    """The leading eigenpairs of an operator that changes, each time started from the last ones.

    Each call follows the Krylov chain of the sum of the last eigenvectors, of the one that would be
    wanted next, and of a little noise, in which an eigenvalue that grows into the wanted ones shows
    within a few steps. When the first product of the chain shows that the operator has moved by
    about the tolerance, the last eigenvectors themselves take the chain's place, k products in
    one block; a chain follows again at the latest when the moves add up to half the gap across
    which another eigenvalue would have to come. Every spectrum has its true residuals, and these
    decide which pairs are `converged`. That nothing has come from elsewhere and overtaken them is
    looked for, but shown, as `eigsh` does, only by the first and then every tenth call, which
    starts cold. With `make`, it is a measurement for a Recorder, which stores its state with every
    record:

        curvature = hr.Tracker(5, lambda model: hr.Hessian(model, loss, data))
        hr.Recorder("run", measure=[hr.recording.Measurement("curvature", curvature)])

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

    @validate(k=checks.count, make=checks.function, tol=checks.positive)
    def __init__(
        self,
        k: int,
        make: Callable[[Any], Any] | None = None,
        *,
        which: str = "LA",
        tol: float = 1e-4,
        seed: int = 0,
    ) -> None:
        self.k, self.make = k, make
        self.which, self.tol, self.seed = check_choice("which", which, ENDS), tol, seed
        self.reset()

    def reset(self) -> None:
        """Reset the tracker: the next call starts cold."""
        self.calls = 0
        self._values = torch.empty(0, device="cpu")  # (k,), the last eigenvalues
        self._vectors: torch.Tensor | None = None  # (P, k), their eigenvectors
        self._guard: torch.Tensor | None = None  # (1, P) or (0, P), what may be wanted next
        self._room = 0.0  # how far the operator may move before a chain must look around

    @property
    def is_cold(self) -> bool:
        """Whether the next call of the tracker starts cold."""
        return self._vectors is None or self.calls % _LOOK == 0

    def __call__(self, item: Any) -> Spectrum:
        """Return the k eigenpairs of the next operator that is tracked.

        Raises an ArgumentError when it is not of the size of the one before it.

        Args:
            item: The operator, or what `make` makes it from.
        """
        op = item if self.make is None else self.make(item)
        if self._vectors is None:
            spectrum = self._look(op)
        else:
            products = Products(op)
            self._check(products, self._vectors)
            spectrum = self._look(op) if self.is_cold else self._follow(products, self._vectors)
        self.calls += 1
        self._values, self._vectors = spectrum.eigenvalues, spectrum.eigenvectors
        return spectrum

    def state_dict(self) -> dict[str, Any]:
        """Return the tracker's state, from which the next call starts."""
        return {name: getattr(self, name) for name in _STATE}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the tracker's state."""
        for name in _STATE:
            setattr(self, name, state[name])

    def _look(self, op: Any) -> Spectrum:
        """Return a tracked operator's spectrum from a cold start."""
        self._guard, self._room = None, 0.0
        seed = derive_seed(self.seed, "look", self.calls) if self.calls else self.seed
        return eigsh(op, self.k, self.which, self.tol, "lanczos", certificate="full", seed=seed)

    def _check(self, products: Products, vectors: torch.Tensor) -> None:
        if len(vectors) != products.size:
            reason = f"it is of size {products.size}, and the one before it of size {len(vectors)}"
            raise ArgumentError("operators", products.op, reason, "Track one parameter space.")

    @plain_arithmetic()
    def _follow(self, products: Products, vectors: torch.Tensor) -> Spectrum:
        """Track: return the next operator's spectrum from the last one."""
        generator = torch_generator(self.seed, "track", self.calls)

        def draw() -> torch.Tensor:
            row = torch.randn(
                1, products.size, generator=generator, dtype=products.dtype, device="cpu"
            )
            return products.part(row / torch.linalg.vector_norm(row)).to(products.device)

        search = Search(products, self.k, self.which, self.tol, agreed_capacity(products, self.k))
        rows = products.part(vectors.T.to(products.device, products.dtype))
        scout = _NOISE * draw()
        if self._guard is not None:
            guard = self._guard.to(products.device, products.dtype)
            scout += products.part(guard).sum(0)
        twins = self._twins()
        for row in rows[twins]:
            search.basis.add(row.unsqueeze(0))
        rest, values = rows[~twins], self._values.to(rows)[~twins]
        start = rest.sum(0, keepdim=True) + min(max(self.tol, _SCOUT[0]), _SCOUT[1]) * scout
        search.begin_chain(start, random=False)
        drift = self._drift(search, rest, values, start)
        stays = drift <= min(self._room, _SLOW * self.tol * float(self._values.abs().max()))
        if stays:
            search.leave_chain()
            for row in rows:
                search.basis.add(row.unsqueeze(0))
        search.rayleigh_ritz()
        while not (search.basis.is_complete or search.is_solved):
            if products.matvecs >= products_limit(self.k):
                break
            search.improve(draw)
            search.rayleigh_ritz()
        self._look_ahead(search, drift if stays else None)
        shown = torch.zeros(self.k, dtype=torch.bool, device="cpu")
        return as_spectrum(products, search.pairs(shown), False, True)

    def _twins(self) -> torch.Tensor:
        """Return which (k,) tracked eigenvalues equal the one before: a chain sees one copy."""
        values = self._values
        near = tolerances(values, float(values.abs().max()), self.tol)
        first = torch.zeros(1, dtype=torch.bool, device=values.device)
        return torch.cat([first, values.diff().abs() <= near[1:]])

    def _drift(
        self, search: Search, rows: torch.Tensor, values: torch.Tensor, start: torch.Tensor
    ) -> float:
        """Return the part of the tracked start's image that the old eigenpairs do not explain."""
        scale = search.basis.products.norms(start).to(rows)
        image = search.basis.image(search.basis.size - 1)
        return float(search.basis.products.norms(image - values.unsqueeze(0) @ rows / scale))

    def _look_ahead(self, search: Search, drift: float | None) -> None:
        """Keep for the next call of the tracker what may be wanted, and the gap to it.

        Args:
            search: A search that is over.
            drift: How far the operator moved, or None when a chain has looked around.
        """
        guard, gap = search.runner_up()
        self._guard = search.basis.products.whole(guard)
        self._room = gap / 2 if drift is None else self._room - drift


@validate(folder=checks.optional(checks.path))
def track(
    operators: Iterable[Any] | Callable[[Any], Any],
    k: int,
    *,
    weights: Iterable[Any] | None = None,
    which: str = "LA",
    tol: float = 1e-4,
    seed: int = 0,
    eigenvectors: bool = True,
    folder: str | Path | None = None,
) -> list[Spectrum]:
    """Return k eigenpairs tracked along a sequence of operators, each warm-started from the last.

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
        folder: Where every spectrum is kept, with its eigenvectors: the same call continues there
            after it was killed. An operator is known by its product with a vector of ones.

    Raises:
        ArgumentError: A function without weights, or weights without a function.

    >>> import torch
    >>> spectra = track(lambda s: s * torch.diag(torch.arange(5.0)), 1, weights=[1.0, 2.0])
    >>> [round(float(spectrum.eigenvalues[0]), 4) for spectrum in spectra]
    [4.0, 8.0]
    """
    if callable(operators) != (weights is not None):
        reason = "a function needs weights to be called with, and a sequence of operators none"
        remedy = "Give track(make_operator, k, weights=[...]) or track([operator, ...], k)."
        raise ArgumentError("weights", weights, reason, remedy)
    make = operators if callable(operators) else None
    items = checks.iterable("weights", weights) if make else _each(operators)
    tracker = Tracker(k, make, which=which, tol=tol, seed=seed)
    if folder is not None:
        tracker = _KeptTracker(folder, tracker)
    spectra = map(tracker, items)
    return [s if eigenvectors else replace(s, eigenvectors=None) for s in spectra]


class _KeptTracker:
    """A tracker that keeps its spectra in a folder and goes on after the last one that is there."""

    def __init__(self, folder: str | Path, tracker: Tracker) -> None:
        self._tracker, self._make, tracker.make = tracker, tracker.make, None
        self._kept = Kept(folder, tracker.k, tracker.which, tracker.tol, tracker.seed)
        self._before = ""  # digest of all operators so far

    def __call__(self, item: Any) -> Spectrum:
        op = item if self._make is None else self._make(item)
        products = Products(op)
        image = products(torch.ones(products.size, dtype=products.dtype, device=products.device))
        self._before = content_digest(self._before, image)

        def follow() -> dict[str, Any]:
            return {"spectrum": vars(self._tracker(op)), "state": self._tracker.state_dict()}

        found = self._kept(self._before, follow)
        parts: list[dict[str, Any]] = [
            {
                name: torch.from_numpy(value).to(products.device)
                if isinstance(value, np.ndarray)
                else value
                for name, value in found[part].items()
            }
            for part in ("spectrum", "state")
        ]
        self._tracker.load_state_dict(parts[1])
        return Spectrum(**parts[0])


def _each(operators: Any) -> Iterator[Any]:
    for index, op in enumerate(checks.iterable("operators", operators)):
        yield checks.operator(f"operators[{index}]", op)
