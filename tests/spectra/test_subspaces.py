import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperribbon.core.checks import ArgumentError
from hyperribbon.spectra import alignment, eigsh


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 6))
def test_angles_agree_with_scipy(seed, a, b):
    rng = np.random.default_rng(seed)
    U, V = rng.normal(size=(12, a)), rng.normal(size=(12, b))
    ours = alignment(U, V)
    reference = np.sort(scipy.linalg.subspace_angles(U, V))
    np.testing.assert_allclose(ours.angles, reference, atol=1e-7)
    assert ours.overlap == pytest.approx(np.mean(np.cos(reference) ** 2))
    assert alignment(V, U).overlap == pytest.approx(ours.overlap)


def test_known_angle_between_two_lines():
    assert float(alignment(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1.0])).angles) == (
        pytest.approx(np.pi / 4)
    )


def test_any_basis_of_the_span_gives_the_same():
    rng = np.random.default_rng(0)
    U, V, mixing = rng.normal(size=(20, 3)), rng.normal(size=(20, 4)), rng.normal(size=(3, 3))
    assert alignment(U @ mixing, V).overlap == pytest.approx(alignment(U, V).overlap)


def test_extremes_and_chance():
    eye = torch.eye(10)
    assert alignment(eye[:, :3], eye[:, :5]).overlap == pytest.approx(1)
    assert alignment(eye[:, :3], eye[:, 5:]).overlap == 0
    rng = np.random.default_rng(1)
    overlaps = [
        alignment(rng.normal(size=(40, 3)), rng.normal(size=(40, 8))).overlap for _ in range(200)
    ]
    assert np.mean(overlaps) == pytest.approx(alignment(eye[:, :1], eye[:, :2]).chance, rel=0.1)


def test_spectra_can_be_compared():
    first = eigsh(torch.diag(torch.tensor([5.0, 4.0, 1.0])), 2)
    second = eigsh(torch.diag(torch.tensor([5.0, 1.0, 4.0])), 2)
    assert alignment(first, second).overlap == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("U", "words"),
    [
        (torch.ones(4, 2), "dependent"),
        (torch.ones(3, 1), "coordinates"),
        (torch.full((4, 1), float("nan")), "NaN"),
        (torch.ones(2, 4), "k ≤ P"),
        (eigsh(torch.eye(4), 1, eigenvectors=False), "no eigenvectors"),
    ],
)
def test_errors(U, words):
    with pytest.raises(ArgumentError, match=words):
        alignment(U, torch.eye(4)[:, :2])
