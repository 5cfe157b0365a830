"""Operations that are replaced by others give the same values and gradients."""

import pytest
import torch
import torch.nn.functional as F

from hyperribbon.operators.derivatives.replacements import twice_differentiable

WORDS = torch.tensor([[0, 3, 6], [6, 6, 6], [2, 2, 5]])


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("padding", [None, 6, -1, -7])
def test_embedding_bags_leave_out_padding(mode, padding):
    table = torch.randn(7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = []
    for replaced in (False, True):
        leaf = table.clone().requires_grad_()
        if replaced:
            with twice_differentiable():
                rows = F.embedding_bag(WORDS, leaf, mode=mode, padding_idx=padding)
        else:
            rows = F.embedding_bag(WORDS, leaf, mode=mode, padding_idx=padding)
        found.append((rows, *torch.autograd.grad(rows.square().sum(), leaf)))
    torch.testing.assert_close(found[0], found[1])


def test_embedding_bags_weigh_their_samples():
    table = torch.randn(7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weights = torch.linspace(-1, 2, WORDS.numel(), dtype=torch.float64).reshape(WORDS.shape)
    expected = (weights.unsqueeze(2) * table[WORDS]).sum(1)
    with twice_differentiable():
        rows = F.embedding_bag(WORDS, table, mode="sum", per_sample_weights=weights)
    torch.testing.assert_close(rows, expected)
