"""Leaving no trace: the global random state is given back as it was."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from hyperribbon.core.gpus import gpu_numbers

__all__ = ["preserved_random_state"]


@contextmanager
def preserved_random_state() -> Iterator[None]:
    """Give back the global random state of torch, numpy and Python as it was."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=gpu_numbers()):
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)
