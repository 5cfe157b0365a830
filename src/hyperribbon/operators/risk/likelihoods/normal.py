"""Normal noise on the outputs, or on their softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hyperribbon.core.checks import ArgumentError, check_array, check_choice, check_positive
from hyperribbon.operators.risk.likelihoods.base import Likelihood, check_shape, draw
from hyperribbon.operators.risk.likelihoods.categorical import class_probabilities
from hyperribbon.operators.risk.losses import one_element_each, softmax
from hyperribbon.operators.risk.losses.base import wide

__all__ = ["Gaussian"]


class Gaussian(Likelihood):
    """Normal noise of covariance Σ on the outputs, or on their softmax.

    Args:
        variance: σ², variances (D,) or Σ (D, D) of the D outputs of a sample, or a function of the
            inputs returning (n,), (n, D) or (n, D, D).
        space: "model" or "softmax".
    """

    def __init__(
        self,
        variance: float | torch.Tensor | Callable[[Any], torch.Tensor] = 1.0,
        space: str = "model",
    ) -> None:
        check_choice("space", space, ("model", "softmax"))
        if not isinstance(variance, torch.Tensor) and not callable(variance):
            variance = torch.from_numpy(check_array("variance", variance).copy())
            if not variance.ndim:
                check_positive("variance", float(variance))
        self._variance, self._space = variance, space

    def information(self, outputs: torch.Tensor, inputs: Any, block: torch.Tensor) -> torch.Tensor:
        """Return Σ⁻¹u, or SΣ⁻¹S u with the softmax Jacobian S."""
        factor = self._factor(outputs, inputs)
        inner = _rows(self._through_softmax(outputs, wide(block)))
        solved = _solve_both(factor, inner).reshape(block.shape)
        return self._through_softmax(outputs, solved).to(block.dtype)

    def root(self, outputs: torch.Tensor, inputs: Any) -> torch.Tensor:
        """Return the rows of L⁻¹, Σ = LLᵀ, or of L⁻¹S."""
        units = one_element_each(torch.ones_like(outputs))
        return self._whitened(outputs, inputs, units)

    def score(self, outputs: torch.Tensor, inputs: Any, targets: Any) -> torch.Tensor:
        """Return Σ⁻¹(f − y), or SΣ⁻¹(p − y)."""
        means = wide(outputs) if self._space == "model" else class_probabilities(outputs)
        if self._space == "softmax" and not targets.is_floating_point():
            difference = softmax.residual(means, softmax.one_hot(targets, means))
        else:
            check_shape(targets, outputs)
            difference = means - targets
        factor = self._factor(outputs, inputs)
        solved = _solve_both(factor, _rows(difference.unsqueeze(0)))
        scores = self._through_softmax(outputs, solved.reshape(1, *outputs.shape))
        return scores[0].to(outputs.dtype)

    def draw_scores(
        self, outputs: torch.Tensor, inputs: Any, samples: int, seed: tuple[int, int]
    ) -> torch.Tensor:
        """Return −L⁻ᵀz of standard normal z, which is Σ⁻¹(f − y) of drawn y."""
        normal = draw(torch.randn, seed, samples, outputs.shape)
        return self._whitened(outputs, inputs, normal.to(wide(outputs)))

    def _whitened(self, outputs: torch.Tensor, inputs: Any, block: torch.Tensor) -> torch.Tensor:
        """Return L⁻ᵀu (times S) for a block u (k, n, …)."""
        factor = self._factor(outputs, inputs)
        solved = _solve(factor, _rows(wide(block)), transposed=True).reshape(block.shape)
        return self._through_softmax(outputs, solved).to(outputs.dtype)

    def _through_softmax(self, outputs: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
        if self._space == "model":
            return block
        return softmax.covariance_product(class_probabilities(outputs), block)

    def _factor(self, outputs: torch.Tensor, inputs: Any) -> torch.Tensor:
        """Return L of Σ = LLᵀ: its diagonal (n or 1, D or 1), or all of it (n or 1, D, D).

        Raises:
            ArgumentError: Σ has another shape or is not positive definite.
        """
        size = outputs[0].numel()
        variance = self._variance(inputs) if callable(self._variance) else self._variance
        dtype = wide(outputs[:0]).dtype
        sigma = torch.as_tensor(variance, dtype=dtype, device=outputs.device)
        if not callable(self._variance):
            sigma = sigma.unsqueeze(0)
        sigma = sigma.unsqueeze(1) if sigma.ndim == 1 else sigma
        fits = sigma.shape[1:] in ((1,), (size,), (size, size))
        if not fits or len(sigma) not in (1, len(outputs)):
            remedy = (
                f"Give σ², Σ of shape ({size}, {size}), or a function returning (n, …) of them."
            )
            raise ArgumentError("variance", sigma, f"a sample has {size} outputs", remedy)
        if sigma.ndim == 2:
            factor, right = sigma.sqrt(), bool((sigma > 0).all())
        else:
            factor, info = torch.linalg.cholesky_ex(sigma)
            right = not bool((info != 0).any())
        if not right:
            raise ArgumentError(
                "variance", sigma, "Σ is not positive definite", "Give a covariance matrix."
            )
        return factor


def _rows(block: torch.Tensor) -> torch.Tensor:
    """Return a block (k, n, …) with one axis of outputs."""
    return block.reshape(*block.shape[:2], -1)


def _solve(factor: torch.Tensor, block: torch.Tensor, *, transposed: bool) -> torch.Tensor:
    """Return L⁻¹u, or L⁻ᵀu, for a block u (k, n, D)."""
    if factor.ndim == 2:
        return block / factor
    matrix, flat = factor.mT if transposed else factor, block.permute(1, 2, 0)
    return torch.linalg.solve_triangular(matrix, flat, upper=transposed).permute(2, 0, 1)


def _solve_both(factor: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    """Return Σ⁻¹u = L⁻ᵀL⁻¹u for a block u (k, n, D)."""
    return _solve(factor, _solve(factor, block, transposed=False), transposed=True)
