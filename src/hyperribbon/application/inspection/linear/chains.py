"""The chain of linear layers at the end of a model, and the moments of what it is given."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import one_hot

from hyperribbon.application.inspection.copies import as_source, copy_in_mode
from hyperribbon.core.checks import ArgumentError, check_finite
from hyperribbon.core.devices.modes import preserve_random_state
from hyperribbon.operators.risk.batches import split
from hyperribbon.operators.risk.forward import call as call_model
from hyperribbon.theory.linear_networks.moments import Moments

__all__ = ["FoundChain", "find_chain", "find_layers", "numeric_targets", "output_matrix"]

_Calls = list[tuple[str, nn.Module, Any, Any]]


@dataclass(frozen=True)
class FoundChain:
    """Linear layers that follow each other, up to the model's output.

    Attributes:
        layers: Their names, first one first.
        weights: W1, …, WL in double precision.
        moments: Of the inputs of the first layer and the targets.
        target_moment: Y Yᵀ/n, (dL, dL).
        samples: n.
        deviation: ‖f(X) − W_L…W_1 X‖ / ‖f(X)‖, zero for a linear chain without biases.
    """

    layers: tuple[str, ...]
    weights: list[np.ndarray]
    moments: Moments
    target_moment: np.ndarray
    samples: int
    deviation: float


def find_chain(model: nn.Module, data: Any) -> FoundChain:
    """Find the linear layers that end a model, and take the moments of their data.

    A copy of the model is run once over the data, in evaluation mode.

    Raises:
        ArgumentError: The last layer is not linear, a layer is used twice, a layer works on
            sequences, or the last layer's output is joined with something else.
    """
    model, batches = copy_in_mode(model), as_source(model, data).batches()
    opening = next(batches)
    chain = _chain(model, opening)
    weights = [_double(layer.weight) for _, layer, *_ in chain]  # type: ignore[arg-type]
    sums = _Sums(chain[0][0], weights)
    for batch in itertools.chain([opening], batches):
        sums.add(*_run(model, batch), split(batch)[1])
    return FoundChain(
        layers=tuple(name for name, *_ in chain),
        weights=weights,
        moments=sums.moments(),
        target_moment=sums.targets / sums.count,
        samples=sums.count,
        deviation=float(np.sqrt(sums.apart / sums.size)) if sums.size else 0.0,
    )


def find_layers(model: nn.Module, data: Any) -> dict[str, tuple[int, int]]:
    """Return the linear layers that end a model, with their shapes (outputs, inputs).

    The model is run on the first batch of the data alone; errors are those of `find_chain`.
    """
    chain = _chain(copy_in_mode(model), next(as_source(model, data).batches()))
    return {name: (layer.out_features, layer.in_features) for name, layer, *_ in chain}  # type: ignore[misc]


def output_matrix(model: nn.Module, batch: Any) -> torch.Tensor:
    """Return the outputs of a model as a matrix (n, dL), also where they are one number each.

    Raises:
        ArgumentError: They are something else.
    """
    outputs = call_model(model, batch)[0]
    if isinstance(outputs, torch.Tensor) and outputs.ndim in (1, 2):
        return outputs if outputs.ndim == 2 else outputs.unsqueeze(1)
    reason = "its outputs are not a matrix (n, dL)"
    remedy = "Give a model with one vector of outputs for each sample."
    raise ArgumentError("model", type(outputs).__name__, reason, remedy)


def numeric_targets(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return targets shaped like the outputs (n, dL): class labels become one-hot.

    Numbers (n,) are those of one output.

    Raises:
        ArgumentError: The targets do not fit the outputs.
    """
    if targets is None:
        raise ArgumentError("data", None, "it has no targets", "Give (inputs, targets).")
    if outputs.shape[1] == 1 and targets.shape == outputs.shape[:1]:
        targets = targets.unsqueeze(1)
    if not targets.is_floating_point() and targets.ndim == 1:
        classes = outputs.shape[1]
        if int(targets.min()) < 0 or int(targets.max()) >= classes:
            raise ArgumentError(
                "targets", targets, f"labels lie between 0 and {classes - 1}", "Check the labels."
            )
        return one_hot(targets, classes).to(outputs.dtype)
    if targets.shape != outputs.shape:
        reason = f"the outputs have shape {tuple(outputs.shape)}"
        remedy = "Give class labels, or one number for each output."
        raise ArgumentError("targets", targets, reason, remedy)
    return targets.to(outputs.dtype)


