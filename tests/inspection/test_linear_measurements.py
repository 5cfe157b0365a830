"""Measurements from moments against the engine's Hessian on the data."""

import numpy as np
import pytest
import torch
from torch import nn

from hyperribbon.application.inspection import leading_eigenvalues, linear_measurements
from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.data import whiten
from hyperribbon.operators import GGN, Hessian
from hyperribbon.papers.simulation import draw_linear_weights, train_linear
from hyperribbon.theory import linear_networks as theory


def model_of(weights):
    layers = [nn.Linear(w.shape[1], w.shape[0], bias=False, dtype=torch.float64) for w in weights]
    with torch.no_grad():
        for layer, weight in zip(layers, weights, strict=True):
            layer.weight.copy_(torch.from_numpy(weight))
    return nn.Sequential(*layers)


@pytest.fixture(params=["white", "raw", "fewer samples than inputs"])
def data(request):
    rng = np.random.default_rng(0)
    samples = 5 if request.param == "fewer samples than inputs" else 40
    X = rng.standard_normal((9, samples)) * np.linspace(0.5, 2, 9)[:, None]
    if request.param == "white":
        X = whiten(X, 1.3).inputs
    return X, rng.standard_normal((3, samples))


def test_the_operator_from_moments_is_the_engines_on_the_data(data):
    X, Y = data
    weights = draw_linear_weights(
        (len(X), 6, 4, 3), "gaussian", generator=np.random.default_rng(1), scale=0.6
    )
    moments = theory.Moments.of(X, Y)
    pair = (torch.from_numpy(X.T.copy()), torch.from_numpy(Y.T.copy()))
    loss = nn.MSELoss(reduction="sum")
    for ours, engine in ((theory.hessian, Hessian), (theory.ggn, GGN)):
        dense = engine(model_of(weights), loss, pair).to_dense().numpy() / (2 * X.shape[1])
        operator = ours(weights, moments)
        assert np.abs(operator @ np.eye(len(dense)) - dense).max() < 1e-12 * np.abs(dense).max()
        top = np.linalg.eigvalsh(dense)[::-1][:4]
        assert np.allclose(leading_eigenvalues(weights, moments, 4, matrix=ours), top, rtol=1e-8)


@pytest.mark.parametrize("widths", [(12, 1, 1), (12, 2, 1), (12, 1)])
def test_repeated_eigenvalues_of_narrow_networks_are_not_lost(widths):
    rng = np.random.default_rng(3)
    X = whiten(rng.standard_normal((12, 30)), 1.3).inputs
    moments = theory.Moments.of(X, rng.standard_normal((1, 30)))
    weights = draw_linear_weights(widths, "gaussian", generator=rng, scale=0.7)
    operator = theory.hessian(weights, moments)
    dense = np.linalg.eigvalsh(operator @ np.eye(operator.shape[0]))[::-1]
    assert np.allclose(leading_eigenvalues(weights, moments, 9), dense[:9], rtol=1e-8)


def test_training_records_what_dense_matrices_say(data):
    X, Y = data
    moments = theory.Moments.of(X, Y)
    weights = draw_linear_weights((len(X), 6, 3), "lecun", generator=np.random.default_rng(2))
    measure = linear_measurements(moments) | {
        "weights": lambda layers: np.hstack([w.ravel() for w in layers])
    }
    run = train_linear(weights, moments, lr=0.02, epochs=50, measure=measure, at=(0, 10, 50))
    pair = (torch.from_numpy(X.T.copy()), torch.from_numpy(Y.T.copy()))
    for index, flat in enumerate(run.measured["weights"]):
        split = np.split(flat, [6 * len(X)])
        layers = [split[0].reshape(6, len(X)), split[1].reshape(3, 6)]
        dense = Hessian(model_of(layers), nn.MSELoss(reduction="sum"), pair).to_dense().numpy()
        eigenvalues = np.linalg.eigvalsh(dense / (2 * X.shape[1]))
        assert run.measured["sharpness"][index] == pytest.approx(eigenvalues[-1], rel=1e-8)
        assert run.measured["trace"][index] == pytest.approx(eigenvalues.sum(), rel=1e-10)
        assert run.measured["balance_defect"][index] == pytest.approx(
            theory.balance_defect(layers), rel=1e-10
        )
        singular = np.linalg.svd(layers[1] @ layers[0], compute_uv=False)
        assert np.allclose(run.measured["singular_values"][index], singular, rtol=1e-10)


def test_unknown_measurements_are_named():
    moments = theory.Moments(np.ones(2), np.ones((1, 2)), 1.0)
    assert set(linear_measurements(moments, ["trace"])) == {"trace"}
    with pytest.raises(ArgumentError, match="flatness"):
        linear_measurements(moments, ["flatness"])
