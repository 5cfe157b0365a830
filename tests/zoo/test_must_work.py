"""Models, data and precisions that once stopped with an error from inside torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import hyperribbon as hr
from zoo.calling import Keywords, OneNumber
from zoo.references import Reference, distance
from zoo.registry import Network
from zoo.untouched import untouched

ROUNDINGS = 20
"""Relative error of products in a low precision, in units of its eps: the networks here have a
dozen operations in a row, each with some roundings."""


def points(count: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(count, 4), torch.arange(count) % 3


def mlp(*extra: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3), *extra)


def reference(model: nn.Module, loss: Any, x: Any, y: Any) -> Reference:
    """Return the reference in float64, at the same weights."""
    return Reference(Network(model.double(), loss, x.double(), y))


def test_convolution_and_group_norm_with_a_block():
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    )
    x, y = torch.randn(3, 1, 4, 4).double(), torch.tensor([0, 2, 1])
    truth = reference(model, nn.CrossEntropyLoss(), x, y)
    for operator, expected in (
        (hr.Hessian(model, nn.CrossEntropyLoss(), (x, y)), truth.curved),
        (hr.GGN(model, nn.CrossEntropyLoss(), (x, y)), truth.ggn(truth.block)),
    ):
        assert distance(operator @ truth.block, expected) < 1e-9


def test_covariance_of_gradients_with_outputs_of_one_axis():
    model, x, y = OneNumber(), torch.randn(5, 4).double(), torch.randn(5).double()
    truth = reference(model, nn.MSELoss(), x, y)
    rows = truth.sample_gradients()
    operator = hr.GradientCovariance(model, nn.MSELoss(), (x, y), centered=False)
    assert distance(operator @ truth.block, rows.T @ (rows @ truth.block) / 5) < 1e-9
    assert distance(operator.gram().diagonal(), rows.square().sum(1) / 5) < 1e-9


@pytest.mark.parametrize("memory", [None, 1e3, 1e4])
def test_a_loss_whose_curvature_is_zero(memory):
    """Some products are one number written out by strides, which cannot be added to in place."""
    model = nn.Sequential(nn.PReLU(), nn.Linear(4, 1), nn.Flatten(0))
    x, y = torch.randn(12, 4).double(), torch.randn(12).double()
    truth = reference(model, nn.L1Loss(), x, y)
    operator = hr.Hessian(model, nn.L1Loss(), (x, y), memory=memory)
    assert distance(operator @ truth.block, truth.curved) < 1e-9
    assert not (hr.GGN(model, nn.L1Loss(), (x, y), memory=memory) @ truth.block).any()


class Autocasting(nn.Module):
    """A model that does its inner products in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.body(x).float()


def test_a_model_that_uses_autocast():
    model, (x, y) = Autocasting(), points()
    operators = [kind(model, nn.CrossEntropyLoss(), (x, y)) for kind in (hr.Hessian, hr.GGN)]
    truth = reference(model.body, nn.CrossEntropyLoss(), x, y)
    tolerance = ROUNDINGS * torch.finfo(torch.bfloat16).eps
    for operator, expected in zip(operators, (truth.curved, truth.ggn(truth.block)), strict=True):
        assert operator.dtype == torch.float32
        product = operator @ truth.block.float()
        assert distance(product.double(), expected) < tolerance


@pytest.mark.parametrize("kind", [hr.Hessian, hr.GGN])
def test_products_under_ambient_autocast(kind):
    model, (x, y) = mlp(), points()
    operator = kind(model, nn.CrossEntropyLoss(), (x, y))
    other = kind(model, nn.CrossEntropyLoss(), (x, y))
    truth = reference(model, nn.CrossEntropyLoss(), x, y)
    block = truth.block.float()
    expected = truth.curved if kind is hr.Hessian else truth.ggn(truth.block)
    exact = 1e3 * torch.finfo(torch.float32).eps
    assert distance((other @ block).double(), expected) < exact
    for before in (operator, other):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            try:
                product = before @ block
            except hr.ArgumentError:
                pass
            else:
                tolerance = ROUNDINGS * torch.finfo(torch.bfloat16).eps
                assert product.dtype == torch.float32
                assert distance(product.double(), expected) < tolerance
        assert distance((before @ block).double(), expected) < exact


def test_operators_built_under_ambient_autocast():
    model, (x, y) = mlp(), points()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        try:
            operator = hr.Hessian(model, nn.CrossEntropyLoss(), (x, y))
        except hr.ArgumentError:
            return
    truth = reference(model, nn.CrossEntropyLoss(), x, y)
    tolerance = ROUNDINGS * torch.finfo(torch.bfloat16).eps
    assert distance((operator @ truth.block.float()).double(), truth.curved) < tolerance


def test_the_gauss_newton_matrix_of_a_loss_that_is_linear_is_zero():
    model, (x, y) = mlp(nn.LogSoftmax(1)).double(), points()
    operator = hr.GGN(model, nn.NLLLoss(), (x, y))
    assert not (operator @ torch.ones(operator.shape[0], 2).double()).any()
    assert operator.trace() == 0
    for method in ("gram", "lanczos", "auto"):
        values = torch.as_tensor(hr.eigsh(operator, 2, method=method).eigenvalues)
        assert torch.equal(values.double(), torch.zeros(2).double()), method


