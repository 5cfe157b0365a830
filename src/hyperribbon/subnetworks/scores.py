"""The accuracy or the loss of every sample of a risk, by which pruning is judged."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.func import vmap

from hyperribbon.core import ArgumentError
from hyperribbon.core.devices.torch_private import tree_map
from hyperribbon.operators import Risk
from hyperribbon.operators.risk.batches import cut
from hyperribbon.operators.risk.loss import CallableLoss, Loss
from hyperribbon.operators.risk.objective import OwnLoss
from hyperribbon.recording.evaluation import count_right
from hyperribbon.subnetworks.states import State

ROWS = 512
_FALLING = 0.9  # share of the labels whose score lowers a loss of class scores when it grows


class SampleScores:
    """A function of a state that gives the accuracy or the loss of every sample of a risk.

    The mean over samples is the accuracy or the risk. Every label counts alike, as in the loss:
    with several per sample, the number of right ones is divided by the mean number of labels.
    Samples whose every label the loss ignores are omitted.

    Args:
        risk: The objective.
        metric: "accuracy" or "loss"; by default the accuracy where targets are labels.

    Attributes:
        metric: Which of the two.

    Raises:
        ArgumentError: The targets are not labels, or samples have no loss of their own.
    """

    def __init__(self, risk: Risk, metric: str | None = None) -> None:
        self._risk = risk
        self._axis = class_axis(risk, *risk.evaluate(cut(next(risk.source.batches()), 0, ROWS)))
        self.metric = metric or ("loss" if self._axis is None else "accuracy")
        if self.metric == "loss":
            self._axis = None
            check_additive(risk.criterion)
        elif self._axis is None:
            reason = "the outputs and targets are not class scores and labels"
            remedy = 'Give metric="loss", or a function that returns one number per sample.'
            raise ArgumentError("metric", metric, reason, remedy)

    def __call__(self, state: State) -> torch.Tensor:
        """Return the scores (n,) of the risk at a state."""
        risk = self._risk.at(state)
        rows = risk.rows_at_once(rows_of(risk.criterion))
        pieces = (risk.evaluate(batch) for _, batch in risk.source.chunks(rows))
        sums, sizes = sums_and_sizes(pieces, risk.criterion, self._axis)
        return sums / sizes.mean() if self.metric == "accuracy" else sums * len(sums) / risk.amount


def rows_of(loss: Loss) -> int:
    """Return how many samples to score together: one where a model returns the loss of a batch."""
    return 1 if isinstance(loss, OwnLoss) else ROWS


def sums_and_sizes(
    pieces: Iterable[tuple[torch.Tensor, Any]], loss: Loss, axis: int | None
) -> torch.Tensor:
    """Return two rows to score every sample by: right labels and labels, or its loss and 1.

    Args:
        pieces: Outputs and targets.
        loss: The loss.
        axis: The class axis, for labels; None for the loss.
    """
    scores = [torch.empty(2, 0, dtype=torch.float64, device="cpu")]
    for outputs, targets in pieces:
        with torch.no_grad():
            if axis is not None:
                right, labels = count_right(outputs, targets, axis, loss)
                found = torch.stack([right, labels])[:, labels > 0]
            else:
                losses = _losses(loss, outputs, targets)
                found = torch.stack([losses, torch.ones_like(losses)])
        scores.append(found.double().cpu())
    return torch.cat(scores, 1)


def check_additive(loss: Loss) -> None:
    """Raise when samples have no score because their loss depends on the others of the batch."""
    if loss.reduction == "whole":
        reason = "a sample's loss depends on the others of its batch"
        remedy = "Give a function of (outputs, targets) that returns one number per sample."
        raise ArgumentError("metric", "loss", reason, remedy)


def class_axis(risk: Risk, outputs: torch.Tensor, targets: Any) -> int | None:
    """Return the axis of a risk's outputs that are scores of classes; None if they are not.

    torch's losses have it second. A function's outputs (n, …, C) with labels (n, …) have it last,
    and outputs (n, C, …) second, if a larger score of its label lowers the loss of nearly every
    label: a loss of shifted labels, or of similarities, is not one of class scores.
    """
    loss = risk.criterion
    if (
        not isinstance(targets, torch.Tensor)
        or targets.is_floating_point()
        or outputs.ndim != targets.ndim + 1
        or risk.function.packing is not None
    ):
        return None
    if not isinstance(loss, CallableLoss):
        return 1
    told, slope = targets != loss.ignore_index, loss.gradient(outputs, targets)
    for axis in (outputs.ndim - 1, 1):
        slopes, labels = slope.movedim(axis, -1), targets[told]
        named = (labels >= 0) & (labels < slopes.shape[-1])
        if slopes.shape[:-1] != targets.shape or not bool(named.all()):
            continue
        own = slopes[told].gather(1, labels[:, None].long())
        if float((own <= 0).double().mean()) >= _FALLING and bool((own < 0).any()):
            return axis
    return None


def _losses(loss: Loss, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
    """Return the loss of every sample, for the pruning score."""
    try:
        apart = outputs.unsqueeze(1), tree_map(lambda leaf: leaf.unsqueeze(1), targets)
        return vmap(loss.total)(*apart)
    except (RuntimeError, AttributeError):  # a loss that looks at values; targets of another kind
        each = ((outputs[i : i + 1], cut(targets, i, i + 1)) for i in range(len(outputs)))
        return torch.stack([loss.total(*one) for one in each])
