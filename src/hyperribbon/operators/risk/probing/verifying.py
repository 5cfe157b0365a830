"""A kind of derivatives on a few samples, compared with the model at shifted weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from hyperribbon.core.checks import ArgumentError
from hyperribbon.operators.derivatives.choosing import Choices
from hyperribbon.operators.derivatives.glance import (
    confirms_curvature,
    confirms_slopes,
    glance_steps,
)
from hyperribbon.operators.derivatives.linearisation import Block, Linearisation
from hyperribbon.operators.derivatives.random_direction import some_direction
from hyperribbon.operators.derivatives.verification import (
    TOTAL,
    Disagreement,
    check_curvature,
    check_pushed,
    check_slopes,
    differing,
    reached_part,
    some_slopes,
)
from hyperribbon.operators.risk.batches import brought
from hyperribbon.operators.risk.chunks import BatchEvaluation
from hyperribbon.operators.risk.function import ModelFunction
from hyperribbon.operators.risk.losses import CallableLoss, Loss
from hyperribbon.operators.risk.probing.shifting import (
    gradients_ahead,
    outputs_ahead,
    shifted_gradients,
    shifted_outputs,
)

__all__ = ["Verification", "one_row"]

_ROUNDED = 1e4  # units of rounding that a product may be off


@dataclass(frozen=True)
class Verification:
    """Compares derivatives on a few samples with finite differences, along one direction.

    Attributes:
        function: The model in private.
        loss: The loss, or None.
        batch: The samples.
        more: Gives more samples, on which rounding is judged where these few have next to no
            curvature: a network that has learned them well says nothing of single precision.
        is_smooth: Whether no value jumps and no rule of differentiation is the user's
            own, so that few evaluations may confirm what is right.
        has_kinks: Whether an operation is known to have kinks.
    """

    function: ModelFunction
    loss: Loss | None
    batch: Any
    more: Callable[[], Any]
    is_smooth: bool
    has_kinks: bool

    def check(self, kind: str, point: Linearisation, targets: Any) -> None:
        """Compare J v with Jᵀu ("jvp"), or ∇²ℓ v ("hvp").

        Raises an ArgumentError when they are not those of the function, or lost in rounding.

        Args:
            kind: Which of the two.
            point: The derivatives on the samples.
            targets: Targets of the samples.
        """
        leaves = self.function.leaves
        whole = some_direction(leaves)
        if kind == "hvp" and self._confirms_curvature(point, targets, whole):
            return
        slopes = some_slopes(point, list(leaves))
        direction = reached_part(whole, slopes[1])
        if not direction:
            return
        if kind == "jvp":
            check_push = partial(self._check_pushed, direction, point.outputs)
            self._either_way(partial(check_slopes, point, whole, slopes, check_push), point)
            return
        del slopes, whole
        self._check_curvature(point, targets, direction)

    def _either_way(self, check: Callable[[], None], point: Linearisation) -> None:
        """Check J v, and by forward mode where the graph of Jᵀu has it wrong.

        A user's rule for Jᵀu may not be differentiable, which torch does not always notice.

        Raises:
            Disagreement: It is wrong both ways.
        """
        try:
            check()
        except Disagreement as error:
            if not point.turn_forward():
                raise
            try:
                check()
            except (Disagreement, RuntimeError, NotImplementedError):
                raise error from None

    def _check_pushed(self, direction: Block, here: torch.Tensor, pushed: torch.Tensor) -> None:
        for step in glance_steps(pushed.dtype, self.has_kinks) if self.is_smooth else ():
            ahead = outputs_ahead(self.function, self.batch, direction, step)
            if confirms_slopes(pushed, ahead, here, step):
                return
        shifted, precision = shifted_outputs(self.function, self.batch, direction)
        check_pushed(pushed, shifted, precision)

    def _confirms_curvature(
        self, point: Linearisation, targets: Any, whole: Mapping[str, torch.Tensor]
    ) -> bool:
        """Whether a gradient at shifted weights confirms ∇²ℓ v."""
        loss, steps = self.loss, glance_steps(point.outputs.dtype, self.has_kinks)
        if loss is None or isinstance(loss, CallableLoss) or not self.is_smooth:
            return False
        if not steps:
            return False
        gradient = point.gradient(loss, targets)
        here = {name: slope.detach() for name, slope in gradient.items()}
        if set(here) != set(whole) or not all(bool(slope.any()) for slope in here.values()):
            return False  # vanishing gradients do not show which weights count
        direction = {name: v.masked_fill(here[name] == 0, 0) for name, v in whole.items()}
        curved = _curved(point, loss, targets, direction)
        try:
            here[TOTAL] = loss.total(point.outputs.double(), targets)
            ahead = partial(gradients_ahead, self.function, loss, self.batch, direction)
            return any(confirms_curvature(curved, direction, here, ahead(h), h) for h in steps)
        except RuntimeError:  # weights of classes, say, in another precision
            return False

    def _check_curvature(self, point: Linearisation, targets: Any, direction: Block) -> None:
        assert self.loss is not None
        curved = _curved(point, self.loss, targets, direction)
        del point
        shifted, precision = shifted_gradients(self.function, self.loss, self.batch, direction)
        try:
            check_curvature(curved, direction, shifted, precision)
        except Disagreement as error:
            own = next(iter(self.function.leaves.values())).dtype
            if precision == own:
                raise
            right = self._curved_in(precision, self.batch, direction)
            check_curvature(right, direction, shifted, precision)
            if self._is_lost(own, precision, direction):
                raise _lost_in_rounding(own, precision) from error

    def _is_lost(self, own: torch.dtype, precision: torch.dtype, direction: Block) -> bool:
        """Whether ∇²ℓ v of more samples differs from what it is in higher precision."""
        batch = self.more()
        found, right = (self._curved_in(p, batch, direction) for p in (own, precision))
        norms = {name: float(right[name].norm()) for name in direction}
        gaps = {name: float((right[name] - found[name]).norm()) for name in direction}
        return bool(differing(norms, gaps, _ROUNDED * torch.finfo(own).eps)[1])

    def _curved_in(self, precision: torch.dtype, batch: Any, direction: Block) -> Block:
        """Return ∇²ℓ v of some samples in a precision."""
        assert self.loss is not None
        function, batch = self.function.in_precision(precision), brought(batch, precision)
        evaluation = BatchEvaluation(function, batch)
        raised = {name: tensor.to(precision) for name, tensor in direction.items()}
        point = Linearisation(evaluation, Choices())
        return _curved(point, self.loss, evaluation.targets, raised)


def one_row(direction: Block) -> dict[str, torch.Tensor]:
    """Return a direction as a block of one row."""
    return {name: tensor.unsqueeze(0) for name, tensor in direction.items()}


def _curved(point: Linearisation, loss: Loss, targets: Any, direction: Block) -> Block:
    gradient = point.gradient(loss, targets)
    found = point.differentiate(gradient, one_row(direction), list(direction))
    return {name: rows[0] for name, rows in found.items()}


def _lost_in_rounding(own: torch.dtype, better: torch.dtype) -> ArgumentError:
    reason = (
        "its second derivatives are lost in rounding: they are others than in higher precision, "
        "where they are right. The loss is too close to its minimum, as after a perfect fit"
    )
    remedy = f"Use double precision: model.to({better}), and the data likewise."
    return ArgumentError("model", str(own).removeprefix("torch."), reason, remedy)
