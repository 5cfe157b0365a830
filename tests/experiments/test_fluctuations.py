"""Helpers of the fluctuation figures, and (slow) the verdicts the laptop presets must reach."""

import json

import numpy as np
import pytest

from hyperribbon.experiments import run
from hyperribbon.experiments.fluctuations._common import (
    linear_network,
    regression,
    seeds,
    simulation_item,
    spectral_errors,
)
from hyperribbon.experiments.fluctuations._two_layer import (
    first_layer_spectra,
    measure_modes,
    two_layer_item,
)
from hyperribbon.experiments.fluctuations.fig3a import Config
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
    item = simulation_item(Config(), 7, samples=200)
    assert item["samples"] == 200
    assert item["seed"] == 7
    assert item["lr"] == 0.1
    assert len(set(seeds(0, 50))) == 50


def test_spectral_errors_compare_ordered_eigenvalues():
    mean, worst = spectral_errors(np.diag([1.1, 4.0]), np.diag([4.0, 1.0]))
    assert mean == pytest.approx(0.05)
    assert worst == pytest.approx(0.1)


def test_ensembles_drawn_from_the_theory_measure_as_the_theory():
    item = two_layer_item(
        seed=0, inputs=8, hidden=5, samples=400, target_variance=1.0, lr=0.1, batch_size=10,
        steps=1, chains=4000,
    )  # fmt: skip
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


MUST_HOLD = {
    "fig3a": ("spectrum",),
    "fig5b": tuple(f"{kind}-error-{r}" for kind in ("mean", "worst") for r in ("1.1", "2", "10")),
    "fig8c": ("modal-ratio",),
    "fig9a": ("psi-local", "psi-tends-to-two", "loss"),
    "fig9b": ("plateau", "drop", "flow"),
    "sampling": ("replacement", "without-replacement", "shuffle"),
    "discrete": ("exact",),
    "bias": ("inflation", "many", "correction", "warning"),
    "relaxation": ("growth", "zero-modes"),
}  # fmt: skip
MUST_FAIL = {
    "fig2a": ("exponent",),
    "fig5c": ("balance-at-two", "current-peak", "isotropy"),
    "fig8c": ("single-run",),
    "fig9a": ("psi-is-two", "second-form"),
    "sampling": ("independence",),
    "discrete": ("continuum-large",),
    "table1": ("sampling-independent",),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MUST_HOLD.keys() | MUST_FAIL.keys()))
def test_laptop_preset_reaches_its_verdicts(name, tmp_path):
    folder = run(f"fluctuations/{name}", preset="laptop", out=tmp_path)
    claims = json.loads((folder.path / "claims.json").read_text())
    verdicts = {claim["id"].split("/")[-1]: claim["verdict"] for claim in claims}
    for claim in MUST_HOLD.get(name, ()):
        assert verdicts[claim] == "holds", claim
    for claim in MUST_FAIL.get(name, ()):
        assert verdicts[claim] == "fails", claim
