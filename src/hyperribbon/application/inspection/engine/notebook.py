"""What the measurements of an inspection share: the request, and the results so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from hyperribbon.application.inspection.engine.clock import Clock, OutOfTimeError
from hyperribbon.application.inspection.engine.subject import Subject
from hyperribbon.application.inspection.memory import give_back
from hyperribbon.application.inspection.quantities import Measured, Part, Quantity
from hyperribbon.core.spectral_results import Density, Estimate, Spectrum
from hyperribbon.prediction.update_rules import UpdateRule
from hyperribbon.recording.trajectory import Trajectory
from hyperribbon.spectra import density, eigsh, trace
from hyperribbon.spectra.products import StoppedError

_VECTORS_USED = 20  # eigenvectors that some measurement uses
_SOLVERS = 0.5  # share of the memory for one solver at a time, with the graphs of its products
_COUNTED = 0.8  # the same where every vector is counted
_KEPT = 1 / 16  # share of it for the eigenvectors of one matrix that later measurements use


@dataclass
class Level:
    """A level of the notebook: the model on some of its samples, and what is known there.

    Attributes:
        subject: The model on these samples.
        samples: How many.
        product: Seconds of a Hessian product on them; 0 before one was timed.
        threads: Threads of torch with which that is fastest; 0 before.
        curvature: Of the loss along its gradient; 0 before.
        images: Hessian products with random vectors, until the coordinates they reach are known.
        reached: The Hessian on the coordinates that these samples reach, see `Reached`.
        statistics: Numbers by name.
        spectra: Eigenpairs of the Hessian: "top" the first, "hessian" ten, "smallest" the last.
        gauss_newton: Eigenpairs and trace of the Gauss-Newton matrix.
        alignment: Overlap of the first ten directions of both, where both are known.
        layer_traces: Gauss-Newton trace by layer.
        layer_errors: Their standard errors where they are estimated; empty where they are exact.
    """

    subject: Subject
    samples: int = 0
    product: float = 0.0
    threads: int = 0
    curvature: float = 0.0
    images: list[torch.Tensor] = field(default_factory=list)
    reached: Any = None
    statistics: dict[str, Quantity] = field(default_factory=dict)
    spectra: dict[str, Spectrum] = field(default_factory=dict)
    gauss_newton: Measured | None = None
    alignment: float | None = None
    layer_traces: dict[str, float] = field(default_factory=dict)
    layer_errors: dict[str, float] = field(default_factory=dict)

    def add(self, quantity: Quantity) -> None:
        """Note a number at this level of the notebook, with its samples and mode."""
        where = {"samples": self.samples, "mode": self.subject.manner}
        self.statistics[quantity.key] = replace(quantity, **where)

    def number(self, *values: Any) -> None:
        """Note a `Quantity` of these values in the inspection's notebook, at this level."""
        self.add(Quantity(*values))

    def drop_vectors(self, finer: Level) -> None:
        """Free the memory of eigenvectors that a notebook's level of more samples has too."""
        for kind in self.spectra.keys() & finer.spectra.keys():
            self.spectra[kind] = replace(self.spectra[kind], eigenvectors=None)
        if self.gauss_newton is not None and finer.gauss_newton is not None:
            values = replace(self.gauss_newton.spectrum, eigenvectors=None)
            self.gauss_newton = replace(self.gauss_newton, spectrum=values)