class _Sums:
    """Sums over batches of what the moments need."""

    def __init__(self, first: str, weights: list[np.ndarray]) -> None:
        self._first, self._weights = first, weights
        outputs, inputs = len(weights[-1]), weights[0].shape[1]
        self.count = 0
        self.inputs, self.cross = np.zeros((inputs, inputs)), np.zeros((outputs, inputs))
        self.targets = np.zeros((outputs, outputs))
        self.apart = self.size = 0.0

    def add(self, calls: _Calls, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        features = _double(next(given for name, _, given, _ in calls if name == self._first))
        features = check_finite("inputs", features)
        wanted = check_finite("targets", _double(numeric_targets(outputs, targets)))
        values = _double(outputs)
        linear = features
        for weight in self._weights:
            linear = linear @ weight.T
        self.count += len(features)
        self.inputs += features.T @ features
        self.cross += wanted.T @ features
        self.targets += wanted.T @ wanted
        self.apart += float(np.sum((values - linear) ** 2))
        self.size += float(np.sum(values**2))

    def moments(self) -> Moments:
        for name in ("inputs", "targets"):
            if not getattr(self, name).any():
                reason = "every one of them is zero, so there is nothing to compare"
                remedy = "Check the data, and that the layers before the linear ones are not dead."
                raise ArgumentError(name, 0.0, reason, remedy)
        power = float(np.trace(self.targets))
        return Moments(self.inputs / self.count, self.cross / self.count, power / self.count)


def _chain(model: nn.Module, batch: Any) -> _Calls:
    calls, outputs = _run(model, batch)
    return _connect(model, batch, _last_chain(calls), outputs)


def _run(model: nn.Module, batch: Any) -> tuple[_Calls, torch.Tensor]:
    with _recording(model) as calls, torch.no_grad(), preserve_random_state():
        return calls, output_matrix(model, batch)


@contextmanager
def _recording(model: nn.Module) -> Iterator[_Calls]:
    """Record the calls of every module that has weights of its own; the hooks go again."""
    calls: _Calls = []
    handles = []
    for name, module in model.named_modules():
        if next(module.parameters(recurse=False), None) is not None:

            def record(layer: nn.Module, given: Any, output: Any, name: str = name) -> None:
                calls.append((name, layer, given[0] if given else None, output))

            handles.append(module.register_forward_hook(record))
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _last_chain(calls: _Calls) -> _Calls:
    names = [name for name, *_ in calls]
    chain: _Calls = []
    for call in reversed(calls):
        name, layer, given, output = call
        if not isinstance(layer, nn.Linear) or given.ndim != 2:
            break
        if chain and output.shape != chain[0][2].shape:
            break
        if names.count(name) > 1:
            raise ArgumentError(
                "model", name, "this layer is used more than once", "Give it weights of its own."
            )
        chain.insert(0, call)
    if not chain:
        kind = type(calls[-1][1]).__name__ if calls else type(None).__name__
        reason = "its last layer with weights is not a linear layer on vectors (n, d)"
        remedy = "The theory is about chains of nn.Linear; give a model that ends in one."
        raise ArgumentError("model", kind, reason, remedy)
    return chain


def _connect(model: nn.Module, batch: Any, chain: _Calls, outputs: torch.Tensor) -> _Calls:
    """Return the end of a chain in which each layer is given what the one before it put out.

    Where samples are exchanged in a layer's output, and in nothing else, what follows it alone has
    them exchanged too; a parallel map or a skip connection does not.

    Raises:
        ArgumentError: The model's outputs do not follow from the last layer alone.
    """
    if len(outputs) < 2:
        return chain
    followers: list[str | None] = [name for name, *_ in chain[1:]]
    kept: _Calls = []
    for call, follower in zip(reversed(chain), [None, *reversed(followers)], strict=True):
        layer = call[1]
        handle = layer.register_forward_hook(lambda module, given, output: output.roll(1, 0))
        try:
            calls, exchanged = _run(model, batch)
        finally:
            handle.remove()
        before, after = outputs, exchanged
        if follower is not None:
            before = kept[0][2]
            after = next(given for name, _, given, _ in calls if name == follower)
        close = 1e3 * torch.finfo(before.dtype).eps * float(before.abs().max())
        if before.shape != after.shape or float((after - before.roll(1, 0)).abs().max()) > close:
            break
        kept.insert(0, call)
    if not kept:
        reason = "its outputs do not follow from this last linear layer alone"
        remedy = "The theory is about layers in series; give a model that ends in one of them."
        raise ArgumentError("model", chain[-1][0], reason, remedy)
    return kept


def _double(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().double().cpu().numpy()