def rounded(dtype: torch.dtype) -> tuple[nn.Module, nn.Module]:
    """Return a model in a low precision and the same weights in float64."""
    low = mlp().to(dtype)
    high = mlp().double()
    high.load_state_dict(low.state_dict())
    return low, high


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_products_in_low_precision(dtype):
    (low, high), (x, y) = rounded(dtype), points()
    x = x.to(dtype)
    truth = reference(high, nn.CrossEntropyLoss(), x, y)
    block = truth.block.to(dtype)
    for kind in (hr.Hessian, hr.GGN):
        with untouched(low, x, y):
            operator = kind(low, nn.CrossEntropyLoss(), (x, y))
            product = operator @ block
        wide = block.double()
        expected = truth.hessian(wide) if kind is hr.Hessian else truth.ggn(wide)
        assert distance(product.double(), expected) < ROUNDINGS * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("method", ["auto", "gram", "lanczos"])
def test_eigenvalues_in_low_precision(dtype, method):
    (low, high), (x, y) = rounded(dtype), points()
    x = x.to(dtype)
    truth = reference(high, nn.CrossEntropyLoss(), x, y)
    spectrum = hr.eigsh(hr.GGN(low, nn.CrossEntropyLoss(), (x, y)), 1, method=method)
    top = float(torch.as_tensor(spectrum.eigenvalues).double().max())
    error = ROUNDINGS * torch.finfo(dtype).eps
    assert top == pytest.approx(float(truth.ggn_eigenvalues()[0]), rel=error)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_gaussian_fisher_in_low_precision(dtype):
    (low, high), (x, y) = rounded(dtype), points()
    x = x.to(dtype)
    truth = reference(high, nn.CrossEntropyLoss(), x, y)
    error = ROUNDINGS * torch.finfo(dtype).eps
    for variance in (2.0, 2.0 * torch.eye(3)):
        operator = hr.Fisher(low, x, likelihood="gaussian", variance=variance)
        expected = float(truth.jacobian.square().sum()) / 2.0 / len(x)
        assert operator.trace() == pytest.approx(expected, rel=error)
        product = operator @ truth.block[:, :2].to(dtype)
        pushed = truth.jacobian @ truth.block[:, :2].to(dtype).double()
        assert distance(product.double(), truth.jacobian.T @ pushed / 2.0 / len(x)) < error
        gram = operator.gram()
        assert float(gram.double().trace()) == pytest.approx(expected, rel=error)


@pytest.mark.parametrize("form", ["list", "generator", "list of dicts", "uneven list"])
def test_batches_one_after_another(form):
    model, (x, y) = mlp().double(), points(7)
    x = x.double()
    truth = reference(model, nn.CrossEntropyLoss(), x, y)
    batches: Any = [(x[:3], y[:3]), (x[3:6], y[3:6]), (x[6:], y[6:])]
    options: dict[str, Any] = {}
    if form == "generator":
        batches = (batch for batch in batches)
    elif form == "list of dicts":
        batches = [{"input": x, "labels": y} for x, y in batches]
    elif form == "uneven list":
        batches = [[x[:1], y[:1]], [x[1:], y[1:]]]
    operator = hr.Hessian(model, nn.CrossEntropyLoss(), batches, **options)
    assert distance(operator @ truth.block, truth.curved) < 1e-9
    assert distance(operator @ truth.block, truth.curved) < 1e-9  # a generator is read once
    assert operator.loss() == pytest.approx(truth.value, rel=1e-12)


def test_a_model_called_by_keyword():
    model, (x, y) = Keywords().double(), points()
    x = x.double()
    network = Network(model, nn.CrossEntropyLoss(), x, y, lambda m, x: m(x=x))
    truth = Reference(network)
    for data, forward in (
        ({"x": x, "labels": y}, None),
        ((x, y), lambda model, batch: model(x=batch[0])),
    ):
        operator = hr.Hessian(model, nn.CrossEntropyLoss(), data, forward=forward)
        assert distance(operator @ truth.block, truth.curved) < 1e-9


# Models that cannot be measured are refused with a reason, not with an error from inside torch


def test_complex_weights_are_refused():
    class Complex(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 3, dtype=torch.complex64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x.to(torch.complex64) @ self.weight).abs()

    x, y = points()
    with pytest.raises(hr.ArgumentError):
        operator = hr.Hessian(Complex(), nn.CrossEntropyLoss(), (x, y))
        operator @ torch.ones(operator.shape[0], dtype=operator.dtype)


@pytest.mark.filterwarnings("ignore")
def test_layers_without_weights_yet_are_refused():
    x, y = points()
    with pytest.raises(hr.ArgumentError):
        hr.Hessian(nn.Sequential(nn.LazyLinear(5), nn.LazyLinear(3)), nn.CrossEntropyLoss(), (x, y))


def test_weights_of_two_precisions():
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 3).double()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(torch.tanh(F.linear(x.float(), *self.first.parameters())).double())

    model, (x, y) = Mixed(), points()
    try:
        operator = hr.Hessian(model, nn.CrossEntropyLoss(), (x, y))
        vector = torch.linspace(-1, 1, operator.shape[0], dtype=operator.dtype)
        product = operator @ vector
    except hr.ArgumentError:
        return
    body = nn.Sequential(model.first.double(), nn.Tanh(), model.second)
    truth = reference(body, nn.CrossEntropyLoss(), x, y)
    expected = truth.hessian(vector.double().unsqueeze(1)).squeeze(1)
    assert distance(product.double(), expected) < 1e3 * torch.finfo(torch.float32).eps