@dataclass
class Notebook:
    """The notebook of an inspection: what was asked for, and what has been found so far.

    Attributes:
        k: Leading eigenpairs wanted.
        seed: Seed of everything random.
        initial: State dict that training started from, if known.
        tolerance: Drop of the accuracy that pruning may cost; of the loss, relative.
        trajectory: Record of the training, if known.
        rule: How the optimiser turns gradients into steps, if known.
        unknown_limit: Why the stability limit is not known; empty where it is.
        batch_size: Samples in a mini-batch, if known.
        clock: The time that is left.
        memory: Bytes to stay below.
        threads: Threads that torch may use.
        levels: The model on growing parts of its samples, the fewest first.
        parts: Finished parts by name.
        refusal: Why the model cannot be differentiated; then nothing else is tried.
        missing: Seconds that measurements need which did not fit, by name and samples: "ends@512".
    """

    k: int
    seed: int
    initial: Mapping[str, torch.Tensor] | None = None
    tolerance: float = 0.01
    trajectory: Trajectory | None = None
    rule: UpdateRule | None = None
    unknown_limit: str = ""
    batch_size: int | None = None
    clock: Clock = field(default_factory=Clock)
    memory: float = 2**30
    threads: int = field(default_factory=torch.get_num_threads)
    levels: list[Level] = field(default_factory=list)
    parts: dict[str, Part] = field(default_factory=dict)
    refusal: str = ""
    missing: dict[str, float] = field(default_factory=dict)

    def finest(self, key: str) -> Level | None:
        """Return the notebook's level of the most samples that has a statistic or a spectrum."""
        for level in reversed(self.levels):
            if key in level.statistics or key in level.spectra or getattr(level, key, None):
                return level
        return None

    def statistics(self) -> dict[str, Quantity]:
        """Return every statistic of the notebook by name and samples, "sharpness@64"."""
        return {
            f"{key}@{level.samples}": quantity
            for level in self.levels
            for key, quantity in level.statistics.items()
        }

    @property
    def hessian(self) -> Spectrum | None:
        """Leading Hessian eigenpairs in the notebook: ten where they are known, else one."""
        for kind in ("hessian", "top"):
            level = self.finest(kind)
            if level is not None:
                return level.spectra[kind]
        return None

    @property
    def gauss_newton(self) -> Measured | None:
        """Leading Gauss-Newton eigenpairs and trace in the notebook."""
        level = self.finest("gauss_newton")
        return None if level is None else level.gauss_newton

    @property
    def layer_traces(self) -> dict[str, float]:
        """The notebook's Gauss-Newton trace by layer."""
        level = self.finest("layer_traces")
        return {} if level is None else level.layer_traces

    def make_room(self, level: Level) -> None:
        """Let one level of the notebook keep graphs and vectors; others build theirs again."""
        for other in self.levels:
            if other.subject is not level.subject:
                other.subject.release()
        give_back()

    @property
    def solver_memory(self) -> float:
        """Bytes that a solver may take beside what the inspection's notebook keeps."""
        return _SOLVERS * self.memory

    @property
    def counted_memory(self) -> float:
        """Bytes the notebook allows Lanczos for one pair, or a Gram matrix without eigenvectors."""
        return _COUNTED * self.memory

    def eigsh(
        self, op: Any, k: int, which: str = "LA", *, partial: bool = False, **options: Any
    ) -> Spectrum:
        """Return eigenpairs for the notebook, with the seed, memory and clock of the inspection.

        Args:
            op: The matrix.
            k: How many.
            which: At which end.
            partial: Whether pairs that have not converged are returned when the time is up.
            **options: As for `hr.eigsh`.
        """
        return self._solve(eigsh, op, k, which, partial=partial, **options)

    def trace(self, op: Any, **options: Any) -> Estimate:
        """Return a trace to 2% for the notebook, with the inspection's seed, memory and clock."""
        return self._solve(trace, op, precision=0.02, **options)

    def density(self, op: Any, **options: Any) -> Density:
        """Return the notebook's spectral density, with fewer probes when time is up."""
        return self._solve(density, op, partial=True, **options)

    def _solve(self, solver: Any, *arguments: Any, partial: bool = False, **options: Any) -> Any:
        own = {"seed": self.seed, "memory": self.solver_memory, "should_stop": self.clock.is_late}
        try:
            found = solver(*arguments, **(own | options))
        except StoppedError as error:
            raise OutOfTimeError("time budget exceeded") from error
        is_whole = partial or (isinstance(found, Spectrum) and bool(found.converged.all()))
        if not is_whole and self.clock.processes.largest(float(self.clock.is_late())):
            raise OutOfTimeError("time budget exceeded")
        return found

    def trim(self, spectrum: Spectrum, length: int | None = None) -> Spectrum:
        """Return eigenpairs with as many eigenvectors as the notebook uses and as fit."""
        vectors = spectrum.eigenvectors
        if vectors is None:
            return spectrum
        length = len(vectors) if length is None else length
        room = int(_KEPT * self.memory // (length * vectors.element_size()))
        most = max(2, min(_VECTORS_USED, room))
        if vectors.shape[1] <= most:
            return spectrum
        return replace(spectrum, eigenvectors=vectors[:, :most].clone())

    def most_pairs(self, operator: Any) -> int:
        """Return how many eigenpairs the notebook can keep in memory, about 3 vectors each."""
        one = operator.shape[0] * operator.dtype.itemsize
        vectors = (self.solver_memory - operator.cost().bytes) / one
        most = max(1, min(int(self.memory / 8 // one), int(vectors // 3) - 5))
        return operator.processes.choose(most)
