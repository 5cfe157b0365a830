"""Normalisation statistics are re-estimated for changed weights; torch's update_bn is a check."""

import copy

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import update_bn

import hyperribbon as hr
from hyperribbon.subnetworks import Statistics, metric_of, sweep_selection


def scaled(seed=0):
    """A network whose first layer is 10 times its start: batch norm takes the factor off."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 6, 3, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(6 * 36, 3),
    )
    initial = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        model[0].weight *= 10.0
    inputs = torch.randn(1203, 1, 8, 8) + torch.rand(1203, 1, 1, 1)
    model.eval()
    update_bn([inputs], model)
    targets = model(inputs).argmax(1)
    return model, initial, (inputs, targets)


def test_statistics_are_those_of_the_changed_weights_and_the_model_stays():
    model, _initial, (inputs, targets) = scaled()
    model.train()
    before = copy.deepcopy(model.state_dict())
    draws = torch.get_rng_state()
    halved = hr.prune(model, hr.select(model, fraction=0.5))
    found = Statistics(model, (inputs, targets))(halved)
    other = copy.deepcopy(model)
    other.load_state_dict(halved)
    other.train()
    other[3].eval()
    norm = other[1]
    norm.momentum = None
    norm.reset_running_stats()
    with torch.no_grad():
        for part in inputs.split(602):
            other(part)
    torch.testing.assert_close(found["1.running_mean"], norm.running_mean)
    torch.testing.assert_close(found["1.running_var"], norm.running_var)
    others = [name for name in halved if "running" not in name and "tracked" not in name]
    assert all(torch.equal(found[name], halved[name]) for name in others)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert model.training and model[1].training and model[1].momentum == 0.1
    assert torch.equal(draws, torch.get_rng_state())


def test_statistics_of_a_model_without_norms_are_none(mlp):
    model, initial, data = mlp
    statistics = Statistics(model, data)
    assert not statistics
    assert statistics(initial).keys() == initial.keys()


def test_a_layer_is_not_critical_when_re_estimated_statistics_restore_it():
    model, initial, data = scaled()
    found = hr.layer_criticality(model, initial, metric_of(model, data), layers=["0"], draws=1)
    layer = found.layers[0]
    assert found.baseline == 1.0
    assert layer.stored_drop > 0.2
    assert layer.drop < 0.01 and layer.verdict == "robust"


def test_curves_have_both_statistics():
    model, initial, (inputs, targets) = scaled()
    how = {"fractions": [0.0, 0.5, 1.0], "operation": "reinitialize", "params": "0"}
    found = sweep_selection(model, model.state_dict(), initial, (inputs, targets), **how)
    changed = hr.reinitialize(model, initial, hr.select(model, initial, fraction=1.0, params="0"))
    accuracies = []
    for state in (changed, Statistics(model, inputs)(changed)):
        other = copy.deepcopy(model)
        other.load_state_dict(state)
        accuracies.append(float((other(inputs).argmax(1) == targets).double().mean()))
    assert float(found.stored_values[2]) == pytest.approx(accuracies[0])
    assert float(found.values[2]) == pytest.approx(accuracies[1])
    assert float(found.values[2]) > float(found.stored_values[2]) + 0.2
    assert float(found.values[0]) == pytest.approx(1.0, abs=0.01)
    assert float(found.stored_values[0]) == 1.0


def test_stale_statistics_are_not_the_baseline():
    """Pruning is not credited for what re-estimating the statistics alone gains."""
    model, initial, data = scaled()
    with torch.no_grad():
        model[1].running_var *= 100.0
        model[1].running_mean += 1.0
    found = hr.prunable(model, nn.CrossEntropyLoss(), data)
    assert found.baseline > 0.98 and found.stored_values[0] < 0.9
    assert found.statistics_drop < -0.1 and "already raises accuracy" in found.summary()
    assert found.value >= found.baseline - 0.01
    judged = hr.layer_criticality(model, initial, metric_of(model, data), layers=["5"], draws=1)
    assert judged.baseline > 0.98


def test_calibration_data_are_used_where_they_are_given():
    model, _initial, data = scaled()
    shifted = 3 + 2 * data[0][:50]
    metric = metric_of(model, data, calibration=shifted)
    expected = Statistics(model, shifted)(model.state_dict())
    found = metric.reestimate(model.state_dict())
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert not torch.equal(
        found["1.running_mean"], metric_of(model, data).reestimate(model)["1.running_mean"]
    )
