"""Memory of modes, of any kind: autoregressive spectra and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.fft import irfft, rfft
from scipy.fft import next_fast_len
from scipy.signal import lfilter
from scipy.stats import kurtosis

_ROUNDS = 2  # of the correction for what a mean or lines have taken off


@dataclass(frozen=True)
class Memory:
    """Autocorrelations (memory) of modes, from AR(p) processes fitted to each.

    Attributes:
        spectra: (k, f), power at equally spaced frequencies from 0 to ½ per moment, of mean one.
        kept: (k,), part of the variance that is left beside a mean, or lines of windows.
        filters: (k, p + 1), that turn each mode into its innovations.
        deviations: (n, k), the modes.
    """

    spectra: np.ndarray
    kept: np.ndarray
    filters: np.ndarray
    deviations: np.ndarray

    @property
    def kurtosis(self) -> np.ndarray:
        """Memory of each mode: excess kurtosis (k,) of the innovations, at least zero."""
        pairs = zip(self.filters, self.deviations.T, strict=True)
        start = self.filters.shape[1] - 1
        return np.maximum(kurtosis([lfilter(a, [1.0], x)[start:] for a, x in pairs], axis=1), 0.0)

    @property
    def integrated(self) -> np.ndarray:
        """Memory of each mode: integrated autocorrelation times Σρ (k,), over all lags."""
        return self.spectra[:, 0]

    @property
    def squared(self) -> np.ndarray:
        """Squared memory Σρ² (k,): a variance of n moments has relative variance 2 Σρ²/n."""
        return np.diag(self.products())

    @property
    def times(self) -> np.ndarray:
        """Memory of a mode: moments (k,) in which it decorrelates, max(Σρ, 2 Σρ² − 1, 1).

        Both are about twice the relaxation time of a mode that relaxes; the second is that of the
        envelope where a mode oscillates and Σρ cancels.
        """
        return np.maximum(np.maximum(self.integrated, 2 * self.squared - 1), 1.0)

    def products(self) -> np.ndarray:
        """Return the modes' memory Σ ρ_i ρ_j over all lags (k, k)."""
        ends = np.ones(self.spectra.shape[1])
        ends[[0, -1]] = 0.5
        return (self.spectra * ends) @ self.spectra.T / ends.sum()


def remove_lines(block: np.ndarray, window: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return windows (w, m, P) less mean and slope, whose memory is fitted, with both."""
    windows = block.reshape(-1, window, block.shape[1])
    centered = windows - windows.mean(axis=1, keepdims=True)
    line = np.arange(window) - (window - 1) / 2
    return centered, np.einsum("m,wmp->wp", line, centered) / np.sum(line**2), line


def fit_memory(deviations: np.ndarray, window: int, *, lines: bool) -> Memory:
    """Fit the memory of each mode as AR(p), its order by Akaike's criterion.

    A mean or a line that is taken off takes Σ uᵀKu/m of every autocovariance with it, with the unit
    vectors u of a constant and a line over the m moments of a window and the mode's own
    autocovariance K. It is added again, in a few rounds since K is that of the fit.

    Args:
        deviations: (n, k), of each mode from the mean, or the line, of its window.
        window: Moments m of a window; all n for one mean.
        lines: Whether lines were taken off, else means.

    Returns:
        The spectra of the modes (k, f), and what a mean or lines leave of their variance.
    """
    n, k = deviations.shape
    pieces = deviations.reshape(-1, window, k)
    length = int(next_fast_len(2 * window, real=True) or 2 * window)
    power = (abs(rfft(pieces, length, axis=1)) ** 2).sum(axis=0)
    highest = min(window // 4, int(10 * np.log10(n)))
    measured = irfft(power, length, axis=0)[: highest + 1].T
    measured = measured / measured[:, :1]
    shapes = [np.ones(window), np.arange(window) - (window - 1) / 2][: 1 + lines]
    overlap = np.zeros(window)
    for shape in shapes:
        power = abs(rfft(shape / np.linalg.norm(shape), length)) ** 2
        overlap += irfft(power, length)[:window] / window
    overlap[1:] *= 2
    grid = int(next_fast_len(window, real=True) or window)
    lags = grid // 2
    share = np.zeros((k, 1))
    for _ in range(_ROUNDS):
        filters = _levinson((1 - share) * measured + share, n)
        spectra = 1 / abs(rfft(filters, grid)) ** 2
        own = irfft(spectra, grid)
        spectra = spectra / own[:, :1]
        share = np.clip(own[:, :lags] @ overlap[:lags] / own[:, 0], 0.0, 0.9)[:, None]
    kept = (1 - share[:, 0]) / (1 - len(shapes) / window)
    return Memory(spectra, kept, filters, deviations)


def _levinson(correlation: np.ndarray, samples: int) -> np.ndarray:
    """Return a mode's memory as prediction filters (k, p + 1), by Akaike's criterion."""
    k, count = correlation.shape
    a = np.zeros((k, count))
    a[:, 0] = 1.0
    error = np.ones(k)
    best, lowest = a.copy(), np.zeros(k)
    for order in range(1, count):
        ahead = np.einsum("kp,kp->k", a[:, :order], correlation[:, order:0:-1])
        reflection = np.clip(-ahead / error, -1 + 1 / samples, 1 - 1 / samples)
        a[:, 1 : order + 1] += reflection[:, None] * a[:, order - 1 :: -1][:, :order]
        error = error * (1 - reflection**2)
        criterion = samples * np.log(error) + 2 * order
        better = criterion < lowest
        best[better], lowest[better] = a[better], criterion[better]
    return best
