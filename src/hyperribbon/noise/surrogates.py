"""Surrogate time series with the variances and autocorrelation times of measured modes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.signal import lfilter

from hyperribbon.noise.stationarity import autocorrelation_time

_ROUNDS = 3  # of the iteration that matches a surrogate
_DRAWS = 6  # a round


@dataclass(frozen=True)
class Surrogate:
    """Independent modes x(t+1) = ρ x(t) + noise, with integrated times (1 + ρ)/(1 − ρ).

    Attributes:
        variances: (k,).
        times: (k,), at least one.
    """

    variances: np.ndarray
    times: np.ndarray

    def draw(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Return a stationary series (count, k)."""
        memory = (self.times - 1) / (self.times + 1)
        noise = rng.normal(size=(count, len(memory)))
        noise[1:] *= np.sqrt(1 - memory**2)
        series = np.empty_like(noise)
        for mode, rho in enumerate(memory):
            series[:, mode] = lfilter([1.0], [1.0, -rho], noise[:, mode])
        return series * np.sqrt(self.variances)


def remove_lines(block: np.ndarray, window: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return windows (w, m, P) less their means, their slopes (w, P), and centred time (m,)."""
    windows = block.reshape(-1, window, block.shape[1])
    centered = windows - windows.mean(axis=1, keepdims=True)
    line = np.arange(window) - (window - 1) / 2
    return centered, np.einsum("m,wmp->wp", line, centered) / np.sum(line**2), line


def principal(series: np.ndarray, window: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return variances (k,), modes (k, k) and deviations along them (n, k), as measured.

    About the mean, or about a straight line through each window; from the largest variance down.
    """
    count = len(series)
    if window is None:
        deviations, freedom = series - series.mean(axis=0), count - 1
    else:
        centered, slopes, line = remove_lines(series, window)
        deviations = (centered - slopes[:, None, :] * line[:, None]).reshape(series.shape)
        freedom = count - 2 * (count // window)
    values, modes = np.linalg.eigh(deviations.T @ deviations / freedom)
    values, modes = np.maximum(values[::-1], 0.0), modes[:, ::-1]
    return values, modes, deviations @ modes


def kept_share(times: np.ndarray, count: int, window: int | None) -> np.ndarray:
    """Return the part (k,) of a mode's variance that is left beside its mean, or lines of windows.

    With ρ of `Surrogate`, K_ij = ρ^|i−j| and the unit vectors u of a constant and a line over the m
    moments of a window, it is 1 − Σ uᵀKu/m, over what is left of moments without memory.

    Args:
        times: Integrated autocorrelation times (k,).
        count: Moments.
        window: Moments of a window; None for the mean of all.
    """
    size = count if window is None else window
    moments = np.arange(size)
    shapes = [np.ones(size)] if window is None else [np.ones(size), moments - (size - 1) / 2]
    memory = (times - 1) / (times + 1)
    powers = memory[:, None] ** moments
    powers[:, 1:] *= 2
    lost = np.zeros(len(times))
    for shape in shapes:
        spectrum = np.fft.rfft(shape / np.linalg.norm(shape), 2 * size)
        lost += powers @ np.fft.irfft(abs(spectrum) ** 2)[:size] / size
    return (1 - lost) / (1 - len(shapes) / size)


def match_surrogate(
    variances: np.ndarray,
    times: np.ndarray,
    count: int,
    window: int | None,
    rng: np.random.Generator,
) -> Surrogate:
    """Return the surrogate whose series, measured in the same way, show given numbers on average.

    What is measured is not what is: a mean or a line that is taken off takes variance and memory
    with it, most of both where fluctuations are slow; and principal modes of few samples spread
    variances. So variances and times of the surrogate are changed until what is measured of it
    agrees, mode by mode.

    Args:
        variances: (k,), measured, descending and positive.
        times: (k,), measured integrated autocorrelation times along the same modes.
        count: Moments behind them.
        window: Moments of a window, or None.
        rng: Randomness.
    """
    found = Surrogate(variances.copy(), np.maximum(times, 1.0))
    for _ in range(_ROUNDS):
        seen = [_measure(found.draw(count, rng), window) for _ in range(_DRAWS)]
        own, memory = (np.exp(np.mean(np.log(part), axis=0)) for part in zip(*seen, strict=True))
        found = Surrogate(
            np.clip(found.variances * variances / own, variances / 30, variances * 30),
            np.clip(found.times * np.maximum(times, 1.0) / memory, 1.0, count),
        )
    return found


def _measure(series: np.ndarray, window: int | None) -> tuple[np.ndarray, np.ndarray]:
    values, _, along = principal(series, window)
    return np.maximum(values, 1e-14 * values[0]), autocorrelation_time(along)
