import numpy as np
import pytest
import torch

from hyperribbon.core.checks import ArgumentError
from hyperribbon.spectra import eigsh


@pytest.fixture
def operator(factored):
    generator = torch.Generator().manual_seed(0)
    factor = torch.randn(12, 50, generator=generator, dtype=torch.float64)
    factor[10] = factor[0] + factor[1]
    factor[11] = 0
    return factored(factor)


def test_pairs_agree_with_the_large_matrix(operator):
    spectrum = eigsh(operator, 6, method="gram")
    reference = np.linalg.eigvalsh(operator.matrix.numpy())[::-1]
    np.testing.assert_allclose(spectrum.eigenvalues, reference[:6], rtol=1e-12)
    V = spectrum.eigenvectors
    true = torch.linalg.vector_norm(operator.matrix @ V - V * spectrum.eigenvalues, dim=0)
    torch.testing.assert_close(spectrum.residuals, true)
    assert spectrum.converged.all()
    assert (V.T @ V - torch.eye(6)).abs().max() < 1e-10


def test_exact_zeros_are_counted(operator):
    """The factor has rank 10, so 40 of the 50 eigenvalues are zero."""
    assert eigsh(operator, 6, method="gram").zeros == 40
    assert eigsh(operator, 10, method="gram", eigenvectors=False).zeros == 40
    whole = eigsh(operator, 50, method="gram")
    assert whole.zeros == 0
    assert int((whole.eigenvalues == 0).sum()) == 40


@pytest.mark.parametrize(("k", "which"), [(50, "LA"), (14, "LA"), (5, "SA"), (4, "BE")])
def test_eigenvectors_of_zero_are_orthonormal_and_annihilated(operator, k, which):
    spectrum = eigsh(operator, k, which, method="gram")
    V = spectrum.eigenvectors
    assert (V.T @ V - torch.eye(k)).abs().max() < 1e-10
    null = V[:, spectrum.eigenvalues == 0]
    assert null.shape[1] > 0
    assert (operator.matrix @ null).abs().max() < 1e-10


def test_eigenvalues_alone(operator):
    spectrum = eigsh(operator, 6, method="gram", eigenvectors=False)
    assert spectrum.eigenvectors is None
    assert spectrum.matvecs == 1  # that checks them all together
    full = eigsh(operator, 6, method="dense")
    torch.testing.assert_close(spectrum.eigenvalues, full.eigenvalues)


def test_auto_takes_the_gram_route_when_it_is_small(factored):
    generator = torch.Generator().manual_seed(0)
    wide = factored(torch.randn(20, 4000, generator=generator))
    assert eigsh(wide, 5).method == "gram"


def test_nan_in_the_gram_matrix(factored):
    broken = factored(torch.full((3, 5), float("nan")))
    with pytest.raises(ArgumentError, match="NaN"):
        eigsh(broken, 2, method="gram")
