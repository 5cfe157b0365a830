"""Centred Fisher matrices and tangent kernels against dense Jacobians in float64."""

import pytest
import torch
from torch import nn

import hyperribbon as hr
from hyperribbon.application.inspection import (
    anisotropy_by_layer,
    eigenfunctions,
    measure_anisotropy,
)
from hyperribbon.core import ArgumentError
from hyperribbon.papers.training import mlp


def case():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()
    return model, torch.randn(11, 5, dtype=torch.float64)


def jacobian(model, inputs, outputs):
    """(n, C, P) of the outputs or of their softmax, by autograd alone."""
    parameters = dict(model.named_parameters())

    def values(given):
        found = torch.func.functional_call(model, given, (inputs,))
        return found.softmax(1) if outputs == "softmax" else found

    found = torch.func.jacrev(values)(parameters)
    return torch.cat([found[name].flatten(2) for name in parameters], 2).detach()


@pytest.mark.parametrize("outputs", ["model", "softmax"])
@pytest.mark.parametrize("variance", [None, 0.5, "matrix"])
def test_the_centred_fisher_matrix_is_that_of_the_formula(outputs, variance):
    model, inputs = case()
    sigma = torch.eye(3, dtype=torch.float64) * (1.0 if variance is None else 0.5)
    if variance == "matrix":
        sigma = torch.tensor([[2.0, 0.3, 0.1], [0.3, 1.0, -0.2], [0.1, -0.2, 0.7]]).double()
        variance = sigma
    rows = jacobian(model, inputs, outputs)
    around = rows - rows.mean(0)
    expected = torch.einsum("ncp,cd,ndq->pq", around, torch.linalg.inv(sigma), around) / 11
    how = {"likelihood": "gaussian", "outputs": outputs, "variance": variance}
    fisher = hr.Fisher(model, inputs, centre=True, **how)
    close = {"rtol": 1e-12, "atol": 1e-12 * float(expected.abs().max())}
    torch.testing.assert_close(fisher.to_dense(), expected, **close)
    torch.testing.assert_close(fisher.diagonal(), expected.diagonal(), **close)
    assert fisher.trace() == pytest.approx(float(expected.trace()), rel=1e-12)
    block = torch.randn(len(expected), 4, dtype=torch.float64)
    torch.testing.assert_close(fisher @ block, expected @ block, rtol=1e-11, atol=1e-11)
    top = torch.linalg.eigvalsh(expected).flip(0)[:5]
    gram = torch.linalg.eigvalsh(fisher.gram()).flip(0)[:5]
    torch.testing.assert_close(gram, top, rtol=1e-10, atol=0)
    torch.testing.assert_close(hr.eigsh(fisher, 5).eigenvalues, top, rtol=1e-8, atol=0)
    layers = fisher.layers()
    first = layers["0"].to_dense()
    torch.testing.assert_close(first, expected[: len(first), : len(first)], **close)


def test_the_centred_tangent_kernel_is_that_of_the_formula():
    model, inputs = case()
    rows = jacobian(model, inputs, "model")
    around = (rows - rows.mean(0)).flatten(0, 1)
    expected = around @ around.T
    kernel = hr.NTK(model, inputs, centre=True)
    close = {"rtol": 1e-12, "atol": 1e-12 * float(expected.abs().max())}
    torch.testing.assert_close(kernel.to_dense(), expected, **close)
    assert kernel.trace() == pytest.approx(float(expected.trace()), rel=1e-12)
    block = torch.randn(33, 2, dtype=torch.float64)
    torch.testing.assert_close(kernel @ block, expected @ block, rtol=1e-11, atol=1e-11)
    summed = sum(layer.to_dense() for layer in kernel.layers().values())
    torch.testing.assert_close(summed, expected, **close)


@pytest.mark.parametrize("outputs", ["model", "softmax"])
def test_anisotropy_and_eigenfunctions_are_centred(outputs):
    model, inputs = case()
    rows = jacobian(model, inputs, outputs)
    around = (rows - rows.mean(0)).flatten(0, 1)
    values = torch.linalg.svdvals(around).square() / 11
    found = measure_anisotropy(model, inputs, k=6, outputs=outputs, centre=True, keep=True)
    torch.testing.assert_close(found.eigenvalues, values[:6], rtol=1e-10, atol=0)
    assert found.trace_ratio(3) == pytest.approx(float(values[:3].sum() / values.sum()), rel=1e-10)
    functions = eigenfunctions(model, found, inputs)
    assert functions.mean(0).abs().max() < 1e-10
    second = torch.einsum("nck,ncl->kl", functions, functions) / 11
    torch.testing.assert_close(second, torch.eye(6).double(), rtol=0, atol=1e-8)
    layers = anisotropy_by_layer(model, inputs, k=2, outputs=outputs, centre=True)
    total = sum(layer.trace for layer in layers.values())
    assert total == pytest.approx(found.trace, rel=1e-10)


def test_centring_needs_gaussian_outputs():
    model, inputs = case()
    for options in (
        {},
        {"likelihood": "gaussian", "estimator": "mc"},
        {"likelihood": "gaussian", "variance": lambda x: x[:, 0].exp()},
    ):
        with pytest.raises(ArgumentError, match="centre"):
            hr.Fisher(model, inputs, centre=True, **options)
    with pytest.raises(ArgumentError, match="centre"):
        hr.NTK(model, inputs, centre="yes")


@pytest.mark.slow
@pytest.mark.parametrize("init", [0.05, "lecun"])
def test_the_share_of_a_hundred_directions_at_the_start_is_that_of_the_thesis(init):
    """T100 = .360 is printed, of one draw; N and the start are not."""
    data, shares = hr.load_data("mnist5k").flat(), []
    order = torch.randperm(4000, generator=torch.Generator().manual_seed(0))
    for draw in range(10):
        model = mlp((784, 256, 256, 256, 10), "relu", draw, init=init)
        inputs = data.inputs[order[300 * draw : 300 * (draw + 1)]]
        found = measure_anisotropy(model, inputs, k=100, centre=True, vectors=False)
        shares.append(found.trace_ratio(100))
    assert 0.33 <= sum(shares) / 10 <= 0.39
    assert sum(0.33 <= share <= 0.39 for share in shares) >= 9
