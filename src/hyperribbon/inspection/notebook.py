"""What the steps of an inspection share: the request and results that later steps build on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from hyperribbon.core.results import Spectrum
from hyperribbon.core.trajectory import Trajectory
from hyperribbon.inspection.clock import Clock
from hyperribbon.inspection.quantities import Measured, Part
from hyperribbon.inspection.update_rules import UpdateRule

__all__ = ["Notebook"]


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
        spectra: Eigenpairs by operator: "hessian", "gauss_newton", "noise".
        matrices: Eigenpairs with the trace: "gauss_newton".
        parts: Finished parts by name.
    """

    k: int
    seed: int
    initial: Mapping[str, torch.Tensor] | None = None
    trajectory: Trajectory | None = None
    rule: UpdateRule | None = None
    batch_size: int | None = None
    clock: Clock = field(default_factory=Clock)
    spectra: dict[str, Spectrum] = field(default_factory=dict)
    matrices: dict[str, Measured] = field(default_factory=dict)
    parts: dict[str, Part] = field(default_factory=dict)
