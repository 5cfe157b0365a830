"""Training from moments against training on the data."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.data import whiten
from hyperribbon.papers.simulation.linear_networks.descent import (
    LINEAR_STARTS,
    HalvingSchedule,
    draw_linear_weights,
    train_linear,
)
from hyperribbon.papers.training.loop import DivergenceError
from hyperribbon.theory.linear_networks.moments import Moments, reduce_chain


def descend_on_data(weights, X, Y, lr, epochs, schedule=None, decay=0.0):
    """Autograd's gradient descent on the samples, in double precision."""
    layers = [torch.tensor(w, requires_grad=True) for w in weights]
    X, Y = torch.from_numpy(X), torch.from_numpy(Y)
    losses, since = [], 0
    for epoch in range(epochs + 1):
        output = X
        for layer in layers:
            output = layer @ output
        loss = (output - Y).square().sum() / (2 * X.shape[1])
        losses.append(loss.item())
        if epoch == epochs:
            break
        if schedule is not None and schedule.is_stalled(losses, epoch, since):
            lr, since = lr / 2, epoch
        gradients = torch.autograd.grad(loss, layers)
        with torch.no_grad():
            for layer, gradient in zip(layers, gradients, strict=True):
                layer -= lr * (gradient + decay * layer)
    return [layer.detach().numpy() for layer in layers], np.array(losses), lr


@settings(max_examples=25, deadline=None)
@given(
    widths=st.lists(st.integers(1, 9), min_size=2, max_size=5),
    samples=st.integers(1, 20),
    start=st.sampled_from(LINEAR_STARTS),
    white=st.booleans(),
    decay=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 1000),
)
def test_weights_and_losses_are_those_of_gradient_descent_on_the_data(
    widths, samples, start, white, decay, seed
):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((widths[0], samples))
    if white:
        X = whiten(X, 0.8).inputs
    widths = [len(X), *widths[1:]]
    Y = rng.standard_normal((widths[-1], samples))
    weights = draw_linear_weights(widths, start, generator=rng)
    run = train_linear(weights, Moments.of(X, Y), lr=0.02, epochs=60, weight_decay=decay)
    expected, losses, _ = descend_on_data(weights, X, Y, 0.02, 60, decay=decay)
    assert np.allclose(run.losses, losses, rtol=1e-10, atol=1e-12)
    for ours, theirs in zip(run.weights, expected, strict=True):
        assert np.abs(ours - theirs).max() < 1e-10


def test_the_schedule_halves_at_the_same_epochs_as_on_the_data():
    rng = np.random.default_rng(1)
    X = whiten(rng.standard_normal((6, 40))).inputs
    Y = rng.standard_normal((3, 40))
    weights = draw_linear_weights((6, 8, 3), "lecun", generator=rng)
    schedule = HalvingSchedule(improvement=1e-2, window=20)
    run = train_linear(weights, Moments.of(X, Y), lr=0.1, epochs=400, schedule=schedule)
    _, losses, final_rate = descend_on_data(weights, X, Y, 0.1, 400, schedule)
    halvings = np.flatnonzero(np.diff(run.rates)) + 1
    assert len(halvings) > 3
    assert run.rates[-1] == final_rate
    assert np.all(np.diff(halvings) >= 20)
    for epoch in halvings:
        assert run.losses[epoch] > (1 - 1e-2) * run.losses[epoch - 20]
    assert np.allclose(run.losses, losses, rtol=1e-10)


def test_a_wide_balanced_network_is_reduced_to_its_rank_and_comes_back_whole():
    rng = np.random.default_rng(2)
    X = whiten(rng.standard_normal((50, 200))).inputs
    moments = Moments.of(X, rng.standard_normal((4, 200)))
    weights = draw_linear_weights((50, 30, 30, 4), "balanced", generator=rng, scale=0.7)
    reduced = reduce_chain(weights, moments)
    assert [w.shape for w in reduced.weights] == [(4, 8), (4, 4), (4, 4)]
    for full, back in zip(weights, reduced.expand(reduced.weights), strict=True):
        assert np.abs(full - back).max() < 1e-14


def test_the_given_weights_are_not_changed():
    rng = np.random.default_rng(8)
    for white in (False, True):
        X = rng.standard_normal((4, 30))
        X = whiten(X).inputs if white else X
        weights = draw_linear_weights((4, 3, 2), generator=rng)
        before = [weight.copy() for weight in weights]
        train_linear(weights, Moments.of(X, rng.standard_normal((2, 30))), lr=0.1, epochs=5)
        assert all(np.array_equal(a, b) for a, b in zip(before, weights, strict=True))


