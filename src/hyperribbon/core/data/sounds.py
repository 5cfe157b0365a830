"""Recordings as spectrograms: WAV files, one folder per class."""

from __future__ import annotations

import warnings
from collections import Counter
from math import gcd
from pathlib import Path

import numpy as np

from hyperribbon.core.checks import ArgumentError

_WINDOW = 0.032  # seconds of a Hann window of the spectrogram; successive ones overlap by half
_DECIBELS = 80.0  # range of a logarithmic spectrogram below the largest power of the data set


def list_recordings(folder: Path) -> list[tuple[Path, int]]:
    """Return the sound recordings (WAV files) in the classes' folders, with their class numbers.

    Raises:
        ArgumentError: The folder does not exist, or has no WAV file in its subfolders.
    """
    for place in (folder / "sounds", folder):
        if not place.is_dir():
            continue
        kinds = [
            sorted(p for p in kind.iterdir() if _is_wav(p))
            for kind in sorted(place.iterdir())
            if kind.is_dir() and not kind.name.startswith(".")
        ]
        found = [(path, label) for label, paths in enumerate(filter(None, kinds)) for path in paths]
        if found:
            return found
    reason = "it has no folder with WAV files" if folder.is_dir() else "the folder does not exist"
    raise ArgumentError("folder", str(folder), reason, "Give a folder with one folder per class.")


def _is_wav(path: Path) -> bool:
    return path.suffix.lower() == ".wav" and not path.name.startswith(".") and path.is_file()


def read_wav(path: Path) -> tuple[np.ndarray, int]:
    """Return a sound recording in [−1, 1], mean of its channels, and its sample rate.

    Args:
        path: WAV file of 8, 16, 24 or 32 bits, or of floating-point numbers.

    Raises:
        ArgumentError: The file is damaged or of another format.
    """
    import scipy.io.wavfile

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", scipy.io.wavfile.WavFileWarning)  # unknown chunks
            rate, samples = scipy.io.wavfile.read(path)
    except Exception as error:  # struct.error, ValueError, EOFError and others, by what is broken
        reason = (
            f"it cannot be read as a WAV file ({error})" if path.stat().st_size else "it is empty"
        )
        raise ArgumentError("file", str(path), reason, "Remove it, or convert it to PCM.") from None
    wave = samples.astype(np.float64)
    if samples.dtype == np.uint8:
        wave = wave / 128 - 1
    elif np.issubdtype(samples.dtype, np.integer):
        wave /= 2.0 ** (8 * samples.dtype.itemsize - 1)
    if not np.isfinite(wave).all():
        raise ArgumentError("file", str(path), "it has NaN or infinite samples", "Remove it.")
    return (wave.mean(axis=1) if wave.ndim == 2 else wave), int(rate)


def spectrograms(
    recordings: list[tuple[Path, int]], *, seconds: float = 1.0, log: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    r"""Return the spectrograms of all full segments of sound recordings, and their classes.

    $$S(f, t) = \Big|\frac{1}{\sum_s h_s}\sum_s h_s\, x_{t+s}\, e^{-2\pi i f s}\Big|^2$$

    with a Hann window h of 32 ms. Recordings with another sample rate than most are resampled to
    the most frequent one. What does not fill a segment at the end of a recording is omitted.

    Args:
        recordings: Files and classes, from `list_recordings`.
        seconds: Duration of a segment.
        log: Return 10 log₁₀ S in decibels, at most 80 below the largest, in place of S.

    Returns:
        Power (n, 1, frequencies, times), float32, and classes (n,).

    Raises:
        ArgumentError: No recording lasts as long as a segment, or a segment is too short.
    """
    import scipy.signal

    waves = [read_wav(path) for path, _ in recordings]
    rates = Counter(rate for _, rate in waves)
    rate = min(rates, key=lambda one: (-rates[one], one))
    length, window = round(seconds * rate), max(2, round(_WINDOW * rate))
    if length < window:
        reason = f"a segment must last at least one window, {window / rate:.3g} s"
        raise ArgumentError("seconds", seconds, reason, "Choose longer segments.")
    segments, labels = [np.zeros((0, length))], [np.zeros(0, dtype=np.int64)]
    for (wave, own), (_, label) in zip(waves, recordings, strict=True):
        if own != rate and len(wave):
            shared = gcd(own, rate)
            wave = scipy.signal.resample_poly(wave, rate // shared, own // shared)
        count = len(wave) // length
        segments.append(wave[: count * length].reshape(count, length))
        labels.append(np.full(count, label))
    cut = np.concatenate(segments)
    if not len(cut):
        longest = max(len(wave) / own for wave, own in waves)
        reason = f"the longest of {len(waves)} recordings lasts {longest:.3g} s"
        raise ArgumentError("seconds", seconds, reason, f"Choose at most {longest:.3g}.")
    power = scipy.signal.spectrogram(
        cut,
        rate,
        "hann",
        nperseg=window,
        noverlap=window // 2,
        detrend=False,  # pyright: ignore[reportArgumentType] - as scipy documents it
        scaling="spectrum",
    )[2]
    if log:
        top = max(float(power.max()), np.finfo(float).tiny)
        power = 10 * np.log10(np.maximum(power / top, 10 ** (-_DECIBELS / 10)) * top)
    return power[:, None].astype(np.float32), np.concatenate(labels)
