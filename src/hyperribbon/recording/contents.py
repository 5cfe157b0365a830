"""The contents of a record: measurements, predictions and weights, without side effects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any

import torch
from torch import nn

from hyperribbon.core.boundary import iterable
from hyperribbon.core.boundary import names as chosen_names
from hyperribbon.core.checks import ArgumentError, check_absent
from hyperribbon.core.mask import Mask
from hyperribbon.core.parameters import ParameterSpace, omitted_of_model
from hyperribbon.operators.risk.data import Data
from hyperribbon.recording.cadence import Position
from hyperribbon.recording.evaluation import Predictor
from hyperribbon.recording.measurements import Measurement, as_measurement, undisturbed
from hyperribbon.recording.projection import Projection
from hyperribbon.recording.resuming import Stateful

__all__ = ["Contents", "Measure", "Weights"]

Weights = bool | Mask | Projection | str | Sequence[str]
Measure = str | Callable[..., Any] | Measurement

_SLACK = 1.5  # allowance for a measurement taking longer than last time


def about_model(
    model: nn.Module, predictor: Predictor | None, chosen: Iterable[str] | None = None
) -> dict[str, Any]:
    """Return the metadata of a recorded model.

    Args:
        model: The model.
        predictor: Computes the predictions.
        chosen: Names of the stored weights; None for the whole state dict.

    Returns:
        Names of the stored weights as "parameters" (trainable ones, tied ones once), why other
        entries are "omitted", and what "predictions" are.
    """
    omitted = omitted_of_model(model)
    if chosen is None:
        state = model.state_dict()
        chosen = [n for n in state if n not in omitted] or [n for n, _ in model.named_parameters()]
    about: dict[str, Any] = {"parameters": list(chosen), "omitted": omitted}
    if predictor is not None and predictor.kind is not None:
        about["predictions"] = predictor.kind
    return about


class Contents:
    """The quantities recorded from a model; arguments as for `Recorder`.

    Attributes:
        left_out: How often each measurement was skipped to stay within the time limit.
        bounded_seconds: Time of the bounded measurements of the last record.
    """

    def __init__(
        self,
        measure: Measure | Iterable[Measure],
        probe: Data | None,
        predictions: str | Callable[[nn.Module, Data], torch.Tensor] | None,
        weights: Weights,
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
            chosen_names("weights", weights)
        self._weights = weights
        self._costs: dict[str, float] = {}
        self.left_out: dict[str, int] = {}
        self.bounded_seconds = 0.0

    @property
    def are_weights_whole(self) -> bool:
        """Whether every record has all weights."""
        return self._weights is True

    def begin(self, model: nn.Module, optimizer: Any, loss: Any, data: Any) -> dict[str, Any]:
        """Call `begin` of the measurements that have it.

        Returns:
            The metadata of the records, see `about_model`.
        """
        if self.predictor is not None:
            with undisturbed(model):
                self.predictor.decide(model, loss, data)
        for measurement in self.measurements:
            if hasattr(measurement.function, "begin"):
                measurement.function.begin(model, optimizer, loss, data)  # type: ignore[attr-defined]
        stored = None if self._weights is True else self._chosen(model) or {}
        return about_model(model, self.predictor, stored)

    def notes(self) -> dict[str, str]:
        """Return the notes of the measurements, by name."""
        found = {m.name: getattr(m.function, "note", "") for m in self.measurements}
        return {name: note for name, note in found.items() if isinstance(note, str) and note}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of every stateful measurement, by name."""
        return {name: function.state_dict() for name, function in self._keepers().items()}

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Restore the state returned by `state_dict`."""
        for name, function in self._keepers().items():
            if name in states:
                function.load_state_dict(states[name])

    def _keepers(self) -> dict[str, Stateful]:
        found = {m.name: m.function for m in self.measurements}
        return {name: f for name, f in found.items() if isinstance(f, Stateful)}

    def measure(
        self,
        model: nn.Module,
        number: int,
        before: Position | None,
        now: Position,
        *,
        permits: Callable[[Measurement, float], bool],
        on_failure: Callable[[str, Exception], None],
    ) -> dict[str, Any]:
        """Return the metrics due at a record.

        Args:
            model: The model; not modified.
            number: Records made before.
            before: Step and epoch of the last one, or None.
            now: Step and epoch.
            permits: Whether a measurement may take so many seconds.
            on_failure: Called with the name and the error of a measurement that fails.
        """
        metrics: dict[str, Any] = {}
        self.bounded_seconds = 0.0
        for measurement in self.measurements:
            name = measurement.name
            if not measurement.is_due(number, before, now):
                continue
            if not permits(measurement, _SLACK * self._costs.get(name, 0.0)):
                self.left_out[name] = self.left_out.get(name, 0) + 1
                continue
            begun = perf_counter()
            try:
                with undisturbed(model):
                    metrics.update(measurement(model))
            except Exception as error:
                on_failure(name, error)
            seconds = perf_counter() - begun
            self.bounded_seconds += seconds if measurement.is_bounded else 0.0
            self._costs[name] = getattr(measurement.function, "next_seconds", seconds)
        return metrics

    def predict(self, model: nn.Module) -> torch.Tensor | None:
        """Return the predictions on the probe set, or None without one."""
        if self.predictor is None:
            return None
        with undisturbed(model):
            return self.predictor(model)

    def weights(self, model: nn.Module) -> dict[str, torch.Tensor] | None:
        """Return a copy of the weights to store."""
        found = self._chosen(model)
        if found is None:
            return None
        return {name: t.detach().to("cpu", copy=True) for name, t in found.items()}

    def _chosen(self, model: nn.Module) -> dict[str, torch.Tensor] | None:
        if self._weights is False:
            return None
        if self._weights is True:
            return model.state_dict()
        tensors = dict(model.named_parameters())
        chosen = self._weights
        if isinstance(chosen, Projection):
            weights = set(tensors) - set(omitted_of_model(model)) or set(tensors)
            return {"projection": chosen({n: t for n, t in tensors.items() if n in weights})}
        mask = chosen if isinstance(chosen, Mask) else None
        try:
            space = ParameterSpace.of_model(model, chosen if mask is None else list(mask), mask)
        except ArgumentError as error:
            error.rename("weights")
            raise
        if mask is not None:
            return {name: tensors[name][mask[name]] for name in space.names}
        return {name: tensors[name] for name in space.names}
