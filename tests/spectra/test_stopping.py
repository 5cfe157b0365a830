"""Solvers that are asked to stop: between products, on every route, with what they have."""

import numpy as np
import pytest
import torch
from torch import nn

import hyperribbon as hr
from hyperribbon.core.checks import ArgumentError
from hyperribbon.papers.training import mlp
from hyperribbon.spectra import StoppedError

SIZE = 300
ROUTES = {
    "lanczos": lambda op, **o: hr.eigsh(op, 3, method="lanczos", tol=1e-9, **o),
    "dense": lambda op, **o: hr.eigsh(op, 3, method="dense", **o),
    "trace": lambda op, **o: hr.trace(op, max_matvecs=200, precision=1e-3, **o),
    "trace by columns": lambda op, **o: hr.trace(op, max_matvecs=SIZE, **o),
    "norm": lambda op, **o: hr.spectra.frobenius(op, max_matvecs=200, precision=1e-3, **o),
    "diagonal": lambda op, **o: hr.spectra.diagonal(op, matvecs=60, **o),
    "density": lambda op, **o: hr.density(op, probes=4, steps=20, **o),
}


class Counted:
    """A matrix that counts the calls of its product."""

    shape = (SIZE, SIZE)

    def __init__(self):
        self.calls = 0
        self.matrix = np.diag(np.linspace(1, 2, SIZE))

    def __matmul__(self, block):
        self.calls += 1
        return self.matrix @ block


class After:
    """Says that it is time after some questions."""

    def __init__(self, times):
        self.times, self.asked = times, 0

    def __call__(self):
        self.asked += 1
        return self.asked > self.times


@pytest.mark.parametrize("route", ROUTES)
def test_nothing_is_multiplied_once_it_is_time(route):
    op = Counted()
    with pytest.raises(StoppedError):
        ROUTES[route](op, should_stop=lambda: True)
    assert op.calls == 0


@pytest.mark.parametrize("route", ROUTES)
def test_it_is_asked_before_every_product_and_changes_no_number(route):
    op, never = Counted(), After(10**9)
    found = ROUTES[route](op, should_stop=never)
    assert never.asked > op.calls - 1 > 1
    plain = ROUTES[route](Counted())
    for name in ("eigenvalues", "residuals", "value", "stderr", "values", "matvecs"):
        assert np.array_equal(getattr(found, name, 0), getattr(plain, name, 0)), name


@pytest.mark.parametrize("route", ["dense", "trace by columns", "diagonal", "density"])
def test_a_route_with_nothing_to_return_raises_at_the_next_block(route):
    op = Counted()
    with pytest.raises(StoppedError):
        ROUTES[route](op, should_stop=After(3))
    assert op.calls == 2  # the first question comes before everything else


@pytest.mark.parametrize("route", ["trace", "norm"])
@pytest.mark.parametrize("times", [2, 3, 4, 5])
def test_a_stopped_estimate_is_that_of_the_probes_so_far(route, times):
    op = Counted()
    found = ROUTES[route](op, should_stop=After(times))
    exact = {"trace": np.trace, "norm": np.linalg.norm}[route](op.matrix)
    assert op.calls == times - 1
    assert 0 < found.stderr < 0.1 * exact
    assert abs(found.value - exact) < 4 * found.stderr


def test_a_stopped_diagonal_and_density_have_wider_errors():
    op = Counted()
    found, whole = hr.spectra.diagonal(op, matvecs=60, should_stop=After(30)), np.diag(op.matrix)
    scores = (found.values - torch.tensor(whole)) / found.stderr
    assert found.matvecs < 60
    assert 0.7 < float(scores.std()) < 1.6
    some = hr.density(op, probes=4, steps=20, should_stop=After(70))
    every = hr.density(op, probes=4, steps=20, width=some.width)
    assert some.matvecs < every.matvecs == 80
    assert float(some.weights.sum()) == pytest.approx(1)
    assert float((some.high - some.low).mean()) > float((every.high - every.low).mean())


@pytest.mark.parametrize("times", [10, 11, 40])
def test_lanczos_returns_what_it_has_with_true_residuals(times):
    op = Counted()
    found = hr.eigsh(op, 3, method="lanczos", tol=1e-9, should_stop=After(times))
    assert not bool(found.converged.any())
    assert found.matvecs == op.calls == times - 1  # the first question comes before everything
    v, values = found.eigenvectors, found.eigenvalues
    true = torch.linalg.vector_norm(torch.from_numpy(op.matrix) @ v - v * values, dim=0)
    assert bool((true <= found.residuals).all()) and bool((found.residuals < 2 * true).all())


def test_lanczos_with_fewer_pairs_than_asked_for_raises():
    with pytest.raises(StoppedError):
        hr.eigsh(Counted(), 30, method="lanczos", should_stop=After(20))


def test_the_gram_route_is_asked_before_and_after_its_matrix():
    model, inputs = mlp((4, 8, 3), "tanh", seed=0), torch.randn(6, 4)
    ggn = hr.GGN(model, nn.CrossEntropyLoss(), (inputs, torch.arange(6) % 3))
    made = []
    original = ggn.gram
    ggn.gram = lambda: made.append(1) or original()
    with pytest.raises(StoppedError):
        hr.eigsh(ggn, 2, method="gram", should_stop=After(0))
    assert not made
    with pytest.raises(StoppedError):
        hr.eigsh(ggn, 2, method="gram", should_stop=After(1))
    assert made == [1]


@pytest.mark.parametrize("route", ROUTES)
def test_what_it_raises_passes_as_it_is(route):
    def interrupted():
        raise ValueError("enough")

    with pytest.raises(ValueError, match="enough") as raised:
        ROUTES[route](Counted(), should_stop=interrupted)
    assert not isinstance(raised.value, ArgumentError)


def test_it_must_be_a_function():
    with pytest.raises(ArgumentError, match="should_stop"):
        hr.eigsh(torch.eye(4), 2, should_stop=True)
