"""Forward passes at other weights: losses and measurements of single samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import torch

from hyperribbon.application.inspection.engine.subject import Subject
from hyperribbon.operators.risk.batches import cut
from hyperribbon.operators.risk.loss import CallableLoss
from hyperribbon.operators.risk.objective import OwnLoss
from hyperribbon.recording.evaluation import count_right

_ROWS = 512
_FALLING = 0.9  # share of the labels whose score lowers a loss of class scores when it grows
OtherWeights = Mapping[str, torch.Tensor] | torch.Tensor | None
"""Named tensors, coordinates (P,), or None for the model's own."""


def outputs_at(
    subject: Subject, weights: OtherWeights = None, rows: int = _ROWS
) -> Iterator[tuple[torch.Tensor, Any]]:
    """Evaluate outputs and targets of this rank's data, piece by piece, without derivatives."""
    risk = subject.risk if weights is None else subject.risk.at(weights)
    with torch.no_grad():
        for _, batch in risk.source.chunks(subject.risk.rows_at_once(rows)):
            if not subject.processes.is_parallel:
                subject.clock.check()
            yield risk.evaluate(batch)


def loss_at(subject: Subject, weights: torch.Tensor) -> float:
    """Evaluate the loss at weights given as coordinates (P,), without derivatives."""
    risk = subject.risk
    subject.clock.check()
    with subject.processes.together("an evaluation of the loss"):
        total = torch.zeros((), dtype=torch.float64, device="cpu")
        for outputs, targets in outputs_at(subject, weights):
            total += risk.criterion.total(outputs, targets).cpu()
    return float(subject.processes.sum(total)) / risk.amount


def class_axis(subject: Subject) -> int | None:
    """Return along which axis of the outputs classes are evaluated; None without classes.

    torch's losses have it second. A function's outputs (n, …, C) with labels (n, …) have it last,
    and outputs (n, C, …) second, if a larger score of its label lowers the loss of nearly every
    label: a loss of shifted labels, or of similarities, is none of class scores.
    """
    with subject.processes.together("an evaluation of the model"):
        found = [_axis(subject, *piece) for piece in islice(outputs_at(subject), 1)]
    axes = {axis for share in subject.processes.gather(found) for axis in share}
    return axes.pop() if len(axes) == 1 else None


def is_classification(subject: Subject) -> bool:
    """Whether to evaluate accuracy: outputs are scores of classes and targets are labels."""
    return class_axis(subject) is not None


def is_ignored(subject: Subject, targets: torch.Tensor) -> torch.Tensor:
    """Return which labels the evaluation of a loss ignores."""
    return targets == subject.risk.criterion.ignore_index


def scores_at(subject: Subject, weights: OtherWeights = None) -> torch.Tensor:
    """Evaluate one number per sample: whether its label is right, or minus the loss.

    Every label counts alike, as in the loss: with several to a sample, the number of right ones is
    divided by the mean number of labels. Samples whose every label is one that the loss ignores are
    left out.

    With several processes the samples are ordered by rank, and every rank gets all of them.
    """
    loss, axis = subject.risk.criterion, class_axis(subject)
    subject.clock.check()
    with subject.processes.together("an evaluation of the model"):
        scores = [torch.empty(2, 0, dtype=torch.float64, device="cpu")]  # sums and their sizes
        rows = 1 if isinstance(loss, OwnLoss) else _ROWS  # its outputs are the loss of a batch
        for outputs, targets in outputs_at(subject, weights, rows):
            if axis is not None:
                right, labels = count_right(outputs, targets, axis, loss)
                scores.append(torch.stack([right, labels])[:, labels > 0].double().cpu())
            else:
                losses = torch.stack(
                    [
                        loss.total(outputs[i : i + 1], cut(targets, i, i + 1))
                        for i in range(len(outputs))
                    ]
                )
                scores.append(torch.stack([-losses, torch.ones_like(losses)]).double().cpu())
    sums, sizes = torch.cat(subject.processes.gather(torch.cat(scores, 1)), 1)
    return sums / sizes.mean() if axis is not None else sums * len(sums) / subject.risk.amount


def _axis(subject: Subject, outputs: torch.Tensor, targets: Any) -> int | None:
    loss = subject.risk.criterion
    if (
        not isinstance(targets, torch.Tensor)
        or targets.is_floating_point()
        or outputs.ndim != targets.ndim + 1
        or subject.risk.function.packing is not None
    ):
        return None
    if not isinstance(loss, CallableLoss):
        return 1
    told, slope = ~is_ignored(subject, targets), loss.gradient(outputs, targets)
    for axis in (outputs.ndim - 1, 1):
        slopes, labels = slope.movedim(axis, -1), targets[told]
        named = (labels >= 0) & (labels < slopes.shape[-1])
        if slopes.shape[:-1] != targets.shape or not bool(named.all()):
            continue
        own = slopes[told].gather(1, labels[:, None].long())
        if float((own <= 0).double().mean()) >= _FALLING and bool((own < 0).any()):
            return axis
    return None
