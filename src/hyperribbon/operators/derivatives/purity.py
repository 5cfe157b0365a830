"""Leaving no trace: what an evaluation must not change, and how it is kept."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

__all__ = ["evaluation", "preserved_random_state"]


@contextmanager
def preserved_random_state() -> Iterator[None]:
    """Give back the global random state of torch, numpy and Python as it was."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)


@contextmanager
def evaluation() -> Iterator[None]:
    """Evaluate a model so that it can be differentiated twice and nothing outside changes.

    Gradients are on even inside `torch.no_grad()`, and attention uses the one kernel that has
    second derivatives.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        yield
