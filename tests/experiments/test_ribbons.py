"""What the ribbons experiments find, at their smallest preset."""

from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest

from hyperribbon.papers.experiments import Experiment
from hyperribbon.papers.experiments.context import Context
from hyperribbon.papers.simulation.ribbons.trajectories import (
    moments_of_training,
    pca_spectra,
    projected_variances,
)
from hyperribbon.theory.ribbons import Ribbon, sgd


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    def run(name):
        module = import_module(f"hyperribbon.papers.experiments.ribbons.{name}")
        folder = tmp_path_factory.mktemp(name)
        return module, module.compute(module.PRESETS["smoke"], Context(0, folder, folder))

    return run


@pytest.mark.parametrize(
    ("name", "hold", "fail"),
    [
        ("fig3", ["head", "tail", "mean-falls"], ["mean-negligible"]),
        ("fig5", ["head", "tail"], []),
        ("fig6", ["lemma-1", "lemma-3", "twice-as-fast", "three-regimes"], []),
        ("weight_decay", ["bound"], []),
        ("kernels", ["bound", "low-dimensional"], ["flat-kernel"]),
        ("sgd", ["bound-verified"], ["bound-printed", "trade-off", "constant"]),
    ],
)
def test_closed_forms_get_the_verdict_that_the_mathematics_gives(computed, name, hold, fail):
    module, result = computed(name)
    claims = {claim.id.split("/")[-1]: claim for claim in Experiment(module).claims(result)}
    assert all(claims[claim].exact for claim in [*hold, *fail])
    assert {claim: claims[claim].verdict for claim in [*hold, *fail]} == {
        **dict.fromkeys(hold, "holds"),
        **dict.fromkeys(fail, "fails"),
    }


def test_figure_4_has_the_values_of_sixty_digits(computed):
    _, result = computed("fig4")
    values = result.closed_form[result.steps.tolist().index(100)]
    expected = {1: 1.0, 2: 0.717633, 11: 0.371911, 21: 0.00451965, 50: 2.28973e-9}
    for index, value in expected.items():
        assert values[index - 1] == pytest.approx(value, rel=1e-5)


def test_variances_along_theorys_eigenvectors_have_mean_one_and_find_a_wrong_theory():
    item = setting()
    moments = moments_of_training(item)
    for time in (0, 1):
        # A variance over N draws has a relative error of √(2/N) = 2%.
        np.testing.assert_allclose(projected_variances(item, moments, time), 1, atol=0.1)
    wrong = projected_variances({**item, "sigma_w": 0.5}, moments)
    assert np.abs(wrong - 1).max() > 0.3


def setting(**change):
    return {
        "samples": 8,
        "dimensions": 20,
        "slope": 0.3,
        "sigma_star": 1.5,
        "sigma_w": 0.7,
        "alpha": 0.2,
        "steps": [5, 12],
        "initialisations": 4000,
        "inputs_seed": 1,
        "seed": 2,
        **change,
    }


def test_training_has_the_covariance_of_the_closed_form():
    item = setting()
    spectra = pca_spectra([moments_of_training(item)], 4000, (5, 12))
    for steps, spectrum in zip((5, 12), spectra, strict=True):
        ribbon = Ribbon.exponential(8, 0.3, sigma_star=1.5, sigma_w=0.7, alpha=0.2, steps=steps)
        # An eigenvalue of a covariance over N draws has a relative error of about √(2/N) = 2%.
        np.testing.assert_allclose(spectrum, ribbon.spectrum(), rtol=0.1)


def test_simulated_batches_follow_the_exact_second_moments():
    from hyperribbon.papers.simulation.ribbons.trajectories import fixed_problem

    item = setting(batch_size=2, steps=[12])
    X, y, _ = fixed_problem(item)
    spectrum = pca_spectra([moments_of_training(item)], 4000, (12,))[0]
    np.testing.assert_allclose(spectrum, sgd(X, y, 0.7, 0.2, 12, 2).spectrum(), rtol=0.15)


@pytest.mark.parametrize("steps", [17, 50, 150])
@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0])
def test_the_head_has_one_verdict_for_all_targets_and_times(steps, scale):
    parts = import_module("hyperribbon.papers.experiments.ribbons._parts")
    ribbon = Ribbon.exponential(50, 0.2, sigma_star=scale * 2**0.5, sigma_w=0.1**0.5, steps=steps)
    spectra = {part: ribbon.spectrum(part) for part in ("P", "P1_y", "P1_sigma")}
    assert 0.75 < parts.decay_ratio(SimpleNamespace(**spectra)) < 1.25


def test_the_ridge_is_found_where_it_is_and_not_elsewhere():
    fig8 = import_module("hyperribbon.papers.experiments.ribbons.fig8")
    slopes, steps = np.linspace(0.02, 1, 50), np.geomspace(2, 1e5, 60)
    ridge = np.exp(-((slopes[:, None] - np.log(steps) / 49) ** 2) / 0.001)
    rng = np.random.default_rng(0)
    for panel, low, high in ((ridge, 0.99, 1), (rng.random(ridge.shape), -0.5, 0.5)):
        result = SimpleNamespace(
            slopes=slopes, steps=steps, panel_ratios=np.array([4.8]), panels_smooth=panel[None]
        )
        straight = fig8._ridge(result, 4.8)[2]
        assert low <= straight <= high
    flat = SimpleNamespace(**{**vars(result), "panels_smooth": np.ones((1, 50, 60))})
    assert fig8._ridge(flat, 4.8)[2] == 0
    assert fig8._ridge(SimpleNamespace(**{**vars(result), "panels_smooth": ridge[None]}), 4.8)[
        0
    ] == pytest.approx(49, rel=0.05)


def test_snapshots_lie_evenly_along_a_path():
    networks = import_module("hyperribbon.papers.experiments.ribbons._networks")
    late = np.linspace(0, 1, 100) ** 3 * 6  # most of the path in the last steps
    logs = np.log(np.stack([np.exp(late), np.ones(100)], axis=-1) / (1 + np.exp(late))[:, None])
    path = np.repeat(logs[:, None], 4, axis=1)
    rows = networks.even_snapshots(path, 18)
    assert rows[0] == 0 and rows[-1] == 99 and (np.diff(rows) > 0).all()
    kept = path[rows]
    overlaps = np.exp((kept[1:] + kept[:-1]) / 2).sum(axis=2)
    lengths = np.sqrt(-np.log(overlaps).mean(axis=1))
    assert lengths.max() < 2 * lengths.mean()
    assert networks.even_snapshots(path[:5], 18).tolist() == [0, 1, 2, 3, 4]
    assert networks.even_snapshots(np.zeros((10, 3, 1)), 4).tolist() == [0, 3, 6, 9]
