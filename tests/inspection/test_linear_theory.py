"""compare_with_theory: the right numbers, and the right culprit."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hyperribbon.application import inspection
from hyperribbon.core.checks import ArgumentError
from hyperribbon.theory import linear_networks as theory


def squares(outputs, targets):
    """(1/2n)‖f(X) − Y‖², the loss of the paper; class labels are one-hot."""
    if targets.ndim == 1 and outputs.ndim == 2 and outputs.shape[1] > 1:
        targets = torch.eye(outputs.shape[1], dtype=outputs.dtype)[targets]
    return (outputs - targets).square().sum() / (2 * len(outputs))


def compare_with_theory(model, data, **options):
    return inspection.compare_with_theory(model, squares, data, **options)


def network(weights, activation=None, bias=False):
    modules = []
    for weight in weights:
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias, dtype=torch.float64)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(weight))
        modules += [layer, activation() if activation else nn.Identity()]
    return nn.Sequential(*modules[:-1])


def dense_hessian(model, X, Y):
    """Autograd's Hessian of (1/2n)‖f(X) − Y‖² in the weights."""
    parameters = list(model.parameters())
    loss = (model(X) - Y).square().sum() / (2 * len(X))
    gradients = torch.autograd.grad(loss, parameters, create_graph=True)
    flat = torch.cat([g.reshape(-1) for g in gradients])
    rows = [torch.autograd.grad(entry, parameters, retain_graph=True) for entry in flat]
    return np.array([torch.cat([p.reshape(-1) for p in row]).numpy() for row in rows])


@pytest.fixture
def setting():
    """White inputs, one-hot labels, and a balanced network at its minimum."""
    rng = np.random.default_rng(0)
    X = theory.whiten(rng.standard_normal((6, 80)), 1.5).inputs
    labels = rng.integers(0, 3, 80)
    labels[:40] = 0
    Y = np.eye(3)[labels].T
    singular = theory.solution_singular_values(X, Y, 3)
    left, _, right = np.linalg.svd(Y @ X.T, full_matrices=False)
    middle = np.linalg.qr(rng.standard_normal((5, 3)))[0]
    weights = [
        (middle * singular) @ right,
        (middle * singular) @ middle.T,
        (left * singular) @ middle.T,
    ]
    data = (torch.from_numpy(X.T.copy()), torch.from_numpy(labels))
    return weights, data, Y


def test_a_balanced_minimum_on_white_inputs_agrees_with_theory(setting):
    weights, data, Y = setting
    found = compare_with_theory(network(weights), data, k=4)
    exact = np.linalg.eigvalsh(dense_hessian(network(weights), data[0], torch.from_numpy(Y.T)))
    assert np.allclose(found.measured.eigenvalues, exact[::-1][:4], rtol=1e-6)
    assert found.measured.trace == pytest.approx(exact.sum(), rel=1e-6)
    assert found.responsible() is None
    assert found.responsible("trace") is None
    assert abs(found.discrepancy()) < 1e-6
    assert np.allclose(found.predicted("white").eigenvalues, exact[::-1][:4], rtol=1e-6)
    assert all(a.holds for a in found.assumptions[:-1])
    # The labels cannot be interpolated, and that alone parts Eq. (14) from the measurement.
    culprit = found.responsible("sharpness", "labels")
    assert culprit is not None
    assert culprit.name == "interpolated labels"
    proportions = theory.label_proportions(Y)
    assert found.predicted("labels").sharpness == pytest.approx(
        theory.label_sharpness(proportions, 3, 1.5), rel=1e-9
    )
    residual = network(weights)(data[0]).detach().numpy().T - Y
    assert culprit.value == pytest.approx(np.linalg.norm(residual) / np.linalg.norm(Y), rel=1e-9)


def test_effects_add_up_to_the_discrepancy(setting):
    weights, data, _ = setting
    rng = np.random.default_rng(1)
    shaken = [w + 0.3 * rng.standard_normal(w.shape) for w in weights]
    inputs = data[0] * torch.linspace(0.5, 2, 6, dtype=torch.float64)
    found = compare_with_theory(network(shaken, nn.Tanh), (inputs, data[1]))
    for quantity in ("sharpness", "trace"):
        total = sum(a.effects[quantity] for a in found.assumptions)
        ends = (getattr(rung, quantity) for rung in (found.measured, found.predicted("labels")))
        assert total == pytest.approx(next(ends) - next(ends), rel=1e-10)


