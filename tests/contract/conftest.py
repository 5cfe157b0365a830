"""Makes the files of this folder importable as `contract.*` however the tests are started."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
TESTS = str(Path(__file__).parents[1])
if TESTS not in sys.path:
    sys.path.append(TESTS)


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    """Start every test from the same three global random states, and put back what was there."""
    ours, theirs = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        torch.manual_seed(3)
        np.random.seed(4)
        random.seed(5)
        yield
    np.random.set_state(theirs)
    random.setstate(ours)
