"""A pair that is called converged is one that was asked for, to the accuracy that was asked for."""

from itertools import product

import numpy as np
import pytest
import torch

from hyperribbon.spectra import eigsh

ENDS = ("LA", "SA", "LM", "BE")
FEW = (246.0, 50.0, -240.0, -60.0, 20.0)
SHARES = np.random.default_rng(0).random(200)


def decaying(power, signs=(1.0,)):
    """Return a function of the size, which gives as many eigenvalues i^-power, of either sign."""

    def values(size):
        chosen = np.random.default_rng(1).choice(signs, size=size)
        return chosen / np.arange(1, size + 1.0) ** power

    return values


EMPTY = {
    "few": FEW,
    "one": (3.0,),
    "one below": (-3.0,),
    "opposite": (1.0, -1.0),
    "none": (),
    "tiny": tuple(1e-20 * value for value in FEW),
    "cluster": (1.0, 0.99999, 0.9995, 0.999, 0.997, 0.5, 0.2, -0.1),
    "copies": (5.0, 5.0, 5.0, 4.0, 4.0, -5.0, -5.0, 1.0, 1.0),
}
FULL = {
    "decay": decaying(1.5, signs=(1.0, 1.0, 1.0, -1.0)),
    "decay to zero": decaying(2.0),
    "small above large below": (3.0, -240.0, -200.0, -100.0, *-np.exp(6 * SHARES - 3)),
    "outliers below": lambda size: np.concatenate(
        [-100 - SHARES[:20], [1.0, 0.5], np.linspace(0, 0.01, size - 22)]
    ),
    "far from zero": lambda size: np.concatenate([[100, 99, 3], 1 + np.linspace(0, 0.1, size - 3)]),
}
SPECTRA = EMPTY | FULL


def make(diagonal_of, name, size, dtype=torch.float32):
    values = SPECTRA[name]
    return diagonal_of(values(size) if callable(values) else values, size, dtype)


