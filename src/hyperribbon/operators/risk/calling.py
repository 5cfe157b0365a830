"""How a model is called on a batch: alone, on pairs, or as the user says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import torch
from torch import nn

from hyperribbon.core.checks import ArgumentError

__all__ = ["Caller", "Forward"]

Forward = Callable[[nn.Module, Any], Any]
"""forward(model, batch) -> outputs, or (outputs, targets) taken from the batch."""

_TARGET_KEYS = ("labels", "label", "targets", "target", "y")


class Caller(nn.Module):
    """The model together with the way it is called; the model itself gets no hook."""

    def __init__(self, model: nn.Module, forward: Forward | None) -> None:
        super().__init__()
        self.model = model
        self._forward = forward
        self.buffer_keys = [f"model.{name}" for name, _ in model.named_buffers()]

    def forward(self, batch: Any) -> Any:
        """Return outputs and targets of a batch, or what a function of no arguments returns."""
        if isinstance(batch, FunctionType):
            return batch()
        pair = isinstance(batch, tuple) and len(batch) == 2
        if isinstance(batch, Mapping):
            targets = next((batch[key] for key in _TARGET_KEYS if key in batch), None)
        else:
            targets = batch[-1] if isinstance(batch, tuple) else None
        if self._forward is not None:
            answer = self._forward(self.model, batch)
            return answer if isinstance(answer, tuple) else (answer, targets)
        if isinstance(batch, torch.Tensor):
            return self.model(batch), None
        if pair and isinstance(batch[0], torch.Tensor):
            return self.model(batch[0]), targets
        raise ArgumentError(
            "data",
            sorted(batch) if isinstance(batch, Mapping) else f"{len(batch)} items",
            "a batch is neither a tensor nor a pair (inputs, targets)",
            "Say how the model is called: forward=lambda model, batch: (outputs, targets).",
        )
