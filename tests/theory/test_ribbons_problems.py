"""Ribbons of one's own problems: any size, any start, several outputs, kernels in float32."""

import mpmath
import numpy as np
import pytest
import torch

import hyperribbon as hr
from hyperribbon.core.checks import ArgumentError
from hyperribbon.theory.ribbons import Ribbon, count_dimensions, dimensions_of, phase_diagram


@pytest.fixture
def rng():
    return np.random.default_rng(11)


@pytest.fixture(scope="module")
def digits():
    """600 digits with their parity, pixels between 0 and 1."""
    data = hr.load_data("mnist5k").flat()
    at = np.random.default_rng(0).permutation(len(data.targets))[:600]
    inputs = np.asarray(data.inputs, dtype=float)[at]
    return inputs, np.where(np.asarray(data.targets)[at] % 2, 1.0, -1.0)


def covariance_by_iteration(kernel, start, mean, alpha, steps):
    """Return P of residuals with given initial mean and covariance, summed step by step."""
    moment = start + np.multiply.outer(mean, mean)
    decay = np.eye(len(kernel)) - alpha * kernel
    total, average = np.zeros_like(moment), np.zeros_like(mean)
    for _ in range(steps):
        total += moment
        average += mean
        moment, mean = decay @ moment @ decay, decay @ mean
    average /= steps
    return total / steps - np.outer(average, average)


def test_a_block_of_more_coordinates_than_fit_at_once_is_counted():
    ribbon = Ribbon.exponential(363, 0.001, steps=50)
    assert ribbon.dimensions() == dimensions_of(ribbon.spectrum())


@pytest.mark.parametrize("steps", [10, 60])
def test_the_ribbon_of_600_digits_agrees_with_iterated_moments(digits, steps):
    X, y = digits
    K = X @ X.T / len(X)
    alpha = 1 / np.linalg.eigvalsh(K)[-1]
    P = covariance_by_iteration(K, 0.09 * K, -y / np.sqrt(len(X)), alpha, steps)
    ribbon = Ribbon.from_data(X, y, 0.3, alpha, steps)
    assert ribbon.dimensions() == dimensions_of(np.linalg.eigvalsh(P))
    assert ribbon.spectrum()[0] == pytest.approx(np.linalg.eigvalsh(P)[-1], rel=1e-9)


def test_long_training_of_all_digits_has_an_answer():
    data = hr.load_data("mnist5k").flat()
    X, labels = np.asarray(data.inputs, dtype=float), np.asarray(data.targets)
    Y = np.eye(10)[labels]
    top = np.linalg.eigvalsh(X.T @ X / len(X))[-1]
    ribbon = Ribbon.from_data(X, Y, 0.01, 1 / top, 100_000)
    spectrum = ribbon.spectrum()
    assert len(spectrum) == 10 * len(ribbon.eigenvalues)
    assert ribbon.dimensions() == dimensions_of(spectrum)


def test_a_million_uncoupled_directions_are_counted_without_a_matrix():
    n = 1_000_000
    ribbon = Ribbon(1 / np.arange(1.0, n + 1), np.zeros(n), 1.0, 1.0, 3)
    assert ribbon.dimensions() == dimensions_of(ribbon.P1_sigma)


def test_several_outputs_have_the_spectrum_of_the_dense_matrix(rng):
    eigenvalues = np.sort(rng.random(7))[::-1]
    Y = rng.standard_normal((7, 3))
    ribbon = Ribbon(eigenvalues, Y, 0.4, 0.9, 12, batch_size=3, weight_decay=0.01)
    for part in ("P", "P1", "P1_y"):
        dense = np.linalg.eigvalsh(getattr(ribbon, part))[::-1]
        np.testing.assert_allclose(ribbon.spectrum(part), dense, atol=1e-14)
    assert ribbon.dimensions(0.9) == dimensions_of(np.linalg.eigvalsh(ribbon.P), 0.9)


