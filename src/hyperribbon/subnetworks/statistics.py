"""Statistics of normalisation layers, re-estimated for other weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from math import ceil
from typing import Any

import torch
from torch import nn

from hyperribbon.core.checks import torch_module
from hyperribbon.core.devices.modes import preserve_random_state
from hyperribbon.operators.risk.data import Data
from hyperribbon.operators.risk.objective import Objective
from hyperribbon.recording.evaluation import pieces, read
from hyperribbon.subnetworks.states import State, layer_of

_ROWS = 1000
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class Statistics:
    """Re-estimates the running statistics of a model's normalisation layers.

    Batch norm keeps the mean and the variance of its inputs at the trained weights. Pruned or reset
    weights give it other inputs, which the old statistics no longer normalise. The data pass
    through a copy of the model, normalisation layers in training mode and all others in evaluation
    mode (no dropout); the statistics are the cumulative average over batches of nearly equal size.

    Args:
        model: The architecture; not modified.
        data: As `hr.Risk` takes them; targets are ignored.
        call: call(model, batch), for models that are called in another way.
    """

    def __init__(
        self, model: nn.Module, data: Data, call: Callable[[nn.Module, Any], Any] | None = None
    ) -> None:
        self._network = copy.deepcopy(torch_module("model", model)).requires_grad_(False).eval()
        self._source = read(self._network, data)
        self._call = Objective().outputs if call is None else call
        self._layers = layers_with_statistics(self._network)
        for layer in self._layers.values():
            layer.momentum = None  # type: ignore[assignment]  # the cumulative average

    def __bool__(self) -> bool:
        """Whether the model has layers with normalisation statistics."""
        return bool(self._layers)

    @torch.no_grad()
    @preserve_random_state()
    def __call__(self, state: State) -> dict[str, torch.Tensor]:
        """Return the state with normalisation statistics of its own weights."""
        if not self._layers:
            return dict(state)
        self._network.load_state_dict(state)
        for layer in self._layers.values():
            layer.reset_running_stats()  # type: ignore[operator]
            layer.train()
        try:
            total = self._source.total or _ROWS
            for batch in pieces(self._network, self._source, ceil(total / ceil(total / _ROWS))):
                self._call(self._network, batch)
        finally:
            self._network.eval()
        found = self._network.state_dict()
        own = {n for n in found if layer_of(n) in self._layers and n.endswith(_STATISTICS)}
        return {name: found[name].clone() if name in own else state[name] for name in state}


def layers_with_statistics(model: nn.Module) -> dict[str, nn.Module]:
    """Return the layers that normalise by running statistics in evaluation mode, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(getattr(module, "running_mean", None), torch.Tensor)
        and hasattr(module, "reset_running_stats")
    }
