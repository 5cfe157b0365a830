"""The queue of measurements: the most wanted that fits runs next, and times are learned."""

import time
from dataclasses import replace

import pytest
import torch
from torch import nn

from hyperribbon.application.inspection import Budget
from hyperribbon.application.inspection.engine.clock import Clock, OutOfTimeError
from hyperribbon.application.inspection.engine.inspect import MEASUREMENTS
from hyperribbon.application.inspection.engine.notebook import Level, Notebook
from hyperribbon.application.inspection.engine.scheduler import Measurement, Scheduler, Timings
from hyperribbon.application.inspection.engine.subject import Subject
from hyperribbon.application.inspection.quantities import Part
from hyperribbon.core.progress import progress_bar
from hyperribbon.papers.training import mlp

SPECTRUM = next(entry for entry in MEASUREMENTS if entry.name == "spectrum")


@pytest.fixture
def subject():
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(600, 6, generator=generator), torch.arange(600) % 3
    return Subject(mlp((6, 5, 3), "tanh", seed=0), nn.CrossEntropyLoss(), data)


class Machine:
    """A machine whose clock moves only when a measurement works: products × samples / speed."""

    def __init__(self, monkeypatch, speed=1000.0):
        self.now, self.speed, self.ran = 0.0, speed, []
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def measurement(self, name, order, products, cost=None, **options):
        """Return a measurement that says it takes so many products, and takes `cost` of them."""

        def run(level, notebook):
            level.product = level.samples / self.speed
            end = self.now + (products if cost is None else cost) * level.product
            if end > notebook.clock.end:
                self.now = notebook.clock.end
                raise OutOfTimeError("time budget exceeded")
            self.now = end
            self.ran.append((name, level.samples))
            return None if "refine" in options else Part(name, name)

        return Measurement(name, name, order, run, lambda level, n: products, **options)

    def schedule(self, subject, measurements, seconds, quiet):
        notebook = Notebook(k=5, seed=0, clock=Clock(self.now + seconds))
        scheduler = Scheduler(subject, notebook, measurements, Budget(seconds, 1e9))
        scheduler.open()
        with progress_bar(quiet) as progress:
            scheduler.run(progress, coarse=True)
            scheduler.plan()
            scheduler.run(progress)
        return scheduler


def test_repeated_measurements_come_first_then_the_others_then_more_samples(
    subject, quiet, monkeypatch
):
    machine = Machine(monkeypatch)
    entries = [
        machine.measurement("late", 90, 2),
        machine.measurement("early", 10, 2),
        machine.measurement("sharpness", 4, 3, refine=50),
        machine.measurement("loss", 1, 1, refine=50),
    ]
    machine.schedule(subject, entries, 1000, quiet)
    assert machine.ran == [
        *((name, n) for n in (8, 64, 512) for name in ("loss", "sharpness")),
        ("early", 512),
        ("loss", 600),
        ("sharpness", 600),
        ("late", 600),
    ]


def test_what_does_not_fit_is_named_in_one_line_with_the_budget_that_includes_it(
    subject, quiet, monkeypatch
):
    machine = Machine(monkeypatch)
    entries = [
        machine.measurement("Sharpness", 4, 20, refine=50),
        machine.measurement("Expensive", 10, 1000, fewest=64),
        machine.measurement("Cheap", 20, 10),
    ]
    scheduler = machine.schedule(subject, entries, 20, quiet)
    assert ("Sharpness", 512) in machine.ran and ("Cheap", 64) in machine.ran
    line = scheduler.skipped()
    assert line.startswith("Skipped for time: Expensive; Sharpness on 600 or more samples (about ")
    assert line.endswith("would include them.")
    included = float(line.partition("budget=")[2].split()[0])
    again = Machine(monkeypatch)
    entries = [
        again.measurement("Sharpness", 4, 20, refine=50),
        again.measurement("Expensive", 10, 1000, fewest=64),
        again.measurement("Cheap", 20, 10),
    ]
    assert again.schedule(subject, entries, included, quiet).skipped() == ""
    assert {"Expensive", "Cheap"} <= {name for name, _ in again.ran}


def test_a_measurement_that_takes_too_long_is_stopped_and_done_on_fewer_samples(
    subject, quiet, monkeypatch
):
    machine = Machine(monkeypatch)
    entries = [
        machine.measurement("loss", 1, 1, refine=50),
        machine.measurement("wrong", 10, 1, cost=100),
    ]
    scheduler = machine.schedule(subject, entries, 100, quiet)
    assert ("wrong", 64) in machine.ran
    assert ("wrong", 512) not in machine.ran
    assert scheduler.outcomes["wrong", 0].status == "done"
    assert scheduler.notebook.missing["wrong@512"] > 30
    assert machine.now < 100


def test_a_load_that_comes_up_is_learned(subject):
    level = Level(subject, 8, product=0.01)
    timings = Timings([level])
    timings.record("first", 8, 0.0, 0.1)
    assert timings.expect("any", 10, 8) == pytest.approx(0.1)
    assert timings.expect("any", 10, 64) == pytest.approx(0.8)  # eight times the samples
    for name in "abcdefgh":  # each takes twice what an idle machine took
        timings.record(name, 8, timings.expect(name, 10, 8), 0.2)
    assert timings.expect("other", 10, 8) == pytest.approx(0.2, rel=0.1)
    assert timings.expect("a", 10, 8) == pytest.approx(0.2, rel=0.5)  # as it was timed itself


def test_products_are_the_first_guess_and_own_times_the_next(subject):
    levels = [Level(subject, 8, product=0.01), Level(subject, 64, product=0.02)]
    timings = Timings(levels)
    timings.record("slow", 8, 0.0, 0.2)
    assert timings.expect("slow", 10, 64) == pytest.approx(0.4)  # as products do, twice
    assert timings.expect("unknown", 10, 64) == pytest.approx(0.2)
    timings.record("first", 8, 0.0, 9.0)  # what runs first in a process takes longer
    assert timings.expect("first", 10, 64) == pytest.approx(0.6)


@pytest.mark.parametrize("known", [0, 1, 4, 5])
def test_eigenvalues_are_known_when_they_were_found(subject, known):
    """Not because few were asked for: none may have been found."""
    level, notebook = Level(subject, 600), Notebook(k=5, seed=0)
    notebook.levels.append(level)
    if known:
        level.spectra["hessian"] = notebook.eigsh(subject.hessian, known)
    is_known = known == 5
    reason = "all that were asked for are known"
    assert SPECTRUM.obstacle(level, notebook) == (reason if is_known else "")


def test_threads_are_those_of_the_caller_afterwards(subject, quiet, monkeypatch):
    machine = Machine(monkeypatch)
    before, seen = torch.get_num_threads(), []
    entry = machine.measurement("loss", 1, 1, refine=50)

    def run(level, notebook):
        entry.run(level, notebook)
        torch.set_num_threads(before + 1)
        seen.append(level.samples)

    machine.schedule(subject, [replace(entry, run=run)], 100, quiet)
    assert seen
    assert torch.get_num_threads() == before
