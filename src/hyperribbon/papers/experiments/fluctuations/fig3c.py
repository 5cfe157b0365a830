"""The gradient noise mixes the Hessian's modes: C in the eigenbasis of H."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import LogNorm

from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.fluctuations import _regression
from hyperribbon.theory import fluctuations as theory

TITLE = "Gradient noise in the Hessian's basis"

STATEMENTS = (
    kit.says(
        "mixing",
        "Sec. II B 2, on Fig. 3(c)",
        "The deviation is caused by the intermixing between the data eigenmodes due to the label "
        "noise [see Eq. (2.17)], as illustrated in Fig. 3(c).",
        "The noise along two Hessian modes is correlated, by 0.05 or more on average (our "
        "threshold; without mixing it is zero).",
        kit.Band.at_least(0.05, "words"),
        setting="N = 100, N/P = 0.67 as in the figure",
        needs="N = 100 and 40 data sets",
    ),
    kit.says(
        "decay",
        "Fig. 3(c), caption",
        "The magnitude of the off-diagonal entries decrease upon increasing P.",
        "The mean correlation of two modes' noise falls with P/N.",
        kit.Band.at_most(0, "printed"),
        setting="N = 100, P/N from 1.5 to 50",
        changed="2026-11-17: the exponent had to be below −0.3, which the paper does not say",
    ),
)


class Config(kit.Frozen):
    """Input dimension, ratios P/N (the first is drawn), realisations (Fig. 3(c))."""

    inputs: int = 100
    ratios: tuple[float, ...] = (1.5, 5.0, 15.0, 50.0)
    realisations: int = 40


PRESETS = kit.presets(
    Config(), smoke=Config(inputs=20, realisations=5), paper=Config(realisations=200)
)


class Result(kit.Frozen):
    """⟨|VᵀCV|⟩ at the first ratio, relative to its maximum, and the mixing at every ratio."""

    ratios: np.ndarray
    matrix: np.ndarray
    mixing: np.ndarray


def compute(config: Config, context: kit.Context) -> Result:
    """Average |VᵀCV| over data (Fig. 3(c) of [fluctuations])."""
    matrices = []
    for item in _regression.ratio_items(config, context.seed):
        total = np.zeros((config.inputs, config.inputs))
        for X, Y, _ in _regression.data_sets(item):
            V = np.linalg.eigh(theory.hessian(X))[1][:, ::-1]
            total += abs(V.T @ theory.noise_covariance(X, Y, 10) @ V)
        matrices.append(total / total.max())
    return Result(
        np.array(config.ratios), matrices[0], np.array([_off_diagonal_share(m) for m in matrices])
    )


def _off_diagonal_share(matrix: np.ndarray) -> float:
    """Return Fig. 3(c)'s off-diagonal share: r.m.s. entry over its two diagonal ones."""
    root = np.sqrt(np.diag(matrix))
    relative = matrix / np.outer(root, root)
    np.fill_diagonal(relative, 0)
    N = len(matrix)
    return float(np.sqrt(np.sum(relative**2) / (N * (N - 1))))


def plot(result: Result) -> kit.Figure:
    """Draw the matrix with a logarithmic colour range (Fig. 3(c) of [fluctuations])."""
    figure, axis = kit.new_figure(width="column", ratio=0.85)
    low = max(result.matrix.min(), 1e-4)
    image = axis.imshow(result.matrix, norm=LogNorm(low, 1), cmap=kit.SEQUENTIAL)
    axis.set(xlabel="Hessian mode", ylabel="Hessian mode", title=f"P/N = {result.ratios[0]:g}")
    figure.colorbar(image, label=r"$\langle |V^T C V| \rangle$ / maximum")
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure how modes mix, and how that falls with more samples (Fig. 3(c) of [fluctuations])."""
    slope = np.polyfit(np.log(result.ratios), np.log(result.mixing), 1)[0]
    return {
        "mixing": kit.over_seeds(
            result.mixing[0], f"mean correlation at P/N = {result.ratios[0]:g}"
        ),
        "decay": kit.over_seeds(
            slope, "exponent of the mean correlation in P/N (−1/2 for independent residuals)"
        ),
    }
