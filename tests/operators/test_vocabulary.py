"""Cross-entropy over large vocabularies: in pieces, and never class by class."""

import pytest
import torch
from torch import nn

from hyperribbon.operators import GGN
from hyperribbon.operators.risk import torch_losses
from hyperribbon.operators.risk.torch_losses import recognise


class NextToken(nn.Module):
    """Predicts every token from the one before it; logits (n, vocabulary, positions)."""

    def __init__(self, vocabulary, width):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        return self.head(torch.tanh(self.embed(tokens))).transpose(1, 2)


@pytest.fixture(params=["plain", "weights", "smoothing", "both", "probabilities"])
def case(request):
    generator = torch.Generator().manual_seed(0)
    weight = torch.rand(7, generator=generator, dtype=torch.float64)
    loss = nn.CrossEntropyLoss(
        weight=weight if request.param in ("weights", "both") else None,
        label_smoothing=0.2 if request.param in ("smoothing", "both") else 0.0,
    )
    outputs = torch.randn(5, 7, 6, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, 7, (5, 6), generator=generator)
    targets[1, 2] = -100
    if request.param == "probabilities":
        targets = torch.softmax(torch.randn(5, 7, 6, generator=generator).double(), dim=1)
    block = torch.randn(2, 5, 7, 6, generator=generator, dtype=torch.float64)
    return loss, outputs, targets, block


@pytest.mark.parametrize("piece", [1, 30, 100, 400, 10**6])
def test_pieces_give_the_second_derivative(case, piece, monkeypatch):
    monkeypatch.setattr(torch_losses, "_PIECE", piece)
    loss, outputs, targets, block = case
    ours = recognise(loss)
    loss.reduction = "sum"
    expected = torch.stack(
        [torch.autograd.functional.hvp(lambda f: loss(f, targets), outputs, u)[1] for u in block]
    )
    torch.testing.assert_close(ours.curvature(outputs, targets, block), expected)
    torch.testing.assert_close(ours.curvature_at(outputs, targets)(block), expected)


def test_a_ggn_over_fifty_thousand_classes_equals_the_one_in_one_piece(monkeypatch):
    torch.manual_seed(0)
    model = NextToken(50_257, 2)
    tokens = torch.randint(0, 50_257, (3, 9))
    G = GGN(model, nn.CrossEntropyLoss(), (tokens[:, :-1], tokens[:, 1:]))
    v = torch.randn(G.shape[0], generator=torch.Generator().manual_seed(1))
    whole = G @ v
    monkeypatch.setattr(torch_losses, "_PIECE", 120_000)
    torch.testing.assert_close(G @ v, whole, rtol=1e-5, atol=1e-9)
    assert float(v @ whole) > 0
