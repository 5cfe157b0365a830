"""Order parameters against quadrature and simulated wide networks."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import erf
from scipy.stats import norm

from hyperribbon.core import ArgumentError
from hyperribbon.theory import meanfield

FUNCTIONS = {
    "relu": (lambda z: np.maximum(z, 0), lambda z: (z > 0).astype(float)),
    "tanh": (np.tanh, lambda z: 1 - np.tanh(z) ** 2),
    "erf": (erf, lambda z: 2 / np.sqrt(np.pi) * np.exp(-(z**2))),
    "linear": (lambda z: z, np.ones_like),
}
SETTINGS = {"relu": (2.0, 0.1), "tanh": (3.0, 0.64), "erf": (2.0, 0.3), "linear": (1.0, 0.1)}


def _spectrum(
    name: str,
    widths: list[int],
    samples: int,
    seed: int,
    variances: tuple[float, float] | None = None,
) -> tuple[np.ndarray, int]:
    """Nonzero eigenvalues of the Fisher matrix of a random network, from its Gram matrix."""
    phi, slope = FUNCTIONS[name]
    weight_variance, bias_variance = variances or SETTINGS[name]
    rng = np.random.default_rng([seed, *widths])
    weights = [
        rng.normal(0, (weight_variance / fan_in) ** 0.5, (fan_out, fan_in))
        for fan_in, fan_out in pairwise(widths)
    ]
    biases = [rng.normal(0, bias_variance**0.5, fan_out) for fan_out in widths[1:]]
    hidden, slopes = [rng.normal(size=(samples, widths[0]))], []
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        z = hidden[-1] @ weight.T + bias
        hidden.append(phi(z))
        slopes.append(slope(z))
    outputs = widths[-1]
    backward = np.broadcast_to(np.eye(outputs), (samples, outputs, outputs))
    gram = np.zeros((samples, outputs, samples, outputs))
    for level in range(len(weights) - 1, -1, -1):
        kernel = hidden[level] @ hidden[level].T + 1
        flat = backward.reshape(samples * outputs, -1)
        pairs = (flat @ flat.T).reshape(samples, outputs, samples, outputs)
        gram += kernel[:, None, :, None] * pairs
        if level:
            backward = (backward @ weights[level]) * slopes[level - 1][:, None, :]
    values = np.linalg.eigvalsh(gram.reshape(samples * outputs, -1) / samples)[::-1]
    return values, sum(w.size for w in weights) + sum(b.size for b in biases)


@pytest.mark.parametrize("name", list(SETTINGS))
@pytest.mark.parametrize("hidden", [(1000, 1000), (1500, 1000, 1200)])
def test_finite_width_predictions_match_wide_random_networks(name, hidden):
    widths, samples, outputs = [1000, *hidden, 3], 40, 3
    predicted = meanfield.fisher_statistics(name, *SETTINGS[name], widths, samples)
    measured = []
    for seed in range(5):
        values, parameters = _spectrum(name, widths, samples, seed)
        assert parameters == predicted.parameters
        measured.append(
            [
                values.sum() / parameters,
                (values**2).sum() / parameters,
                values[:outputs].mean(),
            ]
        )
    mean, second, largest = np.mean(measured, axis=0)
    assert mean == pytest.approx(predicted.mean, rel=0.05)
    assert second == pytest.approx(predicted.second_moment, rel=0.15)
    assert largest == pytest.approx(predicted.largest, rel=0.08)


@pytest.mark.parametrize(
    ("name", "kappa1", "kappa2"),
    [("relu", 1.5750, 0.4015), ("tanh", 0.9555, 0.1186), ("linear", 1.65, 0.15)],
)
def test_constants_of_three_equal_layers(name, kappa1, kappa2):
    measured = meanfield.asymptotic_constants(name, *SETTINGS[name], [1, 1, 1])
    assert measured == pytest.approx((kappa1, kappa2), abs=5e-5)


@pytest.mark.parametrize("name", list(SETTINGS))
def test_finite_width_tends_to_the_wide_limit_with_its_slopes(name):
    samples, outputs = 30, 4
    kappa1, kappa2 = meanfield.asymptotic_constants(name, *SETTINGS[name], [1, 1, 1])
    wide = [10**5, 10**6]
    found = [
        meanfield.fisher_statistics(name, *SETTINGS[name], [m, m, m, outputs], samples)
        for m in wide
    ]
    assert found[1].mean == pytest.approx(kappa1 * outputs / wide[1], rel=1e-3)
    assert found[1].largest == pytest.approx(
        2 * ((samples - 1) * kappa2 + kappa1) / samples * wide[1], rel=1e-3
    )
    assert found[1].second_moment == pytest.approx(
        2 * ((samples - 1) * kappa2**2 + kappa1**2) / samples * outputs, rel=1e-3
    )
    slopes = [
        np.log10(getattr(found[1], field) / getattr(found[0], field))
        for field in ("mean", "second_moment", "largest")
    ]
    assert slopes == pytest.approx([-1, 0, 1], abs=1e-3)


@given(
    name=st.sampled_from(["relu", "erf", "linear"]),
    variance=st.floats(0.1, 4),
    correlation=st.floats(0, 1),
)
@settings(max_examples=30, deadline=None)
def test_closed_forms_match_plain_integration(name, variance, correlation):
    phi, slope = FUNCTIONS[name]
    closed = meanfield.activation_moments(name, variance, correlation * variance)
    grid = np.linspace(-7, 7, 401)
    density = np.exp(-(grid**2) / 2)
    density /= density.sum()
    first = np.sqrt(variance) * grid[:, None]
    second = np.sqrt(variance) * (
        correlation * grid[:, None] + np.sqrt(1 - correlation**2) * grid[None, :]
    )
    numeric = [
        density @ phi(first[:, 0]) ** 2,
        density @ (phi(first) * phi(second)) @ density,
        density @ slope(first[:, 0]) ** 2,
        density @ (slope(first) * slope(second)) @ density,
    ]
    assert closed == pytest.approx(numeric, rel=0.01, abs=0.01)
    if name != "relu":  # quadrature is exact for smooth functions only
        quadrature = meanfield.activation_moments(FUNCTIONS[name], variance, correlation * variance)
        assert closed == pytest.approx(quadrature, rel=1e-8, abs=1e-10)


@pytest.mark.parametrize("variance", [0.5, 4.0, 30.0])
def test_tanh_moments_match_adaptive_integration(variance):
    moments = meanfield.activation_moments("tanh", variance, 0.0)
    for found, power, function in ((moments[0], 2, np.tanh), (moments[2], 2, FUNCTIONS["tanh"][1])):
        reference = (
            2
            * quad(
                lambda x, f=function, p=power: f(variance**0.5 * x) ** p * norm.pdf(x),
                0,
                12,
                epsrel=1e-12,
                limit=200,
            )[0]
        )
        assert found == pytest.approx(reference, rel=1e-10)
    assert moments[1] == pytest.approx(0, abs=1e-12)
    assert moments[3] == pytest.approx(
        quad(lambda x: FUNCTIONS["tanh"][1](variance**0.5 * x) * norm.pdf(x), -12, 12)[0] ** 2,
        rel=1e-7,
    )


@pytest.mark.parametrize("name", ["tanh", "erf", "linear"])
def test_without_overlap_of_inputs_only_the_largest_eigenvalue_is_refused(name):
    widths, samples = [1000, 1000, 1000, 3], 10
    predicted = meanfield.fisher_statistics(name, 2.0, 0.0, widths, samples)
    with pytest.raises(ArgumentError, match="κ₂ = 0"):
        _ = predicted.largest
    draws = [_spectrum(name, widths, samples, seed, (2.0, 0.0))[0] for seed in range(5)]
    moments = np.mean([[v.sum(), (v**2).sum()] for v in draws], axis=0) / predicted.parameters
    assert moments[0] == pytest.approx(predicted.mean, rel=0.05)
    assert moments[1] == pytest.approx(predicted.second_moment, rel=0.15)
    separation = np.mean([v[:3].mean() / v[3:].mean() for v in draws])
    assert separation < 2  # with overlap, ((N−1)A₂ + A₁) / (A₁ − A₂) is of order N


def test_bad_arguments_are_explained():
    with pytest.raises(ArgumentError, match="activation='gelu'"):
        meanfield.activation_moments("gelu", 1.0, 0.5)
    with pytest.raises(ArgumentError, match="exceeds the variance"):
        meanfield.activation_moments("relu", 1.0, 1.5)
    with pytest.raises(ArgumentError, match="derivative is needed"):
        meanfield.activation_moments(np.tanh, 1.0, 0.5)
    with pytest.raises(ArgumentError, match="weight_variance=0"):
        meanfield.order_parameters("relu", 0, 0.1, 3)
    with pytest.raises(ArgumentError, match="inputs and outputs"):
        meanfield.fisher_statistics("relu", 2.0, 0.1, [10], 5)
    with pytest.raises(ArgumentError, match="at least one hidden layer"):
        meanfield.asymptotic_constants("relu", 2.0, 0.1, [1])
