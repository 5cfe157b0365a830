"""Spectra of sub-networks against dense matrices; entries of eigenvectors against definitions."""

import copy

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn

import hyperribbon as hr
from hyperribbon.application.inspection import (
    anisotropy_by_layer,
    effective_ranks,
    eigenfunctions,
    excess_kurtoses,
    measure_anisotropy,
)
from hyperribbon.core import ArgumentError


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 6)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens)
        return self.head(self.attention(hidden, hidden, hidden, need_weights=False)[0].mean(1))


def _case(name: str) -> tuple[nn.Module, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        if name == "mlp":
            model = nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 4))
            return model, torch.randn(12, 5, generator=generator)
        if name == "cnn":
            model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(18, 3))
            return model, torch.randn(8, 1, 5, 5, generator=generator)
        return _Attention(), torch.randint(0, 7, (8, 4), generator=generator)


def _dense(model: nn.Module, inputs: torch.Tensor, outputs: str, names=None) -> torch.Tensor:
    network = copy.deepcopy(model).double().eval()
    values = inputs.double() if inputs.is_floating_point() else inputs
    parameters = {n: p.detach() for n, p in network.named_parameters()}

    def function(point):
        logits = torch.func.functional_call(network, {**parameters, **point}, (values,))
        return torch.softmax(logits, 1) if outputs == "softmax" else logits

    chosen = {n: parameters[n] for n in (names or parameters)}
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        jacobian = torch.func.jacrev(function)(chosen)
    flat = torch.cat([j.flatten(2).flatten(0, 1) for j in jacobian.values()], dim=1)
    return flat.T @ flat / len(inputs)


@pytest.mark.parametrize("outputs", ["softmax", "model"])
@pytest.mark.parametrize("name", ["mlp", "cnn", "transformer"])
def test_spectrum_is_that_of_the_dense_matrix(name, outputs):
    model, inputs = _case(name)
    matrix = _dense(model, inputs, outputs)
    measured = measure_anisotropy(model, inputs, k=6, outputs=outputs, keep=True)
    values, vectors = torch.linalg.eigh(matrix)
    torch.testing.assert_close(measured.eigenvalues, values.flip(0)[:6], rtol=1e-8, atol=1e-14)
    assert measured.trace == pytest.approx(float(matrix.trace()))
    assert measured.frobenius == pytest.approx(float(matrix.norm()))
    assert measured.trace_ratio(3) == pytest.approx(float(values.flip(0)[:3].sum() / values.sum()))
    assert float(measured.sample_shares.sum()) == pytest.approx(1.0)
    assert measured.spectral_norm == pytest.approx(float(values[-1]))
    top = vectors[:, -1:]
    assert measured.effective_ranks[0] == pytest.approx(float(effective_ranks(top)), rel=1e-6)
    assert measured.kurtoses[0] == pytest.approx(float(excess_kurtoses(top)), rel=1e-6)
    assert model.training


def test_a_sub_network_has_the_spectrum_of_its_own_weights():
    model, inputs = _case("mlp")
    state = hr.prune(model, hr.select(model, fraction=0.4))
    twin = copy.deepcopy(model)
    twin.load_state_dict(state)
    matrix = _dense(twin, inputs, "softmax")
    measured = measure_anisotropy(model, inputs, state=state, k=5, vectors=False)
    torch.testing.assert_close(
        measured.eigenvalues, torch.linalg.eigvalsh(matrix).flip(0)[:5], rtol=1e-8, atol=1e-14
    )
    assert measured.effective_ranks is None


def test_layers_are_diagonal_blocks():
    model, inputs = _case("cnn")
    for layer, measured in anisotropy_by_layer(model, inputs, k=4).items():
        names = [n for n, _ in model.named_parameters() if n.startswith(f"{layer}.")]
        block = _dense(model, inputs, "softmax", names)
        expected = torch.linalg.eigvalsh(block).flip(0)[:4]
        torch.testing.assert_close(measured.eigenvalues, expected, rtol=1e-8, atol=1e-14)
        assert measured.parameters == len(block)


def test_layers_of_a_masked_sub_network_are_blocks_of_its_entries():
    model, inputs = _case("cnn")
    first, *others = dict.fromkeys(n.rpartition(".")[0] for n, _ in model.named_parameters())
    mask = hr.select(model, fraction=0.3, params=lambda name, _: not name.startswith(f"{first}."))
    measured = anisotropy_by_layer(model, inputs, k=3, vectors=False, mask=mask)
    assert first not in measured and set(measured) <= set(others)
    for layer, found in measured.items():
        names = [n for n, _ in model.named_parameters() if n.startswith(f"{layer}.")]
        chosen = torch.cat(
            [
                mask.get(n, torch.zeros(1, dtype=torch.bool).expand_as(p)).reshape(-1)
                for n, p in model.named_parameters()
                if n in names
            ]
        )
        block = _dense(model, inputs, "softmax", names)[chosen][:, chosen]
        expected = torch.linalg.eigvalsh(block).flip(0)[:3]
        torch.testing.assert_close(found.eigenvalues, expected, rtol=1e-8, atol=1e-14)