def test_measured_numbers_of_a_nonlinear_model_with_biases_are_its_own(setting):
    _, data, Y = setting
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 5, dtype=torch.float64), nn.ReLU(), nn.Linear(5, 3, dtype=torch.float64)
    )
    found = compare_with_theory(model, data, k=3)
    exact = np.linalg.eigvalsh(dense_hessian(model, data[0], torch.from_numpy(Y.T)))
    assert np.allclose(found.measured.eigenvalues, exact[::-1][:3], rtol=1e-6)
    assert not found.assumptions[0].holds
    assert "linear network" in found.summary()
    assert found.table().shape == (8, 5)
    assert found.assumptions_table().shape == (7, 5)


def test_a_linear_head_inside_a_larger_model_is_found(setting):
    _, data, _ = setting
    body = nn.Sequential(nn.Conv1d(1, 2, 1, dtype=torch.float64), nn.Flatten())
    torch.manual_seed(1)
    head = [np.random.default_rng(4).standard_normal((4, 12)) / 3, np.ones((3, 4)) / 4]
    model = nn.Sequential(body, nn.Tanh(), network(head))
    inputs = data[0].unsqueeze(1)
    found = compare_with_theory(model, (inputs, data[1]))
    assert found.chain.layers == ("2.0", "2.2")
    features = torch.tanh(body(inputs)).detach()
    alone = compare_with_theory(network(head), (features, data[1]))
    assert found.measured.sharpness == pytest.approx(alone.measured.sharpness, rel=1e-8)
    assert found.assumptions[0].value < 1e-12


def test_weights_at_the_origin_are_no_division_by_zero(setting):
    weights, data, _ = setting
    found = compare_with_theory(network([0 * w for w in weights]), data)
    assert found.rungs[3].sharpness == pytest.approx(0, abs=1e-12)
    assert "Sharpness" in found.summary()


def test_batches_and_order_do_not_matter_and_the_model_is_left_alone(setting):
    weights, data, _ = setting
    model = network(weights, nn.Tanh).train()
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    whole = compare_with_theory(model, data)
    loader = DataLoader(TensorDataset(*data), batch_size=17, shuffle=True)
    parts = compare_with_theory(model, loader)
    assert parts.measured.sharpness == pytest.approx(whole.measured.sharpness, rel=1e-8)
    assert parts.predicted("white").sharpness == pytest.approx(
        whole.predicted("white").sharpness, rel=1e-10
    )
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_bad_data_are_explained(setting):
    weights, data, _ = setting
    with pytest.raises(ArgumentError, match=r"inputs.*every one of them is zero"):
        compare_with_theory(network(weights), (data[0] * 0, data[1]))
    zeros = torch.zeros(80, 3, dtype=torch.float64)
    with pytest.raises(ArgumentError, match=r"targets.*every one of them is zero"):
        compare_with_theory(network(weights), (data[0], zeros))
    with pytest.raises(ArgumentError, match="curvature in the outputs is not positive"):
        inspection.compare_with_theory(network(weights), nn.L1Loss(), (data[0], zeros + 1))
    shared = nn.Linear(6, 6, bias=False, dtype=torch.float64)
    with pytest.raises(ArgumentError, match="used more than once"):
        compare_with_theory(nn.Sequential(shared, shared), (data[0], data[0]))
    with pytest.raises(ArgumentError, match="two samples"):
        few = data[0][:1], zeros[:1] + 1
        inspection.compare_with_theory(network(weights), nn.MSELoss(), few)


@pytest.mark.parametrize("kind", ["column", "squeezed outputs"])
def test_targets_of_one_output_may_be_one_number_each(kind):
    generator = torch.Generator().manual_seed(0)
    X, y = torch.randn(40, 5, generator=generator).double(), torch.arange(40) % 3
    Y = y.double().unsqueeze(1)
    targets = {"column": Y}.get(kind, Y[:, 0])
    weights = [torch.randn(4, 5, generator=generator), torch.randn(1, 4, generator=generator)]
    model = network([weight.double().numpy() for weight in weights])
    exact = np.linalg.eigvalsh(dense_hessian(model, X, Y))[-1]
    given = nn.Sequential(model, nn.Flatten(0)) if kind == "squeezed outputs" else model
    found = compare_with_theory(given, (X, targets), k=1)
    assert found.measured.sharpness == pytest.approx(exact, rel=1e-6)


def test_a_model_in_training_mode_is_compared_in_evaluation_mode(setting):
    weights, data, _ = setting
    model = nn.Sequential(nn.Dropout(0.5), network(weights)).train()
    expected = compare_with_theory(network(weights), data, k=2)
    found = compare_with_theory(model, data, k=2)
    assert np.allclose(found.measured.eigenvalues, expected.measured.eigenvalues, rtol=1e-6)
    assert found.chain.deviation < 1e-12
    assert model[0].training
