import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.sparse.linalg import aslinearoperator

from hyperribbon.core.checks import ArgumentError
from hyperribbon.spectra import eigsh

ENDS = ("LA", "SA", "LM", "BE")
PROPERTY = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def wanted(eigenvalues, k, which):
    """Return the wanted eigenvalues in descending order, by numpy's sorting alone."""
    values = np.sort(eigenvalues)
    if which == "LA":
        chosen = values[-k:]
    elif which == "SA":
        chosen = values[:k]
    elif which == "LM":
        chosen = values[np.argsort(-np.abs(values))[:k]]
    else:
        chosen = np.concatenate([values[: k // 2], values[len(values) - (k - k // 2) :]])
    return np.sort(chosen)[::-1]


def check_pairs(spectrum, matrix, eigenvalues, k, which, tol):
    """Check eigenvalues, residuals and orthonormality against the matrix itself."""
    norm = max(np.abs(eigenvalues).max(), 1e-30)
    values, vectors = spectrum.eigenvalues.double(), spectrum.eigenvectors.double()
    found, expected = values.numpy(), wanted(eigenvalues, k, which)
    if which == "LM":  # ties in magnitude may be broken either way
        found, expected = np.sort(np.abs(found)), np.sort(np.abs(expected))
    assert np.abs(found - expected).max() <= tol * norm
    assert torch.all(values.diff() <= 0)
    true = torch.linalg.vector_norm(matrix.double() @ vectors - vectors * values, dim=0)
    eps = torch.finfo(spectrum.eigenvalues.dtype).eps
    rounding = 100 * eps * norm
    assert torch.all((true - spectrum.residuals).abs() <= rounding)
    assert torch.all(spectrum.converged)
    assert (vectors.T @ vectors - torch.eye(k)).abs().max() <= 200 * eps


eigenvalue_lists = st.one_of(
    st.lists(st.floats(-1, 1, allow_subnormal=False), min_size=1, max_size=40),
    st.lists(st.sampled_from([-3.0, -1.0, 0.0, 0.5, 2.0]), min_size=1, max_size=40),
    st.lists(st.sampled_from([0.0, 0.0, 0.0, 1.0, 1.0 + 1e-3, -0.2]), min_size=1, max_size=40),
)


@PROPERTY
@given(eigenvalues=eigenvalue_lists, data=st.data())
def test_lanczos_agrees_with_the_known_spectrum(matrix_of, counted, eigenvalues, data):
    """Repeated, clustered, zero and negative eigenvalues; every end; both precisions."""
    n = len(eigenvalues)
    k = data.draw(st.integers(1, min(n, 6)))
    which = data.draw(st.sampled_from(ENDS))
    dtype, tol = data.draw(st.sampled_from([(torch.float64, 1e-9), (torch.float32, 1e-4)]))
    matrix = matrix_of(eigenvalues, dtype)
    options = {"certificate": "full", "seed": data.draw(st.integers(0, 9))}
    spectrum = eigsh(counted(matrix), k, which, tol, "lanczos", **options)
    check_pairs(spectrum, matrix, np.array(eigenvalues), k, which, 2 * tol)


@settings(PROPERTY, max_examples=20)
@given(data=st.data())
def test_restarted_lanczos_finds_repeated_outliers(matrix_of, counted, data):
    """A basis far smaller than the space, so that thick restarts carry the work."""
    values = data.draw(st.lists(st.sampled_from([4.0, 5.0, 6.0, -5.0]), min_size=1, max_size=6))
    bulk = np.linspace(-1, 1, 80)
    eigenvalues = np.concatenate([values, bulk])
    k, which = len(values), "LM"
    matrix = matrix_of(eigenvalues)
    options = {"certificate": "full", "basis": k + 12, "seed": k}
    spectrum = eigsh(counted(matrix), k, which, 1e-8, "lanczos", **options)
    check_pairs(spectrum, matrix, eigenvalues, k, which, 1e-8)


@pytest.mark.parametrize("which", ENDS)
@pytest.mark.parametrize("method", ["dense", "lanczos"])
def test_against_scipy_on_a_random_matrix(which, method):
    A = np.random.default_rng(1).normal(size=(60, 60))
    A = A + A.T
    reference = wanted(scipy.linalg.eigh(A)[0], 7, which)
    spectrum = eigsh(A, 7, which, 1e-10, method)
    np.testing.assert_allclose(spectrum.eigenvalues, reference, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("multiplicity", [2, 3, 5])
def test_all_copies_of_the_top_eigenvalue_are_found(operator_of, multiplicity):
    eigenvalues = np.concatenate([np.full(multiplicity, 2.0), np.linspace(0, 1, 150)])
    options = {"tol": 1e-6, "method": "lanczos", "certificate": "full"}
    spectrum = eigsh(operator_of(eigenvalues), multiplicity + 1, **options)
    expected = [2.0] * multiplicity + [1.0]
    np.testing.assert_allclose(spectrum.eigenvalues, expected, atol=1e-6)


def test_the_zero_operator_and_the_identity(counted):
    zero = eigsh(counted(torch.zeros(30, 30)), 4, method="lanczos")
    one = eigsh(counted(torch.eye(30)), 4, method="lanczos")
    assert torch.equal(zero.eigenvalues, torch.zeros(4))
    torch.testing.assert_close(one.eigenvalues, torch.ones(4))
    assert one.matvecs < 30


def test_full_spectrum_by_lanczos(operator_of):
    eigenvalues = np.array([3.0, 3.0, 0.0, 0.0, 0.0, -1.0, 1e-6])
    spectrum = eigsh(operator_of(eigenvalues), 7, tol=1e-12, method="lanczos")
    np.testing.assert_allclose(spectrum.eigenvalues, np.sort(eigenvalues)[::-1], atol=1e-12)


def test_long_float32_vectors_keep_their_precision():
    """Norms of long float32 rows lose digits when they are summed in float32."""
    n = 200_000
    diagonal = np.linspace(0, 1, n).astype(np.float32)
    diagonal[:4] = [10, 8, 6, 4]
    op = aslinearoperator(scipy.sparse.diags(diagonal, dtype=np.float32))
    spectrum = eigsh(op, 4, tol=1e-5, method="lanczos")
    np.testing.assert_allclose(spectrum.eigenvalues, [10, 8, 6, 4], rtol=2e-6)


def test_tolerance_is_met_and_saves_products(operator_of):
    eigenvalues = np.concatenate([[10, 8, 6], np.linspace(0, 1, 300)])
    loose = eigsh(operator_of(eigenvalues), 3, tol=1e-2, method="lanczos")
    tight = eigsh(operator_of(eigenvalues), 3, tol=1e-8, method="lanczos")
    assert loose.residuals.max() <= 1e-2 * 10
    assert tight.residuals.max() <= 1e-8 * 10
    assert loose.matvecs < tight.matvecs


def test_products_are_counted(operator_of):
    op = operator_of(np.linspace(-1, 1, 200) ** 3)
    assert eigsh(op, 5, method="lanczos").matvecs == op.products


@pytest.mark.parametrize("kind", ["scipy", "sparse", "numpy", "tensor", "half"])
def test_any_object_with_shape_and_product(matrix_of, kind):
    matrix = matrix_of(np.concatenate([[5.0, 4.0], np.linspace(-1, 1, 40)]))
    op = {
        "scipy": lambda: aslinearoperator(matrix.numpy()),
        "sparse": lambda: scipy.sparse.csr_matrix(matrix.numpy()),
        "numpy": lambda: matrix.numpy(),
        "tensor": lambda: matrix,
        "half": lambda: matrix.to(torch.bfloat16),
    }[kind]()
    spectrum = eigsh(op, 2, tol=1e-2 if kind == "half" else 1e-6, method="lanczos")
    tolerance = 0.05 if kind == "half" else 1e-5
    np.testing.assert_allclose(spectrum.eigenvalues.double(), [5.0, 4.0], rtol=tolerance)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_curvlinops_operator_works():
    examples = pytest.importorskip("curvlinops.examples")

    A = torch.diag(torch.tensor([4.0, 3.0, 1.0, 0.5, -2.0]))
    spectrum = eigsh(examples.TensorLinearOperator(A), 2, "LM", method="lanczos")
    torch.testing.assert_close(spectrum.eigenvalues, torch.tensor([4.0, 3.0]))


def test_seed_decides_everything_and_global_state_is_untouched(operator_of):
    op = operator_of(np.linspace(0, 1, 120))
    before = torch.random.get_rng_state()
    first, second = (eigsh(op, 4, method="lanczos", seed=3) for _ in range(2))
    assert torch.equal(first.eigenvectors, second.eigenvectors)
    assert torch.equal(before, torch.random.get_rng_state())


class TestWarmStart:
    def moved(self, matrix_of, counted, change):
        eigenvalues = np.concatenate([[10, 8, 6, 5], np.linspace(0, 4, 300)])
        A = matrix_of(eigenvalues)
        noise = torch.randn(304, 304, generator=torch.Generator().manual_seed(0)).double()
        return counted(A), counted(A + change * (noise + noise.T))

    def test_saves_products_at_the_same_residual(self, matrix_of, counted):
        first, second = self.moved(matrix_of, counted, 1e-5)
        start = eigsh(first, 4, tol=1e-4, method="lanczos")
        warm = eigsh(second, 4, tol=1e-4, v0=start)
        cold = eigsh(second, 4, tol=1e-4, method="lanczos")
        assert warm.residuals.max() <= 1e-4 * 10.01
        torch.testing.assert_close(warm.eigenvalues, cold.eigenvalues, rtol=1e-6, atol=0)
        assert warm.matvecs < 0.8 * cold.matvecs

    def test_finds_an_eigenvalue_that_is_new(self, matrix_of, counted):
        """The old eigenvectors are still exact, so their residuals say nothing of the new one."""
        eigenvalues = np.concatenate([[10, 8, 6, 5], np.linspace(0, 4, 300)])
        A = matrix_of(eigenvalues)
        values, vectors = torch.linalg.eigh(A)
        middle = vectors[:, 100:101]
        start = vectors[:, -4:]
        spectrum = eigsh(counted(A + 12 * middle @ middle.T), 4, tol=1e-6, v0=start)
        expected = [float(values[100]) + 12, 10, 8, 6]
        np.testing.assert_allclose(spectrum.eigenvalues, expected, rtol=1e-6)

    @pytest.mark.parametrize("columns", [1, 2, 9])
    def test_any_number_of_columns(self, matrix_of, counted, columns):
        eigenvalues = np.concatenate([[10, 8, 6, 5], np.linspace(0, 4, 100)])
        A = matrix_of(eigenvalues)
        start = torch.randn(104, columns, generator=torch.Generator().manual_seed(1))
        spectrum = eigsh(counted(A), 4, tol=1e-6, v0=start if columns > 1 else start[:, 0])
        np.testing.assert_allclose(spectrum.eigenvalues, [10, 8, 6, 5], rtol=1e-6)

    def test_zero_vectors_are_replaced(self, operator_of):
        spectrum = eigsh(operator_of(np.arange(50.0)), 2, v0=torch.zeros(50, 2), tol=1e-6)
        np.testing.assert_allclose(spectrum.eigenvalues, [49, 48], rtol=1e-6)


class TestLimits:
    def test_running_out_of_products_is_flagged(self, operator_of):
        op = operator_of(np.linspace(0, 1, 400))
        spectrum = eigsh(op, 3, tol=1e-10, method="lanczos", max_matvecs=12)
        assert spectrum.matvecs <= 13
        assert not spectrum.converged.any()
        assert torch.all(spectrum.residuals > 0)

    def test_tolerance_below_rounding_still_ends(self, operator_of):
        eigenvalues = np.concatenate([[3.0, 2.0], np.linspace(0, 1, 60)])
        spectrum = eigsh(operator_of(eigenvalues, torch.float32), 2, tol=1e-12, method="lanczos")
        assert spectrum.matvecs < 200
        np.testing.assert_allclose(spectrum.eigenvalues, [3.0, 2.0], rtol=1e-6)


class TestErrors:
    @pytest.mark.parametrize("method", ["dense", "lanczos"])
    def test_not_symmetric(self, counted, method):
        A = torch.randn(30, 30, generator=torch.Generator().manual_seed(0))
        with pytest.raises(ArgumentError, match="not symmetric"):
            eigsh(counted(A), 2, method=method)

    def test_slightly_asymmetric_float64(self, counted, matrix_of):
        A = matrix_of(np.arange(30.0))
        A[3, 7] += 0.01
        with pytest.raises(ArgumentError, match="not symmetric"):
            eigsh(counted(A), 2, method="lanczos")

    @pytest.mark.parametrize("method", ["dense", "lanczos"])
    def test_nan(self, counted, method):
        A = torch.eye(10)
        A[3, 3] = float("nan")
        with pytest.raises(ArgumentError, match="NaN"):
            eigsh(counted(A), 2, method=method)

    def test_nan_matrix(self):
        with pytest.raises(ArgumentError, match="NaN"):
            eigsh(torch.full((3, 3), float("nan")), 1, method="dense")

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"k": 11}, "only 10 eigenvalues"),
            ({"k": 0}, "at least 1"),
            ({"k": 2.5}, "whole number"),
            ({"which": "XX"}, "'LA'"),
            ({"method": "magic"}, "'auto'"),
            ({"tol": 0}, "greater than zero"),
            ({"basis": 3, "method": "lanczos"}, "at least 4 vectors"),
            ({"max_matvecs": 1, "method": "lanczos"}, "at least 2 products"),
            ({"max_matvecs": 0, "method": "lanczos"}, "at least 1"),
            ({"method": "gram"}, "has no gram"),
            ({"v0": torch.ones(3)}, "10 coordinates"),
            ({"v0": torch.full((10,), float("nan"))}, "NaN"),
            ({"seed": -1, "method": "lanczos"}, "seed"),
        ],
    )
    def test_arguments(self, options, words):
        with pytest.raises(ArgumentError, match=words):
            eigsh(torch.eye(10), **({"k": 2} | options))

    @pytest.mark.parametrize(
        ("op", "words"),
        [
            (torch.ones(3, 4), "not square"),
            (torch.ones(3), "not square"),
            (3.0, "no .shape"),
            (torch.eye(3, dtype=torch.complex64), "complex"),
        ],
    )
    def test_operators(self, op, words):
        with pytest.raises(ArgumentError, match=words):
            eigsh(op, 1)

    def test_warm_start_without_eigenvectors(self):
        start = eigsh(torch.eye(10), 2, eigenvectors=False)
        with pytest.raises(ArgumentError, match="no eigenvectors"):
            eigsh(torch.eye(10), 2, v0=start)


def test_time_that_is_up_gives_the_best_pairs_so_far(matrix_of, counted):
    op = counted(matrix_of(np.linspace(0, 1, 300) ** 4))
    spectrum = eigsh(op, 5, method="lanczos", tol=1e-9, max_seconds=1e-9)
    assert 5 <= spectrum.matvecs <= 8
    assert len(spectrum) == 5
    assert not spectrum.converged.all()
    errors = torch.linalg.eigvalsh(op.matrix) - spectrum.eigenvalues[:, None]
    assert (errors.abs().amin(1) <= spectrum.residuals + 1e-12).all()
