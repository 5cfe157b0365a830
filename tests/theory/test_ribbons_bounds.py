import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperribbon.core.checks import ArgumentError
from hyperribbon.theory.ribbons import (
    Ribbon,
    kernels_bound,
    mean_bound,
    spectrum_bound,
    target_decay_bound,
    target_norm_bound,
    weight_bound,
    weyl_bound,
)

settings_of_ribbons = {
    "n": st.integers(2, 60),
    "slope": st.floats(0.001, 3),
    "alpha": st.floats(0.01, 1.0),
    "steps": st.integers(1, 10**7),
    "ratio": st.floats(0.01, 100),
    "seed": st.integers(0, 10**6),
}


def ribbon_of(n, slope, alpha, steps, ratio, seed, **variant):
    rng = np.random.default_rng(seed)
    return Ribbon.exponential(
        n, slope, sigma_star=ratio, alpha=alpha, steps=steps, rng=rng, **variant
    )


@pytest.mark.parametrize(
    "bound",
    [weyl_bound, mean_bound, weight_bound, target_decay_bound, target_norm_bound, spectrum_bound],
)
@settings(max_examples=150, deadline=None)
@given(**settings_of_ribbons)
def test_bounds_are_never_violated(bound, n, slope, alpha, steps, ratio, seed):
    found = bound(ribbon_of(n, slope, alpha, steps, ratio, seed))
    assert not found.violations().any()
    assert np.isfinite(found.truth).all()


@settings(max_examples=100, deadline=None)
@given(
    **settings_of_ribbons,
    batch=st.sampled_from([None, 1, 16]),
    decay=st.sampled_from([0.0, 1e-4, 0.1]),
)
def test_lemma_3_holds_for_noise_and_weight_decay(
    n, slope, alpha, steps, ratio, seed, batch, decay
):
    ribbon = ribbon_of(
        n, slope, alpha / (1 + decay), steps, ratio, seed, batch_size=batch, weight_decay=decay
    )
    assert not spectrum_bound(ribbon).violations().any()


def test_the_printed_noise_term_is_violated():
    ribbon = Ribbon.exponential(50, 0.02, sigma_w=0.01, steps=1000, batch_size=1)
    printed, verified = spectrum_bound(ribbon, "printed"), spectrum_bound(ribbon)
    assert printed.violations().any() and not verified.violations().any()
    assert (printed.truth / printed.upper).max() > 10


def test_bounds_bite():
    """A bound that is always above one would prove nothing."""
    ribbon = Ribbon.exponential(50, 0.05, sigma_star=10.0, steps=1000)
    assert target_decay_bound(ribbon).upper[-1] < 0.01
    assert spectrum_bound(ribbon).upper[20] < 0.2
    assert weight_bound(ribbon).upper[0] == pytest.approx(weight_bound(ribbon).truth[0])


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 4),
    steps=st.integers(1, 10**5),
    slope=st.floats(0.02, 1.5),
    sigma=st.floats(0.01, 3),
)
def test_kernel_bound_is_never_violated(seed, count, steps, slope, sigma):
    rng = np.random.default_rng(seed)
    n = 24
    grams = []
    for _ in range(count):
        basis = np.linalg.qr(rng.standard_normal((n, n)))[0]
        grams.append(n * (basis * np.exp(-slope * np.arange(n))) @ basis.T)
    y = np.sqrt(n) * rng.standard_normal(n)
    found = kernels_bound([(G + G.T) / 2 for G in grams], y, sigma, 1 - 1e-9, steps)
    assert not found.violations(1e-10).any()


def test_bounds_refuse_what_they_do_not_cover():
    with pytest.raises(ArgumentError, match="1/λ₁"):
        weight_bound(Ribbon.exponential(5, 0.1, alpha=1.5))
    with pytest.raises(ArgumentError, match="weight decay"):
        weyl = Ribbon.exponential(5, 0.1, alpha=0.5, weight_decay=0.1)
        target_decay_bound(weyl)
