"""Curvature and fluctuations must be of the same weights; what differs is named, and why."""

import pytest
import torch
from torch import nn

import hyperribbon as hr
from hyperribbon import noise
from hyperribbon.core.checks import ArgumentError

LOSS = nn.MSELoss()


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(3, 3).requires_grad_(False)
        self.norm = nn.BatchNorm1d(3, affine=False)
        self.first = nn.Linear(3, 2, bias=False)
        self.second = nn.Linear(3, 2, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.norm(self.body(x))) + self.first(x)


@pytest.fixture
def recorded(tmp_path):
    data = torch.randn(40, 3), torch.randn(40, 2)
    model = Mixed()
    with hr.Recorder(tmp_path, "1it") as recorder:
        hr.train(model, LOSS, data, epochs=20, lr=0.05, batch_size=10, recorder=recorder)
    return model.eval(), data, hr.Trajectory.open(tmp_path)


def test_entries_that_differ_are_named_with_the_reason(recorded):
    model, data, trajectory = recorded
    whole = ["body.weight", "body.bias", "first.weight"]
    H = hr.GGN(model, LOSS, data, params=whole)
    with pytest.raises(ArgumentError, match=r"6 weights.*body\.weight \(9, frozen\)") as caught:
        hr.variance_flatness(trajectory, H, warn=False, strict=False)
    assert "body.bias (3, frozen)" in caught.value.reason
    assert "first.weight" not in caught.value.reason
    found = hr.variance_flatness(trajectory, H, params=whole, warn=False, strict=False, k=3)
    assert len(found.variances) == 3


def test_entries_that_the_curvature_lacks_are_named(recorded):
    model, data, trajectory = recorded
    model.requires_grad_(True)
    H = hr.GGN(model, LOSS, data, params="body")
    with pytest.raises(ArgumentError, match=r"first\.weight \(6\)"):
        hr.variance_flatness(trajectory, H, warn=False, strict=False)


def test_predicted_and_measured_covariances_too(recorded):
    model, data, trajectory = recorded
    params = ["body.weight", "first.weight"]
    H = hr.GGN(model, LOSS, data, params=params)
    C = hr.GradientCovariance(model, LOSS, data, params=params, batch_size=10)
    predicted = hr.stationary_covariance(H, C, 0.05, k=2)
    with pytest.raises(ArgumentError, match=r"body\.weight \(9, frozen\)"):
        noise.compare_covariance(trajectory, predicted)
    assert noise.compare_covariance(trajectory, predicted, params=params).measured.shape == (2, 2)


def test_arrays_are_compared_by_their_number_alone(recorded):
    model, data, _ = recorded
    H = hr.GGN(model, LOSS, data)
    with pytest.raises(ArgumentError, match="the trajectory has 5 weights"):
        hr.variance_flatness(torch.randn(40, 5), H, warn=False)


def test_linearized_networks_take_every_kind_of_data():
    inputs, targets = torch.randn(12, 3).double(), torch.randn(12, 2).double()
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    pair = noise.linearize(model, (inputs, targets))
    kinds = [
        torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, targets), batch_size=5),
        torch.utils.data.TensorDataset(inputs, targets),
        list(zip(inputs.split(5), targets.split(5), strict=True)),
    ]
    for data in kinds:
        found = noise.linearize(model, data)
        assert (found.design == pair.design).all() and (found.targets == pair.targets).all()
    with pytest.raises(ArgumentError, match="targets"):
        noise.linearize(model, inputs)
    with pytest.raises(ArgumentError, match="targets"):
        noise.linearize(model, (inputs, targets[:, :1]))


def test_a_model_at_the_mean_weights(recorded):
    model, _, trajectory = recorded
    found = noise.weight_covariance(trajectory)
    rows = torch.stack([trajectory.weights(i)["first.weight"] for i in range(len(trajectory))])
    before = model.first.weight.clone()
    mean = found.model_at_mean(model)
    torch.testing.assert_close(mean.first.weight, rows.mean(dim=0))
    assert mean.second.weight is mean.first.weight
    assert torch.equal(mean.body.weight, model.body.weight)
    assert torch.equal(model.first.weight, before)
    with pytest.raises(ArgumentError, match=r"does not have a parameter"):
        found.model_at_mean(nn.Linear(3, 1))


def test_records_that_fit_in_memory_are_read_once(recorded, monkeypatch):
    _, _, trajectory = recorded
    read = []
    weights = hr.Trajectory.weights
    monkeypatch.setattr(hr.Trajectory, "weights", lambda s, i: read.append(i) or weights(s, i))
    noise.weight_covariance(trajectory)
    assert len(read) <= len(trajectory) + 3  # the first and the last also say what is there
