"""Many sub-networks of one architecture, evaluated together."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, vmap

from hyperribbon.core import ArgumentError
from hyperribbon.core.checks import check_choice, check_positive_int
from hyperribbon.core.devices.torch_inside import without_fallback_warnings
from hyperribbon.subnetworks.attention import vectorisable_attention
from hyperribbon.subnetworks.states import State, check_data, check_module, state_of

__all__ = ["Metric", "evaluate", "metric_of"]

Measure = str | Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Metric = Callable[[State], "torch.Tensor | float"]

_ROWS = 1000
_MEMORY_BYTES = 128 * 2**20


def evaluate(
    model: nn.Module,
    states: Sequence[State],
    data: tuple[torch.Tensor, torch.Tensor],
    *,
    measure: Measure = "accuracy",
    together: int | None = None,
) -> torch.Tensor:
    """Return a measurement of every sample under every state, (states, samples).

    The states run through one vectorised forward pass, several at a time; a parameter that is the
    same memory in a whole group enters once, and layers before the first difference run once. The
    model stays as it is; dropout and normalisation layers work in evaluation mode.

    Args:
        model: The architecture.
        states: State dicts of it.
        data: Inputs and targets.
        measure: "accuracy" (1 where the largest output is the target's), "loss" (cross-entropy), or
            a function of (outputs, targets) that gives one number per sample.
        together: How many states to evaluate at once; by default as many as keep the activations in
            about 128 MB. 1 evaluates one after another, for models that cannot be vectorised.

    Raises:
        ArgumentError: A state does not fit the model, or the model cannot be vectorised.
    """
    score = _measure(measure)
    inputs, targets = check_data(data)
    check_module("model", model)
    if isinstance(states, Mapping) or not isinstance(states, Iterable):
        raise ArgumentError("states", states, "it is not a list of states", "Give a list.")
    plain = [state_of("states", state) for state in states]
    if not plain:
        raise ArgumentError("states", states, "there is nothing to evaluate", "Give states.")
    network = copy.deepcopy(model).requires_grad_(False).eval()
    plain = _tensors_of(network, plain)
    if together is None:
        together = max(1, min(16, _MEMORY_BYTES // _bytes_per_state(plain[0], inputs)))
    together = check_positive_int("together", together, maximum=10**6)
    values = torch.empty(len(plain), len(targets), dtype=torch.float32, device=inputs.device)
    with torch.no_grad(), vectorisable_attention():
        for start in range(0, len(plain), together):
            group = plain[start : start + together]
            for row in range(0, len(targets), _ROWS):
                window = slice(row, row + _ROWS)
                outputs = _forward(network, group, inputs[window])
                for offset, output in enumerate(outputs):
                    values[start + offset, window] = score(output, targets[window]).to(values)
    return values


def metric_of(
    model: nn.Module, data: tuple[torch.Tensor, torch.Tensor], measure: Measure = "accuracy"
) -> Metric:
    """Return the function state → one measurement a sample, as `layer_criticality` wants it."""
    return lambda state: evaluate(model, [state], data, measure=measure, together=1)[0]


def _forward(network: nn.Module, group: Sequence[State], inputs: torch.Tensor) -> torch.Tensor:
    if len(group) == 1:
        return functional_call(network, dict(group[0]), (inputs,))[None]
    shared, stacked = {}, {}
    for name, first in group[0].items():
        if all(_same_memory(state[name], first) for state in group):
            shared[name] = first
        else:
            stacked[name] = torch.stack([state[name] for state in group])
    if not stacked:
        output = functional_call(network, shared, (inputs,))
        return output.expand(len(group), *output.shape)
    try:
        with without_fallback_warnings():
            return vmap(lambda varying: functional_call(network, {**shared, **varying}, (inputs,)))(
                stacked
            )
    except RuntimeError as error:
        reason = f"its forward pass cannot be vectorised over states ({str(error).splitlines()[0]})"
        remedy = "Give together=1 to evaluate one state after another."
        raise ArgumentError("model", type(network).__name__, reason, remedy) from error


def _same_memory(first: torch.Tensor, second: torch.Tensor) -> bool:
    return (
        first.data_ptr() == second.data_ptr()
        and first.shape == second.shape
        and first.stride() == second.stride()
    )


def _measure(measure: Measure) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    if callable(measure):
        return measure
    if check_choice("measure", measure, ("accuracy", "loss")) == "accuracy":
        return lambda outputs, targets: (outputs.argmax(1) == targets).float()
    return lambda outputs, targets: F.cross_entropy(outputs, targets, reduction="none")


def _tensors_of(
    network: nn.Module, states: list[dict[str, torch.Tensor]]
) -> list[dict[str, torch.Tensor]]:
    """Return each state's parameters and buffers, tied ones once, if they fit the network."""
    expected = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    stored = network.state_dict()
    names = [name for name in expected if name in stored]
    for position, state in enumerate(states):
        for name in names:
            if name not in state or state[name].shape != expected[name].shape:
                raise ArgumentError(
                    f"states[{position}]",
                    tuple(state[name].shape) if name in state else None,
                    f"the model's {name!r} has shape {tuple(expected[name].shape)}",
                    "Give states of this model.",
                )
    return [{name: state[name] for name in names} for state in states]


def _bytes_per_state(state: State, inputs: torch.Tensor) -> int:
    """Return a guess of the memory one more state takes: its weights and its activations."""
    weights = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    rows = min(_ROWS, len(inputs))
    widest = max((tensor.shape[0] for tensor in state.values() if tensor.ndim >= 2), default=1)
    spatial = max(1, inputs[0].numel() // max(1, inputs.shape[1]))
    return weights + 3 * rows * widest * (spatial if inputs.ndim > 2 else 1) * 4
