"""Modes of torch around a computation: autocast, inference mode, gradients, random state."""

from __future__ import annotations

import functools
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress

_WITH_AUTOCAST = ("cpu", "cuda", "xpu", "mps", "hpu", "privateuseone")


@contextmanager
def plain_arithmetic() -> Generator[None]:
    """Leave autocast, gradient and inference modes: compute in the operands' precision.

    Also a decorator; a model that the function evaluates runs as its `Risk` remembers.
    """
    import torch

    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        for device in _autocast_devices():
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


@functools.cache
def _autocast_devices() -> tuple[str, ...]:
    """Return the kinds of devices that have an autocast mode in this torch."""
    import torch

    known: list[str] = []
    for device in _WITH_AUTOCAST:
        with suppress(RuntimeError):
            torch.is_autocast_enabled(device)
            known.append(device)
    return tuple(known)


@contextmanager
def without_autocast_cache() -> Generator[None]:
    """Let torch's autocast mode cast weights whenever they are used.

    By itself it keeps what it has cast for as long as it is in force: weights that are trained
    within it would be evaluated as they were at the start.
    """
    import torch

    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)
        torch.clear_autocast_cache()


@contextmanager
def outside_inference_mode() -> Generator[None]:
    """Leave torch's inference mode, in which nothing can be differentiated.

    Torch is not imported for it: who is in inference mode has done so.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False):
        yield


@contextmanager
def preserve_random_state() -> Generator[None]:
    """Give back the global random state and modes' state of torch, numpy and Python."""
    import random

    import numpy as np
    import torch

    from hyperribbon.core.devices.gpus import gpu_numbers

    python_state, numpy_state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=gpu_numbers()):
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)
