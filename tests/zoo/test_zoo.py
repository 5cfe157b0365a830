"""Every operator on every network of the zoo: right, or refused where the zoo says so.

Every call is watched: nothing of the model, the loss, the data or the process may change.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

import hyperribbon as hr
from zoo.models import ENTRIES, Entry, Network
from zoo.references import distance, reference_of, tolerance
from zoo.untouched import still_trains, untouched

pytestmark = pytest.mark.filterwarnings("ignore")  # the networks' own, from torch and transformers

SMALL = 1000.0
"""Bytes: less than what one sample takes, so that the data are cut into single samples."""

HEAVY = {"compiled", "t5", "llama", "encoder_decoder", "lstm_two_layers_two_ways"}
"""Networks that take long to run; the ordinary tests measure their products only."""


def each(every: int = 1, light: bool = True) -> pytest.MarkDecorator:
    """Return the zoo as a parameter; what is left out of the ordinary tests is marked slow.

    Args:
        every: Take one in so many for the ordinary tests.
        light: Leave heavy networks out of the ordinary tests.
    """
    return pytest.mark.parametrize("name", _marked(every, light))


def each_cut(every: int, light: bool = True) -> pytest.MarkDecorator:
    """Return the zoo with memory for everything, and one in so many with memory for one sample."""
    whole = [pytest.param(*p.values, None, marks=p.marks) for p in _marked(1, light)]
    cut = [pytest.param(*p.values, SMALL, marks=p.marks) for p in _marked(every, light)]
    names = [f"{name}-{kind}" for kind in ("whole", "cut") for name in ENTRIES]
    return pytest.mark.parametrize(("name", "memory"), whole + cut, ids=names)


def _marked(every: int, light: bool) -> list[Any]:
    return [
        pytest.param(
            name, marks=pytest.mark.slow if place % every or (light and name in HEAVY) else ()
        )
        for place, name in enumerate(ENTRIES)
    ]


@contextmanager
def right_or_refused(entry: Entry, network: Network, needs_samples: bool) -> Iterator[None]:
    """Let a refusal pass where it is allowed; nothing may be changed either way."""
    allowed = bool(entry.may_be_refused) or (entry.mixes and needs_samples)
    things = [network.model, network.data]
    with untouched(*things, *([network.loss] if isinstance(network.loss, nn.Module) else [])):
        try:
            yield
        except hr.ArgumentError:
            if not allowed:
                raise


def hessian_reference(name: str) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Return a block of vectors, H @ block, and the relative error of that."""
    entry, reference = ENTRIES[name], reference_of(name)
    if entry.truth == "differences":
        return reference.moving, reference.curved_by_differences, tolerance(entry, True)
    return reference.block, reference.curved, tolerance(entry, False)


@each(light=False)
def test_the_reference_is_right(name):
    entry, reference = ENTRIES[name], reference_of(name)
    slope = reference.loss_derivatives[0]
    assert distance(reference.jacobian.T @ slope, reference.gradient) < tolerance(entry, False)
    if entry.truth == "both":
        exact = reference.hessian(reference.moving)
        assert distance(reference.curved_by_differences, exact) < tolerance(entry, True)


@each_cut(1, light=False)
def test_hessian_and_gradient(name, memory):
    entry, reference, network = ENTRIES[name], reference_of(name), ENTRIES[name].build()
    block, expected, error = hessian_reference(name)
    exact = tolerance(entry, False)
    with right_or_refused(entry, network, needs_samples=memory is not None):
        operator = hr.Hessian(
            network.model, network.loss, network.data, memory=memory, **network.options()
        )
        assert operator.shape == (reference.size, reference.size)
        assert operator.loss() == pytest.approx(reference.value, rel=exact)
        assert distance(operator.gradient(), reference.gradient) < exact
        assert distance(operator @ block, expected) < error
        assert distance(operator @ block[:, 1], expected[:, 1]) < error


@each_cut(5, light=False)
def test_gauss_newton_products(name, memory):
    entry, reference, network = ENTRIES[name], reference_of(name), ENTRIES[name].build()
    expected, error = reference.ggn(reference.block), tolerance(entry, False)
    with right_or_refused(entry, network, needs_samples=memory is not None):
        operator = hr.GGN(
            network.model, network.loss, network.data, memory=memory, **network.options()
        )
        assert distance(operator @ reference.block, expected) < error
        assert distance(operator @ reference.block[:, 1], expected[:, 1]) < error


