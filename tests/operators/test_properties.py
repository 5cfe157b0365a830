"""Properties that hold for every operator, on random small networks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hyperribbon.operators import (
    GGN,
    NTK,
    Fisher,
    GradientCovariance,
    Hessian,
    Jacobian,
    Projected,
    Rescaled,
    Restricted,
)

KINDS = ("hessian", "ggn", "fisher", "covariance", "ntk")
SETTINGS = settings(max_examples=12, deadline=None)


def operator_of(kind: str, seed: int, samples: int = 7, order: torch.Tensor | None = None):
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        activation = (nn.Tanh(), nn.ReLU(), nn.GELU())[seed % 3]
        model = nn.Sequential(nn.Linear(3, 4), activation, nn.Linear(4, 3)).double().eval()
    inputs = torch.randn(samples, 3, generator=generator, dtype=torch.float64)
    targets = torch.randint(3, (samples,), generator=generator)
    if order is not None:
        inputs, targets = inputs[order], targets[order]
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    if kind == "ntk":
        return NTK(model, inputs)
    if kind == "fisher":
        return Fisher(model, inputs)
    kinds = {"hessian": Hessian, "ggn": GGN, "covariance": GradientCovariance}
    return kinds[kind](model, loss, (inputs, targets))


def vectors(operator, seed: int, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + 1)
    return torch.randn(operator.shape[1], count, generator=generator, dtype=torch.float64)


@given(kind=st.sampled_from(KINDS), seed=st.integers(0, 10_000))
@SETTINGS
def test_symmetric_linear_and_consistent(kind, seed):
    operator = operator_of(kind, seed)
    x, y = vectors(operator, seed, 2).T
    block = operator @ torch.stack([x, y], 1)
    scale = float(block.norm()) * float(x.norm() + y.norm())
    assert abs(float(x @ (operator @ y) - y @ (operator @ x))) <= 1e-12 * scale
    assert float((operator @ (2 * x - 3 * y) - (2 * block[:, 0] - 3 * block[:, 1])).norm()) <= (
        1e-12 * scale
    )
    assert operator.T is operator


@given(kind=st.sampled_from(KINDS[1:]), seed=st.integers(0, 10_000))
@SETTINGS
def test_positive_semidefinite_with_trace_the_sum_of_eigenvalues(kind, seed):
    operator = operator_of(kind, seed)
    values = torch.linalg.eigvalsh(operator.to_dense())
    assert float(values[0]) >= -1e-12 * float(values[-1])
    assert operator.trace() == pytest.approx(float(values.sum()), rel=1e-9)
    if kind != "ntk":
        small = torch.linalg.eigvalsh(operator.gram())
        count = min(len(small), len(values))
        top = float(values[-1])
        assert float((small[-count:] - values[-count:]).abs().max()) <= 1e-12 * top
        assert operator.gram_size == len(small)


@given(kind=st.sampled_from(KINDS[:4]), seed=st.integers(0, 10_000))
@SETTINGS
def test_order_of_samples_does_not_matter(kind, seed):
    order = torch.randperm(7, generator=torch.Generator().manual_seed(seed))
    operator, permuted = operator_of(kind, seed), operator_of(kind, seed, order=order)
    x = vectors(operator, seed, 2)
    expected = operator @ x
    assert float((permuted @ x - expected).norm()) <= 1e-12 * float(expected.norm())


@given(seed=st.integers(0, 10_000))
@SETTINGS
def test_hessian_trace_and_diagonal(seed):
    operator = operator_of("hessian", seed)
    dense = operator.to_dense()
    assert float((operator.diagonal() - dense.diagonal()).norm()) <= 1e-12 * float(dense.norm())
    assert operator.trace() == pytest.approx(float(dense.trace()), rel=1e-9, abs=1e-12)
    assert operator.has_exact_trace == (seed % 3 == 1)  # of the three, only ReLU bends nowhere


def test_algebra():
    first, second = operator_of("hessian", 1), operator_of("ggn", 1)
    a, b = first.to_dense(), second.to_dense()
    x = vectors(first, 0, 2)
    combined = 2.0 * first - second / 4 + (-first)
    expected = a - b / 4
    assert torch.allclose(combined @ x, expected @ x, atol=1e-12)
    assert torch.allclose(combined.diagonal(), expected.diagonal(), atol=1e-12)
    assert combined.trace() == pytest.approx(float(expected.trace()), abs=1e-12)
    basis = torch.linalg.qr(x).Q
    assert torch.allclose(Projected(first, basis).to_dense(), basis.T @ a @ basis, atol=1e-12)
    indices = torch.tensor([3, 0, 7])
    restricted = Restricted(first, indices)
    assert torch.allclose(restricted.to_dense(), a[indices][:, indices], atol=1e-12)
    assert torch.allclose(restricted.diagonal(), a.diagonal()[indices], atol=1e-12)


def test_rescaling_is_that_of_the_dense_matrix():
    first = operator_of("hessian", 1)
    a, d, w = first.to_dense(), *vectors(first, 3, 2).T
    expected = d[:, None] * (a + torch.diag(w)) * d
    assert torch.allclose(Rescaled(first, d, w).to_dense(), expected, atol=1e-12)
    assert torch.allclose(
        Rescaled(first, 2.0, 0.5).to_dense(), 4 * a + 2 * torch.eye(len(a)), atol=1e-12
    )
    single = Rescaled(first, d, w).in_precision(torch.float32)
    assert torch.allclose(single.to_dense().double(), expected, atol=1e-4)


def test_scipy_sees_the_same_matrix():
    operator = operator_of("ggn", 0)
    dense = operator.to_dense().numpy()
    block = vectors(operator, 0, 2).numpy()
    outside = operator.to_scipy()
    assert outside.shape == operator.shape
    assert abs(outside @ block - dense @ block).max() <= 1e-12
    assert abs(outside @ block[:, 0] - dense @ block[:, 0]).max() <= 1e-12
    jacobian = Jacobian(nn.Linear(3, 2).double(), torch.randn(4, 3, dtype=torch.float64))
    flipped = jacobian.T.to_dense()
    assert torch.allclose(flipped, jacobian.to_dense().T)
    assert torch.allclose((-2.0 * jacobian).T.to_dense(), -2.0 * flipped)
    left = torch.randn(8, dtype=torch.float64)
    assert abs(jacobian.to_scipy().rmatvec(left.numpy()) - (flipped @ left).numpy()).max() < 1e-12


def test_saturated_softmax_keeps_its_precision():
    """At a margin of 60 the curvature is e^-60; 1 − p rounds to zero long before."""
    model = nn.Linear(1, 3, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[60.0], [0.0], [-1.0]]))
    results = {}
    for dtype in (torch.float64, torch.float32):
        model = model.to(dtype)
        inputs = torch.ones(1, 1, dtype=dtype)
        results[dtype] = GGN(model, nn.CrossEntropyLoss(), (inputs, torch.tensor([0])))
    tail = torch.tensor([1.0, torch.e**-1], dtype=torch.float64) * torch.e**-60.0
    exact = torch.stack(
        [
            torch.stack([tail.sum(), -tail[0], -tail[1]]),
            torch.stack([-tail[0], tail[0], torch.zeros_like(tail[0])]),
            torch.stack([-tail[1], torch.zeros_like(tail[0]), tail[1]]),
        ]
    )
    for dtype, tolerance in ((torch.float64, 1e-13), (torch.float32, 1e-5)):
        operator = results[dtype]
        dense = operator.to_dense().double()
        assert float((dense - exact).norm()) <= tolerance * float(exact.norm())
        assert operator.trace() == pytest.approx(float(exact.trace()), rel=10 * tolerance)
