"""Stationary covariance of arrays, tensors and operators; gradient noise beside curvature."""

import numpy as np
import pytest
import torch
from torch import nn

import hyperribbon as hr
from hyperribbon import noise
from hyperribbon.core import ArgumentError
from hyperribbon.theory import fluctuations as theory


def psd(n, seed, rank=None):
    root = np.random.default_rng(seed).normal(size=(n, rank or 2 * n))
    return root @ root.T / root.shape[1]


@pytest.fixture(scope="module")
def regression_model():
    torch.manual_seed(0)
    inputs = torch.randn(60, 6, dtype=torch.float64)
    targets = inputs @ torch.randn(6, 1, dtype=torch.float64) + 0.3 * torch.randn(60, 1).double()
    model = nn.Linear(6, 1, bias=False).double()
    solution = torch.linalg.lstsq(inputs, targets).solution
    with torch.no_grad():
        model.weight.copy_(solution.T)
    return model, (inputs, targets)


@pytest.mark.parametrize("time", ["continuous", "discrete"])
def test_arrays_tensors_and_operators_agree(regression_model, time):
    model, data = regression_model
    H, C = (
        hr.Hessian(model, nn.MSELoss(), data),
        hr.GradientCovariance(model, nn.MSELoss(), data, batch_size=10),
    )
    dense_H, dense_C = H.to_dense(), C.to_dense()
    tensor = hr.stationary_covariance(dense_H, dense_C, 0.1, time)
    array = hr.stationary_covariance(dense_H.numpy(), dense_C.numpy(), 0.1, time)
    np.testing.assert_allclose(tensor.numpy(), array, atol=1e-14)
    leading = hr.stationary_covariance(H, C, 0.1, time, k=6)
    basis = leading.basis.numpy()
    np.testing.assert_allclose(basis @ leading.matrix @ basis.T, array, atol=1e-9)
    np.testing.assert_allclose(leading.eigenvalues, np.linalg.eigvalsh(array)[::-1], atol=1e-9)
    modes = leading.modes.numpy()
    np.testing.assert_allclose(modes.T @ array @ modes, np.diag(leading.eigenvalues), atol=1e-9)


def test_operators_of_a_regression_give_its_closed_form(regression_model):
    model, (inputs, targets) = regression_model
    X, Y = inputs.T.numpy(), targets[:, 0].numpy()
    # nn.MSELoss is twice the theory's half squares: M(2L, λ) = 2·M(L, λ).
    H = hr.Hessian(model, nn.MSELoss(), (inputs, targets))
    C = hr.GradientCovariance(model, nn.MSELoss(), (inputs, targets), batch_size=10)
    leading = hr.stationary_covariance(H, C, 0.05, k=6)
    basis = leading.basis.numpy()
    closed = theory.lyapunov_covariance(theory.hessian(X), theory.noise_covariance(X, Y, 10), 0.05)
    np.testing.assert_allclose(basis @ leading.matrix @ basis.T, 2 * closed, atol=1e-9)


def test_leading_subspace_of_commuting_operators_is_exact():
    rng = np.random.default_rng(0)
    V = np.linalg.qr(rng.normal(size=(30, 30)))[0]
    rates, noises = np.linspace(3, 0.1, 30), rng.uniform(size=30)
    H, C = torch.from_numpy((V * rates) @ V.T), torch.from_numpy((V * noises) @ V.T)

    class Wrapped:
        def __init__(self, matrix):
            self.matrix, self.shape, self.dtype = matrix, matrix.shape, matrix.dtype
            self.device = matrix.device

        def __matmul__(self, other):
            return self.matrix @ other

    leading = hr.stationary_covariance(Wrapped(H), Wrapped(C), 0.1, k=4)
    np.testing.assert_allclose(np.diag(leading.matrix), 0.05 * noises[:4] / rates[:4], rtol=1e-6)
    assert leading.balance_defect < 1e-6


def test_unstable_and_flat_cases_are_named():
    with pytest.raises(ArgumentError, match="diverges"):
        hr.stationary_covariance(np.diag([30.0, 1.0]), np.eye(2), 0.1, "discrete")
    with pytest.raises(ArgumentError, match="diffuse"):
        hr.stationary_covariance(np.diag([1.0, 0.0]), np.eye(2), 0.1)
    for kind in (np.asarray, torch.as_tensor):
        with pytest.raises(ArgumentError, match="is not a covariance"):
            hr.stationary_covariance(kind(np.eye(2)), kind(-np.eye(2)), 0.1)
    with pytest.raises(ArgumentError, match="known choice"):
        hr.stationary_covariance(np.eye(2), np.eye(2), 0.1, "ito")


@pytest.fixture(scope="module")
def classifier():
    torch.manual_seed(1)
    inputs = torch.randn(80, 5, dtype=torch.float64)
    targets = torch.randint(3, (80,))
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double(), (inputs, targets)


def per_sample_gradients(model, loss, data):
    rows = []
    for x, y in zip(*data, strict=True):
        value = loss(model(x[None]), y[None])
        grads = torch.autograd.grad(value, list(model.parameters()))
        rows.append(torch.cat([g.reshape(-1) for g in grads]))
    return torch.stack(rows).numpy()


