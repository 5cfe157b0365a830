"""Second derivatives of a loss by torch.autograd alone, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

__all__ = ["dense_hessian", "sharpest"]


def dense_hessian(model: nn.Module, loss: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Return the Hessian (P, P) of a loss of the live model by its trainable parameters."""
    weights = [p for p in model.parameters() if p.requires_grad]
    with sdpa_kernel(SDPBackend.MATH):
        slopes = torch.autograd.grad(loss(), weights, create_graph=True)
        flat = torch.cat([slope.reshape(-1) for slope in slopes])
        options = {"retain_graph": True, "materialize_grads": True}
        rows = [torch.autograd.grad(entry, weights, **options) for entry in flat]
    return torch.stack([torch.cat([part.reshape(-1) for part in row]) for row in rows])


def sharpest(model: nn.Module, loss: Callable[[], torch.Tensor]) -> tuple[float, torch.Tensor]:
    """Return the largest eigenvalue of the Hessian, and its eigenvector (P,)."""
    values, vectors = torch.linalg.eigh(dense_hessian(model, loss).double())
    return float(values[-1]), vectors[:, -1]
