"""What a record holds: measurements, predictions and weights of a model, taken without a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from hyperribbon.core.boundary import names as chosen_names
from hyperribbon.core.checks import ArgumentError, check_absent, check_choice
from hyperribbon.core.mask import Mask
from hyperribbon.core.parameters import ParameterSpace
from hyperribbon.training.evaluation import Probe, predict
from hyperribbon.training.measurements import Measurement, as_measurement, undisturbed
from hyperribbon.training.resuming import Stateful

__all__ = ["Contents"]


class Contents:
    """The quantities a Recorder takes from a model; arguments as there."""

    def __init__(
        self,
        measure: Iterable[Callable[..., Any] | Measurement],
        probe: Probe | None,
        predictions: str | Callable[[nn.Module, Probe], torch.Tensor],
        weights: bool | Mask | str | Sequence[str],
    ) -> None:
        self.measurements = [as_measurement(item) for item in measure]
        names = [m.name for m in self.measurements]
        if len(set(names)) < len(names):
            raise ArgumentError("measure", names, "two have the same name", "Rename one.")
        if not callable(predictions):
            check_choice("predictions", predictions, ("log_probabilities", "outputs"))
        if probe is None and predictions != "log_probabilities":
            check_absent("predictions", predictions, "there is no probe", "Give probe= as well.")
        if not isinstance(weights, bool | Mask):
            chosen_names("weights", weights)
        self._probe, self._predictions, self._weights = probe, predictions, weights

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
        self, model: nn.Module, number: int, on_failure: Callable[[str, Exception], None]
    ) -> dict[str, Any]:
        """Return the metrics due at a record.

        Args:
            model: The model, left as it was.
            number: Records made before.
            on_failure: Called with the name and the error of a measurement that fails.
        """
        metrics: dict[str, Any] = {}
        for measurement in self.measurements:
            if number % measurement.every:
                continue
            try:
                with undisturbed(model):
                    values = measurement(model)
            except Exception as error:
                on_failure(measurement.name, error)
                continue
            metrics.update(values)
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
        """Return the weights to store."""
        if self._weights is False:
            return None
        if self._weights is True:
            return model.state_dict()
        tensors = dict(model.named_parameters())
        chosen = self._weights
        mask = chosen if isinstance(chosen, Mask) else None
        try:
            space = ParameterSpace.of_model(model, chosen if mask is None else list(mask), mask)
        except ArgumentError as error:
            error.rename("weights")
            raise
        if mask is not None:
            return {name: tensors[name][mask[name]] for name in space.names}
        return {name: tensors[name] for name in space.names}
