"""The rounds of an inspection: few samples first, then more while time is left."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite

import torch

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.devices.processes import ProcessGroupError
from hyperribbon.inspection.engine.clock import DeclinedError, OutOfTimeError, why_not
from hyperribbon.inspection.engine.findings import Outcome
from hyperribbon.inspection.engine.looks import RUNGS, TASKS, Look, Task, rungs, time_product
from hyperribbon.inspection.engine.notebook import Notebook
from hyperribbon.inspection.engine.quantities import Quantity
from hyperribbon.inspection.engine.subject import Subject
from hyperribbon.inspection.memory import give_back

__all__ = ["Rounds"]

_PATIENCE = 2.5
"""Factor by which a task may exceed the time expected of it before it is given up."""
_LONGER = 3.0
"""Factor by which a task may have taken longer than its products before that is not believed."""
_GENEROUS = 0.3
"""Share of the time left that every task may take, however little was expected of it."""
_WIDE = 64
"""Samples from which on spectra are looked at too."""


@dataclass
class Rounds:
    """Looks at a model on growing parts of its samples.

    Attributes:
        subject: The model on all of them.
        notebook: The request.
        looks: What was found, the fewest samples first.
        outcomes: What became of each task.
        refusal: Why the model cannot be differentiated; then nothing else is tried.
        absent: The next look, that did not fit: what it needs.
    """

    subject: Subject
    notebook: Notebook
    looks: list[Look] = field(default_factory=list)
    outcomes: dict[tuple[int, str], Outcome] = field(default_factory=dict)
    refusal: str = ""
    absent: Look | None = None

    def __post_init__(self) -> None:
        self._sizes = list(rungs(self.subject.total))
        self._seconds: dict[tuple[int, str], float] = {}
        self._declined: set[str] = set()

    @cached_property
    def plain_loss(self) -> float | None:
        """The loss of the first samples from one evaluation; None if it is not finite."""
        value = self.looks[0].subject.plain_loss()
        return value if isfinite(value) else None

    def first(self, seconds: float) -> None:
        """Look at the fewest samples: loss, sharpness, trace and layers.

        Raises:
            ArgumentError: The model, the loss and the data do not belong together.
        """
        with self.notebook.clock.at_most(seconds):
            until = time.monotonic() + seconds
            look = self._begin(self._sizes[0])
            for task in () if self.refusal else TASKS:
                if not (task.is_first or look.samples >= _WIDE or len(self._sizes) == 1):
                    continue
                if self._fits(look.samples, task, until):
                    self._try(look, task)
                else:
                    look.missing[task.name] = self.expected(look.samples, task)

    def go_on(self, until: float) -> None:
        """Do what has not been done, in the order of samples; nothing begins after `until`."""
        if self.refusal:
            return
        for size in self._sizes:
            look = next((entry for entry in self.looks if entry.samples >= size), None)
            if look is None:
                if not self._fits(size, TASKS[0], until):
                    self._miss(size)
                    return
                look = self._begin(size)
                self._try(look, TASKS[0])
                self._time_product(look, until)
            self.absent = None
            for task in self._waiting(look):
                if self._fits(look.samples, task, until):
                    self._try(look, task)
                else:
                    look.missing[task.name] = self.expected(look.samples, task)

    def make_room(self, look: Look) -> None:
        """Let one look alone keep graphs and vectors; others build theirs again when needed."""
        for other in self.looks:
            if other.subject is not look.subject:
                other.subject.release()
        give_back()

    def finest(self, key: str) -> Look | None:
        """Return the look at the most samples that has a statistic or a spectrum."""
        for look in reversed(self.looks):
            if key in look.statistics or key in look.spectra:
                return look
        return None

    def with_absent(self) -> list[Look]:
        """Return all looks, and the next one that did not fit."""
        return [*self.looks, *([] if self.absent is None else [self.absent])]

    def statistics(self) -> dict[str, Quantity]:
        """Return every number by its name and samples, "sharpness@64"."""
        return {
            f"{key}@{look.samples}": quantity
            for look in self.looks
            for key, quantity in look.statistics.items()
        }

    def expected(self, samples: int, task: Task) -> float:
        """Return the seconds that a task takes, from what it and products took on fewer samples."""
        known = [look for look in self.looks if look.product and look.samples <= samples]
        if not known:
            return 0.0
        basis = known[-1]
        product = basis.product * samples / basis.samples
        earlier = [n for n, name in self._seconds if name == task.name and n < samples]
        by_products = task.products(self.notebook) * product
        if not earlier:
            return by_products
        nearest = max(earlier)
        before = next((look.product for look in known if look.samples == nearest), 0.0)
        growth = product / before if before else samples / nearest
        scaled = self._seconds[nearest, task.name] * growth
        # What ran first in a process took longer for reasons of its own.
        return max(by_products, min(scaled, _LONGER * by_products))

    def _begin(self, size: int) -> Look:
        subject = self.subject
        if size != subject.total:
            subject = subject.with_samples(size, self.notebook.seed)
        if self.looks and self.looks[-1].subject.__dict__.get("risk") is not None:
            subject.know(self.looks[-1].subject)
        look = Look(subject, size)
        if not self.looks:
            look = self._open(look)
        if not self.refusal and subject.total is None:
            look.samples = subject.samples
        self.looks.append(look)
        return look

    def _open(self, look: Look) -> Look:
        """Build the risk of a look, or of one at all samples where these few cannot be measured.

        A loss may compare each sample with all others, or ignore all labels of some. A model in
        TorchScript has a loss and no derivatives; it is not refused.
        """
        model, total = self.subject.model, self.subject.total
        try:
            risk = look.subject.risk
        except ProcessGroupError:
            raise
        except Exception as error:
            is_scripted = any(isinstance(m, torch.jit.ScriptModule) for m in model.modules())
            if isinstance(error, OutOfTimeError) or is_scripted:
                self.refusal = str(error)
                failed = Outcome("Derivatives", "failed", 0.0, self.refusal)
                self.outcomes[look.samples, ""] = failed
                return look
            if total is not None and look.samples < total <= RUNGS[-1]:
                self._sizes = [total]
                return self._open(Look(self.subject, total))
            if not isinstance(error, ArgumentError):
                _check_call(look.subject)
            raise
        self._sizes = [size for size in self._sizes if size <= look.samples or risk.holds(size)]
        return look

    def _time_product(self, look: Look, until: float) -> None:
        """Time a product on more samples, where that is sure to leave most of the time."""
        known = [entry for entry in self.looks if entry.product]
        if not known:
            return
        taken = known[-1].product * look.samples / known[-1].samples
        room = (until - time.monotonic()) / 2
        if self.subject.processes.choose(2 * taken <= room):
            self.make_room(look)
            try:
                with self.notebook.clock.at_most(room):
                    time_product(look)
            except OutOfTimeError:
                return

    def _waiting(self, look: Look) -> list[Task]:
        is_last = look.samples >= self._sizes[-1]
        return [
            task
            for task in TASKS
            if (look.samples, task.name) not in self.outcomes
            and task.name not in self._declined
            and (task.is_first or look.samples >= _WIDE or is_last)
        ]

    def _fits(self, samples: int, task: Task, until: float) -> bool:
        left = until - time.monotonic()
        return bool(self.subject.processes.choose(self.expected(samples, task) <= left))

    def _miss(self, size: int) -> None:
        """Note what a look at more samples would need, without having it."""
        look = Look(self.subject, size)
        for task in self._waiting(look):
            look.missing[task.name] = self.expected(size, task)
        self.absent = look

    def _try(self, look: Look, task: Task) -> None:
        place, title = (look.samples, task.name), f"{task.title}, {look.samples:,} samples"
        began, expected = time.monotonic(), self.expected(look.samples, task)
        left = self.notebook.clock.left
        room = max(_PATIENCE * expected, _GENEROUS * left) if expected else task.share * left
        look.missing.pop(task.name, None)
        self.make_room(look)
        try:
            with self.notebook.clock.at_most(room):
                task.run(look, self.notebook)
        except OutOfTimeError as error:
            took = time.monotonic() - began
            look.missing[task.name] = max(_PATIENCE * took, expected)
            self.outcomes[place] = Outcome(title, "stopped", took, str(error))
        except ProcessGroupError:
            raise
        except Exception as error:  # whatever a user's model raises is a line of the result
            took, reason = time.monotonic() - began, why_not(error)
            status = "left out" if reason else "failed"
            if isinstance(error, DeclinedError):  # on any samples
                self._declined.add(task.name)
                title = task.title
            self.outcomes[place] = Outcome(title, status, took, reason or str(error) or repr(error))
        else:
            for other in self.looks:
                if other.samples < look.samples:
                    other.drop_vectors(look)
            took = time.monotonic() - began
            self._seconds[place] = self.subject.processes.largest(took)
            self.outcomes[place] = Outcome(title, "done", took)


def _check_call(subject: Subject) -> None:
    """Raise when it is the model or the loss by themselves that fail on the samples."""
    try:
        subject.plain_loss()
    except Exception as error:
        reason = f"calling it on the first samples fails ({type(error).__name__}: {error})"
        remedy = "Call the model and the loss on a batch of the data; forward= says how."
        raise ArgumentError("model", type(subject.model).__name__, reason, remedy) from error
