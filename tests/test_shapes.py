"""The shapes that annotations say are those that functions return and results hold."""

import dataclasses

import numpy as np
import pytest
import torch

pytest.importorskip("jaxtyping", reason="make test installs it")
pytest.importorskip("beartype", reason="make test installs it")

from hyperribbon.core.spectral_results import Spectrum
from hyperribbon.spectra.products import Products
from hyperribbon.theory.linear_networks import kernel
from hyperribbon.theory.ribbons import geometric_sums
from hyperribbon.theory.ribbons.bounds import Bound


def spectrum(**changes):
    values = {name: torch.ones(2) for name in ("eigenvalues", "residuals")}
    parts = {"eigenvectors": torch.eye(3)[:, :2], "converged": torch.ones(2, dtype=torch.bool)}
    return Spectrum(**{**values, **parts, "matvecs": 0, "method": "dense", **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"residuals": torch.ones(3)},
        {"residuals": torch.ones(2, 1)},
        {"eigenvectors": torch.ones(3)},
        {"converged": torch.ones(2)},
        {"bounds": torch.ones(1)},
    ],
    ids=["other length", "other axes", "a vector for a matrix", "no booleans", "optional"],
)
def test_a_result_of_another_shape_is_noticed(changes):
    assert len(spectrum()) == 2
    with pytest.raises(TypeError, match=r"Spectrum\.\w+ is"):
        spectrum(**changes)
    with pytest.raises(TypeError, match=r"Spectrum\.\w+ is"):
        dataclasses.replace(spectrum(), **changes)


def test_bounds_are_as_many_as_truths():
    assert not Bound(np.ones(2), np.ones(2), np.zeros(2)).violations().any()
    with pytest.raises(TypeError, match=r"Bound\.lower is"):
        Bound(np.ones(2), np.ones(2), np.zeros(3))


def test_a_function_that_returns_another_shape_is_noticed(monkeypatch):
    weights, X = [np.ones((2, 3)), np.ones((1, 2))], np.eye(3)
    assert kernel.ntk(weights, X).shape == (3, 3)
    monkeypatch.setattr(np, "kron", lambda a, b: np.ones((3, 3, 3)))
    with pytest.raises(TypeError, match="return value"):
        kernel.jacobian(weights, X)


def test_methods_are_checked_too():
    products = Products(torch.eye(3))
    assert products.part(torch.ones(1, 3)).shape == (1, 3)
    with pytest.raises(TypeError, match="return value"):
        products.part(torch.ones(1, 3, 1))


def test_pairs_of_different_lengths_are_noticed(monkeypatch):
    assert geometric_sums.complements(np.full(3, 0.5), 2.0)[0].shape == (3,)
    monkeypatch.setattr(np, "expm1", lambda x: np.zeros(4))
    with pytest.raises(TypeError, match="return value"):
        geometric_sums.complements(np.full(3, 0.5), 2.0)
