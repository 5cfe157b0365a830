"""What the steps of an inspection share: the request and results that later steps build on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from hyperribbon.core.results import Density, Estimate, Spectrum
from hyperribbon.inspection.engine.clock import Clock
from hyperribbon.inspection.engine.quantities import Measured, Part, Quantity
from hyperribbon.inspection.update_rules import UpdateRule
from hyperribbon.recording.trajectory import Trajectory
from hyperribbon.spectra import density, eigsh, trace

__all__ = ["Notebook"]

_USED = 20  # eigenvectors that some step looks at
_BESIDE = 16  # vectors that a solver has besides three a pair
_SOLVERS = 0.5  # part of the memory for one solver at a time, with the graphs of its products
_COUNTED = 0.8  # the same where every vector is counted
_KEPT = 1 / 16  # part of it for the eigenvectors of one matrix that later steps use


@dataclass
class Notebook:
    """The request, and what has been found so far.

    Attributes:
        k: Leading eigenpairs wanted.
        seed: Seed of everything random.
        initial: State dict that training started from, if known.
        trajectory: Record of the training, if known.
        rule: How the optimiser turns gradients into steps, if known.
        batch_size: Samples in a minibatch, if known.
        clock: The time that is left.
        memory: Bytes to stay below.
        spectra: Eigenpairs by operator: "hessian", "gauss_newton", "noise".
        matrices: Eigenpairs with the trace: "gauss_newton".
        layer_traces: Gauss-Newton trace by layer.
        sharpness: The largest eigenvalue of the Hessian, with its sampling error.
        parts: Finished parts by name.
    """

    k: int
    seed: int
    initial: Mapping[str, torch.Tensor] | None = None
    trajectory: Trajectory | None = None
    rule: UpdateRule | None = None
    batch_size: int | None = None
    clock: Clock = field(default_factory=Clock)
    memory: float = 2**30
    spectra: dict[str, Spectrum] = field(default_factory=dict)
    matrices: dict[str, Measured] = field(default_factory=dict)
    layer_traces: dict[str, float] = field(default_factory=dict)
    sharpness: Quantity | None = None
    parts: dict[str, Part] = field(default_factory=dict)

    @property
    def solver_memory(self) -> float:
        """Bytes that a solver and the products it makes may take."""
        return _SOLVERS * self.memory

    @property
    def counted_memory(self) -> float:
        """Bytes that Lanczos may take for one pair, or a Gram matrix without eigenvectors."""
        return _COUNTED * self.memory

    def eigsh(self, op: Any, k: int, which: str = "LA", **options: Any) -> Spectrum:
        """Return eigenpairs, with the seed, the memory and the clock of the inspection."""
        return eigsh(op, k, which, **self._solving(options))

    def trace(self, op: Any, **options: Any) -> Estimate:
        """Return a trace with a relative standard error of 2%, in the same way."""
        return trace(op, precision=0.02, **self._solving(options))

    def density(self, op: Any, **options: Any) -> Density:
        """Return a density, in the same way."""
        return density(op, **self._solving(options))

    def _solving(self, options: dict[str, Any]) -> dict[str, Any]:
        own = {"seed": self.seed, "memory": self.solver_memory, "should_stop": self.clock.check}
        return own | options

    def keep(self, kind: str, spectrum: Spectrum) -> Spectrum:
        """Keep eigenpairs for later steps, with as many eigenvectors as they use and fit."""
        self.spectra[kind] = self.trimmed(spectrum)
        return self.spectra[kind]

    def trimmed(self, spectrum: Spectrum, length: int | None = None) -> Spectrum:
        """Return eigenpairs with as many eigenvectors of a length as some step uses and as fit."""
        vectors = spectrum.eigenvectors
        if vectors is None:
            return spectrum
        length = len(vectors) if length is None else length
        room = int(_KEPT * self.memory // (length * vectors.element_size()))
        most = max(2, min(_USED, room))
        if vectors.shape[1] <= most:
            return spectrum
        return replace(spectrum, eigenvectors=vectors[:, :most].clone())

    def most_pairs(self, operator: Any) -> int:
        """Return how many eigenpairs of an operator fit in memory, about 3 vectors each."""
        one = operator.shape[0] * operator.dtype.itemsize
        vectors = (self.solver_memory - operator.cost().bytes) / one
        most = max(1, min(int(self.memory / 8 // one), int((vectors - _BESIDE) // 3)))
        return operator.processes.choose(most)