@pytest.mark.parametrize("outputs", ["softmax", "model"])
def test_eigenfunctions_have_unit_norm_over_all_outputs_only(outputs):
    model, inputs = _case("mlp")
    spectrum = measure_anisotropy(model, inputs, k=5, outputs=outputs, keep=True)
    responses = eigenfunctions(model, spectrum, inputs)
    assert responses.shape == (12, 4, 5)
    norms = responses.square().mean(0)
    torch.testing.assert_close(norms.sum(0), torch.ones(5, dtype=torch.float64))
    assert (norms < 1).all()
    some = measure_anisotropy(model, inputs, k=5, outputs=outputs, vectors=False, keep=(0, 3))
    assert some.eigenvectors.shape[1] == 2
    two = eigenfunctions(model, some, inputs, which=(3, 0)).abs()
    responses = responses.abs()
    torch.testing.assert_close(two, responses[..., [3, 0]])


@pytest.mark.parametrize("name", ["cnn", "transformer"])
def test_eigenfunctions_of_held_out_inputs_are_projections_of_their_gradients(name):
    model, inputs = _case(name)
    spectrum = measure_anisotropy(model, inputs[:5], k=4, outputs="model", keep=True)
    responses = eigenfunctions(model, spectrum, inputs[5:])
    network = copy.deepcopy(model).double()
    held_out = inputs[5:].double() if inputs.is_floating_point() else inputs[5:]
    for sample, row in zip(held_out, responses, strict=True):
        for output, found in zip(network(sample[None])[0], row, strict=True):
            slopes = torch.autograd.grad(output, network.parameters(), retain_graph=True)
            gradient = torch.cat([slope.reshape(-1) for slope in slopes])
            expected = gradient @ spectrum.eigenvectors / spectrum.eigenvalues.sqrt()
            torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)


def test_a_saturated_softmax_keeps_its_spectrum():
    model, inputs = _case("mlp")
    with torch.no_grad():
        model[2].weight *= 200.0
    measured = measure_anisotropy(model, inputs, k=3, keep=True)
    responses = eigenfunctions(model, measured, inputs)
    norms = responses.square().sum(1).mean(0)
    torch.testing.assert_close(norms, torch.ones(3, dtype=torch.float64), rtol=1e-6, atol=1e-6)


def test_entry_statistics_of_known_vectors():
    rng = np.random.default_rng(0)
    unit, constant = np.eye(1000)[:, :1], np.ones((1000, 1))
    assert effective_ranks(torch.tensor(unit)).item() == pytest.approx(1.0)
    assert effective_ranks(torch.tensor(constant)).item() == pytest.approx(1000.0)
    block = rng.standard_t(5, size=(1000, 3))
    torch.testing.assert_close(
        excess_kurtoses(torch.tensor(block)), torch.tensor(scipy.stats.kurtosis(block))
    )
    expected = np.sqrt(2 / np.pi) * np.exp((np.euler_gamma - np.log(2)) / 2)
    gaussian = torch.tensor(rng.normal(size=(200_000, 1)))
    assert effective_ranks(gaussian).item() / 200_000 == pytest.approx(expected, rel=0.003)


def test_bad_requests_are_explained():
    model, inputs = _case("mlp")
    spectrum = measure_anisotropy(model, inputs, k=3)
    with pytest.raises(ArgumentError, match="3 eigenvalues were computed"):
        spectrum.trace_ratio(4)
    with pytest.raises(ArgumentError, match="keeps the eigenvectors"):
        eigenfunctions(model, spectrum, inputs)
    with pytest.raises(ArgumentError, match="outputs='probabilities'"):
        measure_anisotropy(model, inputs, outputs="probabilities")
    all_of_them = measure_anisotropy(model, inputs, k=48, keep=True)  # rank 36: Σ_c p_c = 1
    with pytest.raises(ArgumentError, match="zero to rounding"):
        eigenfunctions(model, all_of_them, inputs)
    part = measure_anisotropy(model, inputs, k=3, params="0.*", keep=True)
    with pytest.raises(ArgumentError, match="all parameters"):
        eigenfunctions(model, part, inputs)
