"""Capture a record in memory, without side effects: metrics, predictions, weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import nn

from hyperribbon.core.checks import ArgumentError, check_absent, check_readable, iterable
from hyperribbon.core.checks import names as check_names
from hyperribbon.core.mask import Mask
from hyperribbon.core.parameters import ParameterSpace, omitted_of_model
from hyperribbon.operators.risk.data import Data
from hyperribbon.recording.cadence import Position, TimeShare
from hyperribbon.recording.evaluation import Predictor
from hyperribbon.recording.measurements import Measurement, as_measurement, check_name, undisturbed
from hyperribbon.recording.projection import Projection
from hyperribbon.recording.records import Draft
from hyperribbon.recording.resume_state import Stateful

Weights = bool | Mask | Projection | str | Sequence[str]
Measure = str | Callable[..., Any] | Measurement

_SLACK = 1.5  # allowance for a measurement taking longer than last time


def describe_optimizer(optimizer: Any) -> dict[str, float | str]:
    """Return for a captured run the class and first settings of the optimiser.

    >>> describe_optimizer(torch.optim.SGD([torch.zeros(1)], lr=0.1))
    {'optimizer': 'SGD', 'lr': 0.1, 'momentum': 0, 'weight_decay': 0}
    """
    groups = getattr(optimizer, "param_groups", None)
    if not groups:
        return {}
    names = ("lr", "momentum", "weight_decay")
    found = {name: groups[0][name] for name in names if name in groups[0]}
    plain = {name: value for name, value in found.items() if isinstance(value, int | float)}
    return {"optimizer": type(optimizer).__name__, **plain}


def describe_model(
    model: nn.Module, predictor: Predictor | None, names: Iterable[str] | None = None
) -> dict[str, Any]:
    """Return for a captured run the metadata of the model.

    Args:
        model: The model.
        predictor: Computes the predictions.
        names: Names of the stored weights; None for the whole state dict.

    Returns:
        Names of the stored weights as "parameters" (trainable ones, tied ones once), why other
        entries are "omitted", and what "predictions" are.
    """
    omitted = omitted_of_model(model)
    if names is None:
        state = model.state_dict()
        names = [n for n in state if n not in omitted] or [n for n, _ in model.named_parameters()]
    about: dict[str, Any] = {"parameters": list(names), "omitted": omitted}
    if predictor is not None and predictor.kind is not None:
        about["predictions"] = predictor.kind
    return about


class Capture:
    """Captures records of a model; the first arguments are those of `Recorder`.

    Args:
        measure: What to measure.
        probe: Inputs to predict.
        predictions: What to predict.
        weights: Weights to store.
        budget: The time budget of recording.
        warn: Called with a warning message.

    Attributes:
        records: Records that the whole run will have, if that is known.
        left_out: How often each measurement was skipped to stay within the time limit.
        bounded_seconds: Time of the bounded measurements of the last record.
    """

    def __init__(
        self,
        measure: Measure | Iterable[Measure],
        probe: Data | None,
        predictions: str | Callable[[nn.Module, Data], torch.Tensor] | None,
        weights: Weights,
        budget: TimeShare,
        warn: Callable[[str], None],
    ) -> None:
        given: Any = [measure] if isinstance(measure, str) or callable(measure) else measure
        self.measurements = [as_measurement(item) for item in iterable("measure", given)]
        names = [m.name for m in self.measurements]
        if len(set(names)) < len(names):
            raise ArgumentError("measure", names, "two have the same name", "Rename one.")
        predictor = Predictor(probe, predictions)
        self.predictor = None if probe is None else predictor
        if probe is None:
            check_absent("predictions", predictions, "there is no probe", "Give probe= as well.")
        if not isinstance(weights, bool | Mask | Projection):
            check_names("weights", weights)
        self._weights, self._budget, self._warn = weights, budget, warn
        self._costs: dict[str, float] = {}
        self._has_warned = False
        self.records: int | None = None
        self.left_out: dict[str, int] = {}
        self.bounded_seconds = 0.0

    def begin(self, model: nn.Module, optimizer: Any, loss: Any, data: Any) -> dict[str, Any]:
        """Prepare the capture: call `begin` of the measurements that have it.

        Returns:
            The metadata of the records, see `describe_model`.
        """
        if self.predictor is not None:
            with undisturbed(model):
                self.predictor.decide(model, loss, data)
        for measurement in self.measurements:
            if hasattr(measurement.function, "begin"):
                measurement.function.begin(model, optimizer, loss, data)  # type: ignore[attr-defined]
        stored = None if self._weights is True else self._select(model) or {}
        return describe_model(model, self.predictor, stored)

    def notes(self) -> dict[str, str]:
        """Return the notes of the captured measurements, by name."""
        found = {m.name: getattr(m.function, "note", "") for m in self.measurements}
        return {name: note for name, note in found.items() if isinstance(note, str) and note}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of every stateful captured measurement, by name."""
        return {name: function.state_dict() for name, function in self._stateful().items()}

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Restore the state of the captured measurements."""
        for name, function in self._stateful().items():
            if name in states:
                function.load_state_dict(states[name])

    def _stateful(self) -> dict[str, Stateful]:
        found = {m.name: m.function for m in self.measurements}
        return {name: f for name, f in found.items() if isinstance(f, Stateful)}

    def take(
        self,
        model: nn.Module,
        scalars: Mapping[str, Any],
        now: Position,
        before: Position | None,
        number: int,
        *,
        is_last: bool = False,
    ) -> Draft:
        """Return a captured record of the model that later training does not change.

        Args:
            model: The model; not modified.
            scalars: The loss and other scalars passed by the loop.
            now: Step and epoch.
            before: Step and epoch of the last record; None for the first, where failures raise.
            number: Records made before.
            is_last: Whether it is the last record of the run.
        """
        metrics = {check_name("metrics", name): value for name, value in scalars.items()}
        self.bounded_seconds = 0.0
        for measurement in self.measurements:
            if not measurement.is_due(number, before, now):
                continue
            begun, is_made = perf_counter(), False
            try:
                is_made = self._fits(measurement, model, number, is_last)
                if is_made:
                    with undisturbed(model):
                        metrics.update(measurement(model))
            except Exception as error:
                if before is None:
                    raise
                self._warn(f"measurement {measurement.name!r} failed at step {now[0]}: {error!r}")
            seconds = perf_counter() - begun
            self.bounded_seconds += seconds if measurement.is_bounded else 0.0
            if is_made:
                cost = getattr(measurement.function, "next_seconds", seconds)
                self._costs[measurement.name] = cost
        return Draft(
            *now,
            weights=self.weights(model),
            predictions=self.predict(model),
            metrics={name: _copy(value) for name, value in metrics.items()},
            seconds=self._budget.training_seconds,
        )

    def _fits(self, measurement: Measurement, model: nn.Module, number: int, is_last: bool) -> bool:
        """Whether a captured measurement fits the time budget; warn the first time it does not."""
        name, function = measurement.name, measurement.function
        if not measurement.is_bounded or self._budget.limit == inf:
            return True
        if not getattr(function, "is_fitted", True):
            with undisturbed(model):
                seconds = self._budget.seconds_per_point(number, self.records)
                function.fit_to(model, seconds, is_final=number > 0)  # type: ignore[attr-defined]
        cost = getattr(function, "next_seconds", self._costs.get(name, 0.0))
        reserve = 0.0 if is_last else min(cost, getattr(function, "usual_seconds", cost))
        if self._budget.permits(_SLACK * cost, _SLACK * reserve):
            return True
        if number > 0 and not self._has_warned:
            self._has_warned = True
            self._warn(
                f"measuring {name!r} at every record would take more than "
                f"{self._budget.share:.0%} of the training time; it is skipped in some records "
                "(NaN in metrics()). Set another limit with max_overhead=; math.inf for none"
            )
        self.left_out[name] = self.left_out.get(name, 0) + 1
        return False

    def predict(self, model: nn.Module) -> torch.Tensor | None:
        """Capture the predictions on the probe set; None without one."""
        if self.predictor is None:
            return None
        with undisturbed(model):
            return self.predictor(model)

    def weights(self, model: nn.Module) -> dict[str, torch.Tensor] | None:
        """Capture a copy of the weights to store."""
        found = self._select(model)
        if found is None:
            return None
        return {name: t.detach().to("cpu", copy=True) for name, t in found.items()}

    def _select(self, model: nn.Module) -> dict[str, torch.Tensor] | None:
        weights = self._weights
        if isinstance(weights, bool):
            return model.state_dict() if weights else None
        tensors = dict(model.named_parameters())
        if isinstance(weights, Projection):
            trainable = set(tensors) - set(omitted_of_model(model)) or set(tensors)
            return {"projection": weights({n: t for n, t in tensors.items() if n in trainable})}
        mask = weights if isinstance(weights, Mask) else None
        try:
            space = ParameterSpace.of_model(model, weights if mask is None else list(mask), mask)
        except ArgumentError as error:
            error.rename("weights")
            raise
        if mask is not None:
            return {name: tensors[name][mask[name]] for name in space.names}
        return {name: tensors[name] for name in space.names}


def _copy(value: Any) -> Any:
    """Return a captured copy that later training does not change."""
    if isinstance(value, torch.Tensor):
        check_readable("metrics", value)
        return value.detach().to("cpu", copy=True)
    return np.array(value) if isinstance(value, np.ndarray) else value
