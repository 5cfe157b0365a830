"""Derivatives that are wrong are refused, and right ones of every kind of model accepted."""

import pytest
import torch
from torch import nn

import hyperribbon as hr
from hyperribbon.core.checks import ArgumentError
from hyperribbon.operators.derivatives import verification
from hyperribbon.operators.derivatives.linearisation import Linearisation
from hyperribbon.operators.risk import finite_differences

DTYPES = [torch.float32, torch.float64]


def attention() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 8),
        nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True),
        nn.Flatten(),
        nn.Linear(40, 4),
    )


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(6, 5, batch_first=True), nn.Linear(5, 4)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(5, 6, 3), nn.GroupNorm(2, 6), nn.SiLU(), nn.Flatten(), nn.Linear(24, 4)
    )


SMOOTH = {"attention": attention, "recurrent": Recurrent, "convolutional": convolutional}


def made(build, dtype):
    torch.manual_seed(0)
    model = build().to(dtype).eval()
    return model, (torch.randn(9, 5, 6, dtype=dtype), torch.arange(9) % 4)


@pytest.fixture(params=["all entries", "some entries"])
def entries(request, monkeypatch):
    """Of parameters that are compared: all, or some as of large ones."""
    if request.param == "some entries":
        monkeypatch.setattr(verification, "_MOST", 20)


@pytest.mark.usefixtures("entries")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("operator", [hr.Hessian, hr.GGN])
def test_smooth_models_are_accepted(name, dtype, operator):
    model, data = made(SMOOTH[name], dtype)
    operator(model, nn.CrossEntropyLoss(), data)


@pytest.mark.usefixtures("entries")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("factor", [0.9, 1.1, -1.0])
def test_second_derivatives_that_are_wrong_in_one_parameter_are_refused(
    monkeypatch, name, dtype, factor
):
    model, data = made(SMOOTH[name], dtype)
    largest = max(model.named_parameters(), key=lambda named: named[1].numel())[0]
    right = finite_differences._hvp

    def wrong(*arguments):
        curved = right(*arguments)
        return {n: factor * c if n == largest else c for n, c in curved.items()}

    monkeypatch.setattr(finite_differences, "_hvp", wrong)
    with pytest.raises(ArgumentError, match=r"derivatives|rounding"):
        hr.Hessian(model, nn.CrossEntropyLoss(), data)


@pytest.mark.usefixtures("entries")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SMOOTH)
def test_first_derivatives_that_are_wrong_by_a_tenth_are_refused(monkeypatch, name, dtype):
    model, data = made(SMOOTH[name], dtype)
    jvp = Linearisation.jvp
    monkeypatch.setattr(Linearisation, "jvp", lambda self, b: 1.1 * jvp(self, b))
    with pytest.raises(ArgumentError, match="first derivatives"):
        hr.GGN(model, nn.CrossEntropyLoss(), data)


class Quantized(nn.Module):
    """Weights on a fine grid, with the gradient of the identity: a straight-through estimator."""

    def __init__(self, levels: float):
        super().__init__()
        self.first, self.last, self.levels = nn.Linear(30, 400), nn.Linear(400, 4), levels

    def forward(self, x):
        with torch.no_grad():
            rest = (self.first.weight * self.levels).round() / self.levels - self.first.weight
        hidden = torch.tanh(x.flatten(1) @ (self.first.weight + rest).T + self.first.bias)
        return self.last(hidden)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("levels", [1e1, 1e3])
def test_straight_through_estimators_are_refused(dtype, levels):
    model, data = made(lambda: Quantized(levels), dtype)
    with pytest.raises(ArgumentError, match="derivatives"):
        hr.Hessian(model, nn.CrossEntropyLoss(), data)


def test_a_layer_without_gradients_is_accepted():
    model, data = made(attention, torch.float64)
    with torch.no_grad():
        model[3].weight.zero_()  # nothing flows back into the layers before
    hr.Hessian(model, nn.CrossEntropyLoss(), data)


def test_pairs_of_samples_that_depend_on_each_other_alone_are_seen():
    class Pairs(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x):
            swapped = torch.arange(len(x)) ^ 1
            return self.layer(x) + 0.1 * self.layer(x[swapped.clamp(max=len(x) - 1)])

    torch.manual_seed(0)
    assert hr.Risk(Pairs(), nn.MSELoss(), (torch.randn(8, 3), torch.randn(8, 2))).mixes_samples


def test_some_entries_stand_for_all_of_a_large_tensor(monkeypatch):
    monkeypatch.setattr(verification, "_MOST", 1000)
    tensor = torch.randn(300, 40)
    few = verification.some_entries(tensor)
    assert len(few) <= 1000 and float(few.norm()) == pytest.approx(float(tensor.norm()), rel=0.1)
    column = torch.zeros(300, 40)
    column[:, 7] = 1  # no row and no column is left out
    assert float(verification.some_entries(column).norm()) == pytest.approx(300**0.5, rel=0.2)
    row = torch.zeros(300, 40)
    row[150] = 1
    assert verification.some_entries(row).any()


def test_overflow_is_named_as_the_reason():
    def loss(outputs, targets):
        return (3e19 * outputs - targets).square().mean()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    data = torch.randn(8, 3), torch.randn(8, 1)
    with pytest.raises(ArgumentError, match="overflow") as caught:
        hr.Hessian(model, loss, data) @ torch.randn(21)
    assert "inf" not in str(caught.value) and "autograd" not in str(caught.value)
