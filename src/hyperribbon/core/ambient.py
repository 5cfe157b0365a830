"""The state of torch that arithmetic is done in, whatever a person has put in force around it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

__all__ = ["outside_inference_mode", "plain_arithmetic", "plainly"]

F = TypeVar("F", bound=Callable[..., Any])

_WITH_AUTOCAST = ("cpu", "cuda", "xpu", "mps", "hpu", "privateuseone")


@contextmanager
def plain_arithmetic() -> Iterator[None]:
    """Compute in the operands' precision, without gradients and outside of inference mode."""
    import torch

    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        for device in _WITH_AUTOCAST:
            if _is_cast(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


def _is_cast(device: str) -> bool:
    """Whether autocast is in force on a kind of device; not on one that torch does not know."""
    import torch

    try:
        return torch.is_autocast_enabled(device)
    except RuntimeError:
        return False


def plainly(call: F) -> F:
    """Return a function that computes by `plain_arithmetic`.

    Args:
        call: The function; a model that it evaluates runs as its `Risk` remembers, see there.
    """

    @functools.wraps(call)
    def called(*args: Any, **kwargs: Any) -> Any:
        with plain_arithmetic():
            return call(*args, **kwargs)

    return called  # type: ignore[return-value]


@contextmanager
def outside_inference_mode() -> Iterator[None]:
    """Leave inference mode, in which torch keeps nothing to differentiate by, while it is in force.

    Torch is not imported for it: who is in inference mode has done so.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False):
        yield
