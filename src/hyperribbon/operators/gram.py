"""Gram matrices of the rows R·J."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hyperribbon.operators.risk import Chunk, Risk

__all__ = ["gram_matrix", "squared_columns"]

Rows = Callable[[Chunk], torch.Tensor]


def jacobian_rows(chunk: Chunk, rows: torch.Tensor, risk: Risk) -> torch.Tensor:
    """Return R·J of a chunk, (n·m, P), ordered by sample."""
    count = chunk.count
    seeds = torch.zeros(count, *rows.shape, dtype=rows.dtype, device=rows.device)
    index = torch.arange(count)
    seeds[index, :, index] = rows.transpose(0, 1)
    pulled = chunk.point.pull(seeds.reshape(-1, *rows.shape[1:]))
    return risk.space.flatten(pulled, batched=True).T


def gram_matrix(risk: Risk, rows: Rows) -> torch.Tensor:
    """Return R J Jᵀ Rᵀ."""
    jacobian = torch.cat([jacobian_rows(c, rows(c), risk) for c in risk.chunks()])
    return jacobian @ jacobian.T


def squared_columns(risk: Risk, rows: Rows) -> torch.Tensor:
    """Return the column sums of (R J)², (P,)."""
    total = torch.zeros(risk.space.dimension, dtype=risk.dtype, device=risk.device)
    for chunk in risk.chunks():
        total += jacobian_rows(chunk, rows(chunk), risk).square().sum(0)
    return total
