"""Linear regression by SGD, on which the figures of one-layer networks rest: data and chains."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hyperribbon.core import numpy_generator
from hyperribbon.papers.experiments import kit
from hyperribbon.papers.simulation import simulate_one_layer
from hyperribbon.theory import fluctuations as theory

CHAINS = ("lr", "batch_size", "steps", "chains", "seed")
"""Entries of an item that every simulation of one layer needs."""


class SimulationConfig(kit.Frozen):
    """Settings of simulated SGD on linear regression, any names that `item` knows."""

    def item(self, seed: int, **changes: Any) -> dict[str, Any]:
        """Return an item of `simulate_fluctuations`: which regression, and how to train.

        Args:
            seed: Names the realisation.
            **changes: Values that differ from the settings or are not among them.
        """
        names = ("inputs", "samples", "label_variance", *CHAINS, "burn_in", "anneal")
        given = select(vars(self), *names)
        plain = {name: value for name, value in given.items() if not isinstance(value, tuple)}
        return {**plain, **changes, "seed": seed}


class RegressionConfig(SimulationConfig):
    """Label noise, learning rate and batch of most figures."""

    label_variance: float = 0.01
    lr: float = 0.1
    batch_size: int = 10


def select(item: kit.Item, *names: str) -> dict[str, Any]:
    """Return the entries of a regression's item that have one of these names."""
    return {name: item[name] for name in names if name in item}


def seeds(seed: int, count: int) -> list[int]:
    """Return the seeds of `count` independent regressions."""
    return [int(s) for s in numpy_generator(seed, "realisations").integers(2**31, size=count)]


def regression(
    inputs: int,
    samples: int,
    label_variance: float,
    seed: int,
    covariance: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the linear regression X (N×P), Y (P,), teacher u: Eq. (2.1), σx² = 1/N, σu² = 1.

    Args:
        inputs: N.
        samples: P.
        label_variance: σε².
        seed: Names the realisation.
        covariance: Covariance of the inputs instead of 1/N.
    """
    rng = numpy_generator(seed, "regression", inputs, samples)
    X = rng.normal(size=(inputs, samples))
    X = X / np.sqrt(inputs) if covariance is None else np.linalg.cholesky(covariance) @ X
    u = rng.normal(size=inputs)
    return X, u @ X + np.sqrt(label_variance) * rng.normal(size=samples), u


def data_of(item: kit.Item) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the `regression` that an item names."""
    return regression(item["inputs"], item["samples"], item["label_variance"], item["seed"])


def data_sets(item: kit.Item) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield the item's number of realisations of its `regression`."""
    for seed in seeds(item["seed"], item["realisations"]):
        yield data_of({**item, "seed": seed})


def ratio_items(config: Any, seed: int) -> list[dict[str, Any]]:
    """Return a regression's item for each ratio P/N of a Config, with σε² = 0.01."""
    shared = {**select(vars(config), "inputs", "realisations"), "label_variance": 0.01}
    return [
        {**shared, "samples": round(ratio * config.inputs), "seed": seed} for ratio in config.ratios
    ]


def unit_noise(inputs: int, batch_size: int, label_variance: float) -> float:
    """Return σx²σε²/S, the unit of gradient-noise spectra of the one-layer regression."""
    return label_variance / (inputs * batch_size)


def simulate_fluctuations(item: kit.Item) -> dict[str, Any]:
    """Simulate SGD on one regression; return the measured moments beside the closed forms.

    The item holds inputs, samples, label_variance, lr, batch_size, steps, chains, seed, and
    optionally burn_in, anneal, every, sampling, measure_noise.
    """
    X, Y, _ = data_of(item)
    lr, size = item["lr"], item["batch_size"]
    options = select(item, *CHAINS, "burn_in", "anneal", "every", "sampling", "measure_noise")
    stats = simulate_one_layer(X, Y, **options)
    H, C = theory.hessian(X), theory.noise_covariance(X, Y, size)
    measured = ("covariance", "noise_covariance", "variance", "variance_error", "burn_in")
    return {
        **{name: getattr(stats, name) for name in measured},
        "theory": theory.lyapunov_covariance(H, C, lr),
        "discrete": theory.discrete_covariance(X, Y, lr, size),
        "theory_noise": C,
        "hessian": H,
    }


def descending_eigenvalues(matrices: Any) -> np.ndarray:
    """Return the eigenvalues of a regression's moments (..., n, n), from the largest down."""
    return np.linalg.eigvalsh(np.array(matrices))[..., ::-1]


def spectral_error(measured: np.ndarray, expected: np.ndarray) -> float:
    """Return the mean relative error of a regression's measured eigenvalues, in order."""
    values, reference = np.linalg.eigvalsh(measured), np.linalg.eigvalsh(expected)
    return float(np.mean(abs(values - reference) / reference))


def along_modes(matrix: np.ndarray, modes: np.ndarray) -> np.ndarray:
    """Return vᵀAv of a regression's matrix A along each mode v, a column of `modes`."""
    return np.einsum("nk,nm,mk->k", modes, matrix, modes)


def median_error(values: np.ndarray) -> float:
    """Return the standard error of a median over regressions, from resampled values (n,)."""
    draws = np.random.default_rng(0).choice(values, (500, len(values)))
    return float(np.median(draws, axis=1).std())
