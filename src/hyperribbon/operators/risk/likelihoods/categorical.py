"""Classes drawn from the softmax of the outputs."""

from __future__ import annotations

from typing import Any

import torch

from hyperribbon.core.checks import ArgumentError
from hyperribbon.operators.risk.likelihoods.base import Likelihood, draw
from hyperribbon.operators.risk.losses import softmax
from hyperribbon.operators.risk.losses.cross_entropy import CrossEntropyLoss

__all__ = ["Categorical", "class_probabilities"]


class Categorical(Likelihood):
    """Classes with probabilities softmax(f), over the second axis of the outputs.

    Every position of outputs (n, C, …) is one observation.
    """

    def __init__(self) -> None:
        self._loss = CrossEntropyLoss(torch.nn.CrossEntropyLoss(reduction="sum"))

    def information(self, outputs: torch.Tensor, inputs: Any, block: torch.Tensor) -> torch.Tensor:
        """Return (diag p − ppᵀ) u."""
        return softmax.covariance_product(class_probabilities(outputs), block).to(block.dtype)

    def root(self, outputs: torch.Tensor, inputs: Any) -> torch.Tensor:
        """Return √p_j (e_j − p), one row per class and position."""
        rows = softmax.covariance_root(class_probabilities(outputs))
        return softmax.one_position_each(rows.to(outputs.dtype))

    def score(self, outputs: torch.Tensor, inputs: Any, targets: Any) -> torch.Tensor:
        """Return p − e_y."""
        self._loss.check(outputs, targets)
        return self._loss.gradient(outputs, targets)

    def draw_scores(
        self, outputs: torch.Tensor, inputs: Any, samples: int, seed: tuple[int, int]
    ) -> torch.Tensor:
        """Return p − e_y of drawn classes y."""
        p = class_probabilities(outputs)
        uniform = draw(torch.rand, seed, samples, p[:, 0].shape)
        below = p.double().cumsum(1).unsqueeze(0) < uniform.to(p.device).unsqueeze(2)
        drawn = below.sum(2).clamp(max=p.shape[1] - 1)
        every = p.expand(samples, *p.shape).flatten(0, 1)
        scores = softmax.residual(every, softmax.one_hot(drawn.flatten(0, 1), every))
        return scores.reshape(samples, *p.shape).to(outputs.dtype)


def class_probabilities(outputs: torch.Tensor) -> torch.Tensor:
    """Return the softmax of outputs (n, C, …), in single precision at least."""
    if outputs.ndim < 2:
        raise ArgumentError(
            "model", outputs, "its outputs have no class axis", "Return logits of shape (n, C, …)."
        )
    return softmax.probabilities(outputs)