@each_cut(4)
def test_gauss_newton_trace_and_diagonal(name, memory):
    entry, reference, network = ENTRIES[name], reference_of(name), ENTRIES[name].build()
    expected, error = reference.ggn_diagonal(), tolerance(entry, False)
    with right_or_refused(entry, network, needs_samples=True):
        operator = hr.GGN(
            network.model, network.loss, network.data, memory=memory, **network.options()
        )
        estimate = hr.trace(operator)
        spread = error * estimate.value if estimate.exact else 6 * estimate.stderr
        assert abs(estimate.value - float(expected.sum())) <= spread
        assert operator.trace() == pytest.approx(float(expected.sum()), rel=error)
        assert distance(operator.diagonal(), expected) < error


@each(every=6)
def test_gauss_newton_spectrum(name):
    entry, reference, network = ENTRIES[name], reference_of(name), ENTRIES[name].build()
    with right_or_refused(entry, network, needs_samples=True):
        operator = hr.GGN(network.model, network.loss, network.data, **network.options())
        spectrum = hr.eigsh(operator, 2, tol=1e-8)
        ours = torch.as_tensor(spectrum.eigenvalues).double().sort(descending=True).values
        assert distance(ours, reference.ggn_eigenvalues()[:2]) < max(1e-7, tolerance(entry, False))


@each()
def test_fisher_of_logits(name):
    entry, reference, network = ENTRIES[name], reference_of(name), ENTRIES[name].build()
    if type(network.loss) is not nn.CrossEntropyLoss:
        return
    expected = reference.fisher(reference.block)
    with right_or_refused(entry, network, needs_samples=True):
        operator = hr.Fisher(network.model, network.data, **network.options())
        assert distance(operator @ reference.block, expected) < tolerance(entry, False)


@each_cut(5)
def test_gradient_covariance(name, memory):
    entry, reference, network = ENTRIES[name], reference_of(name), ENTRIES[name].build()
    rows, error = reference.sample_gradients(), tolerance(entry, False)
    rows = rows - rows.mean(0)
    expected = rows.T @ (rows @ reference.block) / len(rows)
    with right_or_refused(entry, network, needs_samples=True):
        operator = hr.GradientCovariance(
            network.model, network.loss, network.data, memory=memory, **network.options()
        )
        assert distance(operator @ reference.block, expected) < error
        assert operator.trace() == pytest.approx(float(rows.square().sum()) / len(rows), rel=error)


@each_cut(5)
def test_jacobian_and_kernel(name, memory):
    entry, reference, network = ENTRIES[name], reference_of(name), ENTRIES[name].build()
    expected, error = reference.jacobian, tolerance(entry, False)
    with right_or_refused(entry, network, needs_samples=True):
        options = {"memory": memory, **network.options()}
        jacobian = hr.Jacobian(network.model, network.data, **options)
        assert distance(jacobian @ reference.block, expected @ reference.block) < error
        assert distance(jacobian.to_dense(), expected) < error
        kernel = hr.NTK(network.model, network.data, **options)
        assert distance(kernel.to_dense(), expected @ expected.T) < error


@each()
def test_some_parameters_only(name):
    entry, reference, network = ENTRIES[name], reference_of(name), ENTRIES[name].build()
    chosen = reference.names[::2]
    kept = torch.cat(
        [
            torch.full((w.numel(),), n in chosen)
            for n, w in zip(reference.names, reference.weights, strict=True)
        ]
    )
    block = reference.block * kept.unsqueeze(1)
    expected = reference.ggn(block)[kept]
    with right_or_refused(entry, network, needs_samples=False):
        operator = hr.GGN(
            network.model, network.loss, network.data, params=chosen, **network.options()
        )
        assert distance(operator @ block[kept], expected) < tolerance(entry, False)


@each()
def test_the_model_still_trains(name):
    entry, network = ENTRIES[name], ENTRIES[name].build()
    optimiser = torch.optim.SGD([p for p in network.model.parameters() if p.requires_grad], lr=1e-6)
    with right_or_refused(entry, network, needs_samples=False):
        operator = hr.Hessian(network.model, network.loss, network.data, **network.options())
        operator @ torch.ones(operator.shape[0], 2, dtype=torch.float64)
    still_trains(
        network.model, optimiser, lambda _: network.loss(network.outputs(), network.targets)
    )
