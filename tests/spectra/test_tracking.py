import numpy as np
import pytest
import torch

from hyperribbon.core.checks import ArgumentError
from hyperribbon.spectra import Tracker, eigsh, track

SIZE = 400


@pytest.fixture
def path(matrix_of, counted):
    """Twenty operators whose eigenvectors turn slowly."""
    eigenvalues = np.concatenate([[10, 8, 7, 6], np.linspace(0, 5, SIZE - 4)])
    A = matrix_of(eigenvalues)
    noise = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(0)).double()
    step = 2e-5 * (noise + noise.T)
    return [counted(A + i * step) for i in range(20)]


def test_saves_products_at_equal_residual(path):
    warm = track(path, 4, tol=1e-4)
    cold = [eigsh(op, 4, tol=1e-4, method="lanczos", certificate="full") for op in path]
    for first, second in zip(warm, cold, strict=True):
        assert first.residuals.max() <= 1.001e-4 * first.eigenvalues[0]
        torch.testing.assert_close(first.eigenvalues, second.eigenvalues, rtol=1e-5, atol=0)
    assert sum(s.matvecs for s in warm) <= 0.45 * sum(s.matvecs for s in cold)


def test_an_eigenvalue_that_grows_from_nothing_is_picked_up(matrix_of, counted):
    """Its direction is orthogonal to all that is tracked; only the scout can find it."""
    eigenvalues = np.concatenate([[10, 8, 7], np.linspace(0, 1, SIZE - 3)])
    A = matrix_of(eigenvalues)
    direction = torch.linalg.eigh(A).eigenvectors[:, 50:51]
    heights = [0] * 2 + [9] * 16
    spectra = track([counted(A + h * direction @ direction.T) for h in heights], 3, tol=1e-5)
    expected = [10, float(torch.linalg.eigvalsh(A)[50]) + 9, 8]
    np.testing.assert_allclose(spectra[-1].eigenvalues, expected, rtol=1e-5)


def test_a_function_of_weights_makes_one_operator_at_a_time(matrix_of, counted):
    A = matrix_of(np.arange(60.0))
    alive = []

    def make(scale):
        alive.append(scale)
        return counted(scale * A)

    spectra = track(make, 2, weights=[1.0, 2.0, 3.0], eigenvectors=False)
    assert alive == [1.0, 2.0, 3.0]
    for scale, spectrum in zip(alive, spectra, strict=True):
        np.testing.assert_allclose(spectrum.eigenvalues, [59 * scale, 58 * scale], rtol=1e-6)
        assert spectrum.eigenvectors is None


def test_a_tracker_goes_on_from_its_stored_state(path):
    whole = [Tracker(4)(op) for op in path[:1]] + track(path, 4)[1:]
    tracker = Tracker(4)
    first = [tracker(op) for op in path[:7]]
    other = Tracker(4)
    other.load_state_dict(tracker.state_dict())
    for found, expected in zip(first + [other(op) for op in path[7:]], whole, strict=True):
        assert torch.equal(found.eigenvalues, expected.eigenvalues)
        assert found.matvecs == expected.matvecs
    other.reset()
    assert other(path[0]).matvecs == whole[0].matvecs


@pytest.mark.parametrize("which", ["SA", "LM", "BE"])
def test_other_ends(matrix_of, counted, which):
    A = matrix_of(np.linspace(-3, 2, 80) ** 3)
    spectra = track([counted(A), counted(A * 1.001)], 3, which=which, tol=1e-7)
    dense = eigsh(A * 1.001, 3, which, method="dense")
    np.testing.assert_allclose(spectra[1].eigenvalues, dense.eigenvalues, rtol=1e-6)


def test_tiny_operators_and_none_at_all():
    spectra = track([torch.eye(2), torch.diag(torch.tensor([3.0, 4.0]))], 2)
    np.testing.assert_allclose(spectra[1].eigenvalues, [4, 3], rtol=1e-6)
    assert track([], 3) == []


@pytest.mark.parametrize(
    "arguments", [{"operators": torch.diag}, {"operators": [], "weights": [1.0]}]
)
def test_function_and_weights_go_together(arguments):
    with pytest.raises(ArgumentError, match="weights"):
        track(k=1, **arguments)


def test_sizes_must_agree():
    with pytest.raises(ArgumentError, match="size"):
        track([torch.eye(5), torch.eye(6)], 1)


def test_what_hardly_moves_takes_one_product_a_pair_and_one_to_look(path):
    still = [path[0]] * 4
    spectra = track(still, 4)
    assert [s.matvecs for s in spectra[2:]] == [4 + 1] * 2
    for spectrum in spectra[1:]:
        assert bool(spectrum.converged.all())
        torch.testing.assert_close(spectrum.eigenvalues, spectra[0].eigenvalues)


def test_an_eigenvalue_that_creeps_up_beside_what_is_tracked_is_not_missed(matrix_of, counted):
    """Each move is below the tolerance and orthogonal to the wanted vectors."""
    A = matrix_of(np.concatenate([[10, 8, 7], np.linspace(0, 1, SIZE - 3)]))
    direction = torch.linalg.eigh(A).eigenvectors[:, 50:51]
    heights = np.linspace(0, 8.5, 60)
    spectra = track([counted(A + h * direction @ direction.T) for h in heights], 3, tol=1e-3)
    expected = [10, float(torch.linalg.eigvalsh(A)[50]) + 8.5, 8]
    np.testing.assert_allclose(spectra[-1].eigenvalues, expected, rtol=1e-3)


@pytest.mark.parametrize("k", [2, 3, 5])
def test_copies_are_tracked(diagonal_of, k):
    """A chain sees one copy of an eigenvalue, whatever it starts from."""
    values = np.array([10.0, 10, 5, 5, 5, 1])
    path = [diagonal_of((1 + 0.01 * step) * values, 5_000) for step in range(4)]
    for step, spectrum in enumerate(track(path, k, tol=1e-3)):
        np.testing.assert_allclose(spectrum.eigenvalues, (1 + 0.01 * step) * values[:k], rtol=1e-3)


def test_what_comes_from_nowhere_is_found_by_the_tenth_call_at_the_latest(diagonal_of):
    """In a large space the new eigenvector has no part in what is tracked, and little in noise."""
    before, after = (np.linspace(-0.3, 0.3, 50_000) for _ in range(2))
    before[:3] = after[:3] = [10, 8, 7]
    after[25_000] = 9
    tracker = Tracker(3, tol=1e-2)
    spectra = [tracker(diagonal_of(values)) for values in [before] * 7 + [after] * 4]
    np.testing.assert_allclose(spectra[-1].eigenvalues, [10, 9, 8], rtol=1e-2)
    assert max(spectrum.matvecs for spectrum in spectra[1:-1]) <= 5
