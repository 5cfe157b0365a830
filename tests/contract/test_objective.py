"""Loss, gradient and sharpness are those of the objective that the user trains."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

import hyperribbon as hr
from contract.cases import REGISTRY
from contract.dense import GRADIENT, SHARPNESS, VALUE, Dense, gauss_newton, trainable
from contract.problems import Case, Problem
from zoo.untouched import untouched

# A central difference has the error h² of the third derivative, and one rounding over h.
STEP = {torch.float64: 1e-5, torch.float32: 1e-2}
DIFFERENCES = {torch.float64: 1e-6, torch.float32: 1e-2}
QUIET = Console(quiet=True)
OPERATORS = ("Hessian", "GGN", "GradientCovariance")


@pytest.fixture(scope="module", params=REGISTRY)
def entry(request: pytest.FixtureRequest) -> Case:
    found = REGISTRY[request.param]
    if found.needs:
        pytest.importorskip(found.needs)
    return found


@pytest.fixture(scope="module")
def truth(entry: Case) -> Dense:
    return Dense(entry.build())


@pytest.fixture(scope="module")
def risk(entry: Case) -> Any:
    problem = entry.build()
    return hr.Risk(*problem.arguments(), **problem.keywords())


def test_the_reference_is_a_function_and_these_are_its_derivatives(entry, truth):
    """Without this a fault of the reference would pass for one of the product."""
    generator = torch.Generator().manual_seed(1)
    moved = [entry.build(), entry.build()]
    weights = [trainable(problem.model) for problem in moved]
    with torch.no_grad():
        direction = {
            name: torch.randn(w.shape, generator=generator).to(w) for name, w in weights[0].items()
        }
        length = torch.cat([v.reshape(-1) for v in direction.values()]).norm()
        for sign, own in zip((1, -1), weights, strict=True):
            for name, weight in own.items():
                weight.add_(direction[name] / length, alpha=sign * STEP[entry.precision])
    up, down = (flat(Dense(problem).gradient) for problem in moved)
    along = flat(direction) / length
    expected = truth.hessian @ along
    found = (up - down) / (2 * STEP[entry.precision])
    assert (found - expected).norm() <= DIFFERENCES[entry.precision] * truth.hessian.norm()
    again = Dense(entry.build())
    assert again.value == truth.value


def test_the_loss_is_the_one_that_is_trained(entry, truth, risk):
    assert risk.value() == pytest.approx(truth.value, rel=VALUE[entry.precision])


def test_the_gradient_is_the_one_that_is_trained_with(entry, truth, risk):
    found = risk.space.unflatten(risk.gradient())
    assert set(found) == set(truth.gradient)
    ours = flat({name: found[name] for name in truth.gradient})
    expected = flat(truth.gradient)
    assert (ours - expected).norm() <= GRADIENT[entry.precision] * expected.norm()


def test_the_sharpness_is_that_of_the_loss_that_is_trained(entry, truth, risk):
    top = hr.eigsh(hr.Hessian(risk), k=1, tol=1e-8)
    expected = truth.sharpness()
    assert float(top.eigenvalues[0]) == pytest.approx(expected, rel=SHARPNESS[entry.precision])


def test_the_loss_at_a_state_dict_is_that_of_its_weights(entry, truth, risk):
    """Of tied weights a state dict holds every name."""
    moved = risk.at({name: 0.9 * weight for name, weight in risk.weights().items()})
    again = moved.at(entry.build().model.state_dict())
    assert moved.value() != again.value() == pytest.approx(risk.value(), rel=1e-6)


def test_operators_take_the_same_arguments(entry, truth):
    problem = entry.build()
    operator = hr.Hessian(*problem.arguments(), **problem.keywords())
    assert operator.loss() == pytest.approx(truth.value, rel=VALUE[entry.precision])


def test_nothing_of_the_user_is_touched(entry):
    problem = entry.build()
    for parameter in problem.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    tensors = problem.data
    if isinstance(tensors, torch.utils.data.DataLoader):
        tensors = tensors.dataset.tensors
    modules = [problem.loss] if isinstance(problem.loss, nn.Module) else []
    with untouched(problem.model, tensors, *modules):
        risk = hr.Risk(*problem.arguments(), **problem.keywords())
        risk.value()
        risk.gradient()
        operator = hr.Hessian(risk)
        operator @ torch.ones(operator.shape[0], dtype=operator.dtype)


OWN = [name for name, found in REGISTRY.items() if found.needs == "transformers"]


@pytest.mark.parametrize("name", OWN)
def test_the_gauss_newton_matrix_of_a_models_own_loss(name):
    """It needs the loss as a function of the logits: recognised, or refused with that reason."""
    entry = REGISTRY[name]
    problem = entry.build()
    if problem.batches is not None:
        pytest.skip("one batch says it")
    if problem.gauss_newton is None:
        for kind in (hr.GGN, hr.GradientCovariance):
            with pytest.raises(hr.ArgumentError, match="logits"):
                kind(*problem.arguments())
        return
    found = hr.GGN(*problem.arguments()).to_dense().double()
    expected = gauss_newton(entry.build())
    assert (found - expected).norm() <= SHARPNESS[entry.precision] * expected.norm()


PER_SAMPLE = ["bert_classes", "bert_regression", "bert_several_labels", "vit_images"]


@pytest.mark.parametrize("name", [*PER_SAMPLE, "two_inputs", "reshaped_tokens", "autoencoder"])
def test_the_covariance_of_single_gradients(name):
    """Where every sample weighs the same: C = Σ_n (g_n − g)(g_n − g)ᵀ / N."""
    entry = REGISTRY[name]
    problem = entry.build()
    whole = problem.data
    count = len(torch.utils._pytree.tree_leaves(whole)[0])
    rows = []
    for place in range(count):
        one = entry.build()
        one.data = torch.utils._pytree.tree_map(lambda leaf, at=place: leaf[at : at + 1], whole)
        rows.append(flat(Dense(one).gradient))
    scattered = torch.stack(rows) - torch.stack(rows).mean(0)
    expected = scattered.T @ scattered / count
    found = hr.GradientCovariance(*problem.arguments()).to_dense()
    assert (found - expected).norm() <= SHARPNESS[entry.precision] * expected.norm()


def mismatched() -> Problem:
    """Outputs (n, T, C) with labels (n, T), T ≠ C, and the loss of torch that takes no such."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(7, 5), nn.Linear(5, 6)).double()
        data = torch.randint(7, (24, 4)), torch.randint(6, (24, 4))
    return Problem(model, nn.CrossEntropyLoss(), data, lambda m, b: nn.CrossEntropyLoss()(*b))


