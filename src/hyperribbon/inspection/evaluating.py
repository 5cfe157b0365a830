"""Forward passes at other weights: losses and measurements of single samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import torch

from hyperribbon.inspection.engine.subject import Subject

__all__ = ["is_classification", "loss_at", "outputs_at", "scores_at"]

_ROWS = 512
_IGNORED = -100  # the label that torch's losses ignore unless told otherwise
OtherWeights = Mapping[str, torch.Tensor] | torch.Tensor | None
"""Named tensors, coordinates (P,), or None for the model's own."""


def outputs_at(
    subject: Subject, weights: OtherWeights = None
) -> Iterator[tuple[torch.Tensor, Any]]:
    """Yield outputs and targets of this rank's data, piece by piece, without derivatives."""
    risk = subject.risk if weights is None else subject.risk.at(weights)
    with torch.no_grad():
        for _, batch in risk.source.chunks(subject.risk.rows_at_once(_ROWS)):
            if not subject.processes.is_parallel:
                subject.clock.check()
            yield risk.evaluate(batch)


def loss_at(subject: Subject, weights: torch.Tensor) -> float:
    """Return the loss at coordinates (P,)."""
    risk = subject.risk
    assert risk.loss is not None
    subject.clock.check()
    with subject.processes.together("an evaluation of the loss"):
        total = torch.zeros((), dtype=torch.float64, device="cpu")
        for outputs, targets in outputs_at(subject, weights):
            total += risk.loss.total(outputs, targets).cpu()
    return float(subject.processes.sum(total)) / risk.amount


def is_classification(subject: Subject) -> bool:
    """Whether outputs are scores of classes and targets are labels."""
    with subject.processes.together("an evaluation of the model"):
        labelled = all(
            isinstance(targets, torch.Tensor)
            and not targets.is_floating_point()
            and outputs.ndim == targets.ndim + 1
            for outputs, targets in islice(outputs_at(subject), 1)
        )
    return all(subject.processes.gather(labelled))


def scores_at(subject: Subject, weights: OtherWeights = None) -> torch.Tensor:
    """Return one number per sample: the share of right labels, or minus the loss without labels.

    Samples whose every label is one that the loss ignores are left out.

    With several processes the samples are ordered by rank, and every rank gets all of them.
    """
    risk = subject.risk
    assert risk.loss is not None
    labelled, ignored = is_classification(subject), getattr(subject.loss, "ignore_index", _IGNORED)
    subject.clock.check()
    with subject.processes.together("an evaluation of the model"):
        scores = [torch.empty(0, dtype=torch.float64, device="cpu")]
        for outputs, targets in outputs_at(subject, weights):
            if labelled:
                scores.append(_share_right(outputs, targets, ignored).cpu())
            else:
                losses = [
                    risk.loss.total(outputs[i : i + 1], targets[i : i + 1])
                    for i in range(len(outputs))
                ]
                scores.append(-torch.stack(losses).double().cpu())
    return torch.cat(subject.processes.gather(torch.cat(scores)))


def _share_right(outputs: torch.Tensor, targets: torch.Tensor, ignored: int) -> torch.Tensor:
    """Return the share of right labels of each sample, of those that the loss does not ignore."""
    right, told = (outputs.argmax(1) == targets), targets != ignored
    right, told = (part.reshape(len(targets), -1).double() for part in (right & told, told))
    counts = told.sum(1)
    return (right.sum(1) / counts)[counts > 0]
