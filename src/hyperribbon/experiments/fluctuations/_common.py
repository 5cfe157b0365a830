"""Tasks, simulations and measures that the figures of [fluctuations] share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hyperribbon.core import numpy_generator
from hyperribbon.experiments.kit import Item
from hyperribbon.simulation import (
    TwoLayerEnsemble,
    descend_two_layer,
    simulate_one_layer,
    simulate_two_layer,
)
from hyperribbon.theory import fluctuations as theory

__all__ = [
    "CHAINS",
    "GOOD",
    "ROUGH",
    "chosen",
    "data_of",
    "linear_network",
    "median_error",
    "ratio_items",
    "regression",
    "run_two_layer",
    "seeds",
    "simulate_fluctuations",
    "simulation_item",
    "spectral_error",
    "two_layer_ensemble",
    "unit_noise",
    "unit_weights",
]

GOOD = 0.1
"""What is read into "agrees", "good agreement" and "well described": within a tenth."""

CHAINS = ("lr", "batch_size", "steps", "chains", "seed")
"""Entries of an item that every simulation of one layer needs."""

ROUGH = 0.25
"""What is read into "reasonable", "applicable" and "essentially": within a quarter."""


def regression(
    inputs: int,
    samples: int,
    label_variance: float,
    seed: int,
    covariance: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return X (N×P), Y (P,) and the teacher u: Eq. (2.1) with σx² = 1/N and σu² = 1.

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


def data_of(item: Item) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the `regression` that an item names."""
    return regression(item["inputs"], item["samples"], item["label_variance"], item["seed"])


def chosen(item: Item, *names: str) -> dict[str, Any]:
    """Return those entries of an item that are there."""
    return {name: item[name] for name in names if name in item}


def unit_noise(inputs: int, batch_size: int, label_variance: float) -> float:
    """Return σx²σε²/S, the unit of gradient-noise spectra in the figures."""
    return label_variance / (inputs * batch_size)


def unit_weights(lr: float, batch_size: int, variance: float) -> float:
    """Return λσ²/(2S), the unit of weight spectra in the figures."""
    return theory.isotropic_variance(lr, variance, batch_size)


def simulation_item(config: Any, seed: int, **changes: Any) -> dict[str, Any]:
    """Return the item of `simulate_fluctuations` from a figure's Config.

    Args:
        config: Fields of the same name are taken over, unless they are tuples.
        seed: Names the realisation.
        **changes: Values that differ from the Config or are not in it.
    """
    names = ("inputs", "samples", "label_variance", *CHAINS, "burn_in", "anneal")
    given = {name: getattr(config, name) for name in names if hasattr(config, name)}
    plain = {name: value for name, value in given.items() if not isinstance(value, tuple)}
    return {**plain, **changes, "seed": seed}


def ratio_items(config: Any, seed: int) -> list[dict[str, Any]]:
    """Return an item for each ratio P/N of a Config: closed forms averaged over realisations."""
    return [
        {
            "inputs": config.inputs,
            "samples": round(ratio * config.inputs),
            "realisations": config.realisations,
            "seed": seed,
        }
        for ratio in config.ratios
    ]


def seeds(seed: int, count: int) -> list[int]:
    """Return the seeds of `count` independent realisations."""
    return [int(s) for s in numpy_generator(seed, "realisations").integers(2**31, size=count)]


def median_error(values: np.ndarray) -> float:
    """Return the standard error of the median, from resampled sets of the values (n,)."""
    draws = np.random.default_rng(0).choice(values, (500, len(values)))
    return float(np.median(draws, axis=1).std())


def simulate_fluctuations(item: Item) -> dict[str, Any]:
    """Simulate SGD on one realisation; return the measured moments beside the closed forms.

    The item holds inputs, samples, label_variance, lr, batch_size, steps, chains, seed, and
    optionally burn_in, anneal, every, sampling, measure_noise.
    """
    X, Y, _ = data_of(item)
    lr, size = item["lr"], item["batch_size"]
    further = chosen(item, "burn_in", "anneal", "every", "sampling", "measure_noise")
    stats = simulate_one_layer(X, Y, **chosen(item, *CHAINS), **further)
    H, C = theory.hessian(X), theory.noise_covariance(X, Y, size)
    measured = ("covariance", "noise_covariance", "variance", "variance_error", "burn_in")
    return {
        **{name: getattr(stats, name) for name in measured},
        "theory": theory.stationary_covariance(H, C, lr),
        "discrete": theory.discrete_covariance(X, Y, lr, size),
        "theory_noise": C,
        "hessian": H,
    }


def spectral_error(measured: np.ndarray, expected: np.ndarray) -> float:
    """Return the mean relative difference of two matrices' ordered eigenvalues."""
    values, reference = np.linalg.eigvalsh(measured), np.linalg.eigvalsh(expected)
    return float(np.mean(abs(values - reference) / reference))


def linear_network(item: Item) -> tuple[np.ndarray, ...]:
    """Return X, Y, W1, W2 at the end of gradient descent, for targets that are pure noise.

    The item holds inputs, hidden, samples, target_variance, init1, init2 (the variances of the
    initial weights times N_i and N_h) and seed.
    """
    N_i, N_h, P = item["inputs"], item["hidden"], item["samples"]
    rng = numpy_generator(item["seed"], "two layers", N_i, N_h, P)
    X = rng.normal(size=(N_i, P)) / np.sqrt(N_i)
    Y = np.sqrt(item["target_variance"]) * rng.normal(size=(1, P))
    W1 = np.sqrt(item["init1"] / N_i) * rng.normal(size=(N_h, N_i))
    W2 = np.sqrt(item["init2"] / N_h) * rng.normal(size=(1, N_h))
    return X, Y, *descend_two_layer(X, Y, W1, W2, lr=0.5, tol=1e-8)


def run_two_layer(item: Item, network: Sequence[np.ndarray], record: Any) -> TwoLayerEnsemble:
    """Run chains from a `linear_network` and record them at some steps.

    The item also holds lr, batch_size, chains, dynamics and chain_seed.
    """
    options = chosen(item, "lr", "batch_size", "chains", "dynamics")
    return simulate_two_layer(*network, record=record, seed=item["chain_seed"], **options)


def two_layer_ensemble(item: Item) -> dict[str, Any]:
    """Simulate an ensemble of chains from the gradient-descent solution of `linear_network`.

    Returns the weights of all chains after the item's steps beside the solution, and the variance
    of the targets that the solution leaves unexplained.
    """
    X, Y, W1, W2 = linear_network(item)
    ensemble = run_two_layer(item, (X, Y, W1, W2), [item["steps"]])
    return {
        "W1": W1,
        "W2": W2,
        "chains1": ensemble.W1[0],
        "chains2": ensemble.W2[0],
        "unexplained": float(np.mean((Y - W2 @ W1 @ X) ** 2)),
    }
