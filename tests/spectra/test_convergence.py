"""What a chain proves: the polynomial it stands for, and how often its proof is wrong."""

import numpy as np
import pytest
import torch

from hyperribbon.spectra import eigsh
from hyperribbon.spectra.krylov import convergence
from hyperribbon.spectra.krylov.convergence import DOUBT, Evidence, copies, tolerances
from hyperribbon.spectra.krylov.lanczos import Search
from hyperribbon.spectra.products import Products

VALUES = np.concatenate([[9.0, 7.0, -6.0], np.linspace(-1, 2, 197)])


def grown(op, start, steps, capacity=200, which="LM"):
    """Return a search that has followed the chain of a start for some steps."""
    search = Search(Products(op), 2, which, 1e-6, capacity)
    search.begin_chain(start.unsqueeze(0))
    search.rayleigh_ritz()
    for _ in range(steps):
        search.extend_chain(lambda: pytest.fail("the chain is not exhausted"))
        search.rayleigh_ritz()
    return search


@pytest.mark.parametrize("capacity", [200, 9, 5])
def test_parts_of_eigenvectors_grow_as_the_polynomial_says(diagonal_of, capacity):
    """The next vector of a chain is p(A) v, also after restarts: its entries are p(λ) v."""
    op = diagonal_of(VALUES, dtype=torch.float64)
    start = torch.randn(200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    start = start / start.norm()
    search = grown(op, start, 14, capacity)
    growth = search.evidence.growth(op.entries)
    inside = (op.entries > search.values[0]) & (op.entries < search.values[-1])
    parts = (search.basis.outside[0] / start).abs().log()
    apart = inside & (parts > -10)  # the outer parts are rounding by now: they have converged
    assert apart.sum() > 150
    assert (growth - parts)[apart].abs().max() <= 1e-10


@pytest.mark.parametrize("capacity", [200, 9])
def test_outside_what_is_seen_the_whole_basis_counts(diagonal_of, capacity):
    """There the growth is that of the eigenvector's part in all that is kept of the chain."""
    op = diagonal_of(VALUES, dtype=torch.float64)
    start = torch.randn(200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    start = start / start.norm()
    start[0] *= 1e-9  # so that the largest eigenvalue stays unseen
    search = grown(op, start, 8, capacity)
    rows = torch.cat([search.basis.vectors.read(slice(0, search.basis.size)), search.basis.outside])
    seen = rows[:, 0].norm() / start[0].abs() * start.norm()
    growth = search.evidence.growth(op.entries[:1]).item()
    assert float(search.values[-1]) < 9
    assert growth == pytest.approx(float(seen.log()), abs=1e-6)


def test_what_lies_between_the_seen_is_excluded_and_what_is_seen_is_not(diagonal_of):
    op = diagonal_of(VALUES, dtype=torch.float64)
    start = torch.randn(200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    evidence = grown(op, start, 12).evidence
    points = torch.tensor([-7.0, 5.0, 8.0, 10.0, 9.0, 7.0, -6.0, 1.0], dtype=torch.float64)
    assert evidence.excludes(points).tolist() == [True] * 4 + [False] * 4


@pytest.mark.parametrize("capacity", [200, 8])
def test_the_proof_is_wrong_as_rarely_as_it_says(diagonal_of, monkeypatch, capacity):
    """With a doubt of 0.2, the largest eigenvalue is excluded in at most a fifth of the chains.

    The share in 400 chains of four products is known to 0.02.
    """
    monkeypatch.setattr(convergence, "DOUBT", 0.2)
    op = diagonal_of([3.0, *np.linspace(-1, 1, 499)], dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    top = torch.tensor([3.0], dtype=torch.float64)
    wrong = 0
    for _ in range(400):
        start = torch.randn(500, generator=generator, dtype=torch.float64)
        wrong += bool(grown(op, start, 3, capacity).evidence.excludes(top))
    assert wrong / 400 <= 0.2 + 3 * 0.02
    assert wrong > 0


def test_an_exhausted_chain_excludes_all():
    evidence = Evidence(100)
    evidence.update(torch.zeros(1), torch.ones(1), torch.tensor(0.0))
    assert evidence.excludes(torch.tensor([0.0, 1.0])).all()


def test_a_first_step_proves_nothing():
    evidence = Evidence(10_000)
    evidence.update(torch.tensor([0.0]), torch.ones(1), torch.tensor(0.5))
    needed = 0.5 * np.sqrt(2 * 10_000 / np.pi) / DOUBT
    assert evidence.excludes(torch.tensor([0.99 * needed, 1.01 * needed])).tolist() == [False, True]


def test_tolerances_are_relative_to_the_value_or_to_a_tenth_of_the_norm():
    values = torch.tensor([-10.0, 2.0, 0.5, 0.0])
    torch.testing.assert_close(
        tolerances(values, 10.0, 1e-2), torch.tensor([0.1, 0.02, 0.01, 0.01])
    )
    torch.testing.assert_close(
        tolerances(values, 10.0, 1e-2, 5e-3), torch.tensor([0.1, 0.05, 0.05, 0.05])
    )
    torch.testing.assert_close(tolerances(values, 10.0, 1e-9, 1e-6), torch.full((4,), 1e-8))


def test_copies_count_where_they_would_change_another_value():
    values, slack = torch.tensor([1.0, 5.0, 5.0001]), torch.full((3,), 0.01)
    starts, count = copies(values, slack, "LA")
    torch.testing.assert_close(starts, values - 0.005)
    assert count.tolist() == [[False, True, True], [False] * 3, [False] * 3]


def test_bounds_hold_and_are_infinite_where_nothing_is_shown(diagonal_of):
    op = diagonal_of(VALUES)
    exact = np.sort(VALUES)[::-1]
    for method in ("dense", "lanczos"):
        spectrum = eigsh(op, 4, tol=1e-3, method=method, certificate="full")
        errors = np.abs(spectrum.eigenvalues.numpy() - exact[:4])
        assert (errors <= spectrum.bounds.numpy()).all()
        limits = 1e-3 * spectrum.eigenvalues.clamp(min=0.9) + spectrum.rounding
        assert (spectrum.bounds <= 1.001 * limits).all()
    early = eigsh(op, 4, tol=1e-3, method="lanczos", max_matvecs=4, certificate="full")
    assert torch.isinf(early.bounds).all()
    assert not early.converged.any()


def test_a_scaled_spectrum_is_that_of_the_scaled_operator(diagonal_of):
    spectrum, doubled = (
        eigsh(diagonal_of(f * VALUES), 3, method="lanczos", certificate="full") for f in (1, 2)
    )
    for name in ("eigenvalues", "residuals", "bounds"):
        found = getattr(spectrum.scaled(2.0), name)
        torch.testing.assert_close(found, getattr(doubled, name), rtol=1e-5, atol=1e-6)
