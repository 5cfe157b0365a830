"""Derivatives on a few samples, compared with finite differences at shifted weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from hyperribbon.core.checks import ArgumentError
from hyperribbon.operators.derivatives.linearisation import Block, Linearisation, Routes
from hyperribbon.operators.derivatives.verification import (
    FIRST_STEP,
    SLOPE,
    TOTAL,
    Disagreement,
    Shifted,
    check_hvp,
    check_jvp,
    check_jvp_and_vjp,
    find_differences,
    inner,
    random_direction,
    random_vjp,
    restrict_to_reached,
    some_entries,
)
from hyperribbon.operators.risk.batches import to_precision
from hyperribbon.operators.risk.contract import Probe
from hyperribbon.operators.risk.data import Source
from hyperribbon.operators.risk.loss import Loss
from hyperribbon.operators.risk.model import BatchEvaluation, ModelFunction

_ROUNDED = 1e4  # units of rounding that a product may be off


@dataclass(frozen=True)
class Verification:
    """Compares derivatives on a few samples with finite differences, along one direction.

    Attributes:
        probe: The samples, and the model in private.
        loss: The loss, or None.
        source: The data, of which more samples are read where rounding is judged and these few
            have next to no curvature: a network that has learned them well says nothing of single
            precision.
    """

    probe: Probe
    loss: Loss | None
    source: Source

    def check(self, kind: str, linearise: Callable[[], tuple[Linearisation, Any]]) -> None:
        """Compare J v with Jᵀu ("jvp"), or ∇²ℓ v ("hvp"), with finite differences.

        Raises an ArgumentError when they are not those of the function, or lost in rounding.

        Args:
            kind: Which of the two.
            linearise: Returns the derivatives on the samples, and the targets.
        """
        point, targets = linearise()
        leaves = self.probe.function.leaves
        whole = random_direction(leaves)
        slopes = random_vjp(point, list(leaves))
        direction = restrict_to_reached(whole, slopes[1])
        if not direction:
            return
        if kind == "jvp":
            shifted, precision = self._shift(direction, _outputs)
            check_along = partial(check_jvp, shifted=shifted, precision=precision)
            self._either_way(partial(check_jvp_and_vjp, point, whole, slopes, check_along), point)
            return
        del slopes, whole
        assert self.loss is not None
        product = _hvp(point, self.loss, targets, direction)
        product = {name: some_entries(whole) for name, whole in product.items()}
        del point  # finite differences need the room of its graph
        self._check_hvp(product, direction)

    def _either_way(self, check: Callable[[], None], point: Linearisation) -> None:
        """Check J v by finite differences, in forward mode where the graph of Jᵀu has it wrong.

        A user's rule for Jᵀu may not be differentiable, which torch does not always notice.

        Raises:
            Disagreement: It is wrong both ways.
        """
        try:
            check()
        except Disagreement as error:
            if not point.use_forward_mode():
                raise
            try:
                check()
            except (Disagreement, RuntimeError, NotImplementedError):
                raise error from None

    def _shift(self, direction: Block, evaluate: Evaluate) -> tuple[Shifted, torch.dtype]:
        """Return results at shifted weights for finite differences, in float64 where possible."""
        about = self.probe.function, self.probe.batch, direction, evaluate
        try:
            shifted = _ShiftedModel(*about, torch.float64)
            shifted(FIRST_STEP)
            return shifted, torch.float64
        except Exception:  # some models and losses run in one precision only
            return _ShiftedModel(*about), self.probe.function.dtype

    def _check_hvp(self, product: Block, direction: Block) -> None:
        assert self.loss is not None
        shifted, precision = self._shift(direction, partial(_gradients, self.loss, direction))
        try:
            check_hvp(product, direction, shifted, precision)
        except Disagreement as error:
            own = self.probe.function.dtype
            if precision == own:
                raise
            right = self._hvp_in(precision, self.probe.batch, direction)
            right = {name: some_entries(whole) for name, whole in right.items()}
            check_hvp(right, direction, shifted, precision)
            if self._is_lost(own, precision, direction):
                raise _lost_in_rounding(own, precision) from error

    def _is_lost(self, own: torch.dtype, precision: torch.dtype, direction: Block) -> bool:
        """Whether ∇²ℓ v differs from that in higher precision: no finite difference to compare."""
        batch = self.probe.more_samples(self.source)
        found, right = (self._hvp_in(p, batch, direction) for p in (own, precision))
        norms = {name: float(right[name].norm()) for name in direction}
        gaps = {name: float((right[name] - found[name]).norm()) for name in direction}
        return bool(find_differences(norms, gaps, _ROUNDED * torch.finfo(own).eps)[1])

    def _hvp_in(self, precision: torch.dtype, batch: Any, direction: Block) -> Block:
        """Return ∇²ℓ v of some samples in a precision, beside finite differences."""
        assert self.loss is not None
        function, batch = (
            self.probe.function.in_precision(precision),
            to_precision(batch, precision),
        )
        evaluation = BatchEvaluation(function, batch)
        raised = {name: tensor.to(precision) for name, tensor in direction.items()}
        point = Linearisation(evaluation, Routes())
        return _hvp(point, self.loss, evaluation.targets, raised)


def _hvp(point: Linearisation, loss: Loss, targets: Any, direction: Block) -> Block:
    gradient = point.gradient(loss, targets)
    block = {name: tensor.unsqueeze(0) for name, tensor in direction.items()}
    found = point.differentiate(gradient, block, list(direction))
    return {name: rows[0] for name, rows in found.items()}


def _lost_in_rounding(own: torch.dtype, better: torch.dtype) -> ArgumentError:
    reason = (
        "its second derivatives are lost in rounding: they are others than in higher precision, "
        "where they are right. The loss is too close to its minimum, as after a perfect fit"
    )
    remedy = f"Use double precision: model.to({better}), and the data likewise."
    return ArgumentError("model", str(own).removeprefix("torch."), reason, remedy)


Evaluate = Callable[[ModelFunction, Any], Mapping[str, torch.Tensor]]
"""Returns named results of a model on a batch."""


def _outputs(function: ModelFunction, batch: Any) -> Mapping[str, torch.Tensor]:
    with torch.no_grad():
        return {"outputs": function.evaluate(batch)[0]}


def _gradients(
    loss: Loss, direction: Block, function: ModelFunction, batch: Any
) -> Mapping[str, torch.Tensor]:
    """Return what finite differences are taken of: summed loss, its slope, gradient entries.

    They are those of training, of the model as it is.
    """
    with torch.inference_mode(False), torch.enable_grad():
        outputs, targets = function.evaluate(batch)
        total = loss.total(outputs, targets)
    leaves = function.leaves
    value = total.detach()
    if not total.requires_grad:
        zeros = {name: torch.zeros_like(some_entries(leaf)) for name, leaf in leaves.items()}
        return {TOTAL: value, SLOPE: torch.zeros_like(value)} | zeros
    found = torch.autograd.grad(
        total, list(leaves.values()), allow_unused=True, materialize_grads=True
    )
    dense = (slope.to_dense() if slope.is_sparse else slope for slope in found)
    named = dict(zip(leaves, dense, strict=True))
    slope = inner(direction, named)
    return {TOTAL: value, SLOPE: slope} | {name: some_entries(g) for name, g in named.items()}


class _ShiftedModel:
    """Results of a model as a function of the step h, at weights θ + h·v.

    The last two are remembered: those of a step ahead and the same step behind.
    """

    def __init__(
        self,
        function: ModelFunction,
        batch: Any,
        direction: Block,
        evaluate: Evaluate,
        precision: torch.dtype | None = None,
    ) -> None:
        self._here, self._direction, self._evaluate = function.leaves, direction, evaluate
        self._function = function.in_precision(precision)
        self._batch = batch if precision is None else to_precision(batch, precision)
        self._known: dict[float, Mapping[str, torch.Tensor]] = {}

    def __call__(self, step: float) -> Mapping[str, torch.Tensor]:
        """Return a model's results at shifted weights θ + step·v, for a finite difference."""
        if step not in self._known:
            if len(self._known) > 1:
                del self._known[next(iter(self._known))]
            with torch.no_grad():
                for name, tensor in self._direction.items():
                    leaf = self._function.leaves[name]
                    leaf.copy_(self._here[name]).add_(tensor, alpha=step)
            self._known[step] = self._evaluate(self._function, self._batch)
        return self._known[step]
