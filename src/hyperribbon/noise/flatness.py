"""Variance along principal modes against the flatness of the loss along them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import root_scalar

from hyperribbon.core.checks import ArgumentError, check_fraction, check_positive_int
from hyperribbon.core.generators import numpy_generator
from hyperribbon.noise.stationarity import Stationarity
from hyperribbon.noise.stationary import project
from hyperribbon.noise.weights import WeightCovariance, weight_covariance
from hyperribbon.theory import fluctuations as theory

__all__ = ["DriftWarning", "FewSamplesWarning", "VarianceFlatness", "variance_flatness"]


class FewSamplesWarning(UserWarning):
    """The exponent is inflated because its modes come from too few independent samples."""


class DriftWarning(UserWarning):
    """The mean of the weights moves, so part of their covariance is drift."""


@dataclass(frozen=True)
class VarianceFlatness:
    """Variance against flatness, mode by mode, and the exponent ψ of variance ∝ F^(−ψ).

    Attributes:
        variances: (k,), variances along the principal modes, descending.
        curvatures: (k,), vᵀHv along them; flatness is F = curvature^(−1/2).
        widths: (k,), distance between the points at which the loss has risen e-fold, if a loss was
            given; infinite where it does not.
        exponent: ψ as fitted.
        bias: Expected excess of such a fit from so few samples.
        corrected_exponent: ψ − bias.
        interval: Confidence interval of ψ, its bias removed.
        confidence: Its coverage.
        width_exponent: ψ fitted to the widths instead, or None.
        effective_samples: Independent samples behind the modes.
        too_few_samples: Whether the bias is more than a tenth of ψ, or the samples are fewer than
            ten a mode.
        stationarity: Test of the mean.
    """

    variances: np.ndarray
    curvatures: np.ndarray
    widths: np.ndarray | None
    exponent: float
    bias: float
    corrected_exponent: float
    interval: tuple[float, float]
    confidence: float
    width_exponent: float | None
    effective_samples: float
    too_few_samples: bool
    stationarity: Stationarity


def variance_flatness(
    trajectory: Any,
    curvature: Any,
    *,
    k: int | None = None,
    start: int = 0,
    params: Any = None,
    window: int | None = None,
    loss: Callable[[np.ndarray], float] | None = None,
    resamples: int = 50,
    confidence: float = 0.95,
    seed: int = 0,
    warn: bool = True,
) -> VarianceFlatness:
    """Measure the relation between fluctuations and flatness: variance ∝ F^(−ψ).

    Principal modes of few samples mix true modes, which steepens the fit. Samples drawn from the
    fitted Gaussian and analysed the same way tell by how much; their spread gives the interval.

    Args:
        trajectory: What `weight_covariance` takes, or its result.
        curvature: H of the loss at the mean weights: a matrix or an operator on the same weights.
        k: Modes used; by default all, at most 50.
        start: First record that counts.
        params: Parameters that count, for trajectories.
        window: Moments of a window, in which steady motion is removed; see `weight_covariance`.
        loss: Loss of a weight vector (P,), to measure the widths as well.
        resamples: Synthetic repetitions for bias and interval.
        confidence: Coverage of the interval.
        seed: Seed of the synthetic samples.
        warn: Whether to warn about few samples and drift.

    Raises:
        ArgumentError: Fewer than three modes have positive variance and curvature, the independent
            samples are too few for a bias, or sizes differ.

    >>> rng = np.random.default_rng(0)
    >>> H = np.diag([1.0, 2.0, 3.0, 4.0])
    >>> weights = rng.normal(size=(20_000, 4)) * np.sqrt(np.diag(H))   # variance ∝ curvature
    >>> abs(variance_flatness(weights, H).exponent - 2) < 0.1
    True
    """
    check_fraction("confidence", confidence)
    check_positive_int("resamples", resamples)
    if isinstance(trajectory, WeightCovariance):
        found = trajectory
    else:
        found = weight_covariance(trajectory, k=k, start=start, params=params, window=window)
    if tuple(curvature.shape) != (len(found.mean), len(found.mean)):
        raise ArgumentError(
            "curvature",
            tuple(curvature.shape),
            f"the trajectory has {len(found.mean)} weights",
            "Use the same parameters in both.",
        )
    H = project(curvature, found.modes)
    variances, curvatures = found.eigenvalues, np.diag(H).copy()
    exponent = theory.fit_exponent(variances, curvatures)
    draws = _resampled_exponents(variances, H, found.effective_samples, resamples, seed)
    bias = float(draws.mean() - exponent)
    tail = (1 - confidence) / 2
    low, high = 2 * exponent - np.quantile(draws, [1 - tail, tail])
    too_few = bool(abs(bias) > 0.1 * abs(exponent) or found.effective_samples < 10 * len(variances))
    widths = None if loss is None else _widths(loss, found)
    result = VarianceFlatness(
        variances,
        curvatures,
        widths,
        exponent,
        bias,
        exponent - bias,
        (float(low), float(high)),
        confidence,
        None if widths is None else _width_exponent(variances, widths),
        found.effective_samples,
        too_few,
        found.stationarity,
    )
    if warn:
        _warn(result)
    return result


def _resampled_exponents(
    variances: np.ndarray, H: np.ndarray, samples: float, resamples: int, seed: int
) -> np.ndarray:
    """Return ψ of synthetic sets of the same size drawn from the fitted Gaussian."""
    rng = numpy_generator(seed, "variance flatness")
    count = max(round(samples), 2)
    exponents = []
    for _ in range(resamples):
        draws = rng.normal(size=(count, len(variances))) * np.sqrt(variances)
        values, vectors = np.linalg.eigh(np.cov(draws.T))
        values = np.where(values > 1e-12 * values[-1], values, 0.0)
        try:
            exponents.append(
                theory.fit_exponent(values, np.einsum("ik,ij,jk->k", vectors, H, vectors))
            )
        except ArgumentError:
            continue
    if len(exponents) < resamples / 2:
        raise ArgumentError(
            "trajectory",
            f"{samples:.1f} independent samples",
            "they span too few modes to tell how far the exponent is off",
            "Record longer or further apart.",
        )
    return np.array(exponents)


def _widths(loss: Callable[[np.ndarray], float], found: WeightCovariance) -> np.ndarray:
    """Return the distance between the points on both sides where the loss is e times its value."""
    base = float(loss(found.mean))
    widths = []
    for variance, mode in zip(found.eigenvalues, found.modes.T, strict=True):

        def excess(theta: float, mode: np.ndarray = mode) -> float:
            return float(loss(found.mean + theta * mode)) - np.e * base

        sides = []
        for sign in (-1.0, 1.0):
            reach = max(float(np.sqrt(variance)), 1e-8)
            for _ in range(60):
                if excess(sign * reach) > 0:
                    break
                reach *= 2
            else:
                sides.append(np.inf)
                continue
            crossing = root_scalar(excess, bracket=(0.0, sign * reach), xtol=1e-6 * reach)
            sides.append(abs(crossing.root))
        widths.append(sum(sides))
    return np.array(widths)


def _width_exponent(variances: np.ndarray, widths: np.ndarray) -> float | None:
    known = np.isfinite(widths) & (widths > 0)
    if known.sum() < 3:
        return None
    return theory.fit_exponent(variances[known], widths[known] ** -2.0)


def _warn(result: VarianceFlatness) -> None:
    if result.too_few_samples:
        warnings.warn(
            f"ψ = {result.exponent:.2f} rests on {result.effective_samples:.0f} independent "
            f"samples for {len(result.variances)} modes and is too large by about "
            f"{result.bias:.2f}. Record more, or further apart, or use fewer modes.",
            FewSamplesWarning,
            stacklevel=3,
        )
    if not result.stationarity.stationary:
        warnings.warn(
            f"The mean of the weights moved by {result.stationarity.drift:.2f} standard deviations "
            "between the first and the last third: the covariance measures drift too. Leave the "
            "beginning out with start=, remove steady motion with window=, or train longer first.",
            DriftWarning,
            stacklevel=3,
        )
