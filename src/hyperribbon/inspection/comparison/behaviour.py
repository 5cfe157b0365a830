"""What two networks do: their predictions, what pruning does to them, where their weights lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hyperribbon.inspection.comparison.differences import Difference, Shared, paired
from hyperribbon.inspection.comparison.sides import Side
from hyperribbon.inspection.evaluating import class_axis, is_ignored, loss_at, outputs_at
from hyperribbon.operators.risk.batches import cut
from hyperribbon.operators.risk.own_loss import OwnLoss
from hyperribbon.spectra import alignment
from hyperribbon.subnetworks import select

__all__ = ["predictions", "pruned_losses", "same_function", "weights"]

REMOVED = (0.5, 0.8, 0.9)
_EQUAL = 1e-4


def predictions(a: Side, b: Side) -> tuple[list[Shared], str]:
    """Return how far the outputs are apart on the same samples; or why they cannot be compared.

    Scores of classes: the share of samples with the same label, and the Bhattacharyya distance
    −log Σ_c √(p_c q_c) of their probabilities, by which inPCA places networks. Other outputs: the
    root mean square of their difference over that of the outputs.
    """
    pairs, axis = _pairs(a, b), class_axis(a.subject)
    if pairs is None:
        return [], "the model's own loss is not recognised as a function of outputs"
    for p, q, _ in pairs:
        if p.shape != q.shape:
            return [], f"outputs have shapes {tuple(p.shape[1:])} and {tuple(q.shape[1:])}"
    if axis is None:
        p, q = (torch.cat([pair[side].reshape(-1) for pair in pairs]) for side in (0, 1))
        size = (p.square().mean().sqrt() + q.square().mean().sqrt()) / 2
        apart = float((p - q).square().mean().sqrt() / size.clamp(min=1e-30))
        name = "root mean square of the outputs' difference, over that of the outputs"
        return [Shared("predictions.distance", name, apart, float("nan"))], ""
    same, distance = [], []
    for p, q, targets in pairs:
        told = ~is_ignored(a.subject, targets).cpu()
        if bool(told.any()):
            p, q = (scores.movedim(axis, -1)[told] for scores in (p, q))
            same.append((p.argmax(-1) == q.argmax(-1)).double().mean())
            halves = (p.log_softmax(-1) + q.log_softmax(-1)) / 2
            distance.append(-torch.logsumexp(halves, dim=-1).mean())
    return [
        _mean("predictions.agreement", "share of samples with the same label", same),
        _mean("predictions.distance", "Bhattacharyya distance of the predictions", distance),
    ], ""


def same_function(a: Side, b: Side) -> bool:
    """Whether outputs are equal but for rounding on all samples."""
    pairs = _pairs(a, b)
    if pairs is None or any(p.shape != q.shape for p, q, _ in pairs):
        return False
    scale = max(float(p.abs().max()) for p, *_ in pairs)
    return all(float((p - q).abs().max()) <= _EQUAL * max(scale, 1e-30) for p, q, _ in pairs)


def pruned_losses(a: Side, b: Side) -> list[Difference]:
    """Return the loss after the smallest weights of each network are removed, by their share."""
    found = []
    for removed in REMOVED:
        key, name = f"pruned.{removed:g}", f"loss without the {removed:.0%} smallest weights"
        losses = [_losses(side, _without_smallest(side, removed)) for side in (a, b)]
        found.append(paired(key, name, losses[0], losses[1], a.shares))
    return found


def weights(a: Side, b: Side, bases: Sequence[torch.Tensor]) -> tuple[list[Shared], str]:
    """Return how far weights and sharpest directions are apart; or why they cannot be compared."""
    spaces = [side.groups[0].risk.space for side in (a, b)]
    if (spaces[0].names, spaces[0].shapes) != (spaces[1].names, spaces[1].shapes):
        return [], "weights have other names or shapes"
    norms = [float(torch.linalg.vector_norm(side.vector)) for side in (a, b)]
    distance = float(torch.linalg.vector_norm(a.vector - b.vector))
    relative = distance / max((norms[0] * norms[1]) ** 0.5, 1e-30)
    name = "distance of the weights over their norm"
    found = [Shared("weights.distance", name, relative, 0.0)]
    if bases:
        k = min(basis.shape[1] for basis in bases)
        overlap = alignment(*(basis[:, :k] for basis in bases)).overlap
        name = f"overlap of the {k} sharpest directions (mean squared cosine)"
        found.append(Shared("weights.overlap", name, overlap, 0.0))
    return found, ""


def _pairs(a: Side, b: Side) -> list[tuple[torch.Tensor, torch.Tensor, Any]] | None:
    """Return the outputs of both and the targets, sample by sample, whose shapes may differ."""
    if any(isinstance(side.subject.risk.loss, OwnLoss) for side in (a, b)):
        return None
    first, second = (
        [
            (outputs[i : i + 1].double().cpu(), cut(targets, i, i + 1))
            for outputs, targets in outputs_at(side.subject)
            for i in range(len(outputs))
        ]
        for side in (a, b)
    )
    return [(p, q, targets) for (p, targets), (q, _) in zip(first, second, strict=True)]


def _losses(side: Side, vector: torch.Tensor) -> np.ndarray:
    return side.each(lambda group: loss_at(group, vector))


def _without_smallest(side: Side, removed: float) -> torch.Tensor:
    space = side.groups[0].risk.space
    tensors = space.unflatten(side.vector)
    mask = select(tensors, fraction=removed)
    kept: dict[str, Any] = {
        name: tensor.masked_fill(mask[name].to(tensor.device), 0.0) if name in mask else tensor
        for name, tensor in tensors.items()
    }
    return space.flatten(kept)


def _mean(key: str, name: str, found: list[torch.Tensor]) -> Shared:
    values = torch.stack(found)
    return Shared(key, name, float(values.mean()), float(values.std() / max(len(values), 1) ** 0.5))
