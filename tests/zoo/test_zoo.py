"""Every operator on every network of the zoo: right, or refused where the zoo says so.

Every call is watched: nothing of the model, the loss, the data or the process may change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

import hyperribbon as hr
from zoo.models import ENTRIES, Network
from zoo.references import distance, reference_of, tolerance
from zoo.untouched import still_trains, untouched

pytestmark = pytest.mark.filterwarnings("ignore")  # the networks' own, from torch and transformers

SMALL = 1000.0
"""Bytes: less than what one sample takes, so that the data are cut into single samples."""

HEAVY = {
    "compiled",
    "encoder_decoder",
    "gpt_tied",
    "llama",
    "lstm_two_layers_two_ways",
    "packed_lstm_two_ways",
    "resnet_train",
    "t5",
    "transformer_encoder_norm_first",
}
"""Networks that take long to run; the ordinary tests measure their products only."""


def each(every: int = 1, light: bool = True) -> pytest.MarkDecorator:
    """Return the zoo as a parameter; what is left out of the ordinary tests is marked slow.

    Args:
        every: Take one in so many for the ordinary tests.
        light: Leave heavy networks out of the ordinary tests.
    """
    return pytest.mark.parametrize("name", _marked(every, light, 0))


def each_cut(whole: int, cut: int, light: bool = True, first: int = 0) -> pytest.MarkDecorator:
    """Return one in so many networks with memory for all data, and with memory for one sample."""
    parameters = [
        pytest.param(*p.values, memory, marks=p.marks, id=f"{p.values[0]}-{kind}")
        for every, memory, kind in ((whole, None, "whole"), (cut, SMALL, "cut"))
        for p in _marked(every, light, first)
    ]
    return pytest.mark.parametrize(("name", "memory"), parameters)


def _marked(every: int, light: bool, first: int) -> list[Any]:
    ordinary = {name for name in list(ENTRIES)[first::every] if not (light and name in HEAVY)}
    return [
        pytest.param(name, marks=() if name in ordinary else pytest.mark.slow) for name in ENTRIES
    ]


@cache
def measured(name: str, memory: float | None) -> tuple[Network, hr.Risk | Exception]:
    """Return a network and its risk, which operators share, or why there is none."""
    network = ENTRIES[name].build()
    try:
        with watched(network):
            options = {"memory": memory, "mode": None, **network.options()}
            return network, hr.Risk(network.model, network.loss, network.data, **options)
    except Exception as error:
        return network, error


def watched(network: Network) -> AbstractContextManager[None]:
    """Fail when something of the network changes."""
    loss = [network.loss] if isinstance(network.loss, nn.Module) else []
    return untouched(network.model, network.data, *loss)


@contextmanager
def right_or_refused(
    name: str, memory: float | None = None, needs_samples: bool = False
) -> Iterator[Callable[[], hr.Risk]]:
    """Give a function that returns the risk of a network; let a refusal pass where it is allowed.

    Args:
        name: Of the network.
        memory: Of the risk.
        needs_samples: Whether more than products is asked for. Networks that mix samples may then
            be refused, as they may when the data are cut.
    """
    entry, (network, risk) = ENTRIES[name], measured(name, memory)
    allowed = entry.may_be_refused or (entry.mixes and (needs_samples or memory is not None))

    def give() -> hr.Risk:
        if isinstance(risk, Exception):
            raise risk
        return risk

    with suppress(*[hr.ArgumentError] if allowed else []), watched(network):
        yield give


def hessian_reference(name: str) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Return a block of vectors, H @ block, and the relative error of that."""
    entry, reference = ENTRIES[name], reference_of(name)
    if entry.truth == "differences":
        return reference.moving, reference.curved_by_differences, tolerance(entry, True)
    return reference.block, reference.curved, tolerance(entry, False)


@each(every=4)
def test_the_reference_is_right(name):
    """Tests nothing of hyperribbon, so the slow tests do it for all networks."""
    entry, reference = ENTRIES[name], reference_of(name)
    slope = reference.loss_derivatives[0]
    assert distance(reference.jacobian.T @ slope, reference.gradient) < tolerance(entry, False)
    if entry.truth == "both":
        exact = reference.hessian(reference.moving)
        assert distance(reference.curved_by_differences, exact) < tolerance(entry, True)


@each_cut(1, 5, light=False)
def test_hessian_and_gradient(name, memory):
    reference, (block, expected, error) = reference_of(name), hessian_reference(name)
    exact = tolerance(ENTRIES[name], False)
    with right_or_refused(name, memory) as risk:
        operator = hr.Hessian(risk())
        assert operator.shape == (reference.size, reference.size)
        assert operator.loss() == pytest.approx(reference.value, rel=exact)
        assert distance(operator.gradient(), reference.gradient) < exact
        assert distance(operator @ block, expected) < error
        assert distance(operator @ block[:, 1], expected[:, 1]) < error


