"""Fig. 8 of [ribbons]: the phase diagram of the dimension of the training manifold."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.ndimage
from matplotlib.colors import LogNorm, Normalize

from hyperribbon.papers.experiments.judging import Measurements, exact, over_seeds
from hyperribbon.papers.experiments.kit import Context, Figure, Frozen, Item, presets
from hyperribbon.papers.experiments.ribbons._shared import training_item
from hyperribbon.papers.experiments.statements import Band, observe, says
from hyperribbon.papers.simulation.ribbons.trajectories import moments_of_training, pca_spectra
from hyperribbon.plots.style import SEQUENTIAL, new_figure
from hyperribbon.theory.ribbons import dimensions_of, phase_diagram

TITLE = "Phase diagram of the dimension of the training manifold"

_LEVELS = (3, 10, 30)
_LEVEL_COLORS = ("black", "#CC79A7", "#E69F00")
_RATIO_LEVELS = ((2, 3, 4.8, 7, 9, 12, 20), (1, 1.5, 2, 2.5, 3.2, 4, 5))

_MAP = "n = 50, targets at their typical size; the paper does not print n"

STATEMENTS = (
    says(
        "ridge",
        "Sec. II.C, on Fig. 8 (a)",
        "There appears to be a straight line (log T ∝ c) along which the dimensionality is larger",
        "At ratio 3, ln T of the largest dimension is linear in c, to one spacing of the grid.",
        Band.at_most(1.0, "words"),
        setting=_MAP,
        needs="the grid of preset laptop",
    ),
    says(
        "few-dimensions",
        "Sec. II.C, on Fig. 8 (e)",
        "there is a contiguous region in (T, c, σ*/σw)-space with σ*/σw ≳ 9 where the hyper-ribbon "
        "has fewer than three dimensions",
        "Above a ratio of 9, the points with fewer than three dimensions are one connected region.",
        Band(1, 1, "printed"),
        setting=f"{_MAP}; 2 ≤ T ≤ 1e5 and 0.02 ≤ c ≤ 1, ratios up to 40",
        needs="the grid of preset laptop",
        changed="2026-11-17: before, every point above 9 had to have fewer than three dimensions, "
        "which the sentence does not say",
    ),
    says(
        "low-dimensional",
        "Sec. II.C, on Fig. 8 (a)",
        "For small initialization variance σ*/σw ≫ 1, the hyper-ribbon is very low-dimensional for "
        "most training times T and slope c.",
        "At ratio 4.8 the ribbon has at most 10 of 50 dimensions on more than half of the map.",
        Band.at_least(0.5, "words"),
        setting=f"{_MAP}; 4.8 is the contour that the paper takes for a slice of (a)",
    ),
    observe(
        "ridge-slope",
        "Fig. 8 (a-c)",
        "The line is T ≈ 1/λn, so its slope is n − 1 = 49, as far as the grid can tell.",
        Band(-1, 1, "closed form"),
        needs="the grid of preset laptop",
    ),
    says(
        "simulation",
        "Eqs. (3) and (5)",
        "As the number of random initializations N goes to infinity, we can separate the PCA "
        "matrix P into two components",
        "Trained models have the predicted dimension, within one, at every point tried.",
        Band.at_most(1, "closed form"),
        setting=f"{_MAP}; ratio 3, five slopes, up to three training times",
        needs="the models of preset laptop",
    ),
)


class Config(Frozen):
    """Grid of the diagram."""

    samples: int = 50  # n
    # σ*/σw of the three heat maps; 4.8 is the paper's (a)
    panel_ratios: tuple[float, ...] = (4.8, 3.0, 1.0)
    slopes: int = 100  # number of slopes, from 0.02 to 1
    times: int = 120  # number of training times, from 1 to 100,000, evenly in the logarithm
    ratios: int = 32  # number of ratios of the three-dimensional diagram, from 0.5 to 40
    coarse: int = 64  # slopes and times of the three-dimensional diagram
    # where models are trained too, at ratio 3
    simulated_slopes: tuple[float, ...] = (0.05, 0.1, 0.2, 0.5, 1.0)
    simulated_times: tuple[int, ...] = (1, 32, 562)  # training times of those models
    initialisations: int = 4000  # models trained for each


PRESETS = presets(
    Config(),
    smoke=Config(
        slopes=40, times=16, ratios=6, coarse=10, simulated_times=(1, 32), initialisations=600
    ),
    paper=Config(slopes=200, times=240, ratios=40, coarse=80, initialisations=20_000),
)


class Result(Frozen):
    """Dimensions on the grids."""

    slopes: np.ndarray  # (s,)
    steps: np.ndarray  # (t,)
    panel_ratios: np.ndarray  # (3,)
    panels: np.ndarray  # (3, s, t), certified dimensions for 95% of the variance
    panels_smooth: np.ndarray  # (3, s, t), interpolated, for contours
    grid_slopes: np.ndarray  # (a,), of the three-dimensional diagram
    grid_steps: np.ndarray  # (b,)
    grid_ratios: np.ndarray  # (r,)
    grid: np.ndarray  # (r, a, b), dimensions
    grid_smooth: np.ndarray  # (r, a, b), interpolated
    # (3, a, b), ratio above which the ribbon has at most 3, 10, 30 dimensions
    boundaries: np.ndarray
    simulated_slopes: np.ndarray  # (k,)
    simulated_steps: np.ndarray  # (m,)
    simulated: np.ndarray  # (k, m), dimensions of P(N, T) of trained models at ratio 3
    predicted: np.ndarray  # (k, m), of the closed form
    samples: int  # n
    largest_kept: int  # largest block that had to be diagonalised


def compute(config: Config, context: Context) -> Result:
    """Evaluate the diagrams and train models at a few points of them."""
    n = config.samples
    steps = np.unique(np.round(np.geomspace(1, 1e5, config.times)))
    slopes = np.linspace(0.02, 1.0, config.slopes)
    panels = phase_diagram(n, steps, slopes, np.array(config.panel_ratios))
    grid = phase_diagram(
        n,
        np.unique(np.round(np.geomspace(2, 1e5, config.coarse))),
        np.linspace(0.02, 1.0, config.coarse),
        np.geomspace(0.5, 40, config.ratios),
    )
    setting = {"sigma_star": 3.0, "sigma_w": 1.0, "alpha": 1.0}
    times = list(config.simulated_times)
    items = [
        training_item(config, context, "weights", slope, slope=slope, steps=times, **setting)
        for slope in config.simulated_slopes
    ]
    simulated = context.map(_dimensions_of_training, items, "gradient descent")
    predicted = phase_diagram(n, config.simulated_times, config.simulated_slopes, 3.0)
    return Result(
        slopes=slopes,
        steps=steps,
        panel_ratios=panels.ratios,
        panels=panels.dimensions,
        panels_smooth=panels.interpolated,
        grid_slopes=grid.slopes,
        grid_steps=grid.steps,
        grid_ratios=grid.ratios,
        grid=grid.dimensions,
        grid_smooth=grid.interpolated,
        boundaries=np.array([grid.boundary(level) for level in _LEVELS]),
        simulated_slopes=np.array(config.simulated_slopes),
        simulated_steps=np.array(config.simulated_times),
        simulated=np.array(simulated),
        predicted=predicted.dimensions,
        samples=n,
        largest_kept=int(panels.kept.max()),
    )


def _dimensions_of_training(item: Item) -> list[int]:
    """Return how many dimensions carry 95% of the variance of trained models, by time."""
    spectra = pca_spectra(
        [moments_of_training(item)], item["initialisations"], tuple(item["steps"])
    )
    return [dimensions_of(spectrum) for spectrum in spectra]


def plot(result: Result) -> dict[str, Figure]:
    """Draw (a–c) heat maps, (d) surfaces of equal dimension, (e–f) contours of the ratio."""
    return {"maps": _maps(result), "surfaces": _surfaces(result), "contours": _contours(result)}


def _maps(result: Result) -> Figure:
    figure, axes = new_figure(1, 3, width="full", ratio=0.95, sharey=True)
    norm = LogNorm(1, 50)
    for axis, letter, ratio, whole, smooth in zip(
        axes, "abc", result.panel_ratios, result.panels, result.panels_smooth, strict=True
    ):
        mesh = axis.pcolormesh(
            result.slopes, result.steps, whole.T, norm=norm, cmap=SEQUENTIAL, rasterized=True
        )
        lines = axis.contour(
            result.slopes, result.steps, smooth.T, levels=_LEVELS, colors="white", linewidths=0.9
        )
        axis.clabel(lines, fmt="%d", fontsize=7)
        axis.set(yscale="log", xlabel="slope $c$", ylim=(1, result.steps[-1]))
        note = ", circles: trained" if ratio == 3 else ""
        axis.set_title(rf"({letter}) $\sigma_*/\sigma_w={ratio:g}${note}")
        if ratio == 3:
            _mark_simulations(axis, result, norm)
    axes[0].set_ylabel("training time $T$")
    bar = figure.colorbar(mesh, ax=axes, pad=0.01, aspect=28, ticks=[1, 2, 3, 5, 10, 20, 50])
    bar.ax.set_yticklabels(["1", "2", "3", "5", "10", "20", "50"])
    bar.ax.minorticks_off()
    bar.set_label("dimensions (95% of variance)")
    return figure


def _mark_simulations(axis: Any, result: Result, norm: LogNorm) -> None:
    c, T = np.meshgrid(result.simulated_slopes, result.simulated_steps, indexing="ij")
    ring = {"s": 26, "edgecolors": "white", "linewidths": 0.9, "zorder": 3, "clip_on": False}
    axis.scatter(c, T, c=result.simulated, norm=norm, cmap=SEQUENTIAL, **ring)


def _surfaces(result: Result) -> Figure:
    figure, axis = new_figure(ratio=0.95, subplot_kw={"projection": "3d"})
    c, T = np.meshgrid(result.grid_slopes, np.log10(result.grid_steps), indexing="ij")
    for level, color, edge in zip(_LEVELS, _LEVEL_COLORS, result.boundaries, strict=True):
        height = np.where(edge > 0, edge, np.nan)
        drawn = {"alpha": 0.55, "linewidth": 0, "rstride": 1, "cstride": 1}
        axis.plot_surface(c, T, np.log10(height), color=color, **drawn)
        axis.plot([], [], [], "s", color=color, label=f"{level} dimensions")
    ticks = np.array([1, 3, 10, 30])
    axis.set_zticks(np.log10(ticks), [str(tick) for tick in ticks])
    axis.set_yticks(range(1, 6), [f"$10^{power}$" for power in range(1, 6)])
    axis.set(xlabel="slope $c$", ylabel="training time $T$")
    axis.zaxis.set_rotate_label(False)
    axis.set_zlabel(r"$\sigma_*/\sigma_w$", labelpad=-1, rotation=90)
    axis.view_init(elev=24, azim=-125)
    axis.set_box_aspect(None, zoom=0.85)
    axis.legend(loc="upper center", ncols=3, columnspacing=0.8, handletextpad=0.1)
    return figure


def _contours(result: Result) -> Figure:
    figure, axes = new_figure(1, 2, width="full", ratio=0.72, sharey=True)
    for axis, letter, level, levels, edge in zip(
        axes, "ef", _LEVELS, _RATIO_LEVELS, result.boundaries, strict=False
    ):
        drawn = np.ma.masked_invalid(np.log(np.where(edge > 0, edge, np.nan)))
        logs = np.log(levels)
        shown = {"cmap": SEQUENTIAL, "norm": Normalize(logs[0], logs[-1] + 0.35)}
        grid = (result.grid_slopes, result.grid_steps, drawn.T)
        lines = axis.contour(*grid, levels=logs, linewidths=1.3, **shown)
        names = dict(zip(lines.levels, (f"{level:g}" for level in levels), strict=True))
        axis.clabel(lines, fmt=names, fontsize=7, inline_spacing=2)
        axis.set(yscale="log", xlabel="slope $c$")
        axis.set_title(
            rf"({letter}) $\sigma_*/\sigma_w$ at which the ribbon has {level} dimensions"
        )
    axes[0].set_ylabel("training time $T$")
    return figure


def interactive(result: Result) -> Any:
    """Return the surfaces of equal dimension to turn around."""
    import plotly.graph_objects as go

    figure, hover = go.Figure(), "c = %{x:.2f}<br>T = %{y:.0f}<br>σ*/σw = %{z:.2f}"
    for level, color, edge in zip(_LEVELS, _LEVEL_COLORS, result.boundaries, strict=True):
        grid = {"x": result.grid_slopes, "y": result.grid_steps}
        grid["z"] = np.where(edge > 0, edge, np.nan).T
        shown = {"showlegend": True, "showscale": False, "opacity": 0.75, "hovertemplate": hover}
        colors = [[0, color], [1, color]]
        figure.add_surface(**grid, **shown, name=f"{level} dimensions", colorscale=colors)
    figure.update_layout(
        scene={
            "xaxis": {"title": "slope c"},
            "yaxis": {"title": "training time T", "type": "log"},
            "zaxis": {"title": "σ*/σw", "type": "log"},
        },
        title="Below a surface the ribbon has more dimensions",
        margin={"l": 0, "r": 0, "t": 40, "b": 0},
    )
    return figure


def measure(result: Result) -> Measurements:
    """Measure the ridge, the contiguous region and the simulation."""
    tilt, offset, bent = _ridge(result)
    few = result.grid[result.grid_ratios >= 9] < 3
    labels = np.zeros(few.shape, dtype=int)
    pieces = scipy.ndimage.label(few, output=labels)
    return {
        "ridge": exact(
            bent,
            "spread about the line in spacings of the grid of ln T: "
            f"ln T = {tilt:.1f}c {offset:+.2f} over 0.1 ≤ c ≤ 0.22",
        ),
        "few-dimensions": exact(
            pieces,
            f"connected pieces of the points below three dimensions, {few.mean():.0%} of "
            "those above 9",
        ),
        "low-dimensional": exact(
            (result.panels[0] <= 10).mean(), "share of the map, evenly in c and ln T"
        ),
        "ridge-slope": exact(
            (tilt - result.samples + 1) * 0.12 / (2 * _spacing(result)),
            f"slope {tilt:.1f}; either end of the line, 0.12 apart in c, is known to one "
            "spacing of the grid",
        ),
        "simulation": over_seeds(
            [np.abs(result.simulated - result.predicted).max()],
            f"largest difference over {result.simulated.size} points of the diagram",
        ),
    }


def _ridge(result: Result) -> tuple[float, float, float]:
    """Fit ln T of the largest dimension against c on the map of ratio 3.

    Returns:
        Slope, offset, and the spread about the line in spacings of the grid.
    """
    panel = result.panels_smooth[result.panel_ratios.tolist().index(3.0)]
    inside = (result.slopes >= 0.1) & (result.slopes <= 0.22)
    top = np.log(result.steps[panel[inside].argmax(axis=1)])
    slopes = result.slopes[inside]
    tilt, offset = np.polyfit(slopes, top, 1)
    residual = top - tilt * slopes - offset
    return float(tilt), float(offset), float(residual.std() / _spacing(result))


def _spacing(result: Result) -> float:
    return float(np.diff(np.log(result.steps)[-2:])[0])
