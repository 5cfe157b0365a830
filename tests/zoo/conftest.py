"""Makes the files of this folder importable as `zoo.*` whatever the way the tests are started."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

TESTS = str(Path(__file__).parents[1])
if TESTS not in sys.path:
    sys.path.append(TESTS)
pytest.register_assert_rewrite("zoo.checking")


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    """Draw the same numbers in every test, and leave the global state as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        yield
