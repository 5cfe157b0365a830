"""The first look at derivatives: what it confirms, and what it must leave to a full one."""

import pytest
import torch
from torch import nn

import hyperribbon as hr
from hyperribbon.core.checks import ArgumentError
from hyperribbon.operators.derivatives.linearisation import Linearisation
from hyperribbon.operators.risk.memory import MadeBytes
from hyperribbon.operators.risk.probing import verifying

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


@pytest.fixture
def looks(monkeypatch):
    """Counts the full comparisons, and what first looks said."""
    found = {"confirmed": [], "full": 0}

    def watch(name):
        whole = getattr(verifying, name)

        def watched(*arguments):
            found["confirmed"].append(whole(*arguments))
            return found["confirmed"][-1]

        monkeypatch.setattr(verifying, name, watched)

    def counted(name):
        whole = getattr(verifying, name)

        def watched(*arguments):
            found["full"] += 1
            return whole(*arguments)

        monkeypatch.setattr(verifying, name, watched)

    watch("confirms_curvature"), watch("confirms_slopes")
    counted("check_curvature"), counted("check_pushed")
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("operator", [hr.Hessian, hr.GGN])
def test_smooth_models_are_confirmed_without_a_full_comparison(looks, name, dtype, operator):
    model, data = made(SMOOTH[name], dtype)
    operator(model, nn.CrossEntropyLoss(), data)
    assert looks["confirmed"][-1] and looks["full"] == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("factor", [0.9, 1.1, -1.0, float("nan")])
def test_second_derivatives_that_are_wrong_in_one_parameter_are_refused(
    monkeypatch, looks, name, dtype, factor
):
    model, data = made(SMOOTH[name], dtype)
    largest = max(model.named_parameters(), key=lambda named: named[1].numel())[0]
    right = verifying._curved

    def wrong(*arguments):
        curved = right(*arguments)
        return {n: factor * c if n == largest else c for n, c in curved.items()}

    monkeypatch.setattr(verifying, "_curved", wrong)
    if factor == factor:
        with pytest.raises(ArgumentError, match=r"derivatives|rounding"):
            hr.Hessian(model, nn.CrossEntropyLoss(), data)
    else:
        hr.Hessian(model, nn.CrossEntropyLoss(), data)
    assert not any(looks["confirmed"]) and looks["full"] > 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SMOOTH)
def test_first_derivatives_that_are_wrong_by_a_tenth_are_refused(monkeypatch, looks, name, dtype):
    model, data = made(SMOOTH[name], dtype)
    jvp = Linearisation.jvp
    monkeypatch.setattr(Linearisation, "jvp", lambda self, b: 1.1 * jvp(self, b))
    with pytest.raises(ArgumentError, match="first derivatives"):
        hr.GGN(model, nn.CrossEntropyLoss(), data)
    assert set(looks["confirmed"]) == {False} and looks["full"] > 0


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
@pytest.mark.parametrize("levels", [1e3, 1e5, 1e7])
def test_staircases_that_a_step_would_average_over_are_looked_at_in_full(looks, dtype, levels):
    model, data = made(lambda: Quantized(levels), dtype)
    for operator in (hr.Hessian, hr.GGN):
        try:
            operator(model, nn.CrossEntropyLoss(), data)
        except ArgumentError as error:
            assert "derivatives" in str(error)
    assert looks["confirmed"] == [] and looks["full"] >= 2


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, back):
        return back


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(30, 4)

    def forward(self, x):
        return torch.tanh(Scaled.apply(self.layer(x.flatten(1)))).sin()


def test_rules_of_ones_own_and_losses_of_ones_own_are_looked_at_in_full(looks):
    model, data = made(Own, torch.float64)
    hr.Hessian(model, nn.CrossEntropyLoss(), data)
    model, data = made(attention, torch.float64)
    hr.Hessian(model, lambda f, y: nn.functional.cross_entropy(f, y), data)
    assert looks["confirmed"] == [] and looks["full"] == 2


def test_a_layer_without_gradients_is_looked_at_in_full(looks):
    model, data = made(attention, torch.float64)
    with torch.no_grad():
        model[3].weight.zero_()  # nothing flows back into the layers before
    hr.Hessian(model, nn.CrossEntropyLoss(), data)
    assert looks["confirmed"] == [] and looks["full"] == 1


@pytest.mark.parametrize(
    ("jumps", "operation"),
    [
        (True, lambda x: x.round()),
        (True, lambda x: x.floor_()),
        (True, lambda x: x.sign()),
        (True, lambda x: x > 0),
        (True, lambda x: x.argmax(1)),
        (True, lambda x: x.topk(2)),
        (True, lambda x: x.max(1)),
        (True, lambda x: x.int()),
        (True, lambda x: x.bfloat16()),
        (True, lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127)),
        (True, lambda x: torch.bucketize(x, torch.zeros(1))),
        (True, lambda x: torch.div(x, 0.3, rounding_mode="floor")),
        (False, lambda x: x @ x.T),
        (False, lambda x: torch.arange(3) > 1),
        (False, lambda x: x.softmax(1).logsumexp(0).tanh().double()),
        (False, lambda x: nn.functional.max_pool1d(x, 2)),
        (False, lambda x: nn.functional.layer_norm(x, (4,))),
        (False, lambda x: nn.LSTM(4, 3)(x)[0]),
    ],
)
def test_values_that_may_jump_are_seen(jumps, operation):
    x = torch.randn(3, 4)
    with torch.no_grad(), MadeBytes() as seen:
        operation(x)
    assert seen.jumps == jumps


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
