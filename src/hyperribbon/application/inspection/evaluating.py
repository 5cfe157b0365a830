"""Forward passes at other weights: losses and measurements of single samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import torch

from hyperribbon.application.inspection.engine.subject import Subject
from hyperribbon.subnetworks import scores

OtherWeights = Mapping[str, torch.Tensor] | torch.Tensor | None
"""Named tensors, coordinates (P,), or None for the model's own."""


def outputs_at(
    subject: Subject, weights: OtherWeights = None, rows: int = scores.ROWS
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
    """Return along which axis of the outputs classes are evaluated; None without classes."""
    with subject.processes.together("an evaluation of the model"):
        found = [
            scores.class_axis(subject.risk, *piece) for piece in islice(outputs_at(subject), 1)
        ]
    axes = {axis for share in subject.processes.gather(found) for axis in share}
    return axes.pop() if len(axes) == 1 else None


def is_classification(subject: Subject) -> bool:
    """Whether to evaluate accuracy: outputs are scores of classes and targets are labels."""
    return class_axis(subject) is not None


def is_ignored(subject: Subject, targets: torch.Tensor) -> torch.Tensor:
    """Return which labels the evaluating of a loss ignores."""
    return targets == subject.risk.criterion.ignore_index


def scores_at(subject: Subject, weights: OtherWeights = None) -> torch.Tensor:
    """Evaluate one number per sample: whether its label is right, or minus the loss.

    As `SampleScores`; with several processes the samples are ordered by rank, and every rank gets
    all of them.
    """
    loss, axis = subject.risk.criterion, class_axis(subject)
    subject.clock.check()
    with subject.processes.together("an evaluation of the model"):
        pieces = outputs_at(subject, weights, scores.rows_of(loss))
        own = scores.sums_and_sizes(pieces, loss, axis)
    sums, sizes = torch.cat(subject.processes.gather(own), 1)
    return sums / sizes.mean() if axis is not None else -sums * len(sums) / subject.risk.amount
