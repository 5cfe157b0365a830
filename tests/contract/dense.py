"""Loss, gradient, Hessian and Gauss-Newton matrix of a live module by torch.autograd alone."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from contract.problems import Problem

__all__ = ["GRADIENT", "SHARPNESS", "VALUE", "Dense", "gauss_newton", "trainable"]

# Two evaluations of one function in float64 differ by some 1e6 roundings at most, 1e-9 of the value
# with room; an eigenvalue of a matrix of such entries, found to residuals of 1e-8, by less than
# 1e-6. Where a model or its loss works in float32 inside, each operation rounds by 6e-8, and the
# cancellation in first and second derivatives makes a thousand of that.
VALUE = {torch.float64: 1e-9, torch.float32: 1e-5}
GRADIENT = {torch.float64: 1e-9, torch.float32: 1e-4}
SHARPNESS = {torch.float64: 1e-6, torch.float32: 1e-4}
_AT_ONCE = 64


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that training moves, by name, shared ones once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


class Dense:
    """The objective of a problem and its derivatives; the problem is used up.

    Attributes:
        value: L(θ).
        gradient: ∇L(θ) by the name of the parameter.
    """

    def __init__(self, problem: Problem) -> None:
        self._weights = trainable(problem.model)
        with _plain_kernels():
            loss = problem.objective()
            assert loss.ndim == 0
            self.value = float(loss.detach())
            found = torch.autograd.grad(
                loss, list(self._weights.values()), create_graph=True, allow_unused=True
            )
        pieces = [
            torch.zeros_like(w) if g is None else g
            for g, w in zip(found, self._weights.values(), strict=True)
        ]
        self.gradient = {
            name: piece.detach() for name, piece in zip(self._weights, pieces, strict=True)
        }
        self._flat = torch.cat([piece.reshape(-1) for piece in pieces])

    @cached_property
    def hessian(self) -> torch.Tensor:
        """∇²L(θ), (P, P)."""
        with _plain_kernels():
            found = _rows(self._flat, list(self._weights.values()))
        return (found + found.T) / 2

    def sharpness(self) -> float:
        """Return the largest eigenvalue of the Hessian."""
        return float(torch.linalg.eigvalsh(self.hessian.double())[-1])


def gauss_newton(problem: Problem) -> torch.Tensor:
    """Return G = Jᵀ (∂²L/∂z²) J (P, P), with z the logits of all samples and J = ∂z/∂θ."""
    assert problem.gauss_newton is not None
    problem.model.train(problem.mode == "train")
    with _plain_kernels():
        logits, loss = problem.gauss_newton(problem.model, problem.data)
        shape = logits.shape
        jacobian = _rows(logits.reshape(-1), list(trainable(problem.model).values()))
        leaf = logits.detach().double().reshape(-1).requires_grad_()
        (slope,) = torch.autograd.grad(loss(leaf.reshape(shape)), leaf, create_graph=True)
        inner = _rows(slope, [leaf])
    jacobian = jacobian.double()
    return jacobian.T @ inner @ jacobian


@contextmanager
def _plain_kernels() -> Iterator[None]:
    """Let attention use the kernel that torch can differentiate twice."""
    with sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of batches of backward passes: it is only about speed
        yield


def _rows(outputs: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    """Return ∂outputs/∂weights as a matrix, by backward passes."""
    if not outputs.requires_grad:
        return outputs.new_zeros(len(outputs), sum(w.numel() for w in weights))
    blocks = []
    unit = torch.eye(len(outputs), dtype=outputs.dtype)
    for some in unit.split(_AT_ONCE):
        try:
            found = torch.autograd.grad(
                outputs, weights, some, retain_graph=True, allow_unused=True, is_grads_batched=True
            )
        except RuntimeError:  # an operation has no rule for batches
            single = [
                torch.autograd.grad(outputs, weights, row, retain_graph=True, allow_unused=True)
                for row in some
            ]
            found = tuple(
                None if parts[0] is None else torch.stack(parts)
                for parts in zip(*single, strict=True)
            )
        rows = [
            some.new_zeros(len(some), w.numel()) if g is None else g.reshape(len(some), -1)
            for g, w in zip(found, weights, strict=True)
        ]
        blocks.append(torch.cat([row.to(some.dtype) for row in rows], 1))
    return torch.cat(blocks)
