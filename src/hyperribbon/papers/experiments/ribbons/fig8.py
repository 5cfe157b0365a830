"""Fig. 8 of [ribbons]: the phase diagram of the dimension of the training manifold."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.ndimage
from matplotlib.colors import LogNorm, to_rgb
from mpl_toolkits.mplot3d.art3d import Poly3DCollection

from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.ribbons._isosurface import isosurface
from hyperribbon.papers.experiments.ribbons._shared import style_handles, training_item
from hyperribbon.papers.simulation.ribbons.trajectories import moments_of_training, pca_spectra
from hyperribbon.theory.ribbons import dimensions_of, phase_diagram

TITLE = "Phase diagram of the dimension of the training manifold"
RANDOM = {"maps": "trained models", "surfaces": "", "contours": ""}

_LEVELS = (3, 10, 30)
_LEVEL_COLORS = ("black", "#CC79A7", "#E69F00")
_LEVEL_STYLES = (":", "--", "-")
_RATIO_LEVELS = ((2, 3, 4.8, 7, 9, 12, 20), (1, 1.5, 2, 2.5, 3.2, 4, 5))

_MAP = "n = 50, targets at their typical size; the paper does not print n"

STATEMENTS = (
    kit.says(
        "ridge",
        "Sec. II.C, on Fig. 8 (a)",
        "There appears to be a straight line (log T ∝ c) along which the dimensionality is larger",
        "At ratio 4.8, panel (a), the slope with the most dimensions at each T lies on a line in "
        "ln T: their correlation is at least 0.95.",
        kit.Band.at_least(0.95, "words"),
        setting=f"{_MAP}; all T at which that slope lies inside the map",
        needs="the grid of preset laptop",
        changed="2026-11-18: before, the T with the most dimensions at each slope of panel (b), "
        "which gives a line wherever T = 1 has the most, and could not fail",
    ),
    kit.says(
        "few-dimensions",
        "Sec. II.C, on Fig. 8 (e)",
        "there is a contiguous region in (T, c, σ*/σw)-space with σ*/σw ≳ 9 where the hyper-ribbon "
        "has fewer than three dimensions",
        "Above a ratio of 9, the points with fewer than three dimensions are one connected region.",
        kit.Band(1, 1, "printed"),
        setting=f"{_MAP}; 2 ≤ T ≤ 1e5 and 0.02 ≤ c ≤ 1, ratios up to 40",
        needs="the grid of preset laptop",
        changed="2026-11-17: before, every point above 9 had to have fewer than three dimensions, "
        "which the sentence does not say",
    ),
    kit.says(
        "low-dimensional",
        "Sec. II.C, on Fig. 8 (a)",
        "For small initialization variance σ*/σw ≫ 1, the hyper-ribbon is very low-dimensional for "
        "most training times T and slope c.",
        "At ratio 4.8 the ribbon has at most 10 of 50 dimensions on more than half of the map.",
        kit.Band.at_least(0.5, "words"),
        setting=f"{_MAP}; 4.8 is the contour that the paper takes for a slice of (a)",
    ),
    kit.observe(
        "ridge-slope",
        "Fig. 8 (a-c)",
        "The line is T ≈ 1/λn: at ratio 3 its slope over n − 1 is one, within a tenth.",
        kit.Band.around(1.0, "closed form", atol=0.1),
        needs="the grid of preset laptop",
    ),
    kit.says(
        "simulation",
        "Eqs. (3) and (5)",
        "As the number of random initializations N goes to infinity, we can separate the PCA "
        "matrix P into two components",
        "Trained models have the predicted dimension, within one, at every point tried.",
        kit.Band.at_most(1, "closed form"),
        setting=f"{_MAP}; ratio 3, five slopes, up to three training times",
        needs="the models of preset laptop",
    ),
)


class Config(kit.Frozen):
    """Grid of the diagram (Fig. 8 of [ribbons])."""

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


PRESETS = kit.presets(
    Config(),
    smoke=Config(
        slopes=40, times=16, ratios=6, coarse=10, simulated_times=(1, 32), initialisations=600
    ),
    paper=Config(slopes=200, times=240, ratios=40, coarse=80, initialisations=20_000),
)


class Result(kit.Frozen):
    """Dimensions on the grids (Fig. 8 of [ribbons])."""

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
    contour_ratios: np.ndarray  # (2, 7), of panels (e) and (f)
    contours: np.ndarray  # (2, 7, s, t), interpolated dimensions at those ratios
    simulated_slopes: np.ndarray  # (k,)
    simulated_steps: np.ndarray  # (m,)
    simulated: np.ndarray  # (k, m), dimensions of P(N, T) of trained models at ratio 3
    predicted: np.ndarray  # (k, m), of the closed form
    samples: int  # n
    largest_kept: int  # largest block that had to be diagonalised


def compute(config: Config, context: kit.Context) -> Result:
    """Evaluate the diagrams and train models at a few points of them (Fig. 8 of [ribbons])."""
    n = config.samples
    # Exact, so that all seeds share them.
    names = ("samples", "panel_ratios", "slopes", "times", "ratios", "coarse")
    diagrams = context.shared(_diagrams, {name: getattr(config, name) for name in names})
    setting = {"sigma_star": 3.0, "sigma_w": 1.0, "alpha": 1.0}
    times = list(config.simulated_times)
    items = [
        training_item(config, context, "weights", slope, slope=slope, steps=times, **setting)
        for slope in config.simulated_slopes
    ]
    simulated = context.map(_dimensions_of_training, items, "gradient descent")
    predicted = phase_diagram(n, config.simulated_times, config.simulated_slopes, 3.0)
    return Result(
        **diagrams,
        contour_ratios=np.array(_RATIO_LEVELS),
        simulated_slopes=np.array(config.simulated_slopes),
        simulated_steps=np.array(config.simulated_times),
        simulated=np.array(simulated),
        predicted=predicted.dimensions,
        samples=n,
    )


def _diagrams(item: kit.Item) -> dict[str, Any]:
    """Return the dimensions on all grids, and the grids (Fig. 8 of [ribbons])."""
    n = item["samples"]
    steps = np.unique(np.round(np.geomspace(1, 1e5, item["times"])))
    slopes = np.linspace(0.02, 1.0, item["slopes"])
    panels = phase_diagram(n, steps, slopes, np.array(item["panel_ratios"]))
    grid = phase_diagram(
        n,
        np.unique(np.round(np.geomspace(2, 1e5, item["coarse"]))),
        np.linspace(0.02, 1.0, item["coarse"]),
        np.geomspace(0.5, 40, item["ratios"]),
    )
    contours = phase_diagram(n, steps[1:], slopes, np.concatenate(_RATIO_LEVELS)).interpolated
    return {
        "slopes": slopes,
        "steps": steps,
        "panel_ratios": panels.ratios,
        "panels": panels.dimensions,
        "panels_smooth": panels.interpolated,
        "grid_slopes": grid.slopes,
        "grid_steps": grid.steps,
        "grid_ratios": grid.ratios,
        "grid": grid.dimensions,
        "grid_smooth": grid.interpolated,
        "contours": contours.reshape(*np.shape(_RATIO_LEVELS), *contours.shape[1:]),
        "largest_kept": int(panels.kept.max()),
    }


def _dimensions_of_training(item: kit.Item) -> list[int]:
    """Return how many dimensions carry 95% of the variance of trained models, by time (Fig. 8)."""
    spectra = pca_spectra(
        [moments_of_training(item)], item["initialisations"], tuple(item["steps"])
    )
    return [dimensions_of(spectrum) for spectrum in spectra]


def plot(result: Result) -> dict[str, kit.Figure]:
    """Draw Fig. 8: (a–c) heat maps, (d) surfaces of equal dimension, (e–f) contours."""
    return {"maps": _maps(result), "surfaces": _surfaces(result), "contours": _contours(result)}


def _maps(result: Result) -> kit.Figure:
    figure, axes = kit.new_figure(1, 3, width="full", ratio=0.95, sharey=True)
    norm = LogNorm(1, 50)
    for axis, letter, ratio, whole, smooth in zip(
        axes, "abc", result.panel_ratios, result.panels, result.panels_smooth, strict=True
    ):
        mesh = axis.pcolormesh(
            result.slopes, result.steps, whole.T, norm=norm, cmap=kit.SEQUENTIAL, rasterized=True
        )
        axis.contour(
            # Not at T = 1, where nothing has been learned: P is σw²K there at any ratio.
            *(result.slopes, result.steps[1:], smooth[:, 1:].T),
            levels=_LEVELS,
            colors="white",
            linestyles=_LEVEL_STYLES,
            linewidths=0.9,
        )
        axis.set(yscale="log", xlabel="slope $c$", ylim=(1, result.steps[-1]))
        note = ", circles: trained" if ratio == 3 else ""
        axis.set_title(rf"({letter}) $\sigma_*/\sigma_w={ratio:g}${note}")
        if ratio == 3:
            _mark_simulations(axis, result, norm)
    styles = {
        str(n): {"ls": s, "color": "white"} for n, s in zip(_LEVELS, _LEVEL_STYLES, strict=True)
    }
    look = {"facecolor": "0.25", "labelcolor": "white", "framealpha": 1, "handlelength": 2.2}
    axes[2].legend(handles=style_handles(axes[2], styles), loc="lower right", **look)
    axes[0].set_ylabel("training time $T$")
    bar = figure.colorbar(mesh, ax=axes, pad=0.01, aspect=28, ticks=[1, 2, 3, 5, 10, 20, 50])
    bar.ax.set_yticklabels(["1", "2", "3", "5", "10", "20", "50"])
    bar.ax.minorticks_off()
    bar.set_label("dimensions (95% of variance)")
    return figure


def _mark_simulations(axis: Any, result: Result, norm: LogNorm) -> None:
    c, T = np.meshgrid(result.simulated_slopes, result.simulated_steps, indexing="ij")
    ring = {"s": 26, "edgecolors": "white", "linewidths": 0.9, "zorder": 3, "clip_on": False}
    axis.scatter(c, T, c=result.simulated, norm=norm, cmap=kit.SEQUENTIAL, **ring)


def _surfaces(result: Result) -> kit.Figure:
    figure, views = kit.new_figure(
        1, 2, width="full", ratio=0.8, subplot_kw={"projection": "3d", "computed_zorder": False}
    )
    axes = (np.log10(result.grid_ratios), result.grid_slopes, np.log10(result.grid_steps))
    triangles, colors = _shaded_triangles(result, axes)
    # From short times and small slopes, and from steep slopes, where each surface hides others.
    for axis, seen, turn in zip(views, ("", " from behind"), (-125, 40), strict=True):
        # One collection, so that nearer triangles of any surface are drawn later.
        look: dict[str, Any] = {"edgecolors": colors, "lw": 0.3, "rasterized": True}
        axis.add_collection3d(Poly3DCollection(triangles, facecolors=colors, **look))
        ticks = np.array([1, 3, 10, 30])
        axis.set_zticks(np.log10(ticks), [str(tick) for tick in ticks])
        axis.set_yticks(range(1, 6), [f"$10^{power}$" for power in range(1, 6)])
        axis.set(xlabel="slope $c$", ylabel="training time $T$")
        limits = [(a[0], a[-1]) for a in axes]
        axis.set(zlim=limits[0], xlim=limits[1], ylim=limits[2])
        axis.zaxis.set_rotate_label(False)
        axis.set_zlabel(r"$\sigma_*/\sigma_w$", labelpad=-1, rotation=90)
        axis.view_init(elev=24, azim=turn)
        axis.set_box_aspect(None, zoom=0.88)
        axis.set_title(f"(d){seen}", y=0.98)
    handles = [
        views[0].plot([], [], [], "s", color=color, label=f"{level} dimensions")[0]
        for level, color in zip(_LEVELS, _LEVEL_COLORS, strict=True)
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=3, handletextpad=0.1)
    return figure


def _shaded_triangles(
    result: Result, axes: tuple[np.ndarray, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the triangles (k, 3, 3) of Fig. 8 (d)'s surfaces and their colours (k, 3)."""
    # Coordinates of different units: the light falls on the box as it is drawn.
    light = np.array([0.4, -0.3, 0.85]) / np.linalg.norm([0.4, -0.3, 0.85])
    field, triangles, colors = _round_off(result.grid_smooth), [], []
    for level, color in zip(_LEVELS, _LEVEL_COLORS, strict=True):
        corners = isosurface(field, level)
        sides = np.diff(corners / (np.array(field.shape) - 1), axis=1)
        normals = np.cross(sides[:, 0], sides[:, 1])[:, [1, 2, 0]]
        lengths = np.linalg.norm(normals, axis=1)
        corners, normals = corners[lengths > 0], normals[lengths > 0] / lengths[lengths > 0, None]
        shade = 0.55 + 0.45 * np.abs(normals @ light)
        colors.append(np.clip(shade[:, None] * (0.15 + 0.85 * np.array(to_rgb(color))), 0, 1))
        z, x, y = (np.interp(corners[..., k], range(len(a)), a) for k, a in enumerate(axes))
        triangles.append(np.stack([x, y, z], axis=-1))
    return np.concatenate(triangles), np.concatenate(colors)