@pytest.mark.parametrize("outputs", [1, 2])
def test_the_initial_outputs_have_any_covariance(rng, outputs):
    X, Y = rng.standard_normal((9, 4)), rng.standard_normal((9, outputs))
    gram = X @ X.T
    factor = rng.standard_normal((9 * outputs, 9 * outputs))
    start = factor @ factor.T
    K = np.kron(gram / 9, np.eye(outputs))
    P = covariance_by_iteration(K, 0.25 * start / 9, -Y.ravel() / 3, 0.2, 25)
    expected = np.linalg.eigvalsh(P)[::-1]
    y = Y[:, 0] if outputs == 1 else Y
    for ribbon in (
        Ribbon.from_kernel(gram, y, 0.5, 0.2, 25, start=start),
        Ribbon.from_data(X, y, 0.5, 0.2, 25, start=start),
    ):
        np.testing.assert_allclose(ribbon.spectrum(), expected, atol=1e-12 * expected[0])
        assert ribbon.dimensions() == dimensions_of(expected)


def test_a_start_shared_by_all_outputs_or_given_as_a_diagonal(rng):
    eigenvalues, Y = np.array([1.0, 0.4, 0.0]), rng.standard_normal((3, 2))
    diagonal = np.array([0.3, 0.2, 0.7])
    ways = [diagonal, np.diag(diagonal), np.diag(np.repeat(diagonal, 2))]
    spectra = [Ribbon(eigenvalues, Y, 1.0, 0.5, 8, start=start).spectrum() for start in ways]
    np.testing.assert_allclose(spectra[1], spectra[0], atol=1e-15)
    np.testing.assert_allclose(spectra[2], spectra[0], atol=1e-15)


@pytest.mark.parametrize(
    ("start", "match"),
    [
        (np.ones(2), "3 directions"),
        (-np.ones(3), "not a covariance"),
        (np.array([[1.0, 2, 0], [2, 1, 0], [0, 0, 1]]), "not a covariance"),
        (np.triu(np.ones((3, 3))), "symmetric"),
    ],
)
def test_what_is_no_initial_covariance_is_refused(start, match):
    with pytest.raises(ArgumentError, match=match):
        Ribbon([1.0, 0.5, 0.1], [1.0, 1, 1], 1.0, 1.0, 5, start=start)


def test_a_tangent_kernel_in_float32_is_taken():
    torch_rng = torch.Generator("cpu").manual_seed(0)
    X = torch.randn(40, 6, generator=torch_rng)
    model = hr.training.mlp((6, 3, 1), seed=1)  # 25 weights, 40 samples: the kernel is singular
    y = torch.sign(X[:, 0]).numpy()
    kernel = hr.NTK(model, X)
    single = Ribbon.from_kernel(kernel, y, 1.0, 0.1, 20)
    double = Ribbon.from_kernel(hr.NTK(model.double(), X.double()), y, 1.0, 0.1, 20)
    assert single.dimensions() == double.dimensions()
    assert len(single.eigenvalues) <= 25
    assert "directions move" in repr(single)


def test_targets_are_drawn_from_a_seed_or_a_generator():
    drawn = Ribbon.exponential(5, 0.5, rng=3).targets
    again = Ribbon.exponential(5, 0.5, rng=np.random.default_rng(3)).targets
    np.testing.assert_array_equal(drawn, again)
    with pytest.raises(ArgumentError, match="rng"):
        Ribbon.exponential(5, 0.5, rng="three")


def exact_dimensions(n, slope, ratio, alpha, steps, fraction=0.95):
    """Count eigenvalues of P in 60 digits."""
    with mpmath.workdps(60):
        lam = [mpmath.exp(-mpmath.mpf(slope) * i) for i in range(n)]
        d = [1 - mpmath.mpf(alpha) * x for x in lam]
        y = [mpmath.mpf(ratio) * mpmath.sqrt(x) for x in lam]
        P = mpmath.matrix(n, n)
        means = [mpmath.fsum(v**t for t in range(steps)) / steps for v in d]
        for i in range(n):
            for j in range(n):
                both = mpmath.fsum((d[i] * d[j]) ** t for t in range(steps)) / steps
                P[i, j] = y[i] * y[j] * (both - means[i] * means[j]) + (i == j) * lam[i] * both
        found = sorted((float(v) for v in mpmath.eigsy(P, eigvals_only=True)), reverse=True)
    return dimensions_of(np.array(found), fraction)


