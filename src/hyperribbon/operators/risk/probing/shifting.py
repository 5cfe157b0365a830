"""A model's outputs and gradients at shifted weights, for finite differences.

In float64 where the model and the loss run there: the differences are then good to several digits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from hyperribbon.operators.derivatives.verification import FIRST_STEP, TOTAL, Shifted
from hyperribbon.operators.risk.batches import brought
from hyperribbon.operators.risk.function import ModelFunction
from hyperribbon.operators.risk.losses import Loss

__all__ = ["gradients_ahead", "outputs_ahead", "shifted_gradients", "shifted_outputs"]


Direction = Mapping[str, torch.Tensor]


def shifted_outputs(
    function: ModelFunction, batch: Any, direction: Direction
) -> tuple[Shifted, torch.dtype]:
    """Return outputs as a function of the step along a direction, and their precision."""
    return _in_best_precision(function, batch, direction, _outputs)


def outputs_ahead(
    function: ModelFunction, batch: Any, direction: Direction, step: float
) -> torch.Tensor:
    """Return the outputs at θ + step·v in the model's own precision."""
    own = function.in_precision(None)
    return _Shifting(own, function.leaves, batch, direction, _outputs)(step)["outputs"]


def shifted_gradients(
    function: ModelFunction, loss: Loss, batch: Any, direction: Direction
) -> tuple[Shifted, torch.dtype]:
    """Return gradients of the summed loss as a function of the step, and their precision.

    Gradients are those that training would see: of the model as it is, by first derivatives.
    """
    return _in_best_precision(function, batch, direction, partial(_gradients, loss))


def gradients_ahead(
    function: ModelFunction, loss: Loss, batch: Any, direction: Direction, step: float
) -> Mapping[str, torch.Tensor]:
    """Return gradients at θ + step·v in the model's own precision, and the loss in float64."""

    def gradients(own: ModelFunction, samples: Any) -> Mapping[str, torch.Tensor]:
        return _gradients(loss, own, samples, wide=True)

    own = function.in_precision(None)
    return _Shifting(own, function.leaves, batch, direction, gradients)(step)


def _outputs(function: ModelFunction, batch: Any) -> Mapping[str, torch.Tensor]:
    with torch.no_grad():
        return {"outputs": function.plainly(batch)[0]}


def _gradients(
    loss: Loss, function: ModelFunction, batch: Any, wide: bool = False
) -> Mapping[str, torch.Tensor]:
    with torch.inference_mode(False), torch.enable_grad():
        outputs, targets = function.plainly(batch)
        total = loss.total(outputs, targets)
    leaves = function.leaves
    value = loss.total(outputs.detach().double(), targets) if wide else total.detach()
    if not total.requires_grad:
        return {TOTAL: value} | {n: torch.zeros_like(leaf) for n, leaf in leaves.items()}
    found = torch.autograd.grad(
        total, list(leaves.values()), allow_unused=True, materialize_grads=True
    )
    dense = (slope.to_dense() if slope.is_sparse else slope for slope in found)
    return {TOTAL: value} | dict(zip(leaves, dense, strict=True))


def _in_best_precision(
    function: ModelFunction,
    batch: Any,
    direction: Direction,
    evaluate: Callable[[ModelFunction, Any], Mapping[str, torch.Tensor]],
) -> tuple[Shifted, torch.dtype]:
    """Return shifted results in float64 where the first of them succeed there."""
    leaves = function.leaves
    try:
        exact, samples = function.in_precision(torch.float64), brought(batch, torch.float64)
        shifted = _Shifting(exact, leaves, samples, direction, evaluate)
        shifted(FIRST_STEP)
        return shifted, torch.float64
    except Exception:  # some models and losses run in one precision only
        own = next(iter(leaves.values())).dtype
        return _Shifting(function.in_precision(None), leaves, batch, direction, evaluate), own


class _Shifting:
    """Moves the leaves of a private function along a direction and evaluates it there.

    The last two results are remembered: those of a step ahead and the same step behind.
    """

    def __init__(
        self,
        function: ModelFunction,
        here: Mapping[str, torch.Tensor],
        batch: Any,
        direction: Direction,
        evaluate: Callable[[ModelFunction, Any], Mapping[str, torch.Tensor]],
    ) -> None:
        self._function, self._here, self._batch = function, here, batch
        self._direction, self._evaluate = direction, evaluate
        self._known: dict[float, Mapping[str, torch.Tensor]] = {}

    def __call__(self, step: float) -> Mapping[str, torch.Tensor]:
        """Return the results at θ + step·v."""
        if step not in self._known:
            if len(self._known) > 1:
                del self._known[next(iter(self._known))]
            with torch.no_grad():
                for name, tensor in self._direction.items():
                    leaf = self._function.leaves[name]
                    leaf.copy_(self._here[name]).add_(tensor, alpha=step)
            self._known[step] = self._evaluate(self._function, self._batch)
        return self._known[step]