@each_cut(1, 7)
def test_gauss_newton_products(name, memory):
    reference, error = reference_of(name), tolerance(ENTRIES[name], False)
    expected = reference.ggn(reference.block)
    with right_or_refused(name, memory) as risk:
        operator = hr.GGN(risk())
        assert distance(operator @ reference.block, expected) < error
        assert distance(operator @ reference.block[:, 1], expected[:, 1]) < error


@each_cut(2, 9, first=1)
def test_gauss_newton_trace_and_diagonal(name, memory):
    reference, error = reference_of(name), tolerance(ENTRIES[name], False)
    expected = reference.ggn_diagonal()
    with right_or_refused(name, memory, needs_samples=True) as risk:
        operator = hr.GGN(risk())
        estimate = hr.trace(operator)
        spread = error * estimate.value if estimate.exact else 6 * estimate.stderr
        assert abs(estimate.value - float(expected.sum())) <= spread
        assert operator.trace() == pytest.approx(float(expected.sum()), rel=error)
        assert distance(operator.diagonal(), expected) < error


@each(every=6)
def test_gauss_newton_spectrum(name):
    expected = reference_of(name).ggn_eigenvalues()[:2]
    with right_or_refused(name, needs_samples=True) as risk:
        spectrum = hr.eigsh(hr.GGN(risk()), 2, tol=1e-8)
        ours = torch.as_tensor(spectrum.eigenvalues).double().sort(descending=True).values
        assert distance(ours, expected) < max(1e-7, tolerance(ENTRIES[name], False))


@each(every=4)
def test_fisher_of_logits(name):
    reference = reference_of(name)
    if type(reference.network.loss) is not nn.CrossEntropyLoss:
        return
    expected = reference.fisher(reference.block)
    with right_or_refused(name, needs_samples=True) as risk:
        operator = hr.Fisher(risk())
        assert distance(operator @ reference.block, expected) < tolerance(ENTRIES[name], False)


@each_cut(3, 11)
def test_gradient_covariance(name, memory):
    reference, error = reference_of(name), tolerance(ENTRIES[name], False)
    rows = reference.sample_gradients()
    rows = rows - rows.mean(0)
    expected = rows.T @ (rows @ reference.block) / len(rows)
    with right_or_refused(name, memory, needs_samples=True) as risk:
        operator = hr.GradientCovariance(risk())
        assert distance(operator @ reference.block, expected) < error
        assert operator.trace() == pytest.approx(float(rows.square().sum()) / len(rows), rel=error)


@each_cut(3, 11)
def test_jacobian_and_kernel(name, memory):
    reference, error = reference_of(name), tolerance(ENTRIES[name], False)
    expected = reference.jacobian
    with right_or_refused(name, memory, needs_samples=True) as risk:
        jacobian = hr.Jacobian(risk())
        assert distance(jacobian @ reference.block, expected @ reference.block) < error
        assert distance(jacobian.to_dense(), expected) < error
        assert distance(hr.NTK(risk()).to_dense(), expected @ expected.T) < error


@each(every=6)
def test_some_parameters_only(name):
    """Also builds an operator without a risk of its own."""
    reference, network = reference_of(name), ENTRIES[name].build()
    chosen = reference.names[::2]
    kept = reference.coordinates(chosen)
    block = reference.block * kept.unsqueeze(1)
    expected = reference.ggn(block)[kept]
    refusals = [hr.ArgumentError] if ENTRIES[name].may_be_refused else []
    with suppress(*refusals), watched(network):
        operator = hr.GGN(
            network.model, network.loss, network.data, params=chosen, **network.options()
        )
        assert distance(operator @ block[kept], expected) < tolerance(ENTRIES[name], False)


@each(every=6)
def test_the_model_still_trains(name):
    network = ENTRIES[name].build()
    trained = [p for p in network.model.parameters() if p.requires_grad]
    optimiser = torch.optim.SGD(trained, lr=1e-6)
    refusals = [hr.ArgumentError] if ENTRIES[name].may_be_refused else []
    with suppress(*refusals):
        operator = hr.Hessian(network.model, network.loss, network.data, **network.options())
        operator @ torch.ones(operator.shape[0], 2, dtype=torch.float64)
    still_trains(
        network.model, optimiser, lambda _: network.loss(network.outputs(), network.targets)
    )
