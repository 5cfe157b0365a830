"""Likelihoods of a Fisher matrix: information, its root, and scores of drawn or given targets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch

from hyperribbon.core.checks import ArgumentError, check_positive
from hyperribbon.core.generators import torch_generator
from hyperribbon.operators.risk.cross_entropy import CrossEntropy
from hyperribbon.operators.risk.losses import one_element_each, softmax

__all__ = ["Categorical", "Gaussian", "Likelihood"]

_GROUP = 64  # neighbouring samples whose random numbers come from one generator


class Likelihood(ABC):
    """p(y | f) of outputs f (n, …)."""

    @abstractmethod
    def information(self, outputs: torch.Tensor, inputs: Any, block: torch.Tensor) -> torch.Tensor:
        """Return I(f) u for a block u (k, n, …), I = E_y[∂log p ∂log pᵀ]."""

    @abstractmethod
    def root(self, outputs: torch.Tensor, inputs: Any) -> torch.Tensor:
        """Return rows R (m, n, …) with Σ_j R_j R_jᵀ = I(f_n)."""

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


class Categorical(Likelihood):
    """Classes with probabilities softmax(f), over the second axis of the outputs.

    Every position of outputs (n, C, …) is one observation.
    """

    def __init__(self) -> None:
        self._loss = CrossEntropy(torch.nn.CrossEntropyLoss(reduction="sum"))

    def information(self, outputs: torch.Tensor, inputs: Any, block: torch.Tensor) -> torch.Tensor:
        """Return (diag p − ppᵀ) u."""
        return softmax.covariance_product(_probabilities(outputs), block)

    def root(self, outputs: torch.Tensor, inputs: Any) -> torch.Tensor:
        """Return √p_j (e_j − p), one row a class and a position."""
        return softmax.one_position_each(softmax.covariance_root(_probabilities(outputs)))

    def score(self, outputs: torch.Tensor, inputs: Any, targets: Any) -> torch.Tensor:
        """Return p − e_y."""
        self._loss.check(outputs, targets)
        return self._loss.gradient(outputs, targets)

    def draw_scores(
        self, outputs: torch.Tensor, inputs: Any, samples: int, seed: tuple[int, int]
    ) -> torch.Tensor:
        """Return p − e_y of drawn classes y."""
        p = _probabilities(outputs)
        uniform = _draw(torch.rand, seed, samples, p[:, 0].shape)
        below = p.double().cumsum(1).unsqueeze(0) < uniform.to(p.device).unsqueeze(2)
        drawn = below.sum(2).clamp(max=p.shape[1] - 1)
        return torch.stack([softmax.residual(p, softmax.one_hot(y, p)) for y in drawn])


class Gaussian(Likelihood):
    """Normal noise of covariance Σ on the outputs, or on their softmax.

    Args:
        variance: σ², Σ (C, C), or a function of the inputs returning (n,), (n, C) or (n, C, C).
        space: "model" or "softmax".
    """

    def __init__(
        self, variance: float | torch.Tensor | Callable[[Any], torch.Tensor], space: str
    ) -> None:
        if isinstance(variance, int | float):
            check_positive("variance", variance)
        self._variance, self._space = variance, space

    def information(self, outputs: torch.Tensor, inputs: Any, block: torch.Tensor) -> torch.Tensor:
        """Return Σ⁻¹u, or SΣ⁻¹S u with the softmax Jacobian S."""
        factor = self._cholesky(outputs, inputs)
        inner = self._through_softmax(outputs, block)
        solved = torch.cholesky_solve(inner.flatten(2).permute(1, 2, 0), factor)
        return self._through_softmax(outputs, solved.permute(2, 0, 1).reshape(block.shape))

    def root(self, outputs: torch.Tensor, inputs: Any) -> torch.Tensor:
        """Return the rows of L⁻¹, Σ = LLᵀ, or of L⁻¹S."""
        units = one_element_each(torch.ones_like(outputs))
        return self._whitened(outputs, inputs, units)

    def score(self, outputs: torch.Tensor, inputs: Any, targets: Any) -> torch.Tensor:
        """Return Σ⁻¹(f − y), or SΣ⁻¹(p − y)."""
        means = outputs if self._space == "model" else _probabilities(outputs)
        if self._space == "softmax" and not targets.is_floating_point():
            difference = softmax.residual(means, softmax.one_hot(targets, means))
        elif targets.shape == means.shape:
            difference = means - targets
        else:
            raise ArgumentError(
                "targets",
                targets,
                f"the outputs have shape {tuple(means.shape)}",
                "Give targets of the same shape.",
            )
        factor = self._cholesky(outputs, inputs)
        solved = torch.cholesky_solve(difference.flatten(1).unsqueeze(2), factor)
        return self._through_softmax(outputs, solved.reshape(1, *outputs.shape))[0]

    def draw_scores(
        self, outputs: torch.Tensor, inputs: Any, samples: int, seed: tuple[int, int]
    ) -> torch.Tensor:
        """Return −L⁻ᵀz of standard normal z, which is Σ⁻¹(f − y) of drawn y."""
        normal = _draw(torch.randn, seed, samples, outputs.shape)
        return self._whitened(outputs, inputs, normal.to(outputs))

    def _whitened(self, outputs: torch.Tensor, inputs: Any, block: torch.Tensor) -> torch.Tensor:
        """Return L⁻ᵀu (times S) for a block u (k, n, …)."""
        factor = self._cholesky(outputs, inputs)
        flat = block.flatten(2).permute(1, 2, 0)
        solved = torch.linalg.solve_triangular(factor.mT, flat, upper=True)
        return self._through_softmax(outputs, solved.permute(2, 0, 1).reshape(block.shape))

    def _through_softmax(self, outputs: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
        if self._space == "model":
            return block
        return softmax.covariance_product(_probabilities(outputs), block)

    def _cholesky(self, outputs: torch.Tensor, inputs: Any) -> torch.Tensor:
        """Return the lower factor of Σ, (n, D, D) or (1, D, D)."""
        size = outputs[0].numel()
        variance = self._variance(inputs) if callable(self._variance) else self._variance
        sigma = torch.as_tensor(variance, dtype=outputs.dtype, device=outputs.device)
        if not callable(self._variance):
            sigma = sigma.unsqueeze(0)
        if sigma.ndim == 1:
            sigma = sigma.unsqueeze(1).expand(-1, size)
        if sigma.ndim == 2:
            sigma = torch.diag_embed(sigma.expand(-1, size))
        if sigma.shape[1:] != (size, size) or len(sigma) not in (1, len(outputs)):
            raise ArgumentError(
                "variance",
                sigma,
                f"a sample has {size} outputs",
                f"Give σ², Σ of shape ({size}, {size}), or a function returning (n, …) of them.",
            )
        factor, info = torch.linalg.cholesky_ex(sigma)
        if bool((info != 0).any()):
            raise ArgumentError(
                "variance", sigma, "Σ is not positive definite", "Give a covariance matrix."
            )
        return factor


def _probabilities(outputs: torch.Tensor) -> torch.Tensor:
    if outputs.ndim < 2:
        raise ArgumentError(
            "model", outputs, "its outputs have no class axis", "Return logits of shape (n, C, …)."
        )
    return softmax.probabilities(outputs)


def _draw(
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
        )
        for group in groups
    ]
    offset = start - groups.start * _GROUP
    return torch.cat(drawn)[offset : offset + shape[0]].transpose(0, 1)
