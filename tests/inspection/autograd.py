"""The sharpest direction of a loss by torch.autograd and ARPACK alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

__all__ = ["sharpest"]


def sharpest(model: nn.Module, loss: Callable[[], torch.Tensor]) -> tuple[float, torch.Tensor]:
    """Return the largest Hessian eigenvalue of a loss of the live model, and its vector (P,)."""
    weights = [p for p in model.parameters() if p.requires_grad]
    sizes = [p.numel() for p in weights]
    with sdpa_kernel(SDPBackend.MATH):
        slopes = torch.autograd.grad(loss(), weights, create_graph=True)

    def product(vector: np.ndarray) -> np.ndarray:
        pieces = torch.from_numpy(vector.ravel()).to(slopes[0]).split(sizes)
        along = [piece.view_as(slope) for piece, slope in zip(pieces, slopes, strict=True)]
        options = {"retain_graph": True, "materialize_grads": True}
        with sdpa_kernel(SDPBackend.MATH):
            rows = torch.autograd.grad(slopes, weights, along, **options)
        return torch.cat([row.reshape(-1) for row in rows]).double().numpy()

    hessian = LinearOperator((sum(sizes), sum(sizes)), product, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(sum(sizes))
    values, vectors = eigsh(hessian, 1, which="LA", tol=1e-7, v0=start)
    return float(values[0]), torch.from_numpy(vectors[:, 0])
