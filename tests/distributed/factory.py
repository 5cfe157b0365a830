"""A model of one's own for the command line; made anew on every rank."""

from __future__ import annotations

import torch
from torch import nn


def make() -> tuple[nn.Module, nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    """Return a small classifier and 101 samples, the same in every process."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(101, 6, generator=generator)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 3)
    return model, nn.CrossEntropyLoss(), (inputs, inputs[:, :3].argmax(1))


def make_differently() -> tuple[nn.Module, nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    """Return a larger classifier with weights from the global random state."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(3000, 50, generator=generator)
    model = nn.Sequential(nn.Linear(50, 300), nn.GELU(), nn.Linear(300, 300), nn.GELU())
    return model.append(nn.Linear(300, 5)), nn.CrossEntropyLoss(), (inputs, inputs[:, :5].argmax(1))
