"""Batched evaluation of many sub-networks of one architecture."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from hyperribbon.core import ArgumentError
from hyperribbon.core.checks import check_choice, count, list_of, torch_module, validate
from hyperribbon.core.devices.torch_private import tree_map, without_fallback_warnings
from hyperribbon.operators.risk.batches import batch_size, split, tensors
from hyperribbon.operators.risk.data import Data, Source
from hyperribbon.operators.risk.forward import Forward, call_with_labels, own_loss_of
from hyperribbon.operators.risk.objective import Objective, at_weights
from hyperribbon.recording.evaluation import (
    class_axis,
    count_right,
    own_loss,
    pieces,
    read,
)
from hyperribbon.subnetworks.states import State, state_of
from hyperribbon.subnetworks.statistics import Statistics

Measure = str | Callable[[Any, Any], torch.Tensor]
Metric = Callable[[State], "torch.Tensor | float"]

_ROWS = 1000
_MEMORY_BYTES = 128 * 2**20


@validate(states=list_of(lambda argument, state: state_of(argument, state)), together=count)
def evaluate_states(
    model: nn.Module,
    states: Sequence[State],
    data: Data,
    *,
    measure: Measure = "accuracy",
    together: int | None = None,
) -> torch.Tensor:
    """Return the evaluation of sub-networks' states: accuracy or loss, (states, samples).

    The states run through one vectorised forward pass, several at a time; a parameter that is the
    same memory in a whole group enters once, and layers before the first difference run once. The
    model is not modified; it runs in evaluation mode.

    Args:
        model: The architecture.
        states: State dicts of it.
        data: As `hr.Risk` takes them.
        measure: "accuracy" (1 where the largest output is the target's), "loss" (cross-entropy), or
            a function of (outputs, targets) that gives one number per sample. With token labels,
            every label other than −100 counts: the sum over a sample's tokens is divided by the
            mean number of tokens per sample, so the mean over samples equals the mean over tokens.
            Causal language models of transformers are scored on the next token.
        together: How many states to evaluate at once; by default as many as keep the activations in
            about 128 MB, and one after another where a model cannot be vectorised.

    Raises:
        ArgumentError: A state does not fit the model, or the model cannot be vectorised over as
            many states as are given as `together`.
    """
    return Evaluator(model, data, measure)(states, together)


@validate()
def metric_of(
    model: nn.Module, data: Data, measure: Measure = "accuracy", *, calibration: Data = None
) -> StateMetric:
    """Return the evaluation of a state, one number per sample, as `layer_criticality` takes it.

    The data are read once.

    Args:
        model: The architecture; not modified.
        data: As `hr.Risk` takes them.
        measure: As in `evaluate_states`.
        calibration: Data for re-estimating the statistics of normalisation layers; by default the
            inputs of `data`.
    """
    return StateMetric(model, data, measure, calibration=calibration)


class StateMetric:
    """A function of a state that gives one number per sample; arguments as for `metric_of`.

    Attributes:
        model: The architecture, from which follows which entries of a state are parameters.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Data,
        measure: Measure = "accuracy",
        *,
        calibration: Data = None,
        forward: Forward | None = None,
    ) -> None:
        self.model = model
        self.evaluator = Evaluator(model, data, measure, forward)
        given = self.evaluator.source if calibration is None else calibration
        self._statistics = Statistics(model, given, Objective(None, forward).outputs)

    def __call__(self, state: State) -> torch.Tensor:
        """Evaluate a sub-network's state as it is: the scores (n,)."""
        return self.evaluator([state_of("state", state)], together=1)[0]

    def reestimate(self, state: State) -> dict[str, torch.Tensor]:
        """Return a sub-network's state to evaluate, with normalisation statistics of its own."""
        return self._statistics(state_of("state", state))

    @property
    def is_normalised(self) -> bool:
        """Whether the model whose states are evaluated has layers with running statistics."""
        return bool(self._statistics)


