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


class SmallTransformer(nn.Module):
    """Embedding, attention, layer norm and an output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 4, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.block(self.embedding(tokens))).mean(1))


def build(kind: str):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == "mlp":
            model = nn.Sequential(nn.Linear(8, 10), nn.ReLU(), nn.Linear(10, 4))
            inputs = torch.randn(23, 8)
        elif kind == "transformer":
            model, inputs = SmallTransformer(), torch.randint(7, (23, 5))
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
    # In eval mode torch runs the transformer fused, which curvlinops cannot differentiate; nothing
    # in it is random.
    return model.train(kind == "transformer"), inputs, targets, block


CROSS, SQUARE = nn.CrossEntropyLoss(), nn.MSELoss(reduction="sum")


PAIRS = [
    (Hessian, "HessianLinearOperator", CROSS),
    (Hessian, "HessianLinearOperator", SQUARE),
    (GGN, "GGNLinearOperator", CROSS),
    (GGN, "GGNLinearOperator", SQUARE),
    (GradientCovariance, "EFLinearOperator", CROSS),
]
# On the transformer curvlinops 3.0.1 is 4% off the dense Hessian; see the test after this one.
CASES = [
    (kind, *pair)
    for kind in ("mlp", "cnn", "transformer")
    for pair in PAIRS
    if (kind, pair[0]) != ("transformer", Hessian)
]


@pytest.mark.parametrize(("kind", "ours", "theirs", "loss"), CASES)
def test_products_agree(kind, ours, theirs, loss):
    model, inputs, targets, block = build(kind)
    if loss is SQUARE:
        targets = nn.functional.one_hot(targets, 4).float()
    options = {"centered": False} if ours is GradientCovariance else {}
    operator = ours(model, loss, (inputs, targets), **options)
    batches = [(inputs[:10], targets[:10]), (inputs[10:], targets[10:])]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        peer = getattr(curvlinops, theirs)(model, loss, list(model.parameters()), batches)
        expected = (peer @ block).detach()
    assert float((operator @ block - expected).norm()) <= 1e-4 * float(expected.norm())


def test_hessian_of_a_transformer_is_the_forward_derivative_of_its_gradient():
    """Where curvlinops is no oracle, torch.func is: forward over reverse, not twice reverse."""
    model, inputs, targets, block = build("transformer")
    weights = {name: p.detach() for name, p in model.named_parameters()}
    space = Hessian(model, CROSS, (inputs, targets)).space
    gradient = torch.func.grad(
        lambda w: CROSS(torch.func.functional_call(model, w, (inputs,)), targets)
    )
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        _, curved = torch.func.jvp(gradient, (weights,), (space.unflatten(block[:, 0]),))
    expected = space.flatten(curved)
    product = Hessian(model, CROSS, (inputs, targets)) @ block[:, 0]
    assert float((product - expected).norm()) <= 1e-4 * float(expected.norm())


def test_fisher_of_classes_is_their_gauss_newton_matrix():
    model, inputs, targets, block = build("cnn")
    peer = curvlinops.GGNLinearOperator(
        model, nn.CrossEntropyLoss(), list(model.parameters()), [(inputs, targets)]
    )
    expected = (peer @ block).detach()
    difference = Fisher(model, inputs) @ block - expected
    assert float(difference.norm()) <= 1e-4 * float(expected.norm())
