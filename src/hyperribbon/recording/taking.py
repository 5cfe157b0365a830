"""A moment of a training taken into memory: its metrics within the time allowed, and the rest."""

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
    """Where a run is when a record is due.

    Attributes:
        scalars: The loss and other numbers that the loop gave.
        now: Step and epoch.
        before: Those of the last record, or None.
        number: Records made before.
        is_first: Whether it is the first record, at which what fails is raised.
        is_last: Whether it is the last one of the run.
    """

    scalars: Mapping[str, Any]
    now: Position
    before: Position | None
    number: int
    is_first: bool = False
    is_last: bool = False


class Taker:
    """Takes records from a model.

    Args:
        contents: What a record holds.
        budget: The time that recording may take.
        warn: Called with what a person should know.
    """

    def __init__(self, contents: Contents, budget: TimeShare, warn: Callable[[str], None]) -> None:
        self._contents, self._budget, self._warn = contents, budget, warn

    def take(self, model: nn.Module, moment: Moment) -> Draft:
        """Return the record of a moment, which later training does not change."""
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
            metrics={name: _kept(value) for name, value in (scalars | measured).items()},
            buffers=[name for name, _ in model.named_buffers()],
        )

    def _permits(self, measurement: Measurement, cost: float, moment: Moment) -> bool:
        """Return whether there is time for a measurement; say so the first time there is none."""
        if moment.is_first or not measurement.is_bounded:
            return True
        if self._budget.permits(cost, is_last=moment.is_last):
            return True
        if not self._contents.left_out:
            self._warn(
                f"measuring {measurement.name!r} at every record would take more than "
                f"{self._budget.share:.0%} of the training time; it is left out of some records, "
                "which are gaps in metrics(). max_overhead= sets another bound, math.inf none"
            )
        return False


def trouble_with(model: nn.Module, moment: Moment) -> str:
    """Return why a moment is not worth a record, or nothing."""
    step, loss = moment.now[0], float(moment.scalars.get("loss", 0.0))
    if not isfinite(loss):
        return f"the loss is {loss} at step {step}"
    if not all(_is_finite(p.detach()) for p in model.parameters()):
        return f"some weights are NaN or infinite at step {step}"
    return ""


def _is_finite(tensor: torch.Tensor) -> bool:
    """Return whether all entries are finite, in one pass where the type has an order."""
    if not tensor.numel() or tensor.is_complex():
        return bool(tensor.isfinite().all())
    return all(bool(end.isfinite()) for end in torch.aminmax(tensor))


def _kept(value: Any) -> Any:
    """Return a number or an array that later training does not change."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    return np.array(value) if isinstance(value, np.ndarray) else value
