"""Small models in float64, data, and dense references from plain autograd."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, jacrev


class TinyTransformer(nn.Module):
    """Embedding, position code, attention, layer norm, an output layer tied to the embedding."""

    def __init__(self, vocabulary: int = 5, width: int = 4, length: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.randn(length, width) / 3)
        self.block = nn.TransformerEncoderLayer(
            width, 2, dim_feedforward=3, dropout=0.0, batch_first=True, activation="gelu"
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.block(self.embedding(tokens) + self.position)
        return self.head(self.norm(hidden)).transpose(1, 2)  # (n, classes, length)


def build_mlp(outputs: int = 3, activation: type[nn.Module] = nn.Tanh) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(5, 6),
        activation(),
        nn.Linear(6, 4),
        activation(),
        nn.Linear(4, outputs),
    )


def build_cnn(outputs: int = 3) -> nn.Module:
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1, stride=1),
        nn.BatchNorm2d(3),
        nn.GELU(),
        nn.AvgPool2d(2),
        nn.Conv2d(3, 4, 2, bias=False),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4, outputs),
    )
    norm = model[1]
    norm.running_mean.copy_(torch.randn(3) / 5)
    norm.running_var.copy_(torch.rand(3) + 0.5)
    return model


def build_case(kind: str, samples: int = 11, seed: int = 0):
    """Return a model in eval mode, inputs and integer targets."""
    samples = 5 if kind == "transformer" else samples
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if kind in ("mlp", "relu"):
            model = build_mlp(activation=nn.Tanh if kind == "mlp" else nn.ReLU)
            inputs, targets = torch.randn(samples, 5), torch.randint(3, (samples,))
        elif kind == "cnn":
            model = build_cnn()
            inputs, targets = torch.randn(samples, 2, 6, 6), torch.randint(3, (samples,))
        else:
            model = TinyTransformer()
            inputs, targets = torch.randint(5, (samples, 3)), torch.randint(5, (samples, 3))
    model = model.double().eval()
    return model, inputs.double() if inputs.is_floating_point() else inputs, targets


class Reference:
    """Dense matrices of a model from torch.func, on one whole batch."""

    def __init__(self, model: nn.Module, inputs: torch.Tensor, names: list[str] | None = None):
        self.model, self.inputs = model, inputs
        every = {n: p.detach().clone() for n, p in model.named_parameters()}
        self.names = list(every) if names is None else names
        self.fixed = every
        self.flat = torch.cat([every[n].reshape(-1) for n in self.names])

    def outputs(self, flat: torch.Tensor) -> torch.Tensor:
        weights, start = dict(self.fixed), 0
        for name in self.names:
            size = self.fixed[name].numel()
            weights[name] = flat[start : start + size].reshape(self.fixed[name].shape)
            start += size
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return functional_call(self.model, weights, (self.inputs,))

    def hessian(self, loss) -> torch.Tensor:
        return torch.autograd.functional.hessian(
            lambda w: loss(self.outputs(w)), self.flat, vectorize=True
        )

    def jacobian(self) -> torch.Tensor:
        """(n, outputs, P)"""
        jacobian = torch.autograd.functional.jacobian(self.outputs, self.flat, vectorize=True)
        return jacobian.reshape(len(self.inputs), -1, len(self.flat))

    def ggn(self, loss) -> torch.Tensor:
        outputs = self.outputs(self.flat).detach()
        curved = torch.autograd.functional.hessian(loss, outputs, vectorize=True)
        size = outputs.numel()
        jacobian = self.jacobian().reshape(size, -1)
        return jacobian.T @ curved.reshape(size, size) @ jacobian

    def sample_gradients(self, sample_loss) -> torch.Tensor:
        """(n, P): gradients of sample_loss(outputs) -> (n,)."""
        return jacrev(lambda w: sample_loss(self.outputs(w)))(self.flat).detach()


def losses_of(kind: str, targets: torch.Tensor, outputs: torch.Tensor) -> dict:
    """Return name -> (loss, targets) of every kind of loss."""
    classes = outputs.shape[1]
    with torch.random.fork_rng():
        torch.manual_seed(3)
        weight = torch.rand(classes).double() + 0.5
        soft = torch.softmax(torch.randn_like(outputs), 1)
        values = torch.randn_like(outputs)
        bits = (torch.rand_like(outputs) > 0.5).double()
    ignoring = targets.clone()
    ignoring[0] = -100
    return {
        "cross_entropy": (nn.CrossEntropyLoss(), targets),
        "cross_entropy_sum": (nn.CrossEntropyLoss(reduction="sum"), targets),
        "cross_entropy_weighted": (nn.CrossEntropyLoss(weight=weight), targets),
        "cross_entropy_smooth": (nn.CrossEntropyLoss(weight=weight, label_smoothing=0.2), targets),
        "cross_entropy_ignore": (nn.CrossEntropyLoss(weight=weight), ignoring),
        "cross_entropy_soft": (nn.CrossEntropyLoss(weight=weight, label_smoothing=0.1), soft),
        "cross_entropy_functional": (F.cross_entropy, targets),
        "mse": (nn.MSELoss(), values),
        "mse_sum": (nn.MSELoss(reduction="sum"), values),
        "bce": (nn.BCEWithLogitsLoss(), bits),
        "bce_weighted": (nn.BCEWithLogitsLoss(pos_weight=torch.tensor(2.5).double()), bits),
        "callable_mean": (lambda f, y: ((f - y) ** 4).flatten(1).sum(1).mean(), values),
        "callable_sum": (lambda f, y: torch.log(torch.cosh(f - y)).sum() / math.pi, values),
    }


@pytest.fixture(params=["mlp", "relu", "cnn", "transformer"])
def case(request):
    return build_case(request.param)


@pytest.fixture
def make_case():
    return build_case


@pytest.fixture
def reference():
    return Reference


@pytest.fixture
def make_losses():
    return losses_of


@pytest.fixture
def close():
    """Relative Frobenius distance below a tolerance."""

    def check(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float = 1e-9) -> None:
        assert ours.shape == theirs.shape
        scale = max(float(theirs.norm()), 1e-300)
        assert float((ours - theirs).norm()) <= tolerance * scale

    return check
