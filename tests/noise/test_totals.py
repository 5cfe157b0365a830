"""Gradient noise is reported for single samples, whatever minibatch a covariance is of."""

import pytest
import torch
from torch import nn

import hyperribbon as hr
from hyperribbon import noise


@pytest.fixture(scope="module")
def classifier():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(50, 4, generator=generator, dtype=torch.float64)
    targets = torch.randint(3, (50,), generator=generator)
    return nn.Linear(4, 3).double(), nn.CrossEntropyLoss(), (inputs, targets)


def total_of(model, loss, data):
    """Return tr C from one backward pass per sample."""
    rows = []
    for x, y in zip(*data, strict=True):
        found = torch.autograd.grad(loss(model(x[None]), y[None]), list(model.parameters()))
        rows.append(torch.cat([g.reshape(-1) for g in found]))
    return float(torch.stack(rows).var(0, correction=0).sum())


@pytest.mark.parametrize(
    "options",
    [{}, {"batch_size": 8}, {"batch_size": 8, "replacement": False}, {"batch_size": 1}],
)
def test_total_and_scale_are_those_of_single_samples(classifier, options):
    C = hr.GradientCovariance(*classifier, **options)
    found = noise.compare_noise(hr.GGN(*classifier), C, k=5)
    total = total_of(*classifier)
    assert found.total == pytest.approx(total, rel=1e-8)
    assert found.scale == pytest.approx(total / found.gradient_norm**2, rel=1e-8)