def asked(op, k, which):
    """Return the eigenvalues that were asked for, descending, by numpy's sorting alone."""
    values = np.sort(op.entries.double().numpy())
    low = {"LA": 0, "SA": k, "BE": k // 2}.get(which)
    if low is None:
        chosen = values[np.argsort(-np.abs(values), kind="stable")[:k]]
    else:
        chosen = np.concatenate([values[:low], values[len(values) - (k - low) :]])
    return np.sort(chosen)[::-1]


def is_right(spectrum, op, which, tol):
    """Return for each pair whether it is the one that was asked for, as accurate as it says.

    That is tol relative to the eigenvalue, or to a tenth of the norm; rounding adds 20 units of it.
    """
    found = spectrum.eigenvalues.double().numpy()
    expected = asked(op, len(found), which)
    norm = float(op.entries.abs().max())
    if which == "LM":  # of opposite eigenvalues either may be listed
        found, expected = np.abs(found), np.abs(expected)
        order = np.argsort(-found, kind="stable")
        found, expected = found[order], np.sort(expected)[::-1]
    accuracy = tol * np.maximum(np.abs(expected), 0.1 * norm)
    accuracy += 20 * torch.finfo(op.dtype).eps * norm
    right = np.abs(found - expected) <= accuracy
    computed = (
        spectrum.residuals.double() - spectrum.rounding.double()
    )  # what was compared with tol
    right &= computed.numpy() <= (1 + 1e-6) * tol * norm + 1e-30
    return right


def check(op, k, which, tol, seed, **options):
    options = {"certificate": "full", "eigenvectors": False} | options
    spectrum = eigsh(op, k, which, tol, "lanczos", seed=seed, **options)
    right = is_right(spectrum, op, which, tol)
    assert right[spectrum.converged.numpy()].all(), f"seed {seed}: {spectrum.eigenvalues}"
    return spectrum


@pytest.mark.parametrize("tol", [1e-2, 1e-3])
def test_a_start_in_the_kernel_is_not_taken_for_an_eigenvector(diagonal_of, tol):
    """The image of a random vector is short in a large space, whatever the largest eigenvalue."""
    op = diagonal_of(FEW, 1_000_000)
    for seed in range(4):
        spectrum = eigsh(op, 1, tol=tol, method="lanczos", seed=seed)
        assert spectrum.eigenvalues.item() == pytest.approx(246, rel=tol)
        assert bool(spectrum.converged.all())
        assert spectrum.matvecs <= 8


@pytest.mark.parametrize("which", ENDS)
@pytest.mark.parametrize("name", SPECTRA)
def test_the_asked_end_is_found(diagonal_of, name, which):
    op = make(diagonal_of, name, 5_000)
    for k, tol in ((1, 1e-2), (1, 1e-4), (3, 1e-3)):
        spectrum = check(op, k, which, tol, seed=0)
        assert bool(spectrum.converged.all())


@pytest.mark.parametrize("which", ENDS)
@pytest.mark.parametrize("name", SPECTRA)
def test_the_outermost_eigenvalue_is_certain_by_residuals_too(diagonal_of, name, which):
    """So is the sharpness; among several, copies and members of a cluster may be missing."""
    op = make(diagonal_of, name, 5_000)
    for tol, seed in product((1e-2, 1e-3), range(3)):
        assert check(op, 1, which, tol, seed, certificate="residual").certificate == "full"
    several = eigsh(op, 3, which, 1e-3, "lanczos", certificate="residual")
    assert bool(several.converged.all())
    assert (several.certificate == "full") == bool(several.bounds.isfinite().all())


@pytest.mark.slow
@pytest.mark.parametrize("which", ENDS)
@pytest.mark.parametrize("name", SPECTRA)
def test_the_asked_end_is_found_from_fifty_starts(diagonal_of, name, which):
    op = make(diagonal_of, name, 10_000)
    for k, tol, seed in product((1, 2, 5), (1e-2, 1e-3, 1e-4), range(50)):
        check(op, k, which, tol, seed)


@pytest.mark.slow
def test_a_million_coordinates_from_fifty_starts(diagonal_of):
    op = diagonal_of(FEW, 1_000_000)
    for which, k, tol, seed in product(ENDS, (1, 5), (1e-2, 1e-4), range(50)):
        check(op, k, which, tol, seed)


@pytest.mark.parametrize("options", [{"storage": "disk"}, {"basis": 9}])
@pytest.mark.parametrize("name", ["few", "cluster", "copies", "small above large below"])
def test_wherever_and_however_short_the_basis_is(diagonal_of, name, options):
    op = make(diagonal_of, name, 10_000)
    for which in ENDS:
        spectrum = check(op, 2, which, 1e-2, 0, **options)
        assert bool(spectrum.converged.all())


class TestWarmStart:
    @pytest.mark.parametrize("wrong", [[1], [2], [900], [1, 4], [900, 901, 902]])
    @pytest.mark.parametrize("k", [1, 3])
    def test_other_eigenvectors_are_not_accepted(self, diagonal_of, wrong, k):
        op = diagonal_of(FEW, 10_000)
        start = torch.zeros(10_000, len(wrong))
        start[wrong, range(len(wrong))] = 1
        for which, tol in product(ENDS, (1e-2, 1e-4)):
            spectrum = check(op, k, which, tol, 0, v0=start)
            assert bool(spectrum.converged.all())

    def test_nearly_right_ones_are_not_either(self, diagonal_of):
        """The second eigenvector with a little of the first has a small residual, too."""
        op = diagonal_of((1.0, 0.99, *np.linspace(-0.5, 0.5, 300)), 10_000)
        start = torch.zeros(10_000)
        start[1], start[0] = 1, 1e-4
        for tol, seed in product((1e-2, 1e-3), range(5)):
            assert bool(check(op, 1, "LA", tol, seed, v0=start).converged.all())


class TestStoppedEarly:
    @pytest.mark.parametrize("k", [1, 3])
    def test_nothing_is_claimed_before_it_is_shown(self, diagonal_of, k):
        op = diagonal_of(FEW, 10_000)
        for products, seed in product(range(k, 10), range(3)):
            check(op, k, "LA", 1e-2, seed, max_matvecs=products)

    def test_what_is_shown_already_is_said(self, diagonal_of):
        """The largest comes before the others; unseen copies of it would change those only."""
        op = diagonal_of((100.0, *np.linspace(0, 1, 9_999)))
        options = {"certificate": "full", "max_matvecs": 12}
        spectrum = eigsh(op, 3, tol=1e-2, method="lanczos", **options)
        assert spectrum.converged.tolist() == [True, False, False]


def test_the_zero_operator_takes_a_product_a_pair_and_one_that_checks_them(diagonal_of):
    spectrum = eigsh(diagonal_of((), 1_000_000), 3, method="lanczos")
    assert torch.equal(spectrum.eigenvalues, torch.zeros(3))
    assert bool(spectrum.converged.all())
    assert spectrum.matvecs == 3 + 1


def test_plain_spectra_take_few_products(diagonal_of):
    outliers = diagonal_of((10.0, 9, 7, 5, 4, 3, *np.linspace(-0.3, 0.3, 9_994)))
    decay = make(diagonal_of, "decay to zero", 10_000)
    assert eigsh(outliers, 1, method="lanczos").matvecs <= 15
    assert eigsh(decay, 1, method="lanczos").matvecs <= 9
    assert eigsh(decay, 5, method="lanczos").matvecs <= 22


def test_small_eigenvalues_are_judged_by_a_tenth_of_the_norm(factored):
    """A residual of 3e-4 of the norm is small for the norm, but not for an eigenvalue of 1e-2."""
    roots = torch.tensor([10.0, 3.0, 0.1], dtype=torch.float64).sqrt()
    op = factored(torch.nn.functional.pad(torch.diag(roots), (0, 2)))
    assert bool(eigsh(op, 3, tol=1e-3, method="gram").converged.all())
    spoil = torch.eye(5, dtype=torch.float64)
    spoil[0, 2] = 3e-4
    op.lift = lambda block: spoil @ op.factor.T @ block
    rough = eigsh(op, 3, tol=1e-3, method="gram")
    torch.testing.assert_close(rough.residuals[2].item(), 3e-4 * 9.9, rtol=1e-3, atol=0)
    assert rough.converged.tolist() == [True, True, False]
