"""Short checks of products against plain autograd, for single tests."""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy
from typing import Any

import torch
from torch import nn

import hyperribbon as hr
from zoo.references import Reference, distance
from zoo.registry import Network
from zoo.untouched import untouched

__all__ = ["FEW", "ONE", "check_ggn", "check_hessian", "mlp", "or_refused", "points", "reference"]

ONE, FEW = 1e3, 1.5e4
"""Bytes with which the networks here are done one sample, or a few samples, at a time."""


def or_refused() -> suppress:
    """Let a refusal pass."""
    return suppress(hr.ArgumentError)


def points(count: int = 6, classes: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Return vectors (count, 4) and labels."""
    return torch.randn(count, 4).double(), torch.arange(count) % classes


def mlp(*extra: nn.Module) -> nn.Sequential:
    """Return a network from 4 to 3 numbers with further layers behind."""
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3), *extra).double()


def reference(model: nn.Module, loss: Any, x: Any, y: Any) -> Reference:
    """Return the derivatives of plain autograd, on a copy of the model."""
    return Reference(Network(deepcopy(model), loss, x, y))


def check_hessian(
    model: nn.Module, loss: Any, x: Any, y: Any, by_differences: bool = False, **options: Any
) -> None:
    """Compare products and the gradient with double backward passes or with differences."""
    truth = reference(model, loss, x, y)
    expected = truth.curved_by_differences if by_differences else truth.curved
    with untouched(model, x, y):
        operator = hr.Hessian(model, loss, (x, y), **options)
        assert distance(operator.gradient(), truth.gradient) < 1e-9
        block = truth.moving if by_differences else truth.block
        assert distance(operator @ block, expected) < (1e-6 if by_differences else 1e-9)


def check_ggn(model: nn.Module, loss: Any, x: Any, y: Any, **options: Any) -> None:
    """Compare products with those of the Jacobian and the loss's second derivative."""
    truth = reference(model, loss, x, y)
    with untouched(model, x, y):
        operator = hr.GGN(model, loss, (x, y), **options)
        assert distance(operator @ truth.block, truth.ggn(truth.block)) < 1e-9
