"""Measurements during training, without side effects on it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from hyperribbon.core.checks import ArgumentError, check_positive_int, flag, function
from hyperribbon.core.devices.gpus import gpu_random_states, set_gpu_random_states
from hyperribbon.core.spectral_results import Spectrum
from hyperribbon.recording.cadence import Cadence, Position
from hyperribbon.recording.evaluation import in_mode


@dataclass(frozen=True)
class Measurement:
    """A quantity to measure on a model while it trains.

    Attributes:
        name: Name of the metric; entries of a dict become "name.entry", that under "" "name".
        function: `function(model)` returning a number, a small array, a dict of them, or a
            `Spectrum`, which is stored as its eigenvalues, the largest of its residuals and its
            products. One that has `state_dict` and `load_state_dict`, as `hr.Tracker` does, goes on
            from its last state when a killed run goes on. One that has `begin` is called as
            `begin(model, optimizer, loss, data)` before the run, with what the Recorder knows. A
            `next_seconds` says how long its next call may take; by default as long as the last. One
            whose `is_fitted` is False is first called as `fit_to(model, seconds, is_final=)`, with
            the time that a measurement may take, to choose how much work it does; at the first
            record, where the speed of the training is not known, that is not final.
        every: Measure at every n-th record only, or at the first record after every "1ep" or
            "500it".
        is_bounded: Whether it may be left out of records to keep recording within a tenth of the
            training time also where the Recorder is given no bound.
    """

    name: str
    function: Callable[[nn.Module], Any]
    every: int | str = 1
    is_bounded: bool = False

    def __post_init__(self) -> None:
        check_name("name", self.name)
        if isinstance(self.every, str):
            Cadence.parse(self.every)
        else:
            check_positive_int("every", self.every)
        function("function", self.function)
        flag("is_bounded", self.is_bounded)

    def is_due(self, number: int, before: Position | None, now: Position) -> bool:
        """Return whether the measurement is due at a record.

        Args:
            number: Records made before.
            before: Step and epoch of the last one, or None.
            now: Step and epoch.
        """
        if isinstance(self.every, int):
            return number % self.every == 0
        return before is None or Cadence.parse(self.every).passed(before, now)

    def __call__(self, model: nn.Module) -> dict[str, Any]:
        """Return a measurement of a model: the metrics by full name."""
        value = self.function(model)
        if isinstance(value, Spectrum):
            value = {
                "eigenvalues": value.eigenvalues,
                "residual": value.residuals.max(),
                "products": float(value.matvecs),
            }
        if not isinstance(value, Mapping):
            return {self.name: value}
        return {
            f"{self.name}.{check_name('measure', key)}" if key else self.name: v
            for key, v in value.items()
        }


def as_measurement(function: str | Callable[..., Any] | Measurement) -> Measurement:
    """Return a measurement; a plain function is stored under its own name.

    Names such as "sharpness" select the package's built-in measurements.

    Raises:
        ArgumentError: The function has no name.
    """
    if isinstance(function, str):
        import hyperribbon

        return hyperribbon.inspection.watch(function)
    if isinstance(function, Measurement):
        return function
    name = getattr(function, "__name__", type(function).__name__)
    if not callable(function) or name == "<lambda>":
        remedy = "Wrap it: Measurement('sharpness', function)."
        raise ArgumentError("measure", function, "the function has no name", remedy)
    return Measurement(name, function)


def check_name(argument: str, name: str) -> str:
    """Check the name of a measurement, which becomes part of a file name."""
    if not isinstance(name, str) or not re.fullmatch(r"\w[\w.\-+@ ]*", name):
        remedy = "Use letters, digits, '_', '-' and '.', such as 'top_eigenvalue'."
        raise ArgumentError(argument, name, "not a valid metric name", remedy)
    return name


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Restore a model's weights, buffers, gradients and modes after a measurement.

    The global random states of torch, numpy and Python are restored too.
    """
    parameters = list(model.parameters())
    tensors = [*parameters, *model.buffers()]
    copies = [(tensor, tensor.detach().clone()) for tensor in tensors]
    gradients = [(p, p.grad, p.requires_grad) for p in parameters]
    randomness = random_state()
    for parameter in parameters:
        parameter.grad = None
    try:
        with in_mode(model, None):
            yield
    finally:
        with torch.no_grad():
            for tensor, copy in copies:
                # Batch norm and .data change tensors behind their version counters: compare values.
                if not torch.equal(tensor, copy):
                    tensor.copy_(copy)
        for parameter, gradient, required in gradients:
            parameter.requires_grad_(required)
            parameter.grad = gradient
        set_random_state(randomness)


def random_state() -> dict[str, Any]:
    """Return the global random states that a measurement must not change.

    numpy's words are widened: torch 2.4 cannot write uint32.
    """
    kind, words, position, has_gauss, gauss = np.random.get_state()  # type: ignore[misc]
    wide = torch.from_numpy(np.array(words, dtype=np.int64))
    version, internal, gauss_next = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": gpu_random_states(),
        "numpy": [str(kind), wide, int(position), has_gauss, gauss],
        "python": [version, torch.tensor(internal, device="cpu"), gauss_next],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Restore the global random states after a measurement, as `random_state` gave them."""
    torch.set_rng_state(state["torch"])
    set_gpu_random_states(state["cuda"])
    kind, words, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, words.numpy().astype(np.uint32), position, has_gauss, gauss))
    version, internal, gauss_next = state["python"]
    random.setstate((version, tuple(internal.tolist()), gauss_next))
