"""How much may be pruned: the definition by hand, the interval by resampling from a known pool."""

import copy

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hyperribbon as hr
from hyperribbon.core import ArgumentError
from hyperribbon.subnetworks import (
    Statistics,
    evaluate_states,
    find_prunable,
    prunable,
    rank,
    select,
)
from hyperribbon.subnetworks.pruning import paired_score

LOSS = nn.CrossEntropyLoss()


def digits(normalised=False, seed=0):
    """A network trained on 1,500 digits, and 2,500 others."""
    data = hr.load_data("mnist5k").flat()
    order = torch.randperm(len(data.inputs), generator=torch.Generator().manual_seed(seed))
    inputs, targets = data.inputs[order], data.targets[order]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        middle = [nn.BatchNorm1d(40)] if normalised else []
        model = nn.Sequential(nn.Linear(784, 40), *middle, nn.ReLU(), nn.Linear(40, 10))
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(4):
            for batch in torch.randperm(1500).split(50):
                optimiser.zero_grad()
                LOSS(model(inputs[batch]), targets[batch]).backward()
                optimiser.step()
    return model, (inputs[1500:], targets[1500:])


@pytest.fixture(scope="module")
def plain():
    return digits()


@pytest.fixture(scope="module")
def normalised():
    return digits(normalised=True)


def test_the_fraction_is_where_the_drop_crosses_the_tolerance(plain):
    model, data = plain
    before = copy.deepcopy(model.state_dict())
    found = prunable(model, LOSS, data, tolerance=0.02)
    following = min(f for f in found.fractions if f > found.fraction)
    assert following - found.fraction <= 1e-3
    base, here, beyond = (
        float(evaluate_states(model, [hr.prune(model, select(model, fraction=f))], data).mean())
        for f in (0.0, found.fraction, following)
    )
    assert found.baseline == pytest.approx(base) and found.value == pytest.approx(here)
    assert base - here <= 0.02 < base - beyond
    assert found.interval[0] < found.fraction < found.interval[1]
    assert found.mask == select(model, fraction=found.fraction)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    frame = found.to_frame()
    assert list(frame["fraction"]) == sorted(frame["fraction"]) and len(frame) > 13
    assert "no retraining" in found.summary() and "held-out data" in found.summary()
    assert "no retraining" in found._repr_html_()
    assert {layer.layer for layer in found.layers} == {"0", "2"}
    assert found.plot().get_xlabel() and repr(found).startswith("Prunable(fraction=")
    assert list(found.layer_frame()["layer"]) == ["0", "2"]


def test_loss_is_relative_and_functions_are_absolute(plain):
    model, data = plain
    found = prunable(model, LOSS, data, tolerance=0.05, metric="loss")
    following = min(f for f in found.fractions if f > found.fraction)
    states = [found.state, hr.prune(model, select(model, fraction=following))]
    base, here, beyond = (
        evaluate_states(model, [model.state_dict(), *states], data, measure="loss").double().mean(1)
    )
    assert here / base <= 1.05 < beyond / base

    def margin(outputs, targets):
        return -nn.functional.cross_entropy(outputs, targets, reduction="none")

    other = prunable(model, LOSS, data, tolerance=0.05 * float(base), metric=margin)
    assert other.metric == "margin" and other.fraction == pytest.approx(found.fraction, abs=2e-3)


def test_regression_uses_the_loss_that_is_given():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 30), nn.Tanh(), nn.Linear(30, 2))
    inputs = torch.randn(400, 5)
    data = inputs, (model(inputs) + 0.3 * torch.randn(400, 2)).detach()
    found = prunable(model, nn.L1Loss(), data, tolerance=0.1)
    assert found.metric == "loss"
    assert found.baseline == pytest.approx(nn.L1Loss()(model(inputs), data[1]).item(), rel=1e-5)
    assert 0 < found.fraction < 1


def test_statistics_are_re_estimated_and_both_curves_are_kept(normalised):
    model, data = normalised
    found = prunable(model, LOSS, data, held_out=True)
    at = {f: i for i, f in enumerate(found.fractions)}[0.9]
    pruned = hr.prune(model, select(model, fraction=0.9))
    states = [pruned, Statistics(model, data)(pruned)]
    stored, renewed = evaluate_states(model, states, data).double().mean(1)
    assert found.values[at] == pytest.approx(float(renewed))
    assert found.stored_values[at] == pytest.approx(float(stored))
    assert float(evaluate_states(model, [found.state], data).double().mean()) == pytest.approx(
        found.value
    )
    assert "2,500 held-out samples" in found.summary() and abs(found.statistics_drop) < 0.01


def test_calibration_that_does_not_fit_is_named(normalised):
    model, (inputs, targets) = normalised
    found = prunable(model, LOSS, (inputs, targets), calibration=5 * inputs[:200] + 1)
    assert found.statistics_drop > 0.01 and "calibration=" in found.summary()


def test_only_trainable_weights_are_counted_unless_frozen_ones_are_asked_for(plain):
    model, data = copy.deepcopy(plain[0]), plain[1]
    model[0].requires_grad_(False)
    assert set(prunable(model, LOSS, data).mask) == {"2.weight"}
    assert set(prunable(model, LOSS, data, frozen=True).mask) == {"0.weight", "2.weight"}


def test_loaders_and_saliencies(plain):
    model, (inputs, targets) = plain
    some = inputs[:500], targets[:500]
    loader = DataLoader(TensorDataset(*some), batch_size=64)
    assert prunable(model, LOSS, loader).fraction == prunable(model, LOSS, some).fraction
    for name in ("gradient", "fisher", "hessian"):
        assert 0 < prunable(model, LOSS, some, criterion=name).fraction <= 1


