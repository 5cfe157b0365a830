"""Operators with a known spectrum."""

import numpy as np
import pytest
import torch


class Counted:
    """A symmetric matrix that is known by its products only."""

    def __init__(self, matrix):
        self.matrix = matrix
        self.shape, self.dtype, self.device = matrix.shape, matrix.dtype, matrix.device
        self.products = 0

    def __matmul__(self, other):
        self.products += 1 if other.ndim == 1 else other.shape[1]
        return self.matrix @ other


class Diagonal:
    """A diagonal operator of any size; with few values given, the others are zero."""

    def __init__(self, values, size=None, dtype=torch.float32):
        self.entries = torch.zeros(size or len(values), dtype=dtype)
        self.entries[: len(values)] = torch.as_tensor(np.array(values, dtype=float)).to(dtype)
        self.shape = (len(self.entries), len(self.entries))
        self.dtype, self.device = dtype, torch.device("cpu")

    def __matmul__(self, block):
        return self.entries * block if block.ndim == 1 else self.entries[:, None] * block


class Factored(Counted):
    """FᵀF with its Gram matrix FFᵀ."""

    def __init__(self, factor):
        super().__init__(factor.T @ factor)
        self.factor = factor
        self.gram_size = factor.shape[0]

    def gram(self):
        return self.factor @ self.factor.T

    def lift(self, block):
        return self.factor.T @ block


def with_spectrum(eigenvalues, dtype=torch.float64, seed=0):
    """Return a random symmetric matrix with given eigenvalues."""
    rng = np.random.default_rng(seed)
    n = len(eigenvalues)
    Q = np.linalg.qr(rng.normal(size=(n, n)))[0]
    return torch.from_numpy((Q * np.asarray(eigenvalues, dtype=float)) @ Q.T).to(dtype)


@pytest.fixture
def matrix_of():
    return with_spectrum


@pytest.fixture
def operator_of():
    return lambda *arguments, **options: Counted(with_spectrum(*arguments, **options))


@pytest.fixture
def diagonal_of():
    return Diagonal


@pytest.fixture
def factored():
    return Factored


@pytest.fixture
def counted():
    return Counted


def peak_bytes(function):
    """Return what a function returns, and the most bytes of tensors it held at a time."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        result = function()
    events = profile.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    return result, int(np.cumsum([size for _, size in changes]).max())


@pytest.fixture
def peak_of():
    return peak_bytes
