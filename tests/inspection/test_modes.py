"""Evaluation and training mode: what is measured in which, and the step that is stable."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hyperribbon as hr
from hyperribbon.core import ArgumentError
from inspection.autograd import sharpest

LOSS = nn.CrossEntropyLoss()
RATE, BATCH = 0.2, 64


def network(*between):
    return nn.Sequential(
        nn.Conv2d(1, 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        *between,
        nn.Linear(8, 10),
    )


@pytest.fixture(scope="module")
def digits():
    data = hr.load_data("digits", limit=512)
    return data.inputs.double(), data.targets


@pytest.fixture(scope="module")
def trained(digits):
    """A network with batch norm after 30 steps: sharp in evaluation mode, flat in training mode."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = network().double()
        optimizer = torch.optim.SGD(model.parameters(), RATE)
        for _ in range(30):
            chosen = torch.randint(0, 512, (BATCH,))
            optimizer.zero_grad()
            LOSS(model(digits[0][chosen]), digits[1][chosen]).backward()
            optimizer.step()
    return model


def as_trained(model, data, batch=BATCH):
    """Return the loss of fixed batches, each with statistics of its own, as a training has it."""
    model.train()
    model.apply(lambda part: part.eval() if isinstance(part, nn.Dropout) else None)
    parts = zip(data[0].split(batch), data[1].split(batch), strict=True)
    return sum(LOSS(model(x), y) * len(x) for x, y in parts) / len(data[0])


def answer(found, term):
    return next(entry for entry in found.answers() if entry.term == term)


@pytest.mark.usefixtures("headlines_only")
def test_the_stable_step_of_batch_norm_is_that_of_training_mode(trained, digits, quiet):
    """In evaluation mode the same rate would be called four times too long."""
    twin = copy.deepcopy(trained)
    value, _ = sharpest(twin, lambda: as_trained(twin, digits))
    other = copy.deepcopy(trained).eval()
    flat, _ = sharpest(other, lambda: LOSS(other(digits[0]), digits[1]))
    assert RATE * flat > 3 * 2 > 3 * 2 * RATE * value
    options = {"k": 1, "budget": 90, "optimizer": RATE, "console": quiet}
    found = hr.inspect(trained, LOSS, digits, batch_size=BATCH, **options)
    assert found["hessian.largest"].value == pytest.approx(flat, rel=1e-3)
    assert found["stability.ratio"].value == pytest.approx(RATE * value / 2, rel=5e-3)
    assert found["stability.rate"].value == pytest.approx(2 / value, rel=5e-3)
    told = answer(found, "stability")
    assert "training mode, 8 fixed batches of 64 samples" in told.finding
    assert f"2/λ₁ = {2 / value:.2g}"[:-1] in told.finding
    assert told.meaning == "It is stable."
    assert "(evaluation mode)" in answer(found, "sharpness").finding
    assert "2/λ" not in answer(found, "sharpness").text
    assert "evaluation mode" in found.where


