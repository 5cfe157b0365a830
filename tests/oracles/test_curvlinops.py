"""The same matrices from curvlinops, in float32."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from hyperribbon.operators import GGN, Fisher, GradientCovariance, Hessian

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # a dependency of theirs uses torch.jit
    import curvlinops

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")


def build(kind: str):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == "mlp":
            model = nn.Sequential(nn.Linear(8, 10), nn.ReLU(), nn.Linear(10, 4))
            inputs = torch.randn(23, 8)
        else:
            model = nn.Sequential(
                nn.Conv2d(1, 4, 3),
                nn.BatchNorm2d(4),
                nn.ReLU(),
                nn.MaxPool2d(2),
                nn.Flatten(),
                nn.Linear(16, 4),
            )
            inputs = torch.randn(23, 1, 6, 6)
        targets = torch.randint(4, (23,))
        size = sum(p.numel() for p in model.parameters())
        block = torch.randn(size, 3)
    return model.eval(), inputs, targets, block


CROSS, SQUARE = nn.CrossEntropyLoss(), nn.MSELoss(reduction="sum")


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
@pytest.mark.parametrize(
    ("ours", "theirs", "loss"),
    [
        (Hessian, "HessianLinearOperator", CROSS),
        (Hessian, "HessianLinearOperator", SQUARE),
        (GGN, "GGNLinearOperator", CROSS),
        (GGN, "GGNLinearOperator", SQUARE),
        (GradientCovariance, "EFLinearOperator", CROSS),
    ],
)
def test_products_agree(kind, ours, theirs, loss):
    model, inputs, targets, block = build(kind)
    if loss is SQUARE:
        targets = nn.functional.one_hot(targets, 4).float()
    options = {"centered": False} if ours is GradientCovariance else {}
    operator = ours(model, loss, (inputs, targets), **options)
    batches = [(inputs[:10], targets[:10]), (inputs[10:], targets[10:])]
    peer = getattr(curvlinops, theirs)(model, loss, list(model.parameters()), batches)
    expected = (peer @ block).detach()
    assert float((operator @ block - expected).norm()) <= 1e-4 * float(expected.norm())


def test_fisher_of_classes_is_their_gauss_newton_matrix():
    model, inputs, targets, block = build("cnn")
    peer = curvlinops.GGNLinearOperator(
        model, nn.CrossEntropyLoss(), list(model.parameters()), [(inputs, targets)]
    )
    expected = (peer @ block).detach()
    difference = Fisher(model, inputs) @ block - expected
    assert float(difference.norm()) <= 1e-4 * float(expected.norm())
