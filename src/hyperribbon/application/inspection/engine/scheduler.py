"""One queue of (measurement, samples): the most wanted that fits in the time left runs next."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil, log10

import torch
from rich.progress import Progress

from hyperribbon.application.inspection.engine.clock import (
    Budget,
    DeclinedError,
    OutOfTimeError,
    why_not,
)
from hyperribbon.application.inspection.engine.notebook import Level, Notebook
from hyperribbon.application.inspection.engine.subject import Subject
from hyperribbon.application.inspection.quantities import Part
from hyperribbon.application.inspection.result import (
    InspectionPlan,
    Outcome,
    PlannedStep,
)
from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.devices.processes import ProcessGroupError

SIZES = (8, 64, 512, 4096)
"""Samples of the levels; the last one has all of them."""
_COARSE = 512
"""Samples up to which the repeated measurements come before all others."""
_LARGEST_SHARE = 0.3
"""Largest share of the time left that a measurement may take. While others wait, it gets as many
samples as are expected to fit into that share."""
_PATIENCE = 2.5
"""Factor by which a measurement may exceed the time expected of it before it is interrupted."""
_SLOW_START = 3.0
"""Factor by which a measurement may have taken longer than its products before that is put down to
its being the first of its kind in the process."""
_USABLE = 0.95
"""Share of the budget after which nothing begins."""


@dataclass(frozen=True)
class Measurement:
    """A kind of measurement that the scheduler runs: its title, priority, cost and function.

    Attributes:
        name: Its name.
        title: What it measures.
        order: Position in the queue: from low to high.
        run: Function of a level and the notebook; it returns a part of the inspection, or None
            where it adds numbers to the level.
        products: Hessian-vector products that it costs, about, given a level and the notebook.
        size: Samples of these products, where they are not those of its level.
        fewest: Samples below which it is not informative; where there are as many, it has them or
            is skipped.
        refine: None for a measurement that runs once. Another is repeated on more and more samples:
            up to 512 of them before all that run once, on more at this position among those.
        share: Share of the time left that it may take while nothing has been timed.
        obstacle: Returns why it cannot be done, or "".
    """

    name: str
    title: str
    order: float
    run: Callable[[Level, Notebook], Part | None]
    products: Callable[[Level, Notebook], float]
    size: int = 0
    fewest: int = 1
    refine: float | None = None
    share: float = _LARGEST_SHARE
    obstacle: Callable[[Level, Notebook], str] = lambda level, notebook: ""


class Timings:
    """Predicts how long an inspection's measurement takes, from timings on this machine.

    Its own time on fewer samples is scaled by the time of a product on both; before it has run,
    its products are counted. What took longer than predicted makes all predictions longer, so that
    other processes on the machine are taken as they come and go.
    """

    def __init__(self, levels: Sequence[Level]) -> None:
        self._levels = levels
        self._seconds: dict[tuple[str, int], float] = {}  # divided by the load they met
        self._load = 1.0  # slower by that factor than when the last product was timed
        self._timed = 0

    def expect(self, name: str, products: float, samples: int) -> float:
        """Return the seconds for which a measurement is scheduled; 0 when nothing is known."""
        each = self._product(samples)
        if not each:
            return 0.0
        expected = products * each
        earlier = max((n for key, n in self._seconds if key == name and n <= samples), default=0)
        if earlier:
            growth = each / self._product(earlier) if self._product(earlier) else samples / earlier
            own = self._seconds[name, earlier] * growth
            expected = min(own, _SLOW_START * expected)
        return self._load * expected

    def record(self, name: str, samples: int, expected: float, seconds: float) -> None:
        """Note for the scheduler how long a measurement took beside what was expected."""
        timed = sum(level.product > 0 for level in self._levels)
        if timed > self._timed:
            self._timed, self._load = timed, 1.0
        elif expected > 0:
            ratio = min(max(seconds / expected, 1 / _PATIENCE), _PATIENCE)
            self._load = max(self._load * ratio**0.5, 1 / _PATIENCE)
        self._seconds[name, samples] = seconds / self._load

    def _product(self, samples: int) -> float:
        """Return for the scheduler a Hessian-vector product's seconds, by the nearest level."""
        known = [level for level in self._levels if level.product]
        if not known:
            return 0.0
        nearest = min(known, key=lambda level: abs(log10(level.samples / samples)))
        return nearest.product * samples / nearest.samples


