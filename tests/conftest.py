"""Shapes in annotations are checked in every test; fixtures of several rooms."""

import gc
import importlib.util
import sys
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