@pytest.mark.usefixtures("headlines_only")
@pytest.mark.parametrize("between", [(), (nn.Dropout(0.4),)], ids=["plain", "dropout"])
def test_displacements_grow_above_the_stated_limit_and_shrink_below(between, digits, quiet):
    """Under full-batch descent as one trains, by |1 − ηλ₁| per step."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = network(*between).double()
    data = digits[0][:128], digits[1][:128]
    for _ in range(20):
        descend(model, data, 0.1)
    options = {"k": 1, "budget": 90, "optimizer": 0.1, "console": quiet}
    found = hr.inspect(model, LOSS, data, **options)
    limit, mode = found["stability.rate"].value, found["stability.ratio"].mode
    words = "training mode, dropout off" if between else "training mode"
    assert mode == f"{words}, one batch of 128 samples"
    twin = copy.deepcopy(model)
    value, v = sharpest(twin, lambda: as_trained(twin, data, 128))
    assert limit == pytest.approx(2 / value, rel=5e-3)
    for part in (0.8, 1.3):
        rate, distance = part * limit, 1e-5
        plain, moved = copy.deepcopy(model), copy.deepcopy(model)
        nn.utils.vector_to_parameters(flat(moved) + distance * v, moved.parameters())
        for network_ in (plain, moved):
            descend(network_, data, rate)
        after = float(abs((flat(moved) - flat(plain)) @ v)) / distance
        assert after == pytest.approx(abs(1 - rate * value), rel=0.1)
        assert (after > 1) is (part > 1)


def descend(model, data, rate):
    model.zero_grad()
    as_trained(model, data, len(data[0])).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= rate * parameter.grad


def flat(model):
    return nn.utils.parameters_to_vector(model.parameters()).detach()


@pytest.mark.usefixtures("headlines_only")
def test_a_step_above_the_limit_is_told_without_a_forecast(trained, digits, quiet):
    options = {"k": 1, "budget": 90, "console": quiet}
    found = hr.inspect(trained, LOSS, digits, batch_size=BATCH, optimizer=2.0, **options)
    told, ratio = answer(found, "stability"), found["stability.ratio"].value
    assert ratio > 2
    assert f"|1 − ηλ₁| = {2 * ratio - 1:.3g} per step" in told.meaning
    assert "may settle at a flatter minimum (edge of stability)" in told.meaning
    assert "leave" not in told.text


@pytest.mark.usefixtures("headlines_only")
@pytest.mark.parametrize("kind", ["batch_size", "loader", "one batch"])
def test_training_mode_is_measured_on_fixed_batches(trained, digits, quiet, kind):
    data, options, batch = tuple(part[:192] for part in digits), {}, BATCH
    if kind == "loader":
        data = DataLoader(TensorDataset(*data), batch_size=BATCH, shuffle=True)
    elif kind == "batch_size":
        options = {"batch_size": BATCH}
    else:
        batch = 192
    twin, pair = copy.deepcopy(trained), tuple(part[:192] for part in digits)
    value, _ = sharpest(twin, lambda: as_trained(twin, pair, batch))
    before = copy.deepcopy(trained.state_dict())
    found = hr.inspect(trained, LOSS, data, mode="train", k=1, budget=90, console=quiet, **options)
    expected = float(as_trained(twin, pair, batch).detach())
    assert found["model.loss"].value == pytest.approx(expected, rel=1e-6)
    assert found["hessian.largest"].value == pytest.approx(value, rel=1e-3)
    assert found["hessian.largest"].samples == 192
    words = "one batch of 192 samples" if batch == 192 else "3 fixed batches of 64 samples"
    assert f"training mode, {words}" in found.where
    assert all(torch.equal(before[name], t) for name, t in trained.state_dict().items())


def test_dropout_in_training_mode_is_refused_and_draws_nothing(digits, quiet):
    model, before = network(nn.Dropout(0.3)).double(), torch.get_rng_state()
    with pytest.raises(ArgumentError, match="dropout in training mode"):
        hr.inspect(model, LOSS, digits, mode="train", budget=5, console=quiet)
    assert torch.equal(before, torch.get_rng_state())


def test_a_random_loss_is_refused_once_and_draws_nothing(digits, quiet):
    def noisy(outputs, targets):
        return LOSS(outputs + torch.randn_like(outputs), targets)

    model = network().double()
    before, told = torch.get_rng_state(), np.random.get_state()[2]
    with pytest.raises(ArgumentError, match="not a fixed function"):
        hr.inspect(model, noisy, digits, budget=5, console=quiet)
    assert torch.equal(before, torch.get_rng_state())
    assert told == np.random.get_state()[2]


def test_modes_are_not_named_where_they_agree(quiet):
    model, data = nn.Linear(4, 3), (torch.randn(30, 4), torch.arange(30) % 3)
    found = hr.inspect(model, LOSS, data, optimizer=0.1, budget=5, console=quiet)
    assert "mode" not in found.where
    assert not {quantity.mode for quantity in found} - {""}


def test_comparisons_name_the_mode_and_refuse_samples_that_depend_on_each_other(trained, digits):
    other, options = network().double(), {"loss": LOSS, "data": digits, "parts": ("sharpness",)}
    found = hr.compare(trained, other, samples=64, **options)
    assert found.where == "64 of 512 samples, evaluation mode"
    with pytest.raises(ArgumentError, match=r"mode='train'.*depend on each other"):
        hr.compare(trained, other, mode="train", **options)


@pytest.mark.usefixtures("headlines_only")
@pytest.mark.parametrize("batch_size", [None, BATCH])
def test_one_batch_is_no_larger_than_the_memory(digits, batch_size, quiet):
    """A batch cannot be cut: looks at more samples end where all of them would not fit at once."""
    data = tuple(part.repeat(2, *[1] * (part.ndim - 1)) for part in digits)
    budget = hr.inspection.Budget(40, 4e7)
    options = {"mode": "train", "k": 1, "budget": budget, "console": quiet}
    found = hr.inspect(network().double(), LOSS, data, batch_size=batch_size, **options)
    samples = found["model.loss"].samples
    assert samples > 512 if batch_size else samples == 512
