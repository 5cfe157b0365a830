"""Cheap checks that a model and its loss define one fixed function of the weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.processes import Processes
from hyperribbon.operators.derivatives.purity import preserved_random_state

__all__ = ["check_batch_norm", "check_finite_loss", "check_repeatable", "check_same_weights"]


def check_batch_norm(model: nn.Module) -> None:
    """Raise when batch norm would normalise by the batch: samples would depend on each other."""
    mixing = [
        name or "model"
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None)
    ]
    if mixing:
        raise ArgumentError(
            "model",
            ", ".join(mixing),
            "batch norm in training mode makes every sample's output depend on its batch, so "
            "the loss would change with the way the data are cut",
            "Call model.eval() first (and train with track_running_stats=True), or replace it "
            "by a norm that does not mix samples.",
        )


def check_repeatable(model: nn.Module, evaluate: Callable[[], torch.Tensor]) -> None:
    """Raise when two evaluations on the same batch differ.

    Args:
        model: Named in the explanation.
        evaluate: Returns the outputs of one batch.
    """
    with preserved_random_state(), torch.no_grad():
        first, second = evaluate(), evaluate()
    tolerance = torch.finfo(first.dtype).eps ** 0.5
    if torch.allclose(first, second, rtol=tolerance, atol=tolerance, equal_nan=True):
        return
    noisy = [
        name or "model"
        for name, module in model.named_modules()
        if module.training and (isinstance(module, _DropoutNd) or _has_dropout(module))
    ]
    cause = f"dropout in training mode: {', '.join(noisy)}" if noisy else "its forward is random"
    raise ArgumentError(
        "model",
        type(model).__name__,
        f"two evaluations on the same batch differ ({cause})",
        "Call model.eval() first, or remove the randomness from its forward.",
    )


def check_finite_loss(value: torch.Tensor, outputs: torch.Tensor) -> None:
    """Raise when the loss of a batch is NaN or infinite, and say whether the outputs are."""
    if bool(torch.isfinite(value)):
        return
    bad = int((~torch.isfinite(outputs)).sum())
    cause = (
        f"{bad} of the model's outputs are not finite"
        if bad
        else "the model's outputs are finite, so the loss itself is undefined there"
    )
    raise ArgumentError(
        "loss", float(value), f"the loss is not a finite number: {cause}", "Check weights and data."
    )


def check_same_weights(weights: torch.Tensor, processes: Processes) -> None:
    """Raise when ranks have other weights (P,) than the others; every rank calls it."""
    vector = weights.double()
    own = len(vector), float(vector.sum()), float(vector.abs().sum())
    sizes, sums, scales = zip(*processes.gather(own), strict=True)
    if len(set(sizes)) > 1 or max(sums) - min(sums) > 1e-9 * max(scales):
        raise ArgumentError(
            "model",
            f"parameters {sizes} with sums {sums}",
            "the ranks have different models",
            "Load the same weights on every rank, or wrap it in DistributedDataParallel.",
        )


def _has_dropout(module: nn.Module) -> bool:
    rate = getattr(module, "dropout", None)
    return isinstance(rate, float) and rate > 0