@dataclass(frozen=True)
class _Item:
    """A measurement in the scheduler's queue, with its samples."""

    measurement: Measurement
    samples: int
    priority: tuple[float, ...]

    @property
    def is_repeated(self) -> bool:
        return self.measurement.refine is not None


class Scheduler:
    """Schedules measurements in the order of their priority, while there is time.

    Args:
        subject: The model on all its samples.
        notebook: The request, to which results are added.
        measurements: All that may run.
        budget: The time.

    Attributes:
        outcomes: What became of each measurement.
    """

    def __init__(
        self,
        subject: Subject,
        notebook: Notebook,
        measurements: Sequence[Measurement],
        budget: Budget,
    ) -> None:
        self.subject, self.notebook, self._budget = subject, notebook, budget
        self.outcomes: dict[tuple[str, int], Outcome] = {}
        self._timings = Timings(notebook.levels)
        self._obstacles: dict[str, str] = {}
        self._measurements = sorted(measurements, key=lambda entry: entry.order)
        self._queue: list[_Item] = []

    @property
    def left(self) -> float:
        """Seconds in which the scheduler may begin something."""
        return self.notebook.clock.left - (1 - _USABLE) * self._budget.seconds

    def open(self) -> None:
        """Build the risk on the fewest samples, and fill the scheduler's queue.

        Raises:
            ArgumentError: The model, the loss and the data do not belong together.
        """
        sizes = sample_sizes(self.subject.total)
        with self._threads():
            sizes = self._open(self._make_level(sizes[0]), sizes)
        if not self.notebook.refusal:
            self._queue = sorted(self._items(sizes), key=lambda item: item.priority)

    def run(self, progress: Progress, *, coarse: bool = False) -> None:
        """Run the scheduled measurements that fit; only the repeated ones where `coarse`."""
        task = progress.add_task("", total=len(self._queue))
        try:
            while (found := self._next(coarse)) is not None:
                progress.update(task, description=found[0].measurement.title)
                self._measure(*found)
                self._queue = [item for item in self._queue if item is not found[0]]
                progress.advance(task)
        except KeyboardInterrupt:
            for item in self._queue:
                if not item.is_repeated:
                    key, title = (item.measurement.name, 0), item.measurement.title
                    self.outcomes[key] = Outcome(title, "interrupted", 0.0)
            self._queue = []

    def plan(self) -> InspectionPlan:
        """Return the schedule: what the measurements that run once are expected to take."""
        steps, left, counts = [], self.left, []
        for item in self._queue:
            if item.is_repeated or self._is_over():
                continue
            title, reason = item.measurement.title, self._why_omitted(item.measurement)
            if reason:
                steps.append(PlannedStep(title, 0, 0.0, reason))
                continue
            level = self._level_for(item)
            samples = self._fewest(item.measurement) if level is None else level.samples
            seconds = self._expect(item.measurement, samples)
            if level is None or seconds > left:
                reason = f"it needs about {max(seconds, 1):.0f} s"
            left -= 0.0 if reason else seconds
            counts.append(samples)
            steps.append(PlannedStep(title, samples, seconds, reason))
        usual = max(counts, key=counts.count, default=self.notebook.levels[-1].samples)
        return InspectionPlan(tuple(steps), usual, self._budget)

    def skipped(self) -> str:
        """Return what the scheduler skipped and the budget that would include it; or "".

        What is left in the queue is noted as missing.
        """
        titles: dict[int, list[str]] = {}  # by samples, 0 for measurements that run once
        total, missing = 0.0, self.notebook.missing
        for item in self._queue:
            name, title = item.measurement.name, item.measurement.title
            if item.is_repeated and any(key.startswith(f"{name}@") for key in missing):
                continue  # named for fewer samples
            samples = max(item.samples if item.is_repeated else 0, self._fewest(item.measurement))
            seconds = missing[f"{name}@{samples}"] = self._expect(item.measurement, samples)
            total += seconds
            titles.setdefault(samples if item.is_repeated else 0, []).append(title)
            if not item.is_repeated:
                reason = f"it needs about {max(seconds, 1):.0f} s"
                self.outcomes[name, 0] = Outcome(title, "skipped", 0.0, reason)
        if not titles:
            return ""
        groups = [
            ", ".join(found) + (f" on {samples:,} or more samples" if samples else "")
            for samples, found in titles.items()
        ]
        budget = 10 * ceil((self._budget.seconds + total / _USABLE) / 10)
        seconds = f"{max(total, 1):.0f} s"
        included = f" (about {seconds}); budget={budget} would include them" if total else ""
        return f"Skipped for time: {'; '.join(groups)}{included}."

    def _fewest(self, measurement: Measurement) -> int:
        """Return the samples that a scheduled measurement needs at least."""
        needed = max(measurement.fewest, self.notebook.levels[0].samples)
        return needed if self.subject.total is None else min(needed, self.subject.total)

    def _items(self, sizes: Sequence[int]) -> Iterator[_Item]:
        for entry in self._measurements:
            if entry.refine is None:
                yield _Item(entry, sizes[-1], (1, entry.order))
                continue
            for size in sizes:
                if size >= min(entry.fewest, sizes[-1]):
                    coarse, fine = (0, size, entry.order), (1, entry.refine, size)
                    yield _Item(entry, size, coarse if size <= _COARSE else fine)

    def _next(self, coarse: bool) -> tuple[_Item, Level] | None:
        """Return the next item of the schedule that fits, with its level; drop the impossible."""
        for item in list(self._queue):
            if (coarse and item.priority[0]) or self._is_over():
                break
            reason = self._why_omitted(item.measurement)
            if reason:
                self._drop(item.measurement)
                outcome = Outcome(item.measurement.title, "omitted", 0.0, reason)
                self.outcomes[item.measurement.name, 0] = outcome
                continue
            level = self._level_for(item)
            if level is None:
                continue
            if (item.measurement.name, level.samples) in self.outcomes:  # as a stream has it
                self._queue.remove(item)
                continue
            return item, level
        return None

    def _level_for(self, item: _Item) -> Level | None:
        """Return the level that the scheduler runs an item on, or None where none fits in time."""
        if item.is_repeated:
            level = next((e for e in self.notebook.levels if e.samples >= item.samples), None)
            samples = item.samples if level is None else level.samples
            leaves_time = samples <= _COARSE or all(other.is_repeated for other in self._queue)
            share = 1.0 if leaves_time else _LARGEST_SHARE
            if not self._fits(item.measurement, samples, share * self.left):
                return None
            return level or self._make_level(item.samples)
        total = self.subject.total or item.measurement.fewest
        known = [
            level
            for level in reversed(self.notebook.levels)
            if min(item.measurement.fewest, total) <= level.samples <= item.samples
            and (level.product or level is self.notebook.levels[0])
        ]
        for level in known:
            if self._fits(item.measurement, level.samples, _LARGEST_SHARE * self.left):
                return level
        fewest = known[-1] if known else None
        if fewest is not None and self._fits(item.measurement, fewest.samples, self.left):
            return fewest
        return None

    def _fits(self, measurement: Measurement, samples: int, seconds: float) -> bool:
        fits = self._expect(measurement, samples) <= seconds
        return bool(self.subject.processes.choose(fits))

    def _is_over(self) -> bool:
        return bool(self.subject.processes.choose(self.left <= 0))

    def _expect(self, measurement: Measurement, samples: int) -> float:
        if not any(level.product for level in self.notebook.levels):
            return 0.0
        products = measurement.products(self.notebook.levels[0], self.notebook)
        return self._timings.expect(measurement.name, products, measurement.size or samples)

    def _why_omitted(self, measurement: Measurement) -> str:
        """Return why the scheduler omits a measurement, or ""; a failure is a reason."""
        if measurement.name not in self._obstacles:
            reason = ""
            try:
                reason = measurement.obstacle(self.notebook.levels[0], self.notebook)
                if not reason:
                    measurement.products(self.notebook.levels[0], self.notebook)
            except ProcessGroupError:
                raise
            except Exception as error:  # whatever the user's model raises
                reason = f"it could not be planned: {str(error) or repr(error)}"
            self._obstacles[measurement.name] = reason
        return self._obstacles[measurement.name]

    def _drop(self, measurement: Measurement) -> None:
        self._queue = [item for item in self._queue if item.measurement is not measurement]

    def _measure(self, item: _Item, level: Level) -> None:
        """Run an item of the scheduler's queue, and note what became of it."""
        entry, notebook = item.measurement, self.notebook
        where = f", {level.samples:,} samples" if item.is_repeated else ""
        key = (entry.name, level.samples if item.is_repeated else 0)
        expected, left = self._expect(entry, level.samples), notebook.clock.left
        limit = max(_PATIENCE * expected, _LARGEST_SHARE * left) if expected else entry.share * left
        notebook.make_room(level)
        status, reason, began = "done", "", time.monotonic()
        try:
            with notebook.clock.at_most(limit), self._threads():
                part = entry.run(level, notebook)
        except OutOfTimeError as error:
            status, reason = "stopped", str(error)
        except ProcessGroupError:
            raise
        except Exception as error:  # whatever a user's model raises is a line of the result
            reason = why_not(error)
            status = "omitted" if reason else "failed"
            reason = reason or str(error) or repr(error)
            if isinstance(error, DeclinedError):  # on any samples
                self._drop(entry)
                key, where = (entry.name, 0), ""
        else:
            if part is not None:
                notebook.parts[part.name] = part.on(level.samples)
                reason = " ".join(part.shortened)
            for other in notebook.levels:
                if other.samples < level.samples:
                    other.drop_vectors(level)
        took = time.monotonic() - began
        self.outcomes[key] = Outcome(f"{entry.title}{where}", status, took, reason)
        if status in ("done", "stopped"):
            seconds = self.subject.processes.largest(took)
            self._timings.record(entry.name, level.samples, expected, seconds)
        if status == "stopped":
            self._retry(item, level, max(_PATIENCE * took, expected))

    @contextmanager
    def _threads(self) -> Iterator[None]:
        """Use as many threads as were fastest on the last level; one at first on busy machines."""
        known = [level.threads for level in self.notebook.levels if level.threads]
        is_busy = hasattr(os, "getloadavg") and os.getloadavg()[0] > (os.cpu_count() or 1)
        torch.set_num_threads(known[-1] if known else 1 if is_busy else self.notebook.threads)
        try:
            yield
        finally:
            torch.set_num_threads(self.notebook.threads)

    def _retry(self, item: _Item, level: Level, seconds: float) -> None:
        """Schedule a stopped measurement again; one that runs once has fewer samples then."""
        name = item.measurement.name
        self.notebook.missing[f"{name}@{level.samples}"] = seconds
        fewer = [entry.samples for entry in self.notebook.levels if entry.samples < level.samples]
        is_smaller = not item.is_repeated and not item.measurement.size
        if is_smaller and fewer and fewer[-1] >= item.measurement.fewest:
            again = _Item(item.measurement, fewer[-1], item.priority)
            self._queue = sorted([*self._queue, again], key=lambda entry: entry.priority)

    def _make_level(self, size: int) -> Level:
        subject, levels = self.subject, self.notebook.levels
        if size != subject.total:
            subject = subject.with_samples(size, self.notebook.seed)
        if levels and levels[-1].subject.__dict__.get("risk") is not None:
            subject.know(levels[-1].subject)
        levels.append(Level(subject, size))
        return levels[-1]

    def _open(self, level: Level, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Build the risk of a level for the scheduler, or of all samples where few do not do.

        A loss may compare each sample with all others, or ignore all labels of some. A model in
        TorchScript has a loss and no derivatives; it is not refused.

        Returns:
            The sizes of the levels, without those that do not fit in memory.
        """
        model, total = self.subject.model, self.subject.total
        try:
            risk = level.subject.risk
        except ProcessGroupError:
            raise
        except Exception as error:
            is_scripted = any(isinstance(m, torch.jit.ScriptModule) for m in model.modules())
            if isinstance(error, OutOfTimeError) or is_scripted:
                self.notebook.refusal = str(error)
                failed = Outcome("Derivatives", "failed", 0.0, self.notebook.refusal)
                self.outcomes["derivatives", 0] = failed
                return sizes
            if total is not None and level.samples < total <= SIZES[-1]:
                self.notebook.levels[:] = [Level(self.subject, total)]
                return self._open(self.notebook.levels[0], (total,))
            if not isinstance(error, ArgumentError):
                _check_call(level.subject)
            raise
        if total is None:
            level.samples = level.subject.samples
        return tuple(size for size in sizes if size <= level.samples or risk.holds(size))


def sample_sizes(total: int | None) -> tuple[int, ...]:
    """Return the numbers of samples of the scheduler's levels, each a part of the next.

    >>> sample_sizes(240), sample_sizes(5)
    ((8, 64, 240), (5,))
    """
    if total is None:
        return SIZES
    return (*(number for number in SIZES if number < total), total)


def _check_call(subject: Subject) -> None:
    """Raise before scheduling when the model or the loss by themselves fail on the samples."""
    try:
        subject.plain_loss()
    except Exception as error:
        reason = f"calling it on the first samples fails ({type(error).__name__}: {error})"
        remedy = "Call the model and the loss on a batch of the data; forward= says how."
        raise ArgumentError("model", type(subject.model).__name__, reason, remedy) from error
