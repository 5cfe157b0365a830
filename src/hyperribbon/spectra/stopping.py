"""Solvers that are stopped from outside: whether to go on is asked between two products."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import torch

from hyperribbon.spectra.products import Products

__all__ = ["ShouldStop", "StoppedError", "products_until"]

ShouldStop = Callable[[], "bool | None"]
"""Says whether to stop; what it raises passes the solver as it is."""


class StoppedError(Exception):
    """`should_stop` said so before the solver had anything to return."""


def products_until(op: Any, should_stop: ShouldStop | None) -> Products:
    """Return an operator's products; with `should_stop`, that is asked now and before each.

    Raises:
        StoppedError: It says so already.
    """
    if should_stop is None:
        return Products(op)
    products = _Asking(op, should_stop)
    products.go_on()
    return products


class _Asking(Products):
    """Products that ask before each whether to go on; with several ranks, one stops all."""

    def __init__(self, op: Any, should_stop: ShouldStop) -> None:
        super().__init__(op)
        self._should_stop = should_stop
        self._granted: float = 0  # products that are made without asking

    def __call__(self, block: torch.Tensor) -> torch.Tensor:
        """Return A @ block, as `Products` does, unless it is time to stop."""
        self.go_on()
        return super().__call__(block)

    def images(self, parts: torch.Tensor) -> torch.Tensor:
        """Return parts of A v, as `Products` does, unless it is time to stop."""
        if self.is_parted:  # else it calls the above
            self.go_on()
        return super().images(parts)

    def is_late(self, deadline: float) -> bool:
        """Whether to return what was found so far.

        Returns:
            Whether. If so, the products that certify it are made without asking; if not, the next
            one is, so that what was found cannot be lost in between.
        """
        is_late = self._asked() or super().is_late(deadline)
        self._granted = inf if is_late else 1
        return is_late

    def go_on(self) -> None:
        """Raise where it is time to stop."""
        if self._granted:
            self._granted -= 1
        elif self._asked():
            raise StoppedError("should_stop said so before there was anything to return")

    def _asked(self) -> bool:
        return bool(self.processes.largest(float(bool(self._should_stop()))))
