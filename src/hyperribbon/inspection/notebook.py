"""What the steps of an inspection share: the request and results that later steps build on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from hyperribbon.core.results import Spectrum
from hyperribbon.core.trajectory import Trajectory
from hyperribbon.inspection.clock import Clock
from hyperribbon.inspection.quantities import Measured, Part, Quantity
from hyperribbon.inspection.update_rules import UpdateRule

__all__ = ["Notebook"]

_USED = 20  # eigenvectors that some step looks at
_BESIDE = 16  # vectors that a solver has besides three a pair


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
        return 0.5 * self.memory

    def keep(self, kind: str, spectrum: Spectrum) -> Spectrum:
        """Keep eigenpairs for later steps, with as many eigenvectors as they use and fit.

        Args:
            kind: What they are of.
            spectrum: All that were found.
        """
        vectors = spectrum.eigenvectors
        if vectors is not None:
            room = int(self.memory / 16 // (len(vectors) * vectors.element_size()))
            kept = vectors[:, : max(2, min(_USED, room))].clone()
            spectrum = replace(spectrum, eigenvectors=kept)
        self.spectra[kind] = spectrum
        return spectrum

    def most_pairs(self, operator: Any) -> int:
        """Return how many eigenpairs of an operator a solver has room for, about 3 vectors each."""
        one = operator.shape[0] * operator.dtype.itemsize
        vectors = (self.solver_memory - operator.cost().bytes) / one
        most = max(1, min(int(self.memory / 8 // one), int((vectors - _BESIDE) // 3)))
        return operator.processes.choose(most)
