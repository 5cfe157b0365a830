"""What a chain proves: the polynomial it stands for, and how often its proof is wrong."""

import numpy as np
import pytest
import torch

from hyperribbon.spectra import eigsh
from hyperribbon.spectra.krylov import convergence
from hyperribbon.spectra.krylov.convergence import DOUBT, Evidence, copies, tolerances, wanted_ends
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
    values, slack = torch.tensor([1.0, 5.0, 5.0001], dtype=torch.float64), torch.full((3,), 0.01)
    assert copies(values, slack, "LA") == {1: pytest.approx(4.995)}
    assert copies(values[1:], slack[1:], "LA") == {}
    assert copies(values, slack, "SA") == {-1: pytest.approx(-1.005)}
    assert set(copies(torch.tensor([-3.0, -1.0, 1.0, 3.0]), torch.full((4,), 0.1), "BE")) == {1, -1}


@pytest.mark.parametrize("which", ["LA", "SA", "LM", "BE"])
def test_below_its_limit_the_rest_hides_no_wanted_eigenvalue(which):
    """By counting eigenvalues of dense matrices beside any orthonormal vectors."""
    rng = np.random.default_rng(0)
    verdicts = set()
    for _ in range(60):
        size, known, k = 12, 7, 3
        Q = np.linalg.qr(rng.normal(size=(size, size)))[0]
        spectrum = np.concatenate([rng.choice([-3, -2, 2, 3], size=4), rng.uniform(-1, 1, 8)])
        A = (Q * spectrum) @ Q.T
        tilt = np.linalg.qr(Q + 0.2 * rng.uniform() * rng.normal(size=Q.shape))[0]
        first = rng.permutation(5)[:4] if rng.uniform() < 0.5 else np.arange(4)
        V = np.linalg.qr(np.concatenate([tilt[:, first], tilt[:, -known + 4 :]], 1))[0]
        theta, S = np.linalg.eigh(V.T @ A @ V)
        V = V @ S
        U = np.linalg.qr(np.concatenate([V, np.eye(size)], 1))[0][:, known:]
        R, B = torch.from_numpy(U.T @ A @ V), U.T @ A @ U
        ritz, slack = torch.from_numpy(theta), torch.full((k,), 0.3, dtype=torch.float64)
        wanted = convergence.select(ritz, k, which)
        exact = torch.from_numpy(np.sort(spectrum))
        expected = exact[convergence.select(exact, k, which)]
        found = ritz[wanted]
        if which == "LM":
            found, expected = found.abs().sort().values, expected.abs().sort().values
        is_right = bool(((found - expected).abs() <= 0.3 + 1e-9).all())
        ends = wanted_ends(ritz, R, ritz[wanted], slack, which, {})
        added = [R @ torch.diag(end.weights) @ R.T for end in ends]
        is_shown = all(
            float(torch.linalg.eigvalsh(end.sign * torch.from_numpy(B) + more)[-1]) < end.limit
            for end, more in zip(ends, added, strict=True)
        )
        for end, more in zip(ends, added, strict=True):
            assert end.push == pytest.approx(float(torch.linalg.eigvalsh(more)[-1]))
        assert is_right or not is_shown
        verdicts.add((is_right, is_shown))
    assert (True, True) in verdicts and (False, False) in verdicts


def test_values_that_a_short_chain_gave_up_still_lie_beyond_a_limit(diagonal_of):
    """With a basis of three, a chain for both ends may keep the values of one end only."""
    search = Search(Products(diagonal_of((5.0, -9.0, 1.0), 50)), 1, "LM", 1e-2, 10)
    search.begin_chain(torch.randn(1, 50, generator=torch.Generator().manual_seed(0)))
    search.evidence.drop(torch.tensor([4.0], dtype=torch.float64))
    search.evidence.update(*(torch.tensor(v, dtype=torch.float64) for v in ([-8.0], [1.0], 1e-9)))
    assert search.evidence.top(1) == 4 and search.evidence.top(-1) == 8
    assert search._shows(1, 4.1) and not search._shows(1, 3.0)


def test_a_second_chain_with_nothing_left_to_show_ends(diagonal_of, monkeypatch):
    def shows_both_ends(search):
        search._shown, search.evidence, search.ends = {1, -1}, None, []
        return False

    monkeypatch.setattr(Search, "nothing_is_missing", shows_both_ends)
    op = diagonal_of((9.0, 8.0, -7.0, -6.0, *np.linspace(-1, 1, 200)), 1000)
    found = eigsh(op, 4, "BE", 1e-2, "lanczos", certificate="full", max_matvecs=200)
    assert found.matvecs < 60


@pytest.mark.slow
@pytest.mark.parametrize("values", [(5.0, 5.0, 4.0, 1.0), (5.0, 4.0, 4.0, 4.0, 1.0, 1.0)])
def test_a_second_chain_finds_copies_as_often_as_it_says(diagonal_of, monkeypatch, values):
    """A doubt of 0.2 lets copies stay unseen in at most a fifth of the calls."""
    monkeypatch.setattr(convergence, "DOUBT", 0.2)
    op = diagonal_of((*values, *np.linspace(-0.5, 0.5, 400)), dtype=torch.float64)
    wrong = 0
    for seed in range(60):
        spectrum = eigsh(op, 3, tol=1e-3, method="lanczos", certificate="full", seed=seed)
        exact = torch.tensor(sorted(values, reverse=True)[:3], dtype=torch.float64)
        wrong += bool(((spectrum.eigenvalues - exact).abs() > spectrum.bounds).any())
    assert wrong / 60 <= 0.2 + 3 * 0.05


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