class Evaluator:
    """Evaluates states of a model on data read once; arguments as for `evaluate_states`."""

    def __init__(
        self,
        model: nn.Module,
        data: Data,
        measure: Measure,
        forward: Forward | None = None,
    ) -> None:
        self._network = copy.deepcopy(torch_module("model", model)).requires_grad_(False).eval()
        self.source: Source = read(self._network, data)
        self._measure, self._axis = measure, 0
        self._call, self._forward_by = Objective(None, forward).outputs, forward
        if not callable(measure):
            check_choice("measure", measure, ("accuracy", "loss"))
            self._find_labels()
        self._function = at_weights(self._network, self._call)

    def __call__(self, states: Sequence[State], together: int | None = None) -> torch.Tensor:
        """Evaluate many sub-networks' states on every sample: the metric (states, samples)."""
        if not states:
            raise ArgumentError("states", states, "no states to evaluate", "Give states.")
        plain = _tensors_of(self._network, states)
        size = together or max(1, min(16, _MEMORY_BYTES // self._bytes_per_state(plain[0])))
        rows, counts = [], []
        with torch.no_grad(), _vectorisable_attention():
            for start in range(0, len(plain), size):
                group, columns, counts = plain[start : start + size], [], []
                for batch in pieces(self._network, self.source, _ROWS):
                    outputs, targets = self._forward(group, batch, is_strict=together is not None)
                    found = [self._score(each, targets, batch) for each in outputs]
                    columns.append(torch.stack([values.float() for values, _ in found]))
                    counts.append(found[0][1])
                rows.append(torch.cat(columns, 1))
        sizes = torch.cat(counts).float()
        return torch.cat(rows) / sizes.mean()

    def _find_labels(self) -> None:
        """Find for sub-networks' evaluation the class axis, and how a model aligns its labels."""
        batch, loss = next(pieces(self._network, self.source, 2)), None
        with torch.no_grad():
            outputs, targets = (
                call_with_labels(self._network, batch, self._forward_by),
                split(batch)[1],
            )
            if self._forward_by is not None or not isinstance(outputs, torch.Tensor):
                if own_loss_of(outputs) is not None:
                    self._call, loss = own_loss(self._network, self.source)
                outputs, targets = self._call(self._network, batch)
        axis = class_axis(outputs, targets, loss)
        if axis is None:
            shapes = [tuple(part.shape) for part in tensors((outputs, targets))]
            reason = f"outputs and targets, of shapes {shapes}, are not class scores and labels"
            remedy = "Give a function of (outputs, targets) that returns one number per sample."
            raise ArgumentError("measure", self._measure, reason, remedy)
        self._axis = axis

    def _score(self, outputs: Any, targets: Any, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the score per sample of a sub-network's evaluation, and its number of labels."""
        if callable(self._measure):
            values, samples = self._measure(outputs, targets), batch_size(batch)
            if not isinstance(values, torch.Tensor) or values.shape != (samples,):
                reason = f"it does not return one number for each of {samples} samples"
                raise ArgumentError("measure", values, reason, "Return a tensor (samples,).")
            return values, torch.ones_like(values)
        right, labels = count_right(outputs, targets, self._axis)
        if self._measure == "accuracy":
            return right, labels
        scores = outputs.movedim(self._axis, 1)
        losses = F.cross_entropy(scores, targets.long(), reduction="none").reshape(len(scores), -1)
        return losses.sum(1), labels

    def _forward(
        self, group: Sequence[State], batch: Any, is_strict: bool
    ) -> tuple[list[Any], Any]:
        """Return the outputs of every evaluated sub-network's state, and the targets."""
        shared, stacked = {}, {}
        for name, first in group[0].items():
            if all(_same_memory(state[name], first) for state in group):
                shared[name] = first
            else:
                stacked[name] = torch.stack([state[name] for state in group])
        aside = []

        def outputs_at(varying: State) -> Any:
            outputs, targets = self._function({**shared, **varying}, batch)
            aside.append(targets)
            return outputs

        if not stacked:
            return [outputs_at({})] * len(group), aside[0]
        try:
            with without_fallback_warnings():
                joint = vmap(outputs_at)(stacked)
            outputs = [tree_map(lambda leaf, i=i: leaf[i], joint) for i in range(len(group))]
        except RuntimeError as error:
            if is_strict:
                cause = str(error).splitlines()[0]
                reason = f"its forward pass cannot be vectorised over states ({cause})"
                remedy = "Give together=1 to evaluate one state after another."
                name = type(self._network).__name__
                raise ArgumentError("model", name, reason, remedy) from error
            aside.clear()
            outputs = [outputs_at({name: state[name] for name in stacked}) for state in group]
        return outputs, aside[0]

    def _bytes_per_state(self, state: State) -> int:
        """Return the memory that evaluation takes per sub-network's state: weights, activations."""
        weights = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
        inputs = tensors(split(self.source.some(1))[0])[0]
        rows = min(_ROWS, self.source.total or _ROWS)
        widest = max((tensor.shape[0] for tensor in state.values() if tensor.ndim >= 2), default=1)
        spatial = inputs[0].numel() // max(1, inputs.shape[1]) if inputs.ndim > 2 else 1
        return weights + 3 * rows * widest * max(1, spatial) * 4


@contextmanager
def _vectorisable_attention() -> Iterator[None]:
    """Evaluate sub-networks' attention by its plain kernel: fused ones have no batching rule."""
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


def _same_memory(first: torch.Tensor, second: torch.Tensor) -> bool:
    return (
        first.data_ptr() == second.data_ptr()
        and first.shape == second.shape
        and first.stride() == second.stride()
    )


def _tensors_of(network: nn.Module, states: Sequence[State]) -> list[dict[str, torch.Tensor]]:
    """Return parameters and buffers of each state to evaluate, tied ones once, shapes checked."""
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
