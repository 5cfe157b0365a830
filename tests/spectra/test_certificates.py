"""An eigenvalue lies within each residual: in both precisions, on all routes, of networks too."""

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import aslinearoperator
from torch import nn

import hyperribbon as hr
from hyperribbon.operators.linear_operator import Cost
from hyperribbon.spectra.products import Products
from hyperribbon.spectra.rounding import precise_images


def spectrum_of(rng, size):
    """Return eigenvalues of one of six kinds."""
    kind = rng.integers(6)
    if kind == 0:
        values = np.exp(-np.arange(size) / rng.uniform(0.5, 30))
    elif kind == 1:
        values = rng.normal(size=size)
    elif kind == 2:
        values = np.concatenate([rng.uniform(5, 100, size=min(3, size)), rng.uniform(size=size)])
    elif kind == 3:
        values = rng.choice([0.0, 1.0, 1.0 + 1e-6, -3.0], size=size)
    elif kind == 4:
        values = rng.standard_t(2, size=size)
    else:
        values = np.where(np.arange(size) < 1 + size // 8, rng.uniform(size=size), 0.0)
    return values[:size] * 10.0 ** rng.integers(-12, 12)


def matrix_operator(seed, matrix_of, counted):
    """Return an operator, the exact eigenvalues of what it multiplies by, and a route."""
    rng = np.random.default_rng(seed)
    size = int(np.round(3 * (2000 / 3) ** (rng.uniform() ** 2)))
    dtype = (torch.float32, torch.float64)[seed % 2]
    matrix = matrix_of(spectrum_of(rng, size), dtype, seed)
    matrix = (matrix + matrix.T) / 2
    op = (matrix, counted(matrix), aslinearoperator(matrix.numpy()))[rng.integers(3)]
    method = "dense" if size < 700 and rng.uniform() < 0.5 else "lanczos"
    return op, torch.linalg.eigvalsh(matrix.double()), method


def violations(spectrum, exact):
    """Return how many listed values have no exact eigenvalue within their residual."""
    gaps = (spectrum.eigenvalues.double()[:, None] - exact).abs().amin(1)
    return int((gaps > spectrum.residuals.double()).sum())


def network(seed):
    """Return a small model in float32, a loss and data, after a few steps of training."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    wide, inputs, outputs = (
        int(rng.integers(low, high)) for low, high in ((3, 12), (2, 9), (2, 5))
    )
    act = (nn.Tanh, nn.ReLU, nn.GELU, nn.Sigmoid)[rng.integers(4)]
    layers = [nn.Linear(inputs, wide), act()]
    if rng.uniform() < 0.4:
        layers.append(nn.LayerNorm(wide))
    for _ in range(rng.integers(3)):
        layers += [nn.Linear(wide, wide), act()]
    model = nn.Sequential(*layers, nn.Linear(wide, outputs))
    x = torch.randn(int(rng.integers(5, 200)), inputs) * 10 ** rng.uniform(-1, 1)
    if rng.uniform() < 0.5:
        loss, y = nn.CrossEntropyLoss(), torch.randint(0, outputs, (len(x),))
    else:
        loss, y = nn.MSELoss(), torch.randn(len(x), outputs)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(rng.integers(0, 60)):
        optimiser.zero_grad()
        loss(model(x), y).backward()
        optimiser.step()
    return model, loss, (x, y)


def network_violations(seed):
    model, loss, (x, y) = network(seed)
    kind = (hr.Hessian, hr.GGN, hr.GradientCovariance)[seed % 3]
    op = kind(model, loss, (x, y))
    wide = (x.double(), y.double() if y.is_floating_point() else y)
    exact = torch.linalg.eigvalsh(kind(model.double(), loss, wide).to_dense())
    methods = ["dense", "lanczos"] + (["gram"] if kind is not hr.Hessian else [])
    k = min(4, op.shape[0])
    wrong = 0
    for method in methods:
        spectrum = hr.eigsh(op, k, "LM", method=method, tol=1e-5, seed=seed)
        wrong += violations(spectrum, exact)
        if method == "gram":
            wrong += violations(hr.eigsh(op, k, method=method, eigenvectors=False), exact)
    return wrong


@pytest.mark.parametrize("first", [0, 20])
def test_an_eigenvalue_lies_within_each_residual_of_matrices(matrix_of, counted, first):
    for seed in range(first, first + 20):
        op, exact, method = matrix_operator(seed, matrix_of, counted)
        if len(exact) > 600:
            continue
        which = ("LA", "SA", "LM", "BE")[seed % 4]
        spectrum = hr.eigsh(op, min(5, len(exact)), which, method=method, seed=seed)
        assert violations(spectrum, exact) == 0, seed


@pytest.mark.parametrize("seed", range(6))
def test_an_eigenvalue_lies_within_each_residual_of_networks_in_float32(seed):
    assert network_violations(seed) == 0


@pytest.mark.slow
def test_no_violation_in_four_hundred_matrices(matrix_of, counted):
    wrong = []
    for seed in range(400):
        op, exact, method = matrix_operator(seed, matrix_of, counted)
        which = ("LA", "SA", "LM", "BE")[seed // 2 % 4]
        tol = 10.0 ** -(1 + seed % 9)
        spectrum = hr.eigsh(op, min(5, len(exact)), which, tol, method, seed=seed)
        wrong += [seed] * violations(spectrum, exact)
    assert wrong == []


@pytest.mark.slow
def test_no_violation_in_a_hundred_networks():
    assert [seed for seed in range(100) if network_violations(seed)] == []


def test_residuals_are_those_of_the_vectors_as_they_are_listed(matrix_of):
    """In float32 the vector's own rounding is most of the residual of the dense route."""
    matrix = matrix_of(np.linspace(1, 2, 80), torch.float32)
    spectrum = hr.eigsh(matrix, 5, method="dense")
    V = spectrum.eigenvectors.double()
    true = torch.linalg.vector_norm(matrix.double() @ V - V * spectrum.eigenvalues.double(), dim=0)
    assert torch.all(true <= spectrum.residuals)
    assert torch.all(spectrum.residuals <= true + 20 * torch.finfo(torch.float32).eps * 2)


class Repeating:
    """A matrix in float32 whose products are all off in the same way; it knows the true one."""

    def __init__(self, matrix, error):
        self.matrix, self.wrong = matrix, (matrix + error).float()
        self.shape, self.dtype, self.device = matrix.shape, torch.float32, matrix.device

    def __matmul__(self, block):
        return self.wrong @ block

    def in_precision(self, dtype):
        return self.matrix.to(dtype)


@pytest.mark.parametrize("method", ["dense", "lanczos"])
def test_errors_that_every_product_repeats_are_seen_in_a_higher_precision(matrix_of, method):
    matrix = matrix_of(np.linspace(0, 1, 60) ** 2)
    op = Repeating(matrix, 1e-3 * torch.eye(60, dtype=torch.float64))
    spectrum = hr.eigsh(op, 3, method=method, tol=1e-5)
    assert violations(spectrum, torch.linalg.eigvalsh(matrix)) == 0
    assert torch.all(spectrum.rounding >= 1e-3)
    assert torch.all(spectrum.rounding <= 2e-2)
    exact = torch.linalg.eigvalsh(matrix).flip(0)[:3]
    assert torch.all((spectrum.eigenvalues - exact).abs() <= spectrum.bounds)


def test_an_operator_that_fails_in_float64_is_multiplied_in_its_own_precision(matrix_of):
    op = Repeating(matrix_of(np.linspace(0, 1, 20)), 0.0)

    def fail(dtype):
        raise RuntimeError("this model runs in float32 only")

    op.in_precision = fail
    products, rows = Products(op), torch.eye(20, dtype=torch.float64)[:2]
    torch.testing.assert_close(precise_images(products, rows), op.wrong[:2].double())
    assert products.matvecs == 2
    spectrum = hr.eigsh(op, 2, method="lanczos")
    assert float(spectrum.rounding.max()) < 1e-5


def test_rounding_is_measured_in_the_operators_precision_where_float64_does_not_fit(matrix_of):
    matrix = matrix_of(np.linspace(0, 1, 300) ** 8)
    op = Repeating(matrix, 1e-3 * torch.eye(300, dtype=torch.float64))
    op.cost = lambda: Cost(bytes=10_000, flops=1e6, beside=10**8)
    op.in_precision = None  # is not called
    spectrum = hr.eigsh(op, 1, method="lanczos", memory=1e6)
    assert hr.plan(op, 1, memory=1e6).best.memory <= 1e6
    unit = torch.finfo(torch.float32).eps
    assert 20 * unit * 0.999 <= float(spectrum.rounding) <= 1e-3
    own = torch.linalg.eigvalsh(op.wrong.double()).flip(0)[:1]
    assert torch.all((spectrum.eigenvalues - own).abs() <= spectrum.bounds)
