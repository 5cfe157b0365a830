"""A model's outputs and gradients at shifted weights, for finite differences.

In float64 where the model and the loss run there: the differences are then good to several digits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from hyperribbon.operators.derivatives.verification import TOTAL, Shifted
from hyperribbon.operators.risk.batches import brought
from hyperribbon.operators.risk.function import ModelFunction
from hyperribbon.operators.risk.losses import Loss

__all__ = ["shifted_gradients", "shifted_outputs"]


def shifted_outputs(function: ModelFunction, batch: Any) -> tuple[Shifted, torch.dtype]:
    """Return outputs as a function of the direction and step, and their precision."""

    def outputs(exact: ModelFunction, samples: Any) -> Mapping[str, torch.Tensor]:
        with torch.no_grad():
            return {"outputs": exact.plainly(samples)[0]}

    return _in_best_precision(function, batch, outputs, outputs)


def shifted_gradients(
    function: ModelFunction, loss: Loss, batch: Any
) -> tuple[Shifted, torch.dtype]:
    """Return gradients of the summed loss as a function of direction and step, and the precision.

    Gradients are those that training would see: of the model as it is, by first derivatives.
    """

    def gradients(exact: ModelFunction, samples: Any) -> Mapping[str, torch.Tensor]:
        with torch.inference_mode(False), torch.enable_grad():
            total = loss.total(*exact.plainly(samples))
        leaves = exact.leaves
        if not total.requires_grad:
            return {TOTAL: total} | {n: torch.zeros_like(leaf) for n, leaf in leaves.items()}
        found = torch.autograd.grad(
            total, list(leaves.values()), allow_unused=True, materialize_grads=True
        )
        dense = (slope.to_dense() if slope.is_sparse else slope for slope in found)
        return {TOTAL: total.detach()} | dict(zip(leaves, dense, strict=True))

    def value(exact: ModelFunction, samples: Any) -> None:
        with torch.no_grad():
            loss.total(*exact.plainly(samples))

    return _in_best_precision(function, batch, gradients, value)


def _in_best_precision(
    function: ModelFunction,
    batch: Any,
    evaluate: Callable[[ModelFunction, Any], Mapping[str, torch.Tensor]],
    attempt: Callable[[ModelFunction, Any], Any],
) -> tuple[Shifted, torch.dtype]:
    """Return shifted results in float64 where an attempt succeeds there."""
    try:
        exact, samples = function.in_precision(torch.float64), brought(batch, torch.float64)
        attempt(exact, samples)
        return _Shifting(exact, samples, evaluate), torch.float64
    except Exception:  # some models and losses run in one precision only
        own = next(iter(function.leaves.values())).dtype
        return _Shifting(function.in_precision(None), batch, evaluate), own


class _Shifting:
    """Moves the leaves of a private function along a direction and evaluates it there."""

    def __init__(
        self,
        function: ModelFunction,
        batch: Any,
        evaluate: Callable[[ModelFunction, Any], Mapping[str, torch.Tensor]],
    ) -> None:
        self._function, self._batch, self._evaluate = function, batch, evaluate
        self._here = {name: leaf.detach().clone() for name, leaf in function.leaves.items()}

    def __call__(
        self, direction: Mapping[str, torch.Tensor], step: float
    ) -> Mapping[str, torch.Tensor]:
        """Return the results at θ + step·v."""
        with torch.no_grad():
            for name, tensor in direction.items():
                leaf = self._function.leaves[name]
                torch.add(self._here[name], tensor.to(leaf), alpha=step, out=leaf)
        return self._evaluate(self._function, self._batch)
