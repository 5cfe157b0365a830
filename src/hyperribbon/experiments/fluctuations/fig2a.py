"""Variance of the entries of the projector X⁺X against the reduced number of samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core import Band, Claim
from hyperribbon.experiments.context import Context
from hyperribbon.plots.style import COLORS, new_figure
from hyperribbon.theory import fluctuations as theory

ID = "fluctuations/fig2a"
TITLE = "Variance of the projector on the data"


@dataclass(frozen=True)
class Config:
    """Input dimensions, ratios s = P/N, and realisations of each."""

    inputs: tuple[int, ...]
    ratios: tuple[float, ...]
    realisations: int


_RATIOS = (1.2, 1.5, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0, 30.0, 50.0)
PRESETS = {
    "smoke": Config((10, 20), (1.5, 2.0, 5.0, 20.0), 10),
    "laptop": Config((10, 20, 50), _RATIOS, 60),
    "paper": Config((20, 50, 100), _RATIOS, 200),
}


@dataclass(frozen=True)
class Result:
    """Measured variances (dimensions, ratios) and the exact ones, all times N."""

    inputs: list
    ratios: np.ndarray
    diagonal: np.ndarray
    off_diagonal: np.ndarray
    off_error: np.ndarray
    exact_diagonal: np.ndarray
    exact_off: np.ndarray
    window_exponent: float
    asymptotic_exponent: float


def compute(config: Config, context: Context) -> Result:
    """Sample projectors and measure the variance of their entries."""
    items = [
        {
            "inputs": N,
            "samples": round(s * N),
            "realisations": config.realisations,
            "seed": context.seed,
        }
        for N in config.inputs
        for s in config.ratios
    ]
    shape = (len(config.inputs), len(config.ratios))
    rows = np.array([list(row) for row in context.map(_variances, items)])
    scaled = rows.T.reshape(5, *shape) * np.array(config.inputs)[:, None]
    s, N = np.array(config.ratios), config.inputs[-1]
    inside = (s >= 2) & (s <= 50)
    exact = scaled[4, -1]
    far = np.log([theory.projector_variance(N, factor * N)[1] for factor in (100, 1000)])
    return Result(
        list(config.inputs),
        s,
        *scaled,
        window_exponent=float(np.polyfit(np.log(s[inside]), np.log(exact[inside]), 1)[0]),
        asymptotic_exponent=float((far[1] - far[0]) / np.log(10)),
    )


def _variances(item: Mapping[str, Any]) -> list[float]:
    N, P = item["inputs"], item["samples"]
    rng = np.random.default_rng([item["seed"], N, P])
    diagonal, off = [], []
    for _ in range(item["realisations"]):
        basis = np.linalg.qr(rng.normal(size=(P, N)))[0]
        projector = basis @ basis.T
        diagonal.append(np.mean((np.diag(projector) - N / P) ** 2))
        off.append((np.sum(projector**2) - np.sum(np.diag(projector) ** 2)) / (P * (P - 1)))
    error = np.std(off) / np.sqrt(len(off))
    return [
        float(np.mean(diagonal)),
        float(np.mean(off)),
        float(error),
        *theory.projector_variance(N, P),
    ]


def plot(result: Result) -> Figure:
    """Draw N·var against s on logarithmic axes with the exact curves."""
    figure, axis = new_figure(width="column", ratio=0.8)
    for row, N in enumerate(result.inputs):
        color = COLORS[row]
        axis.loglog(result.ratios, result.off_diagonal[row], "o", color=color, label=f"N = {N}")
        axis.loglog(result.ratios, result.diagonal[row], "s", color=color, mfc="none")
    axis.loglog(result.ratios, result.exact_off[-1], "-", color="0.3", label="exact, off-diagonal")
    axis.loglog(result.ratios, result.exact_diagonal[-1], ":", color="0.3", label="exact, diagonal")
    axis.loglog(
        result.ratios, 0.9 * result.ratios**-1.8, "--", color=COLORS[3], label="$s^{-1.8}$ (paper)"
    )
    axis.set_xlabel("reduced sample number  s = P/N")
    axis.set_ylabel(r"N · variance of entries of $X^+X$")
    axis.legend()
    return figure


def claims(result: Result) -> list[Claim]:
    """Judge the exact variance, the printed exponent, and the size of the diagonal."""
    ratio = result.off_diagonal / result.exact_off
    at = int(np.argmax(result.ratios))
    return [
        Claim.judge(
            f"{ID}/exact-variance",
            place="Fig. 2(a)",
            statement="The off-diagonal variance is N(P−N)/[P(P−1)(P+2)] (mean over all points).",
            expected=Band(0.98, 1.02, "closed form"),
            measured=ratio.mean(),
            uncertainty=np.sqrt(np.sum((result.off_error / result.exact_off) ** 2)) / ratio.size,
            why="Sampled projectors over the exact variance.",
        ),
        Claim.judge(
            f"{ID}/exponent-in-window",
            place="Fig. 2(a)",
            statement="Between s = 2 and 50 the variance falls like a power of about −1.8.",
            expected=Band(-1.85, -1.75, "paper"),
            measured=result.window_exponent,
            why="Slope of the exact off-diagonal variance over the window of the figure.",
        ),
        Claim.judge(
            f"{ID}/exponent",
            place="Fig. 2(a), Sec. II B 2",
            statement="The variance scales as s^(−1.8) for s → ∞.",
            expected=Band(-1.85, -1.75, "paper"),
            measured=result.asymptotic_exponent,
            why="The exact exponent is −2: the factor (P−N) bends the curve at small s.",
        ),
        Claim.judge(
            f"{ID}/diagonal",
            place="Sec. II B 2",
            statement="The variance is slightly larger on the diagonal (in fact twice).",
            expected=Band(1.8, 2.2, "closed form"),
            measured=float(np.mean(result.diagonal[:, at] / result.off_diagonal[:, at])),
            why="Diagonal entries are Beta distributed: exactly 2(P−1)/P times the off-diagonal.",
        ),
    ]