@pytest.mark.parametrize("alpha", [1e-9, 1e-5, 0.1, 1.0])
@pytest.mark.parametrize("ratio", [0.1, 30.0, 1e8])
def test_diagrams_at_small_times_and_large_ratios_agree_with_60_digits(alpha, ratio):
    found = phase_diagram(12, [10], [0.3], ratio, alpha=alpha).dimensions[0, 0]
    assert found == exact_dimensions(12, 0.3, ratio, alpha, 10)


def test_the_diagram_of_data_agrees_with_dense_ribbons(rng, digits):
    X, y = digits[0][:150], digits[1][:150]
    ratios, steps = [0.5, 2.0, 8.0, 30.0, 100.0], [1, 5, 40, 300, 3000]
    top = np.linalg.eigvalsh(X @ X.T / len(X))[-1]
    rates = np.array([0.3, 1.2]) / top
    diagram = phase_diagram(data=(X, y), steps=steps, ratio=ratios, alpha=rates)
    assert diagram.axis == "alpha" and diagram.dimensions.shape == (5, 2, 5)
    scale = np.sqrt((y @ y) / np.trace(X @ X.T / len(X)) / len(X))
    for r, a, t in np.ndindex(diagram.dimensions.shape):
        ribbon = Ribbon.from_data(X, y, scale / ratios[r], rates[a], steps[t])
        assert diagram.dimensions[r, a, t] == dimensions_of(np.linalg.eigvalsh(ribbon.P))
    kernel = phase_diagram(kernel=X @ X.T, targets=y, steps=steps, ratio=ratios, alpha=rates)
    np.testing.assert_array_equal(kernel.dimensions, diagram.dimensions)


def test_the_diagram_over_numbers_of_samples_takes_the_first_rows(digits):
    X, y = digits
    diagram = phase_diagram(data=(X, y), steps=[10, 100], ratio=3.0, samples=[50, 100])
    for row, m in enumerate((50, 100)):
        one = phase_diagram(data=(X[:m], y[:m]), steps=[10, 100], ratio=3.0)
        np.testing.assert_array_equal(diagram.dimensions[row], one.dimensions[0])


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"ratio": 3.0}, "exactly one"),
        ({"slopes": [0.1], "ratio": 3.0}, "n=None"),
        ({"spectrum": [1.0, 0.5], "ratio": 0.0}, "ratio=.*positive"),
        ({"spectrum": [1.0, 0.5], "alpha": 2.5}, "2/λ₁ = 2"),
        ({"spectrum": [1.0, 0.5], "targets": [0.0, 0.0]}, "all zero"),
        ({"data": np.eye(3), "samples": [4]}, "samples"),
        ({"n": 5, "slopes": [0.1], "alpha": [0.1, 0.2]}, "slopes on that axis"),
    ],
)
def test_arguments_of_diagrams_that_cannot_be_are_named(arguments, match):
    with pytest.raises(ArgumentError, match=match):
        phase_diagram(**arguments)


def test_pinching_bounds_certify_the_count_of_any_sum_of_a_diagonal_and_a_coupling(rng):
    for _ in range(50):
        n = int(rng.integers(3, 40))
        D = rng.exponential(size=n) * rng.choice([0.01, 1.0])
        factor = rng.standard_normal((n, 3)) * np.exp(-0.5 * rng.permutation(n))[:, None]
        P = np.diag(D) + factor @ factor.T
        found = count_dimensions(
            np.diagonal(P)[None],
            lambda _, at, P=P: P[np.ix_(at[0], at[0])][None],
            0.9,
            coupled=(factor**2).sum(axis=1)[None],
            start=2,
        )
        assert found.dimensions[0] == dimensions_of(np.linalg.eigvalsh(P), 0.9)
