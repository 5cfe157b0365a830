"""A basis on disk gives the spectrum of a basis in memory."""

import numpy as np
import pytest
import torch

from hyperribbon.operators import Hessian
from hyperribbon.spectra import eigsh, plan
from hyperribbon.spectra.krylov.rows import make_rows

OUTLIERS = np.concatenate([[30.0, 21.0, 20.0, -18.0, 11.0], np.linspace(-1, 4, 395)])


class Large:
    """A diagonal operator of any size, with its leading eigenvalues known."""

    def __init__(self, size):
        self.shape, self.dtype, self.device = (size, size), torch.float32, torch.device("cpu")
        self.diagonal = torch.linspace(-1, 1, size)
        self.diagonal[:3] = torch.tensor([50.0, 40.0, 30.0])

    def __matmul__(self, block):
        return self.diagonal * block if block.ndim == 1 else self.diagonal[:, None] * block


@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_disk_and_memory_agree_to_the_last_digit_of_the_residuals(operator_of, storage):
    spectrum = eigsh(operator_of(OUTLIERS), 4, "LM", tol=1e-9, storage=storage, basis=24)
    np.testing.assert_allclose(spectrum.eigenvalues, [30, 21, 20, -18], rtol=1e-9)
    assert bool(spectrum.converged.all())


@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_rows_do_what_their_matrix_does(storage, monkeypatch):
    monkeypatch.setattr("hyperribbon.spectra.krylov.rows._PIECE", 7)
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(5, 23, generator=generator, dtype=torch.float64)
    rows = make_rows(storage, 6, 23, torch.float64, torch.device("cpu"))
    rows.write(0, X[:2])
    rows.write(2, X[2:])
    assert torch.equal(rows.read(slice(1, 3), slice(4, 9)), X[1:3, 4:9])
    torch.testing.assert_close(rows.combine(X[:2, :4], start=1), X[:2, :4] @ X[1:])
    torch.testing.assert_close(rows.inner(4, X[4:]), X[:4] @ X[4])
    weights = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    rows.compress(weights)
    torch.testing.assert_close(rows.read(slice(0, 3)), weights @ X)


def test_storage_is_chosen_by_the_memory():
    op = Large(1_000_000)
    assert plan(op, 3, memory=8e9).best.storage == "memory"
    short = plan(op, 3, memory=4.8e7)
    assert (short.best.method, short.best.storage) == ("lanczos", "disk")
    assert short.best.memory <= 6e7
    assert short.best.disk >= short.best.basis * 4_000_000
    assert "lanczos, disk" in str(short)


def test_eigsh_stays_on_disk_when_memory_is_short():
    op = Large(300_000)
    spectrum = eigsh(op, 3, memory=2.5e7)
    np.testing.assert_allclose(spectrum.eigenvalues, [50, 40, 30], rtol=1e-6)
    assert bool(spectrum.converged.all())


def test_every_storage_gives_the_spectrum_of_a_transformer():
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(4, 2, dim_feedforward=6, dropout=0.0, batch_first=True)
    model = torch.nn.Sequential(layer, torch.nn.Flatten(), torch.nn.Linear(16, 3)).double().eval()
    inputs, targets = torch.randn(12, 4, 4, dtype=torch.float64), torch.arange(12) % 3
    H = Hessian(model, torch.nn.CrossEntropyLoss(), (inputs, targets))

    def risk(vector):
        weights = H.space.unflatten(vector)
        outputs = torch.func.functional_call(model, weights, (inputs,))
        return torch.nn.functional.cross_entropy(outputs, targets)

    weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        reference = torch.autograd.functional.hessian(risk, weights)
    reference = torch.linalg.eigvalsh(reference).flip(0)[:3]
    for storage in ("memory", "disk"):
        found = eigsh(H, 3, tol=1e-8, method="lanczos", storage=storage, basis=30)
        assert found.converged.all()
        torch.testing.assert_close(found.eigenvalues, reference, rtol=1e-9, atol=0)
