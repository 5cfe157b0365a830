"""The trace of a Gauss-Newton matrix by parameter and by sample, against autograd."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hyperribbon.core.mask import Mask
from hyperribbon.operators import GGN, GradientCovariance


class Sentences(nn.Module):
    """Rows of a table read several times by a sample, one of them padding, and many positions."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(40, 5, padding_idx=1)
        self.inner, self.head = nn.Linear(5, 12), nn.Linear(12, 3)

    def forward(self, tokens):
        return self.head(torch.tanh(self.inner(self.table(tokens))).mean(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.LSTM(4, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, x):
        return self.head(self.layer(x)[0][:, -1])


def images():
    layers = nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 4 * 4, 3)
    return nn.Sequential(*layers), torch.randn(7, 2, 6, 6)


CASES = {
    "sentences": lambda: (Sentences(), torch.randint(0, 9, (7, 6))),
    "recurrent": lambda: (Recurrent(), torch.randn(7, 5, 4)),
    "images": images,
    "positions": lambda: (
        nn.Sequential(nn.Linear(9, 8), nn.Tanh(), nn.Flatten(), nn.Linear(24, 3)),
        torch.randn(7, 3, 9),
    ),
}


def by_autograd(model, x):
    """Return Σ_j ‖∂(R f)_j/∂w‖² for every sample and parameter w, RᵀR = diag p − ppᵀ."""
    rows = []
    for sample in x:
        weights = dict(model.named_parameters())

        def scores(weights, sample=sample):
            return torch.func.functional_call(model, weights, (sample[None],))[0]

        jacobians = torch.func.jacrev(scores)({name: w.detach() for name, w in weights.items()})
        p = F.softmax(scores(weights).detach(), 0)
        middle = torch.diag(p) - p[:, None] * p[None]
        flat = {name: jacobian.flatten(1) for name, jacobian in jacobians.items()}
        rows.append([float((J.T @ middle @ J).trace()) for J in flat.values()])
    return torch.tensor(rows, dtype=torch.float64) / len(x)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("memory", [None, 2e5])
def test_trace_by_parameter_and_by_sample(name, memory):
    torch.manual_seed(0)
    model, x = CASES[name]()
    model = model.double()
    x = x.double() if x.is_floating_point() else x
    expected = by_autograd(model, x)
    G = GGN(model, nn.CrossEntropyLoss(), (x, torch.arange(7) % 3), memory=memory)
    by_name, by_sample = G.trace_parts()
    assert list(by_name) == [name for name, _ in model.named_parameters()]
    found = torch.tensor(list(by_name.values()), dtype=torch.float64)
    assert torch.allclose(found, expected.sum(0), rtol=1e-9)
    assert torch.allclose(by_sample, expected.sum(1), rtol=1e-9)
    assert G.trace() == pytest.approx(float(expected.sum()), rel=1e-9)
    assert torch.allclose(G.diagonal().sum(), expected.sum(), rtol=1e-9)


def test_tables_have_the_gradients_of_single_samples():
    """Gram matrix, diagonal and selected entries of a table, each sample by itself."""
    torch.manual_seed(0)
    model, x = Sentences().double(), torch.randint(0, 9, (7, 6))
    loss, y = nn.CrossEntropyLoss(), torch.arange(7) % 3
    gradients = []
    for i in range(7):
        slopes = torch.autograd.grad(loss(model(x[i : i + 1]), y[i : i + 1]), model.parameters())
        gradients.append(torch.cat([slope.flatten() for slope in slopes]))
    G = torch.stack(gradients) / 7**0.5
    C = GradientCovariance(model, loss, (x, y), centered=False)
    assert torch.allclose(C.gram(), G @ G.T)
    assert torch.allclose(C.diagonal(), G.square().sum(0))
    mask = {name: torch.rand(w.shape) < 0.5 for name, w in model.named_parameters()}
    kept = torch.cat([entries.flatten() for entries in mask.values()])
    some = GradientCovariance(model, loss, (x, y), centered=False, mask=Mask(mask))
    assert torch.allclose(some.diagonal(), G.square().sum(0)[kept])
    assert torch.allclose(some.gram(), G[:, kept] @ G[:, kept].T)
    assert some.trace() == pytest.approx(float(G[:, kept].square().sum()), rel=1e-9)
