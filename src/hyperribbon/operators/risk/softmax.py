"""Derivatives of the softmax that keep their precision when a class has nearly all the mass.

Written as 1 − p, the mass of the other classes is lost to rounding once p rounds to one. Here every
such difference is summed from the other classes, so results are relatively exact entry by entry.
The class axis is the second one of logits (n, C, …).
"""

from __future__ import annotations

import torch

from hyperribbon.operators.risk.loss import wide


def probabilities(logits: torch.Tensor) -> torch.Tensor:
    """Return softmax(logits) over the class axis, in single precision at least."""
    return torch.softmax(wide(logits), dim=1)


def one_hot(targets: torch.Tensor, probabilities: torch.Tensor) -> torch.Tensor:
    """Return integer targets (n, …) beside the softmax: indicators shaped (n, C, …)."""
    return torch.zeros_like(probabilities).scatter_(1, targets.unsqueeze(1), 1)


def residual(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Return p·Σq − q, the gradient of −Σ_c q_c log p_c through the softmax, (n, C, …).

    At the largest class m it is p_m Σ_{k≠m} q_k − q_m Σ_{k≠m} p_k.
    """
    top = _top(p)
    at_top = p * (q * ~top).sum(1, keepdim=True) - q * (p * ~top).sum(1, keepdim=True)
    return torch.where(top, at_top, p * q.sum(1, keepdim=True) - q)


def covariance_product(
    p: torch.Tensor, block: torch.Tensor, top: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the softmax covariance times u, (diag p − ppᵀ) u, for a block u (k, n, C, …).

    The matrix annihilates constants, so u is first shifted to be zero at the largest class, which
    is found where `top` (n, 1, …) does not tell it.
    """
    top = p.argmax(1, keepdim=True) if top is None else top
    index = top.expand(block.shape[0], *(-1,) * p.ndim)
    block = block.to(p.dtype)
    shifted = block - block.gather(2, index)
    return p * (shifted - (p * shifted).sum(2, keepdim=True))


def covariance_root(p: torch.Tensor) -> torch.Tensor:
    """Return the root R (C − 1, n, C, …) of a softmax covariance, Σ_j R_j R_jᵀ = diag p − ppᵀ.

    The rows Q_j = √p_j (e_j − p) have that sum and depend on each other, Σ_j √p_j Q_j = 0. The
    reflection that maps √p to −e_0 makes the first of them zero:
    R_j = Q_j − √p_j/(1 + √p_0) Q_0. The entry √p_j (1 − p_j) of Q_j is summed from the other
    classes.
    """
    classes = p.shape[1]
    root = p.sqrt().transpose(0, 1).unsqueeze(2)
    rows = -root * p.unsqueeze(0)
    top = _top(p)
    own = p.sqrt() * torch.where(top, (p * ~top).sum(1, keepdim=True), 1 - p)
    index = torch.arange(classes, device=p.device)
    rows[index, :, index] = own.transpose(0, 1)
    return rows[1:] - root[1:] / (1 + root[:1]) * rows[:1]


def one_position_each(rows: torch.Tensor) -> torch.Tensor:
    """Turn softmax rows (m, n, C, *positions) on all positions into one row per position."""
    if rows.ndim == 3:
        return rows
    _, count, classes, *positions = rows.shape
    flat = rows.flatten(3)
    split = torch.diag_embed(flat).permute(0, 3, 1, 2, 4)
    return split.reshape(-1, count, classes, *positions)


def _top(p: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(p, dtype=torch.bool).scatter_(1, p.argmax(1, keepdim=True), True)
