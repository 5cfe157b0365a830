"""predict_sharpness: exact for linear networks, inside its band for others, and honest about it."""

import copy
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import hyperribbon as hr
from hyperribbon.core.checks import ArgumentError
from hyperribbon.operators import Risk
from hyperribbon.prediction import sharpness as module
from hyperribbon.prediction.linear_layers import find_chain
from hyperribbon.prediction.surrogate import ChainSurrogate, squares, stand_in_data

HELD_OUT = Path(__file__).parents[2] / "benchmarks" / "sharpness_held_out.json"
STUDY = Path(module.__file__).with_name("sharpness_study.json")
RULES = {
    "descent": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=1e-2),
    "Nesterov": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.8, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.003, momentum=0.5),
    "centred RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.003, centered=True),
}


def network(activation=None, bias=True, widths=(4, 6, 5, 3)):
    torch.manual_seed(0)
    layers = []
    for before, after in pairwise(widths):
        layers += [
            nn.Linear(before, after, bias=bias),
            activation() if activation else nn.Identity(),
        ]
    return nn.Sequential(*layers[:-1]).double()


@pytest.fixture
def data():
    torch.manual_seed(1)
    x = torch.randn(40, 4).double() * torch.tensor([2.0, 1.0, 0.5, 0.3]) + 0.4
    return x, torch.randn(40, 3).double()


def largest(model, loss, data):
    return float(torch.linalg.eigvalsh(hr.Hessian(model, loss, data).to_dense())[-1])


def descend(model, loss, data, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(data[0]), data[1]).backward()
        optimizer.step()


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("rule", RULES)
def test_the_training_of_a_linear_network_is_known_exactly(rule, bias, data):
    model, loss = network(bias=bias), nn.MSELoss()
    optimizer = RULES[rule](model.parameters())
    found = hr.predict_sharpness(model, loss, data, optimizer=optimizer, steps=80)
    assert found.method == "exact"
    assert found.initial == pytest.approx(largest(model, loss, data), rel=1e-3)
    descend(model, loss, data, optimizer, 80)
    assert found.value == pytest.approx(largest(model, loss, data), rel=2e-3)
    assert found.low < found.value < found.high


def test_a_linear_network_under_cross_entropy_is_exact_too(data):
    model, loss, labels = network(), nn.CrossEntropyLoss(), data[1].argmax(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = hr.predict_sharpness(model, loss, (data[0], labels), optimizer=optimizer, steps=60)
    assert found.method == "exact"
    descend(model, loss, (data[0], labels), optimizer, 60)
    assert found.value == pytest.approx(largest(model, loss, (data[0], labels)), rel=2e-3)


def test_few_samples_stand_in_for_many(data):
    model = network()
    chain = find_chain(Risk(model, nn.MSELoss(), data))
    few = stand_in_data(chain)
    assert len(few[0]) == 5
    twin = ChainSurrogate(chain, [1.0, 1.0])
    expected = np.linalg.eigvalsh(hr.Hessian(model, nn.MSELoss(), data).to_dense().numpy())
    found = np.linalg.eigvalsh(hr.Hessian(twin, squares(chain.curvature), few).to_dense().numpy())
    assert np.allclose(found, expected, atol=1e-12 * expected[-1] + 1e-13)


@pytest.mark.parametrize("kind", ["tanh", "convolutions"])
def test_a_surrogate_has_the_start_and_the_limit_of_the_network(kind, data):
    model = network(nn.Tanh)
    if kind == "convolutions":
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Unflatten(1, (1, 2, 2)),
            *(nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(3, 3)),
        ).double()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    found = hr.predict_sharpness(model, nn.MSELoss(), data, optimizer=0.1, steps=50)
    assert found.method == "linear surrogate"
    assert found.path[0] == pytest.approx(largest(model, nn.MSELoss(), data), rel=1e-3)
    assert found.path.max() <= found.ceiling == 20
    assert list(found.to_frame().index[[0, -1]]) == [0, 50]
    assert "surrogate" not in found.summary()
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)
    assert found.plot().get_ylabel() == "sharpness"


def test_the_limits_of_optimisers(data):
    model = network()
    limits = {
        "momentum": 2 * 1.9 / 0.01 - 1e-2,
        "Nesterov": 2 * 1.8 / (0.01 * 2.6),
        "descent": 2 / 0.05,
    }
    for rule, expected in limits.items():
        optimizer = RULES[rule](model.parameters())
        found = hr.predict_sharpness(model, nn.MSELoss(), data, optimizer=optimizer, steps=2)
        assert found.ceiling == pytest.approx(expected, rel=1e-9)
    preconditioned = {
        "Adam": 2 * 1.9 / (0.1 * 0.01),
        "AdamW": 1.999 * 1.9 / (0.1 * 0.01),
        "RMSprop": 2 * 1.5 / 0.003,
        "centred RMSprop": 2 / 0.003,
    }
    for rule, expected in preconditioned.items():
        optimizer = RULES[rule](model.parameters())
        found = hr.predict_sharpness(model, nn.MSELoss(), data, optimizer=optimizer, steps=2)
        assert found.ceiling == np.inf
        assert f"{expected:.4g} for the Hessian preconditioned" in found.limit


