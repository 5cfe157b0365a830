"""The loss of an epoch is a mean over samples."""

import pytest
import torch
from torch import nn

import hyperribbon as hr


def test_a_short_last_batch_counts_by_its_samples():
    """With steps too small to move anything, the batches' losses make up that of all samples."""
    torch.manual_seed(0)
    model, x = nn.Linear(3, 1).double(), torch.randn(10, 3, dtype=torch.float64)
    y = x.sum(1, keepdim=True) ** 3
    whole = float(nn.MSELoss()(model(x), y).detach())
    result = hr.train(model, nn.MSELoss(), (x, y), epochs=3, lr=1e-14, batch_size=4)
    assert result.history["loss"] == pytest.approx([whole] * 3, rel=1e-9)
