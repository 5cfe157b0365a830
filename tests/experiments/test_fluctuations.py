"""Helpers of the fluctuation figures, and their verdicts on results made of closed forms."""

import dataclasses

import numpy as np
import pytest
import torch

from hyperribbon.core import numpy_generator
from hyperribbon.papers.experiments import Experiment
from hyperribbon.papers.experiments.fluctuations import (
    appendix_a,
    discrete,
    fig2a,
    fig8a,
    fig9a,
    optimisers,
    relaxation,
)
from hyperribbon.papers.experiments.fluctuations._regression import (
    data_sets,
    regression,
    seeds,
    spectral_error,
)
from hyperribbon.papers.experiments.fluctuations._two_layer import (
    TwoLayerConfig,
    column_share,
    element_correlations,
    first_layer_spectra,
    linear_network,
    measure_modes,
    random_spectra,
)
from hyperribbon.papers.experiments.fluctuations.fig3a import Config
from hyperribbon.theory import fluctuations as theory


def test_regression_has_the_stated_variances():
    X, Y, u = regression(20, 5000, 0.25, seed=3)
    assert X.var() == pytest.approx(1 / 20, rel=0.02)
    assert np.var(Y - u @ X) == pytest.approx(0.25, rel=0.08)
    again, _, _ = regression(20, 5000, 0.25, seed=3)
    np.testing.assert_array_equal(X, again)


def test_correlated_inputs_have_the_given_covariance():
    covariance = np.array([[2.0, 0.5], [0.5, 1.0]])
    X, _, _ = regression(2, 50_000, 0.0, seed=0, covariance=covariance)
    np.testing.assert_allclose(X @ X.T / 50_000, covariance, atol=0.05)


def test_items_take_plain_fields_and_changes():
    item = Config().item(7, samples=200)
    assert item["samples"] == 200
    assert item["seed"] == 7
    assert item["lr"] == 0.1
    assert "ratios" not in item
    assert len(set(seeds(0, 50))) == 50


def test_data_sets_are_independent_realisations():
    item = {"inputs": 3, "samples": 6, "label_variance": 0.1, "seed": 2, "realisations": 4}
    drawn = [X for X, _, _ in data_sets(item)]
    assert len(drawn) == 4 and len({X.tobytes() for X in drawn}) == 4
    np.testing.assert_array_equal(drawn[1], regression(3, 6, 0.1, seeds(2, 4)[1])[0])


def test_spectral_error_compares_ordered_eigenvalues():
    assert spectral_error(np.diag([1.1, 4.0]), np.diag([4.0, 1.0])) == pytest.approx(0.05)


def test_ensembles_drawn_from_the_theory_measure_as_the_theory():
    item = TwoLayerConfig(8, 5, 400, target_variance=1.0, steps=1, chains=4000).item(0)
    _, _, W1, W2 = linear_network(item)
    modes = theory.decompose(W1, W2)
    M = theory.layer_covariance(modes, 0.1, 10, 1.0, samples=400)
    first, second = (
        theory.first_layer_covariance(modes, M),
        theory.second_layer_covariance(modes, M),
    )
    rng = np.random.default_rng(0)
    d1 = rng.multivariate_normal(np.zeros(40), first, size=4000, method="eigh")
    d2 = rng.multivariate_normal(np.zeros(5), second, size=4000, method="eigh")
    ensemble = {
        "chains1": W1 + d1.reshape(4000, 8, 5).transpose(0, 2, 1),
        "chains2": W2 + d2[:, None, :],
        "unexplained": 1 - 8 / 400,
    }
    found = measure_modes(item, ensemble)
    np.testing.assert_allclose(found.variances, found.predicted, rtol=0.15)
    measured, predicted = first_layer_spectra(found, ensemble["chains1"])
    np.testing.assert_allclose(measured[:8], predicted, rtol=0.15)
    assert measured[8:].max() < 1e-9