def resample(model, data, metric, tolerance, count, number=100):
    """Return how many intervals of resamplings cover the answer of the whole pool."""
    ranking, known = rank(model), {}
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}

    def whole(changed):
        key = sum(int((tensor == 0).sum()) for tensor in changed.values())
        if key not in known:
            known[key] = evaluate_states(model, [changed], data, measure=metric)[0].double()
        return known[key]

    how = {"tolerance": tolerance, "metric": metric}
    truth = find_prunable(whole, None, state, ranking, **how).fraction
    draws, covered = np.random.default_rng(5), 0
    for _ in range(number):
        chosen = torch.from_numpy(draws.integers(len(data[1]), size=count))
        found = find_prunable(lambda s, own=chosen: whole(s)[own], None, state, ranking, **how)
        low, high = found.interval
        covered += low <= truth <= high
    return covered


def test_some_intervals_cover_the_pool(plain):
    model, data = plain
    assert resample(model, data, "accuracy", 0.02, 500, number=20) >= 18


@pytest.mark.slow
@pytest.mark.parametrize(
    "metric,tolerance,count",
    [("accuracy", 0.01, 1000), ("accuracy", 0.03, 300), ("loss", 0.05, 1000)],
)
def test_intervals_cover_the_pool(plain, metric, tolerance, count):
    model, data = plain
    assert resample(model, data, metric, tolerance, count) >= 93


def test_the_score_test_has_its_level():
    """Simulated pairs of known difference are rejected as often as the level says."""
    draws = np.random.default_rng(0)
    for lost, gained, count in ((0.02, 0.01, 800), (0.05, 0.0, 200), (0.10, 0.08, 400)):
        counts = draws.multinomial(count, [lost, gained, 1 - lost - gained], size=4000)
        found = np.array([paired_score(b, c, count, lost - gained) for b, c, _ in counts])
        rejected = int((np.abs(found) > stats.norm.ppf(0.975)).sum())
        assert 0.03 < rejected / 4000 < 0.07


def test_too_few_samples_are_said_to_be_too_few(plain):
    model, (inputs, targets) = plain
    found = prunable(model, LOSS, (inputs[:60], targets[:60]))
    assert found.interval[0] == 0.0 and "too few" in found.summary()


def test_bad_requests_are_explained(plain):
    model, data = plain
    with pytest.raises(ArgumentError, match="tolerance"):
        prunable(model, LOSS, data, tolerance=-1.0)
    with pytest.raises(ArgumentError, match="confidence"):
        prunable(model, LOSS, data, confidence=1.0)
    with pytest.raises(ArgumentError, match="metric"):
        prunable(model, LOSS, data, metric="f1")
    with pytest.raises(ArgumentError, match="criterion"):
        prunable(model, LOSS, data, criterion="size")
    with pytest.raises(ArgumentError, match="data"):
        prunable(model, LOSS)


def test_pruning_is_not_credited_for_re_estimated_statistics():
    """They improve the whole network from 60% to 90%; pruning a share p then costs p/2."""
    state = {"weight": torch.linspace(1, 2, 400).reshape(20, 20), "renewed": torch.zeros(())}

    def scores(state):
        share = float((state["weight"] == 0).double().mean())
        right = (0.9 if state["renewed"] else 0.6) - share / 2
        return (torch.arange(10_000) < round(10_000 * right)).double()

    found = find_prunable(
        scores,
        lambda state: {**state, "renewed": torch.ones(())},
        state,
        rank(state),
        tolerance=0.05,
        metric="accuracy",
    )
    assert found.baseline == 0.9 and found.statistics_drop == pytest.approx(-0.3)
    assert found.fraction == pytest.approx(0.1, abs=0.003)


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
def test_pruning_is_not_blamed_for_noise_of_re_estimated_statistics(metric):
    """They cost 2% at every share; the stored ones cost nothing up to a share of a half."""
    state = {"weight": torch.linspace(1, 2, 400).reshape(20, 20), "renewed": torch.zeros(())}

    def scores(state):
        share = float((state["weight"] == 0).double().mean())
        stale = 0.0 if share < 0.5 else 0.5
        right = 0.9 - share / 10 - (0.02 if state["renewed"] else stale)
        values = (torch.arange(10_000) < round(10_000 * right)).double()
        return values if metric == "accuracy" else 2 - values

    def renew(state):
        return {**state, "renewed": torch.ones(())}

    found = find_prunable(scores, renew, state, rank(state), tolerance=0.03, metric=metric)
    assert found.statistics_drop == pytest.approx(0.02)
    assert found.interval[0] > 0.1
    share = found.fraction
    assert share == pytest.approx(0.3 if metric == "accuracy" else 0.33, abs=0.005)
    assert not found.state["renewed"] and found.layers[0].drop == pytest.approx(
        share / 10, abs=1e-3
    )
    assert dict(zip(found.fractions, found.values, strict=True))[0.6] == pytest.approx(
        0.82 if metric == "accuracy" else 1.18
    )


def test_tied_weights_are_pruned_and_scored_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.last(self.second(self.first(x).tanh()).tanh())

    inputs = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    model, loss = Tied(), nn.CrossEntropyLoss()
    found = hr.prunable(model, loss, (inputs, (inputs[:, 0] > 0).long()), tolerance=0.2)
    other = copy.deepcopy(model)
    other.load_state_dict(found.state)
    right = other(inputs).argmax(1) == (inputs[:, 0] > 0)
    assert found.value == pytest.approx(float(right.double().mean()))
    assert "second.weight" not in found.mask
    risk = hr.Risk(model, loss, (inputs, (inputs[:, 0] > 0).long()))
    unequal = {**model.state_dict(), "second.weight": torch.zeros(4, 4)}
    with pytest.raises(ArgumentError, match=r"ties it to 'first\.weight'"):
        risk.at(unequal)
