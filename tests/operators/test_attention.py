"""Attention that is written out, against torch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from hyperribbon.operators.derivatives.rewriting import twice_differentiable

HIDDEN = torch.tensor([[True, False, True, True, True]] * 3 + [[False] * 5])
CALLS = {
    "plain": {},
    "scaled": {"scale": 0.3},
    "causal": {"is_causal": True},
    "hidden": {"attn_mask": HIDDEN},
    "added": {"attn_mask": torch.randn(2, 1, 4, 5).double()},
    "grouped": {"enable_gqa": True},
}


@pytest.mark.parametrize("name", list(CALLS))
def test_values_and_two_derivatives(name):
    torch.manual_seed(0)
    heads = 3 if name != "grouped" else 1
    shapes = ((2, 4, 3, 6), (2, 5, heads, 6), (2, 5, heads, 2))
    leaves = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    results = []
    if name == "grouped" and "enable_gqa" not in F.scaled_dot_product_attention.__doc__:
        pytest.skip("torch 2.4 knows no groups")
    for written_out in (False, True):
        query, key, value = (leaf.transpose(1, 2) for leaf in leaves)
        if written_out:
            with twice_differentiable():
                found = F.scaled_dot_product_attention(query, key, value, **CALLS[name])
        else:
            with sdpa_kernel(SDPBackend.MATH):
                found = F.scaled_dot_product_attention(query, key, value, **CALLS[name])
        slopes = torch.autograd.grad((found**3).sum(), leaves, create_graph=True)
        total = sum((slope**2).sum() for slope in slopes)
        results.append([found, *slopes, *torch.autograd.grad(total, leaves)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12, equal_nan=True)
        if ours.isnan().any():  # torch 2.4 where all is hidden: there is no slope
            break
