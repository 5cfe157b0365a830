"""What a record holds: measurements, predictions and weights of a model, taken without a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any

import torch
from torch import nn

from hyperribbon.core.boundary import names as chosen_names
from hyperribbon.core.checks import ArgumentError, check_absent, check_choice
from hyperribbon.core.mask import Mask
from hyperribbon.core.parameters import ParameterSpace
from hyperribbon.recording.cadence import Position
from hyperribbon.recording.evaluation import Probe, predict
from hyperribbon.recording.measurements import Measurement, as_measurement, undisturbed
from hyperribbon.recording.projection import Projection
from hyperribbon.recording.resuming import Stateful

__all__ = ["Contents", "Measure", "Weights"]

Weights = bool | Mask | Projection | str | Sequence[str]
Measure = str | Callable[..., Any] | Measurement

_SLACK = 1.5  # a measurement may take this much longer than the last time


class Contents:
    """The quantities a Recorder takes from a model; arguments as there.

    Attributes:
        left_out: How often each measurement was left out because it would have taken too long.
        bounded_seconds: What the bounded measurements of the last record took.
    """

    def __init__(
        self,
        measure: Measure | Iterable[Measure],
        probe: Probe | None,
        predictions: str | Callable[[nn.Module, Probe], torch.Tensor],
        weights: Weights,
    ) -> None:
        given: Any = [measure] if isinstance(measure, str) or callable(measure) else measure
        self.measurements = [as_measurement(item) for item in given]
        names = [m.name for m in self.measurements]
        if len(set(names)) < len(names):
            raise ArgumentError("measure", names, "two have the same name", "Rename one.")
        if not callable(predictions):
            check_choice("predictions", predictions, ("log_probabilities", "outputs"))
        if probe is None and predictions != "log_probabilities":
            check_absent("predictions", predictions, "there is no probe", "Give probe= as well.")
        if not isinstance(weights, bool | Mask | Projection):
            chosen_names("weights", weights)
        self._probe, self._predictions, self._weights = probe, predictions, weights
        self._costs: dict[str, float] = {}
        self.left_out: dict[str, int] = {}
        self.bounded_seconds = 0.0

    @property
    def are_weights_whole(self) -> bool:
        """Whether every record has all weights."""
        return self._weights is True

    def begin(self, model: nn.Module, optimizer: Any, loss: Any, data: Any) -> None:
        """Tell the measurements that ask for it what is about to be trained."""
        for measurement in self.measurements:
            if hasattr(measurement.function, "begin"):
                measurement.function.begin(model, optimizer, loss, data)  # type: ignore[attr-defined]

    def notes(self) -> dict[str, str]:
        """Return what measurements say of themselves, by name."""
        found = {m.name: getattr(m.function, "note", "") for m in self.measurements}
        return {name: note for name, note in found.items() if isinstance(note, str) and note}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of every measurement that keeps one, by name."""
        return {name: function.state_dict() for name, function in self._keepers().items()}

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Put back what `state_dict` returned."""
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
            model: The model, left as it was.
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
        """Return the predictions on the probe set, if there is one."""
        if self._probe is None:
            return None
        with undisturbed(model):
            if callable(self._predictions):
                return self._predictions(model, self._probe)
            log_probabilities = self._predictions == "log_probabilities"
            return predict(model, self._probe, log_probabilities=log_probabilities)

    def weights(self, model: nn.Module) -> dict[str, torch.Tensor] | None:
        """Return the weights to store, which later training does not change."""
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
            return {"projection": chosen(tensors)}
        mask = chosen if isinstance(chosen, Mask) else None
        try:
            space = ParameterSpace.of_model(model, chosen if mask is None else list(mask), mask)
        except ArgumentError as error:
            error.rename("weights")
            raise
        if mask is not None:
            return {name: tensors[name][mask[name]] for name in space.names}
        return {name: tensors[name] for name in space.names}