def calls(tmp_path: Any) -> dict[str, Any]:
    """Return every public call that takes a model, a loss and data."""

    def record(model: nn.Module, loss: Any, data: Any) -> None:
        recorder = hr.Recorder(tmp_path, "1it", measure="sharpness", loss=loss, data=data)
        try:
            recorder.attach(model)
        finally:
            recorder.release()

    return {
        "Risk": lambda m, l, d: hr.Risk(m, l, d),
        **{kind: getattr(hr, kind) for kind in OPERATORS},
        "inspect": lambda m, l, d: hr.inspect(m, l, d, k=1, budget=2, console=QUIET),
        "compare": lambda m, l, d: hr.compare(m, m, loss=l, data=d, console=QUIET),
        "train": lambda m, l, d: hr.train(m, l, d, epochs=1, lr=0.1),
        "Recorder": record,
    }


@pytest.mark.parametrize("call", ["Risk", *OPERATORS, "inspect", "compare", "train", "Recorder"])
def test_what_torch_itself_refuses_is_refused_alike(call, tmp_path):
    problem = mismatched()
    with torch.no_grad(), pytest.raises((RuntimeError, ValueError)):
        problem.loss(problem.model(problem.data[0]), problem.data[1])
    with pytest.raises(hr.ArgumentError) as refused:
        calls(tmp_path)[call](problem.model, problem.loss, problem.data)
    message = str(refused.value).replace("torch.Size", "").replace("[", "(").replace("]", ")")
    assert "(24, 4, 6)" in message or ", 4, 6)" in message
    assert "(24, 4)" in message or ", 4)" in message.replace(", 4, 6)", "")


def test_a_mode_is_one_of_three():
    problem = REGISTRY["two_inputs"].build()
    with pytest.raises(hr.ArgumentError, match="mode"):
        hr.Risk(*problem.arguments(), mode="training")


def flat(named: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in named.values()])