def test_training_that_diverges_or_is_of_another_kind_is_refused(data):
    with pytest.raises(ArgumentError, match="diverges"):
        hr.predict_sharpness(network(), nn.MSELoss(), data, optimizer=50.0, steps=200)
    model = network()
    lbfgs = torch.optim.LBFGS(model.parameters())
    with pytest.raises(ArgumentError, match="stability limit is not known"):
        hr.predict_sharpness(model, nn.MSELoss(), data, optimizer=lbfgs)


def test_a_network_without_activations_to_replace_says_that_a_copy_was_trained(data):
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.head = nn.LSTM(1, 4, batch_first=True), nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.cell(x.unsqueeze(2))[0][:, -1])

    torch.manual_seed(0)
    model = Recurrent().double()
    found = hr.predict_sharpness(model, nn.MSELoss(), data, optimizer=0.1, steps=5)
    assert found.method == "the network itself"
    assert "a copy of the network itself was trained" in found.summary()


def test_a_network_that_differentiates_inside_has_a_forecast_too():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.u = nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 1))

        def forward(self, x):
            x = x.detach().requires_grad_()
            u = self.u(x)
            return torch.autograd.grad(u.sum(), x, create_graph=True)[0] + u

    torch.manual_seed(0)
    model, data = Residual().double(), (torch.linspace(0, 1, 9)[:, None], torch.zeros(9, 1))
    found = hr.predict_sharpness(model, nn.MSELoss(), data, optimizer=0.05, steps=5)
    assert found.path[0] == pytest.approx(largest(model, nn.MSELoss(), data), rel=1e-3)


def rows(path):
    return json.loads(path.read_text())["trainings"]


def test_the_stored_band_covers_trainings_on_other_data():
    study, held_out = rows(STUDY), rows(HELD_OUT)
    for key in ("data", "width", "seed"):
        assert not {row[key] for row in study} & {row[key] for row in held_out}
    inside = []
    for row in held_out:
        low, high, _ = module._band(row["kind"])
        inside.append(low <= row["measured"] / row["predicted"] <= high)
    assert len(inside) == 40
    assert sum(inside[:20]) >= 17 and sum(inside[20:]) >= 17


def test_a_band_is_students_interval_of_one_more_training():
    rng = np.random.default_rng(0)
    inside = []
    for _ in range(2000):
        sample = rng.normal(0.3, 0.5, 9)
        low, high = module.interval(list(sample[:8]))
        inside.append(low <= np.exp(sample[8]) <= high)
    assert np.mean(inside) == pytest.approx(0.95, abs=0.015)


def test_a_wrapped_optimiser_is_forecast_like_the_one_inside(data):
    class Wrapper:
        def __init__(self, optimizer):
            self.optimizer = optimizer

    model = network()
    inner = RULES["RMSprop"](model.parameters())
    expected = hr.predict_sharpness(model, nn.MSELoss(), data, optimizer=inner, steps=20)
    found = hr.predict_sharpness(model, nn.MSELoss(), data, optimizer=Wrapper(inner), steps=20)
    assert found.value == expected.value and found.limit == expected.limit


def test_rmsprop_has_no_study_and_so_the_band_of_all_kinds(data):
    model = network(nn.Tanh)
    bands = []
    for rule in ("Adam", "RMSprop"):
        optimizer = RULES[rule](model.parameters())
        found = hr.predict_sharpness(model, nn.MSELoss(), data, optimizer=optimizer, steps=5)
        assert (found.studied == 0) is (rule == "RMSprop")
        assert ("No network of this kind was studied" in found.summary()) is (rule == "RMSprop")
        bands.append(found.high / found.low)
    assert bands[1] > 2 * bands[0]


class Positive(nn.Module):
    """A mean, and a variance that softplus keeps positive."""

    def __init__(self):
        super().__init__()
        self.both = nn.Linear(3, 2)

    def forward(self, x):
        mean, raw = self.both(x).chunk(2, dim=1)
        return torch.cat([mean, nn.functional.softplus(raw - 2)], dim=1)


@pytest.mark.parametrize("forecast", ["sharpness", "manifold"])
def test_losses_that_are_not_defined_everywhere_are_told_so(forecast):
    torch.manual_seed(0)
    model, data = Positive(), (torch.randn(20, 3), torch.randn(20, 1))

    def loss(outputs, targets):
        return nn.functional.gaussian_nll_loss(outputs[:, :1], targets, outputs[:, 1:])

    with pytest.raises(hr.ArgumentError, match=r"not defined for all outputs .* negative"):
        if forecast == "sharpness":
            hr.predict_sharpness(model, loss, data, optimizer=0.1, steps=5)
        else:
            hr.predict_manifold(model, loss, data, steps=5, lr=0.1)