def _round_off(field: np.ndarray) -> np.ndarray:
    """Smooth a field of Fig. 8 over one cell: interpolated dimensions have kinks at whole ones."""
    return np.exp(scipy.ndimage.gaussian_filter(np.log(field), 1.0, mode="nearest"))


def _contours(result: Result) -> kit.Figure:
    figure, axes = kit.new_figure(1, 2, width="full", ratio=0.72, sharey=True)
    rows = zip(axes, "ef", _LEVELS, result.contour_ratios, result.contours, strict=False)
    for axis, letter, level, ratios, fields in rows:
        for color, ratio, field in zip(kit.shades(len(ratios)), ratios, fields, strict=True):
            smooth = _round_off(field).T
            axis.contour(
                result.slopes, result.steps[1:], smooth, [level], colors=[color], linewidths=1.3
            )
            axis.plot([], [], color=color, label=f"{ratio:g}")
        axis.set(yscale="log", xlabel="slope $c$")
        axis.set_title(f"({letter}) where the ribbon has {level} dimensions")
        axis.legend(title=r"$\sigma_*/\sigma_w$", loc="center left", bbox_to_anchor=(1.0, 0.5))
    axes[0].set_ylabel("training time $T$")
    return figure


def interactive(result: Result) -> Any:
    """Return the surfaces of equal dimension to turn around (Fig. 8 of [ribbons])."""
    import plotly.graph_objects as go

    figure = go.Figure()
    z, x, y = np.meshgrid(
        np.log10(result.grid_ratios),
        result.grid_slopes,
        np.log10(result.grid_steps),
        indexing="ij",
    )
    grid = {"x": x.ravel(), "y": y.ravel(), "z": z.ravel(), "value": result.grid_smooth.ravel()}
    for level, color in zip(_LEVELS, _LEVEL_COLORS, strict=True):
        shown = {"showlegend": True, "showscale": False, "opacity": 0.75, "hoverinfo": "x+y+z"}
        colors = [[0, color], [1, color]]
        figure.add_isosurface(
            **grid,
            **shown,
            isomin=level,
            isomax=level,
            surface_count=1,
            caps={"x_show": False, "y_show": False, "z_show": False},
            name=f"{level} dimensions",
            colorscale=colors,
        )
    figure.update_layout(
        scene={
            "xaxis": {"title": "slope c"},
            "yaxis": {"title": "log₁₀ T"},
            "zaxis": {"title": "log₁₀ σ*/σw"},
        },
        title="Below a surface the ribbon has more dimensions",
        margin={"l": 0, "r": 0, "t": 40, "b": 0},
    )
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure the ridge, the contiguous region and the simulation (Fig. 8 of [ribbons])."""
    tilt, offset, straight, times = _ridge(result, 4.8)
    few = result.grid[result.grid_ratios >= 9] < 3
    labels = np.zeros(few.shape, dtype=int)
    pieces = scipy.ndimage.label(few, output=labels)
    return {
        "ridge": kit.exact(
            straight, f"correlation over {times} training times: ln T = {tilt:.1f}c {offset:+.2f}"
        ),
        "few-dimensions": kit.exact(
            pieces,
            f"connected pieces of the points below three dimensions, {few.mean():.0%} of "
            "those above 9",
        ),
        "low-dimensional": kit.exact(
            (result.panels[0] <= 10).mean(), "share of the map, evenly in c and ln T"
        ),
        "ridge-slope": kit.exact(
            _ridge(result, 3.0)[0] / (result.samples - 1), "slope of ln T against c over n − 1"
        ),
        "simulation": kit.over_seeds(
            [np.abs(result.simulated - result.predicted).max()],
            f"largest difference over {result.simulated.size} points of the diagram",
        ),
    }


def _ridge(result: Result, ratio: float) -> tuple[float, float, float, int]:
    """Fit ln T against the slope c with the most dimensions on one map of Fig. 8.

    Returns:
        Slope, offset and correlation of the line, and over how many T with that slope inside the
        map.
    """
    top = result.panels_smooth[result.panel_ratios.tolist().index(ratio)].argmax(axis=0)
    inside = (top > 0) & (top < len(result.slopes) - 1)
    slopes, times = result.slopes[top[inside]], np.log(result.steps[inside])
    if len(np.unique(slopes)) < 3:
        return np.nan, np.nan, 0.0, int(inside.sum())
    tilt, offset = np.polyfit(slopes, times, 1)
    return float(tilt), float(offset), float(np.corrcoef(slopes, times)[0, 1]), len(times)
