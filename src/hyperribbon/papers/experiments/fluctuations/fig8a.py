"""Covariance of all weights of a two-layer network in the basis of its layers."""

from __future__ import annotations

import numpy as np

from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.fluctuations import GOOD, ROUGH, _two_layer
from hyperribbon.theory import fluctuations as theory

TITLE = "Covariance of a two-layer network"

_SETTING = (
    "N_i = 30, N_h = 20, N_o = 1 as in the figure, an ensemble of 1500 runs from the solution in "
    "place of one long run, whose mean drifts"
)

STATEMENTS = kit.at_scale(
    "N_i = 30 and 1500 chains",
    kit.says(
        "second-layer-diagonal",
        "Fig. 8(a), caption",
        "the covariance of the second-layer weights is fully diagonal.",
        "In an ensemble of SGD the components of z₂ are uncorrelated: the mean square correlation "
        "of two of them, beyond that of a finite ensemble, is below that of 0.1 (our threshold).",
        kit.Band.at_most(GOOD**2, "words"),
        setting=_SETTING,
    ),
    kit.says(
        "ranks",
        "Sec. III B 2",
        "rank([cov(R1)]) = Ni according to Eq. (3.21a). For zero-balanced initial conditions […], "
        "one "
        "has rank([cov(R2)]) = […] = 1, while for random initial conditions, typically "
        "rank([cov(R2)]) = […] = Nh.",
        "The covariances of the layers' gradients over the samples have these three ranks: none is "
        "off.",
        kit.Band(0, 0, "printed"),
        setting="the solutions of this network from a random and from a zero-balanced start, "
        "finite P",
    ),
    kit.says(
        "first-layer-weak",
        "Sec. III C 1",
        "its off-diagonal elements are typically small, implying that the components of z1 are "
        "weakly cross correlated.",
        "The mean square correlation of two components of z₁ is below that of a quarter (our "
        "threshold).",
        kit.Band.at_most(ROUGH**2, "words"),
        setting=_SETTING,
    ),
)


class Config(_two_layer.TwoLayerConfig):
    """Network, task and ensemble of Fig. 8(c) (Fig. 8(a) of [fluctuations])."""


PRESETS = kit.presets(
    Config(),
    smoke=Config(inputs=8, hidden=5, samples=400, steps=400, chains=300, batch_size=50),
    paper=Config(chains=4000),
)


class Result(kit.Frozen):
    """Predicted and measured covariance of Z = (z₁, z₂) in units λσ²/(2S), σ² unexplained."""

    inputs: int
    predicted: np.ndarray
    measured: np.ndarray
    chains: int
    ranks: np.ndarray  # of cov R₁ and cov R₂ from a random start, of cov R₂ from a balanced one
    stated: np.ndarray


def compute(config: Config, context: kit.Context) -> Result:
    """Evaluate Eq. (3.30) at the ensemble's mean and measure the same matrix (Fig. 8(a))."""
    item = config.item(context.seed)
    _, found = _two_layer.share_ensemble(context, item)
    M = theory.layer_covariance(found.modes, 2.0, 1, 1.0)
    measured = np.cov(np.hstack([found.z1, found.z2]).T) / found.unit
    stated = np.array([config.inputs, config.hidden, 1])
    return Result(config.inputs, M, measured, config.chains, _ranks(item), stated)


def _ranks(item: kit.Item) -> np.ndarray:
    """Return the ranks of both layers' noise in Fig. 8(a), from both kinds of start."""
    X, Y, W1, W2 = _two_layer.linear_network(item)
    w, hidden = W2 @ W1, item["hidden"]
    size = np.sqrt(np.linalg.norm(w))
    balanced1 = np.zeros_like(W1)
    balanced1[0], balanced2 = w[0] / size, size * np.eye(1, hidden)
    own, other = (
        theory.two_layer_noise(X, Y, *weights, item["batch_size"])
        for weights in ((W1, W2), (balanced1, balanced2))
    )
    n = W1.size
    blocks = (own[:n, :n], own[n:, n:], other[n:, n:])
    return np.array([np.linalg.matrix_rank(block, hermitian=True) for block in blocks])


def plot(result: Result) -> kit.Figure:
    """Draw both matrices (Fig. 8(a) of [fluctuations])."""
    figure, axes = kit.new_figure(columns=2, width="full", ratio=0.9, sharey=True)
    for axis, matrix, name in zip(
        axes, (result.predicted, result.measured), ("Eq. (3.30)", "ensemble of SGD"), strict=True
    ):
        image = axis.imshow(matrix, cmap=kit.DIVERGING, vmin=-1, vmax=1)
        axis.axhline(result.inputs - 0.5, color="k", lw=0.6)
        axis.axvline(result.inputs - 0.5, color="k", lw=0.6)
        axis.set(title=name, xlabel="$z_1$ | $z_2$")
    figure.colorbar(image, ax=list(axes), label=r"$M$ [$\lambda\sigma_y^2/2S$]", shrink=0.8)
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure the correlations within each layer (Fig. 8(a) of [fluctuations])."""
    return {
        "second-layer-diagonal": _mean_square(result, slice(result.inputs, None)),
        "ranks": kit.exact(
            np.count_nonzero(result.ranks - result.stated),
            "ranks {}, {} and {}; stated are {}, {} and {}".format(*result.ranks, *result.stated),
        ),
        "first-layer-weak": _mean_square(result, slice(result.inputs)),
    }


def _mean_square(result: Result, layer: slice) -> kit.Observed:
    """Return Fig. 8(a)'s mean r² over pairs, less the 1/(R−1) of R independent chains."""
    measured, predicted = (
        _square_correlations(matrix[layer, layer]) for matrix in (result.measured, result.predicted)
    )
    return kit.estimate(
        measured.mean() - 1 / (result.chains - 1),
        measured.std(ddof=1) / np.sqrt(len(measured)),
        f"mean square correlation over {len(measured)} pairs; Eq. (3.30) gives "
        f"{predicted.mean():.2g}",
    )


def _square_correlations(covariance: np.ndarray) -> np.ndarray:
    deviations = np.sqrt(np.diag(covariance))
    correlations = covariance / np.outer(deviations, deviations)
    return correlations[np.triu_indices(len(covariance), 1)] ** 2