def test_measurements_see_the_full_weights_at_the_asked_epochs():
    rng = np.random.default_rng(3)
    X, Y = rng.standard_normal((5, 30)), rng.standard_normal((2, 30))
    weights = draw_linear_weights((5, 4, 2), "gaussian", generator=rng, scale=0.3)
    moments = Moments.of(X, Y)
    run = train_linear(
        weights,
        moments,
        lr=0.05,
        epochs=20,
        at=(20, 0, 7),
        measure={
            "loss": lambda layers: moments.loss(layers[1] @ layers[0]),
            "first": lambda layers: layers[0],
        },
    )
    assert run.epochs.tolist() == [0, 7, 20]
    assert np.allclose(run.measured["loss"], run.losses[[0, 7, 20]], rtol=1e-12)
    assert np.allclose(run.measured["first"][0], weights[0], atol=1e-14)
    assert np.allclose(run.measured["first"][-1], run.weights[0], atol=1e-14)


@pytest.mark.parametrize(
    ("start", "deviation"), [("kaiming_uniform", 1 / np.sqrt(3 * 40)), ("lecun", 1 / np.sqrt(40))]
)
def test_fan_in_sets_the_scale_of_the_random_starts(start, deviation):
    (weight,) = draw_linear_weights((40, 5000), start, generator=np.random.default_rng(4))
    # 200,000 entries: the sample deviation is within 0.5% with many standard errors to spare.
    assert weight.std() == pytest.approx(deviation, rel=5e-3)
    if start == "kaiming_uniform":
        assert np.abs(weight).max() <= 1 / np.sqrt(40)


def test_bad_arguments_are_explained():
    rng = np.random.default_rng(5)
    X, Y = rng.standard_normal((5, 30)), rng.standard_normal((2, 30))
    moments = Moments.of(X, Y)
    fitting = draw_linear_weights((5, 4, 2), generator=rng)
    with pytest.raises(ArgumentError, match="takes 3 inputs, but layer 1 has 4 outputs"):
        train_linear([fitting[0], np.ones((2, 3))], moments, lr=0.1, epochs=1)
    with pytest.raises(ArgumentError, match="maps 5 inputs to 4 outputs"):
        train_linear(fitting[:1], moments, lr=0.1, epochs=1)
    with pytest.raises(ArgumentError, match="epochs 0 to 3"):
        train_linear(fitting, moments, lr=0.1, epochs=3, at=[4])
    with pytest.raises(ArgumentError, match="NaN"):
        Moments.of(np.where(X > 2, np.nan, X), Y)
    with pytest.raises(ArgumentError, match=r"must be a matrix \(dL, 30\)"):
        Moments.of(X, Y[:, :20])
    with pytest.raises(ArgumentError, match="fan-in"):
        draw_linear_weights((5, 2), "lecun", generator=rng, scale=1.0)
    with pytest.raises(ArgumentError, match="known choice"):
        draw_linear_weights((5, 2), "orthogonal", generator=rng)
    with pytest.raises(ArgumentError, match="widths"):
        draw_linear_weights((5,), generator=rng)


def test_divergence_is_an_error_that_keeps_the_history():
    rng = np.random.default_rng(6)
    X, Y = rng.standard_normal((5, 30)), rng.standard_normal((2, 30))
    weights = draw_linear_weights((5, 4, 2), "gaussian", generator=rng, scale=1.0)
    with pytest.raises(DivergenceError) as caught:
        train_linear(weights, Moments.of(X, Y), lr=50.0, epochs=200)
    assert 0 < len(caught.value.history["loss"]) < 200


def test_reduced_inputs_keep_the_leading_eigenvalues_of_the_hessian():
    from hyperribbon.theory.linear_networks import hessian

    rng = np.random.default_rng(7)
    X = whiten(rng.standard_normal((20, 60))).inputs
    moments = Moments.of(X, rng.standard_normal((3, 60)))
    weights = [rng.standard_normal((b, a)) / 3 for a, b in pairwise((20, 4, 5, 3))]
    reduced = reduce_chain(weights, moments, hidden=False)
    assert reduced.weights[0].shape == (4, 7)
    spectra = [
        np.linalg.eigvalsh(op @ np.eye(op.shape[0]))[::-1]
        for op in (hessian(weights, moments), hessian(reduced.weights, reduced.moments))
    ]
    assert np.allclose(spectra[0][:7], spectra[1][:7], rtol=1e-12)