def test_the_stationary_covariance_is_proportional_to_the_label_noise():
    few, many = (
        theory.discrete_covariance(*regression(8, 40, variance, seed=1)[:2], 0.5, 10)
        for variance in (0.01, 0.04)
    )
    np.testing.assert_allclose(many, 4 * few, rtol=1e-9)


def test_the_langevin_form_is_the_limit_of_small_steps():
    item = {"inputs": 6, "samples": 15, "label_variance": 0.25, "batch_size": 5, "seed": 4}
    X, Y, _ = regression(6, 15, 0.25, 4)

    def distance(lr):
        exact = theory.discrete_covariance(X, Y, lr, 5)
        found = discrete._langevin_covariance({**item, "lr": lr})
        return np.linalg.norm(found - exact) / np.linalg.norm(exact)

    assert distance(0.01) < 0.01 * np.linalg.norm(theory.hessian(X), 2)  # of HMH against HM + MH
    assert distance(0.01) == pytest.approx(distance(0.1) / 10, rel=0.2)
    assert np.isnan(discrete._langevin_covariance({**item, "lr": 1000.0})).all()


def verdicts(module, result):
    return {claim.id.split("/")[-1]: claim.verdict for claim in Experiment(module).claims(result)}


def test_exponent_of_the_projector_is_that_of_the_figure_but_not_of_many_samples():
    inputs, ratios = [10, 20, 50], np.array([2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 50.0])
    exact = np.array([[theory.projector_variance(N, round(s * N)) for s in ratios] for N in inputs])
    diagonal, off = np.moveaxis(exact * np.array(inputs)[:, None, None], 2, 0)
    far = [theory.projector_variance(50, 50 * factor)[1] for factor in (100, 1000)]
    result = fig2a.Result(
        inputs,
        ratios,
        diagonal,
        off,
        0.01 * off,
        diagonal,
        off,
        np.array([-1.72, -1.8, -1.87]),  # of windows that disagree
        float(np.log10(far[1] / far[0])),
    )
    assert verdicts(fig2a, result) == {
        "exponent-in-window": "undecided",
        "exponent": "fails",
        "superimpose": "holds",
        "diagonal": "holds",
        "exact-variance": "holds",
    }
    swapped = dataclasses.replace(result, diagonal=off / 2, exact_off=off * [[1], [1], [2]])
    assert verdicts(fig2a, swapped)["diagonal"] == "fails"
    assert verdicts(fig2a, swapped)["superimpose"] == "fails"


def two_layer_result(D1, D2=1.0, chains=10**6):
    variances = D1 / (D1 + D2)
    loss = 0.5 * 0.02 * 0.01 * D1
    exponent, small = (theory.fit_exponent(D1 / (D1 + d), D1) for d in (D2, 100 * D2))
    measured = (variances, variances, variances, loss, variances, loss, loss, loss)
    exponents = (exponent + 0.2, 0.01, 0.2, exponent, small, 0.01, small)  # the bias is taken off
    return fig9a.Result(0.02, 0.1, D1, D2, *measured, *exponents, chains)


def test_exponent_two_needs_a_small_first_layer():
    usual = verdicts(fig9a, two_layer_result(np.geomspace(0.01, 3.6, 40)[::-1]))
    small = verdicts(fig9a, two_layer_result(np.geomspace(0.001, 0.1, 40)[::-1]))
    assert usual["inverse-relation"] == usual["psi-local"] == usual["psi-is-two"] == "holds"
    assert small["second-form"] == small["psi-is-two"] == "holds"
    large = verdicts(fig9a, two_layer_result(np.geomspace(100.0, 3000.0, 40)[::-1]))
    assert large["second-form"] == large["psi-is-two"] == "fails"


