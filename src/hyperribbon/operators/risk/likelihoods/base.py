"""What a Fisher matrix asks of a likelihood, and random numbers that stay with their samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.generators import torch_generator

__all__ = ["Likelihood", "check_shape", "draw"]

_GROUP = 64  # neighbouring samples whose random numbers come from one generator


class Likelihood(ABC):
    """p(y | f) of outputs f (n, …), for subclasses to define.

    Its parts are what a Fisher matrix needs in the space of the outputs: `information` and `root`
    for estimator="exact", `draw_scores` for "mc" and `score` for "empirical". Results have the
    precision of the outputs.
    """

    def rows(self, outputs: torch.Tensor) -> int:
        """Return the number of rows that `root` has: the number of a sample's outputs."""
        return outputs[0].numel()

    @abstractmethod
    def information(self, outputs: torch.Tensor, inputs: Any, block: torch.Tensor) -> torch.Tensor:
        """Return I(f) u for a block u (k, n, …), I = E_y[∂log p ∂log pᵀ]."""

    @abstractmethod
    def root(self, outputs: torch.Tensor, inputs: Any) -> torch.Tensor:
        """Return rows R (`rows`, n, …) with Σ_j R_j R_jᵀ = I(f_n)."""

    @abstractmethod
    def score(self, outputs: torch.Tensor, inputs: Any, targets: Any) -> torch.Tensor:
        """Return −∂log p(y|f)/∂f, shaped like the outputs."""

    @abstractmethod
    def draw_scores(
        self, outputs: torch.Tensor, inputs: Any, samples: int, seed: tuple[int, int]
    ) -> torch.Tensor:
        """Return scores (samples, n, …) of targets drawn from p.

        The seed holds the number of the stream and the position of the first sample, so that a
        sample's draws do not depend on how the data are cut.
        """


def check_shape(targets: Any, outputs: torch.Tensor) -> None:
    """Raise when targets do not have the shape of the outputs."""
    if isinstance(targets, torch.Tensor) and targets.shape == outputs.shape:
        return
    reason = f"the outputs have shape {tuple(outputs.shape)}"
    raise ArgumentError("targets", targets, reason, "Give targets of the same shape.")


def draw(
    sampler: Callable[..., torch.Tensor], seed: tuple[int, int], samples: int, shape: torch.Size
) -> torch.Tensor:
    """Return random numbers (samples, *shape) for the data positions seed[1], seed[1] + 1, …."""
    stream, start = seed
    groups = range(start // _GROUP, (start + shape[0] - 1) // _GROUP + 1)
    drawn = [
        sampler(
            _GROUP,
            samples,
            *shape[1:],
            generator=torch_generator(stream, "fisher", group),
            dtype=torch.float64,
            device="cpu",
        )
        for group in groups
    ]
    offset = start - groups.start * _GROUP
    return torch.cat(drawn)[offset : offset + shape[0]].transpose(0, 1)
