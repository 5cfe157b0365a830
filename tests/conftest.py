"""Shapes in annotations are checked in every test; fixtures of several rooms."""

import gc
import importlib.util
import multiprocessing
import signal
import sys
import warnings
from pathlib import Path

import pytest
import torch

if all(importlib.util.find_spec(name) for name in ("jaxtyping", "beartype")):
    tests = str(Path(__file__).parent)
    if tests not in sys.path:
        sys.path.append(tests)
    import shape_checks

    shape_checks.install()


def pytest_collection_finish() -> None:
    """Let no garbage collection look again at what was imported, which takes half a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def in_fork():
    """Start a function in a copy of this process, which has all imports done; return the process.

    The copy works on one thread, since the others are not copied, and ends after some seconds.
    """
    begun = []

    def work_alone(work, arguments, seconds):
        signal.alarm(seconds)
        torch.set_num_threads(1)
        work(*arguments)

    def start(work, *arguments, seconds=300):
        context = multiprocessing.get_context("fork")
        process = context.Process(target=work_alone, args=(work, arguments, seconds))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about those threads
            process.start()
        begun.append(process)
        return process

    yield start
    for process in begun:
        process.kill()
        process.join()


@pytest.fixture
def images():
    """A small classification task: (inputs (90, 1, 8, 8), labels in 0..2)."""
    from hyperribbon.core.generators import torch_generator  # loaded after shapes are checked

    generator = torch_generator(0, "images")
    labels = torch.randint(3, (90,), generator=generator)
    patterns = torch.rand(3, 1, 8, 8, generator=generator)
    return patterns[labels] + 0.3 * torch.randn(90, 1, 8, 8, generator=generator), labels


@pytest.fixture
def headlines_only(monkeypatch):
    """Inspections stop after loss, noise scale, traces, sharpness and stability."""
    from hyperribbon.application.inspection.engine import inspect as inspecting
    from hyperribbon.application.inspection.parts import headlines, stability

    measurements = (*headlines.MEASUREMENTS, *stability.MEASUREMENTS)
    monkeypatch.setattr(inspecting, "MEASUREMENTS", measurements)