def test_gaussian_lines_are_the_spectra_of_weights_as_drawn():
    item = TwoLayerConfig(8, 5, 400).item(0)
    first, second = random_spectra(item, draws=3)
    rng = numpy_generator(0, "random weights", 8, 5)
    brute = []
    for _ in range(3):
        W1, W2 = rng.normal(size=(5, 8)) / np.sqrt(8), rng.normal(size=(1, 5)) / np.sqrt(5)
        J = np.hstack([np.kron(np.eye(8), W2), W1.T])
        M = np.linalg.pinv(J) @ J
        brute.append([np.linalg.eigvalsh(block)[::-1] for block in (M[40:, 40:], M[:40, :40])])
    np.testing.assert_allclose(second, np.mean([b[0] for b in brute], axis=0), atol=1e-10)
    np.testing.assert_allclose(first, np.mean([b[1][:8] for b in brute], axis=0), atol=1e-10)


def test_columns_and_elements_that_move_together_are_seen():
    rng = np.random.default_rng(0)
    V, z = rng.normal(size=4), rng.normal(size=(500, 6))
    assert column_share(np.einsum("h,ci->chi", V, z)) == pytest.approx(1)
    assert column_share(rng.normal(size=(4000, 4, 6))) == pytest.approx(0.25, abs=0.03)
    together = rng.normal(size=(500, 1, 1)) * np.array([[[1.0, -2.0, 3.0]]])
    np.testing.assert_allclose(element_correlations(together), 1)
    assert element_correlations(rng.normal(size=(4000, 1, 3))).max() < 0.07


def test_correlated_modes_of_the_second_layer_are_noticed():
    predicted = np.diag([1.0, 1.0, 1.0, 0.5, 0.4, 0.3])
    together = predicted.copy()
    together[3, 4] = together[4, 3] = 0.3
    free, tied = (
        fig8a.Result(3, predicted, measured, 1500, np.ones(3), np.ones(3))
        for measured in (predicted, together)
    )
    assert verdicts(fig8a, free)["second-layer-diagonal"] == "holds"
    (claim, *_) = Experiment(fig8a).claims(tied)
    assert claim.measured > claim.expected.high


def test_relaxation_is_judged_against_its_closed_form():
    times = np.linspace(0, 5, 6)
    grown = np.stack([1 - np.exp(-2 * times), 1 - np.exp(-times), 0 * times], axis=1)
    decayed = np.stack([np.exp(-times), np.exp(-times / 2), 0 * times], axis=1)
    result = relaxation.Result(
        times, ["fast", "slow", "zero"], grown, grown, decayed, decayed, 0.01, 0.0
    )
    assert set(verdicts(relaxation, result).values()) == {"holds"}
    slower = dataclasses.replace(result, correlations=np.sqrt(decayed), variances=0.5 * grown + 0.1)
    assert set(verdicts(relaxation, slower).values()) == {"fails"}


def test_the_tanh_network_has_the_gradient_of_torch():
    draws = np.random.default_rng(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    x, y = draws.normal(size=(2, 5, 3)), draws.normal(size=(2, 5))
    w = draws.normal(size=(2, sum(p.numel() for p in model.parameters())))
    found = appendix_a._gradient(w, x, y, 4)
    for chain in range(2):
        torch.nn.utils.vector_to_parameters(torch.from_numpy(w[chain]), model.parameters())
        model.zero_grad()
        outputs = model(torch.from_numpy(x[chain]))[:, 0]
        (((outputs - torch.from_numpy(y[chain])) ** 2).mean() / 2).backward()
        theirs = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
        np.testing.assert_allclose(found[chain], theirs.numpy(), atol=1e-12)


def test_a_theory_without_momentum_is_noticed():
    ones = np.ones((len(optimisers.RULES), 2))
    plain = ones.copy()
    plain[1] = 1 / 12
    result = optimisers.Result(ones, ones, plain, 1e-3 * ones)
    assert verdicts(optimisers, result)["rows"] == "holds"
    measured = optimisers.measure(result)["plain-theory"]
    assert measured.values[0] == pytest.approx(12)
    off = dataclasses.replace(result, predicted=1.1 * ones)
    assert verdicts(optimisers, off)["rows"] == "fails"