def test_measured_noise_matches_per_sample_gradients(classifier):
    model, data = classifier
    loss = nn.CrossEntropyLoss()
    result = noise.measure_noise(model, loss, data, k=5, curvature="ggn")
    g = per_sample_gradients(model, loss, data)
    C = np.cov(g.T, bias=True)
    mean = g.mean(axis=0)
    assert result.total == pytest.approx(np.trace(C), rel=1e-8)
    assert result.scale == pytest.approx(np.trace(C) / (mean @ mean), rel=1e-8)
    np.testing.assert_allclose(result.noise_eigenvalues, np.linalg.eigvalsh(C)[::-1][:5], rtol=1e-5)
    G = hr.GGN(model, loss, data).to_dense().numpy()
    values, vectors = np.linalg.eigh(G)
    V, rates = vectors[:, ::-1][:, :5], values[::-1][:5]
    small = V.T @ C @ V
    factor = np.sum(rates * np.diag(small)) / np.sum(rates**2)
    assert result.factor == pytest.approx(factor, rel=1e-4)
    defect = np.linalg.norm(small - factor * np.diag(rates)) / np.linalg.norm(small)
    assert result.proportionality_defect == pytest.approx(defect, rel=1e-4)
    Q = small * np.subtract.outer(rates, rates) / np.add.outer(rates, rates)
    assert result.balance_defect == pytest.approx(
        np.linalg.norm(Q) / np.linalg.norm(small), rel=1e-3
    )
    top = np.linalg.eigh(C)[1][:, ::-1][:, :5]
    assert result.overlap == pytest.approx(np.sum((V.T @ top) ** 2) / 5, rel=1e-4)


def test_measuring_leaves_the_model_alone(classifier):
    model, data = classifier
    model.train()
    before = [p.detach().clone() for p in model.parameters()]
    state = torch.random.get_rng_state()
    noise.measure_noise(model, nn.CrossEntropyLoss(), data, k=3)
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.fixture(scope="module")
def digits():
    data = hr.load_data("digits", limit=200).flat()
    model = hr.training.mlp((64, 8, 10), seed=0)
    hr.train(model, nn.CrossEntropyLoss(), data, epochs=5, lr=0.1, momentum=0.9)
    return model, nn.CrossEntropyLoss(), data


def test_as_many_directions_are_compared_as_hold_the_noise(digits):
    """In few directions the defect is that of the few: it grows with them to that of the whole."""
    found = noise.measure_noise(*digits, curvature="ggn")
    few, many = (noise.measure_noise(*digits, curvature="ggn", k=k) for k in (3, 150))
    assert few.captured < 0.6 < 0.9 <= found.captured <= many.captured <= 1.001
    assert len(found.curvatures) < 150
    assert few.balance_defect < 0.3 * many.balance_defect
    assert found.balance_defect == pytest.approx(many.balance_defect, rel=0.15)


def test_a_predicted_covariance_says_how_much_of_the_noise_it_is_of(digits):
    H, C = hr.GGN(*digits), hr.GradientCovariance(*digits)
    few, many = (hr.stationary_covariance(H, C, 0.01, k=k) for k in (3, 100))
    expected = np.trace(few.noise) / C.trace()
    assert few.captured == pytest.approx(expected, rel=1e-5)
    assert few.captured < many.captured <= 1.001


def test_noise_scale_is_the_same_for_minibatches_and_uncentred(classifier):
    model, data = classifier
    loss = nn.CrossEntropyLoss()
    scales = [
        noise.noise_scale(hr.GradientCovariance(model, loss, data, **options))
        for options in ({}, {"batch_size": 8}, {"centered": False})
    ]
    assert scales[1] == pytest.approx(scales[0], rel=1e-9)
    assert scales[2] == pytest.approx(scales[0], rel=1e-9)


def test_proportionality_and_balance_of_known_pairs():
    H = psd(5, 0)
    assert noise.proportionality(H, 2.5 * H) == pytest.approx((2.5, 0.0))
    assert noise.detailed_balance_defect(H, 2.5 * H) < 1e-12
    assert noise.detailed_balance_defect(H, H @ H) < 1e-12
    assert 0 < noise.detailed_balance_defect(H, psd(5, 1)) < 1
    assert noise.proportionality(H, np.zeros((5, 5))) == (0.0, 0.0)


@pytest.mark.parametrize(("loss", "module"), [("mse", nn.MSELoss()), ("half_squares", None)])
def test_linearised_network_has_the_gauss_newton_matrix(loss, module):
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    inputs, targets = torch.randn(40, 4).double(), torch.randn(40, 2).double()
    linear = noise.linearize(model, (inputs, targets), loss=loss)
    factor = 1 if module is not None else 1.0  # ½Σ_c = (c/2)·mean over outputs, and c = 2
    G = hr.GGN(model, nn.MSELoss(), (inputs, targets)).to_dense().numpy()
    np.testing.assert_allclose(linear.hessian(), factor * G, atol=1e-10)
    assert (linear.samples, linear.outputs) == (40, 2)


def test_linearised_linear_network_is_the_regression(regression_model):
    model, (inputs, targets) = regression_model
    linear = noise.linearize(model, (inputs, targets))
    X, Y = inputs.T.numpy(), targets[:, 0].numpy()
    H, C = theory.hessian(X), theory.noise_covariance(X, Y, 10)
    np.testing.assert_allclose(linear.hessian(), H, atol=1e-12)
    np.testing.assert_allclose(linear.noise_covariance(10), C, atol=1e-10)
    np.testing.assert_allclose(linear.solution(), 0, atol=1e-10)
    M = linear.stationary_covariance(0.1, 10)
    np.testing.assert_allclose(M, theory.lyapunov_covariance(H, C, 0.1), atol=1e-10)


def test_linearised_wide_network_interpolates_and_does_not_fluctuate():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 30), nn.Tanh(), nn.Linear(30, 1)).double()
    linear = noise.linearize(model, (torch.randn(12, 4).double(), torch.randn(12, 1).double()))
    assert not linear.stationary_covariance(0.1, 4).any()


def test_linearisation_refuses_targets_of_another_shape(regression_model):
    model, (inputs, targets) = regression_model
    with pytest.raises(ArgumentError, match="outputs have shape"):
        noise.linearize(model, (inputs, targets[:, 0]))
