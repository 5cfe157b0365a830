"""Fig. 1 (b) of [linear_networks]: sharpness of a balanced solution by depth and label norm."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from hyperribbon.application.inspection import leading_eigenvalues
from hyperribbon.papers.experiments import kit
from hyperribbon.theory import linear_networks as theory
from hyperribbon.theory.linear_networks.moments import Moments

TITLE = "Sharpness by depth and by the spectral norm of the labels"

STATEMENTS = (
    kit.says(
        "values",
        "Eq. (14), Fig. 1 (b)",
        "Contour plot on the effect of depth and spectral norm.",
        "Balanced solutions that are built have the sharpness of Eq. (14), to the tolerance of the "
        "eigensolver.",
        kit.Band.at_most(1e-6, "closed form"),
        setting="σx = 1, depths 1 to 20; the paper does not print the ranges",
    ),
    kit.says(
        "amplified",
        "Sec. 4",
        "This effect is amplified by large depths, mainly due to the leading factor of L",
        "dλmax/dα grows from depth to depth at every largest share of 10% or more.",
        kit.Band.at_least(0.0, "words"),
        setting="Eq. (14) for one-hot labels; ten classes have a largest share of 10% at least",
    ),
)


class Config(kit.Frozen):
    """Setting of Fig. 1 (b) of [linear_networks]."""

    deepest: int = 20  # depths 1 to this are drawn
    norms: int = 96  # number of values of σmax(Y)/√n, from 0.05 to 1
    # depths at which a network is built and measured
    checked_depths: tuple[int, ...] = (1, 2, 4, 8, 14, 20)
    checked_norms: tuple[float, ...] = (0.1, 0.316, 0.6, 0.95)  # norms at which one is
    width: int = 16  # of the hidden layers of these


PRESETS = kit.presets(
    Config(),
    smoke=Config(checked_depths=(1, 4, 20), checked_norms=(0.1, 0.95), width=6),
    paper=Config(norms=191),
)


class Result(kit.Frozen):
    """Sharpness on a grid (Fig. 1 (b) of [linear_networks])."""

    depths: np.ndarray  # (l,)
    norms: np.ndarray  # (a,), σmax(Y)/√n, the root of the largest share for one-hot labels
    sharpness: np.ndarray  # (l, a), Eq. (14) for σx = 1
    checked_depths: np.ndarray  # (c,)
    checked_norms: np.ndarray  # (c,)
    measured: np.ndarray  # (c,), by Lanczos on the Hessian of a balanced solution
    predicted: np.ndarray  # (c,), Eq. (14)


def compute(config: Config, context: kit.Context) -> Result:
    """Evaluate Eq. (14) on a grid and measure balanced solutions (Fig. 1 middle)."""
    depths = np.arange(1, config.deepest + 1)
    norms = np.linspace(0.05, 1, config.norms)
    pairs = [(depth, norm) for depth in config.checked_depths for norm in config.checked_norms]
    measured = [
        _measure(depth, norm, config.width, context.rng("network", depth, norm))
        for depth, norm in pairs
    ]
    checked_depths, checked_norms = np.array(pairs).T
    return Result(
        depths=depths,
        norms=norms,
        sharpness=_predict(depths[:, None], norms),
        checked_depths=checked_depths,
        checked_norms=checked_norms,
        measured=np.array(measured),
        predicted=_predict(checked_depths, checked_norms),
    )


def _predict(depth: np.ndarray, norm: np.ndarray) -> np.ndarray:
    """Return Eq. (14) for σx = 1: L (σmax(Y)/√n)^{2(1 − 1/L)} (Fig. 1 middle)."""
    return depth * norm ** (2 * (1 - 1 / depth))


def _measure(depth: int, norm: float, width: int, rng: np.random.Generator) -> float:
    """Return the sharpness of a balanced solution whose labels have that norm (Fig. 1 middle)."""
    outputs = rng.uniform(0, norm, width)
    outputs[0] = norm
    weights = theory.sample_balanced_weights([width] * (depth + 1), outputs ** (1 / depth), rng)
    product = theory.end_to_end(weights)
    moments = Moments(np.ones(width), product, float(np.sum(product**2)))
    return float(leading_eigenvalues(weights, moments)[0])


def plot(result: Result) -> kit.Figure:
    """Draw contours of the sharpness, with the measured points on them (Fig. 1 middle)."""
    figure, axis = kit.new_figure(ratio=0.8)
    levels = np.geomspace(0.05, result.sharpness.max(), 13)
    fine = np.linspace(result.depths[0], result.depths[-1], 20 * len(result.depths))
    grid = (result.norms, fine, np.log10(_predict(fine[:, None], result.norms)))
    filled = axis.contourf(*grid, np.log10(levels), cmap=kit.SEQUENTIAL, extend="min")
    turn = np.exp(-fine / 2)
    inside = turn >= result.norms[0]
    axis.plot(turn[inside], fine[inside], "w--", lw=1.2)
    text = r"least sharp depth" "\n" r"$L=-2\,\ln(\sigma_{\max}(Y)/\sqrt{n})$"
    end, line = (turn[inside][-1], fine[inside][-1]), {"color": "w", "lw": 0.8}
    arrow = {"arrowstyle": "-", **line}
    axis.annotate(text, end, (0.16, 9.5), color="w", fontsize=7, arrowprops=arrow)
    checked, colors = (result.checked_norms, result.checked_depths), np.log10(result.measured)
    look = {"norm": filled.norm, "cmap": kit.SEQUENTIAL, "edgecolors": "w", "linewidths": 0.8}
    axis.scatter(*checked, c=colors, s=22, clip_on=False, zorder=3, **look)
    bar = figure.colorbar(filled, ax=axis, label=r"sharpness $\lambda_{\max}$")
    ticks = [0.1, 0.3, 1, 3, 10, 20]
    bar.set_ticks([float(np.log10(t)) for t in ticks], labels=[f"{t:g}" for t in ticks])
    axis.set(xlabel=r"$\sigma_{\max}(Y)/\sqrt{n}$", ylabel="depth $L$", yticks=[1, 5, 10, 15, 20])
    return figure


def interactive(result: Result) -> go.Figure:
    """Draw the sharpness as a surface that can be turned (Fig. 1 middle of [linear_networks])."""
    grid = {"x": result.norms, "y": result.depths, "z": result.sharpness}
    bar = {"title": "λmax"}
    surface = go.Surface(**grid, colorscale="Viridis", colorbar=bar, name="Eq. (14)")
    checked = {"x": result.checked_norms, "y": result.checked_depths, "z": result.measured}
    marker = {"size": 4, "color": "#D55E00"}
    points = go.Scatter3d(**checked, mode="markers", marker=marker, name="measured")
    figure = go.Figure([surface, points])
    axes = {"xaxis_title": "σmax(Y)/√n", "yaxis_title": "depth L", "zaxis_title": "sharpness"}
    figure.update_layout(scene=axes, margin={"l": 0, "r": 0, "t": 20, "b": 0})
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure the contours and what they say of depth (Fig. 1 middle of [linear_networks])."""
    common = result.norms**2 >= 0.1
    depths, shares = result.depths[:, None], result.norms[common] ** 2
    sensitive = np.gradient(result.sharpness[:, common], shares, axis=1, edge_order=2)
    return {
        "values": kit.exact(
            np.abs(result.measured / result.predicted - 1).max(),
            f"largest relative difference over {len(result.measured)} networks",
        ),
        "amplified": kit.exact(
            np.diff(sensitive, axis=0).min(),
            f"least growth over depths to {depths.max()}; (L − 1)α^(−1/L) grows for α > e⁻⁴",
        ),
    }
