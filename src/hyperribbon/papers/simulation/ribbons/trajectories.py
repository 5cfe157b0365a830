"""Trajectories of linear models trained for real, and the PCA matrix P(N, T) of their points."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from hyperribbon.core import numpy_generator
from hyperribbon.core.data import sloppy_inputs
from hyperribbon.theory.ribbons import Ribbon


def fixed_problem(item: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray, Ribbon]:
    """Return the problem of simulated trajectories: sloppy inputs X, targets y and their ribbon.

    The targets have the typical size in every eigendirection, yᵢ = σ*√λᵢ (times √n in the basis of
    the samples), so that nothing depends on one draw of the true weights.
    """
    samples, dimensions = item["samples"], item["dimensions"]
    inputs, _ = sloppy_inputs(samples, dimensions, item["slope"], item["inputs_seed"])
    scales = {name: item[name] for name in ("sigma_star", "sigma_w", "alpha")}
    ribbon = Ribbon.exponential(samples, item["slope"], steps=max(item["steps"]), **scales)
    eigenvectors = np.linalg.svd(inputs, full_matrices=False)[0]
    return inputs, np.sqrt(samples) * eigenvectors @ ribbon.targets, ribbon


def moments_of_training(item: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Simulate trajectories: train a batch of linear models and sum up their points.

    Args:
        item: samples, dimensions, slope, sigma_star, sigma_w, alpha, steps (training times to
            report), initialisations, inputs_seed, seed; optionally batch_size (SGD with
            replacement) and weight_decay.

    Returns:
        For each training time T: "second" (t, n, n), Σ r rᵀ over models and the first T points, and
        "first" (t, n), Σ r, of residuals divided by √n.
    """
    inputs, y, _ = fixed_problem(item)
    samples, dimensions = inputs.shape
    rng = numpy_generator(item["seed"])
    count, alpha = item["initialisations"], item["alpha"]
    weights = item["sigma_w"] * rng.standard_normal((count, dimensions))
    decay = item.get("weight_decay", 0.0)
    second, first = np.zeros((samples, samples)), np.zeros(samples)
    seconds, firsts = [], []
    for step in range(1, max(item["steps"]) + 1):
        residuals = weights @ inputs.T - y
        second += residuals.T @ residuals / samples
        first += residuals.sum(axis=0) / np.sqrt(samples)
        if step in item["steps"]:
            seconds.append(second.copy())
            firsts.append(first.copy())
        if item.get("batch_size"):
            # Every residual counts as often as a batch drawn with replacement holds its sample.
            batch, even = item["batch_size"], np.full(samples, 1 / samples)
            counts = rng.multinomial(batch, even, size=len(residuals))
            residuals = residuals * counts * (samples / batch)
        weights -= alpha * (residuals @ inputs / samples + decay * weights)
    return {"second": np.array(seconds), "first": np.array(firsts)}


def pca_spectra(
    batches: list[dict[str, np.ndarray]], initialisations: int, steps: tuple[int, ...]
) -> np.ndarray:
    """Return the eigenvalues of P(N, T) of simulated trajectories, descending: (t, n).

    Implements Eq. (3) of [ribbons].
    """
    spectra = []
    for index, time in enumerate(steps):
        points = initialisations * len(batches) * time
        second = sum(np.asarray(batch["second"][index]) for batch in batches) / points
        mean = sum(np.asarray(batch["first"][index]) for batch in batches) / points
        spectra.append(np.linalg.eigvalsh(second - np.outer(mean, mean))[::-1])
    return np.array(spectra)


def projected_variances(
    item: Mapping[str, Any], moments: Mapping[str, np.ndarray], time: int = -1
) -> np.ndarray:
    """Return second moments of simulated trajectories along theory's eigenvectors, over theory.

        vᵢᵀ P̂₁ vᵢ / λᵢ,   P₁ vᵢ = λᵢ vᵢ,

    has mean one for any number of models, unlike a ratio of eigenvalues, which repel each other.

    Args:
        item: The problem, as for `moments_of_training`.
        moments: What that returned.
        time: Which of the item's training times.
    """
    inputs, _, ribbon = fixed_problem(item)
    steps = item["steps"][time]
    values, vectors = np.linalg.eigh(dataclasses.replace(ribbon, steps=steps).P1)
    along = np.linalg.svd(inputs, full_matrices=False)[0] @ vectors
    second = np.asarray(moments["second"][time]) / (item["initialisations"] * steps)
    return (np.einsum("ia,ij,ja->a", along, second, along) / values)[::-1]
