"""Capture a record in memory: metrics within the time budget, predictions, weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import nn

from hyperribbon.recording.cadence import Position, TimeShare
from hyperribbon.recording.contents import Contents
from hyperribbon.recording.measurements import Measurement, check_name
from hyperribbon.recording.records import Draft

__all__ = ["Moment", "Taker", "trouble_with"]


@dataclass(frozen=True)
class Moment:
    """The state of a run when a record is due.

    Attributes:
        scalars: The loss and other scalars passed by the loop.
        now: Step and epoch.
        before: Step and epoch of the last record, or None.
        number: Records made before.
        is_first: Whether it is the first record, where failures raise.
        is_last: Whether it is the last one of the run.
    """

    scalars: Mapping[str, Any]
    now: Position
    before: Position | None
    number: int
    is_first: bool = False
    is_last: bool = False


class Taker:
    """Captures records of a model.

    Args:
        contents: What a record holds.
        budget: The time budget of recording.
        warn: Called with a warning message.
    """

    def __init__(self, contents: Contents, budget: TimeShare, warn: Callable[[str], None]) -> None:
        self._contents, self._budget, self._warn = contents, budget, warn

    def take(self, model: nn.Module, moment: Moment) -> Draft:
        """Return a record that later training does not change."""
        scalars = {check_name("metrics", name): value for name, value in moment.scalars.items()}

        def on_failure(name: str, error: Exception) -> None:
            if moment.is_first:
                raise error
            self._warn(f"measurement {name!r} failed at step {moment.now[0]}: {error!r}")

        def permits(measurement: Measurement, cost: float) -> bool:
            return self._permits(measurement, cost, moment)

        when = moment.number, moment.before, moment.now
        measured = self._contents.measure(model, *when, permits=permits, on_failure=on_failure)
        return Draft(
            *moment.now,
            weights=self._contents.weights(model),
            predictions=self._contents.predict(model),
            metrics={name: _copy(value) for name, value in (scalars | measured).items()},
        )

    def _permits(self, measurement: Measurement, cost: float, moment: Moment) -> bool:
        """Return whether a measurement fits the time budget; warn the first time it does not."""
        if moment.is_first or not measurement.is_bounded:
            return True
        if self._budget.permits(cost, is_last=moment.is_last):
            return True
        if not self._contents.left_out:
            self._warn(
                f"measuring {measurement.name!r} at every record would take more than "
                f"{self._budget.share:.0%} of the training time; it is skipped in some records "
                "(NaN in metrics()). Set another limit with max_overhead=; math.inf for none"
            )
        return False


def trouble_with(model: nn.Module, moment: Moment) -> str:
    """Return why a record is invalid, or an empty string."""
    step, loss = moment.now[0], float(moment.scalars.get("loss", 0.0))
    if not isfinite(loss):
        return f"the loss is {loss} at step {step}"
    if not all(_is_finite(p.detach()) for p in model.parameters()):
        return f"some weights are NaN or infinite at step {step}"
    return ""


def _is_finite(tensor: torch.Tensor) -> bool:
    """Return whether all entries are finite, in one pass for real types."""
    if not tensor.numel() or tensor.is_complex():
        return bool(tensor.isfinite().all())
    return all(bool(end.isfinite()) for end in torch.aminmax(tensor))


def _copy(value: Any) -> Any:
    """Return a copy that later training does not change."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    return np.array(value) if isinstance(value, np.ndarray) else value
