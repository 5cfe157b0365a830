"""Figures of results, one function per kind; `result.plot(ax)` calls them.

All draw into the axes they are given, or those of a new figure, and return them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.result import Result
from hyperribbon.plots.style import COLORS, new_figure

if TYPE_CHECKING:  # they bring torch, which figures do without
    import pandas as pd

    from hyperribbon.core.spectral_results import Density, Estimate, Spectrum
    from hyperribbon.manifold import StreamedInPCA
    from hyperribbon.noise import Fluctuations, LayerFluctuations, VarianceFlatness
    from hyperribbon.papers.training import TrainingResult
    from hyperribbon.spectra import BatchSharpness, LayerCurvature, Plan
    from hyperribbon.subnetworks import Criticality, Overlap, Prunable, Sweep

_MARKED = 60  # points that are marked beside their line
_DECADES = 6  # of a logarithmic axis below its largest number
_SPREAD = 30  # largest over smallest from which an axis is logarithmic
_BAND = ("low", "high", "stderr")
_LABELS = 28  # characters of a name beside its bar


def plot_frame(result: Result, ax: Axes | None = None) -> Axes:
    """Draw the first column of numbers of a result's table against its index or first column.

    Texts in the first column give bars. Columns "low" and "high" are a band, "stderr" one of two
    standard errors. A single row gives a bar for each number.

    Args:
        result: Anything with `to_frame()`.
        ax: Axes to draw into; None for those of a new figure.

    Returns:
        The axes.

    Raises:
        ArgumentError: It has no numbers.
    """
    axes, table = _axes(result, ax), _table(result)
    names = [n for n in table if n not in _BAND and table[n].dtype.kind in "iuf"]
    first = str(table.columns[0])
    if first not in names:
        error = 2 * table["stderr"] if "stderr" in table else None
        _bars(axes, [str(name) for name in table[first]], np.asarray(table[names[0]]), error)
        axes.set_xlabel(_plain(names[0]))
    elif len(table) == 1 or len(names) == 1:
        _bars(axes, names, np.asarray(table[names].iloc[0], float))
        axes.set_xlabel("value")
    else:
        _lines(axes, table, names[:2])
        _band(axes, table, names[:2])
        axes.set_ylabel(_plain(names[1]))
    return axes


def plot_columns(result: Result, ax: Axes | None = None) -> Axes:
    """Draw all columns of numbers of a result's table against its index or first column."""
    axes, table = _axes(result, ax), _table(result)
    _lines(axes, table, [n for n in table if table[n].dtype.kind in "iuf"])
    axes.legend()
    return axes


def plot_relation(result: Result, ax: Axes | None = None) -> Axes:
    """Draw the second column of a result's table over the first as points, on logarithmic axes."""
    axes, table = _axes(result, ax), _table(result)
    x, y = (table[name] for name in table.columns[:2])
    axes.plot(x, y, "o", ms=4)
    axes.set(xlabel=_plain(table.columns[0]), ylabel=_plain(table.columns[1]))
    for values, scale in ((x, axes.set_xscale), (y, axes.set_yscale)):
        if bool(np.all(values > 0)):
            scale("log")
    return axes


def plot_spectrum(result: Spectrum, ax: Axes | None = None) -> Axes:
    """Draw a spectrum result: eigenvalues by number with bounds, hollow where not converged."""
    axes = _axes(result, ax)
    table = result.to_frame()
    values, done = table["eigenvalue"].to_numpy(), table["converged"].to_numpy(bool)
    bounds = table["residual" if result.bounds is None else "bound"].to_numpy()
    reach = np.where(np.isfinite(bounds), bounds, 0.0)
    bars = axes.errorbar(table.index, values, reach, fmt="o", ms=4, elinewidth=0.8)
    if not done.all():
        axes.plot(table.index[~done], values[~done], "o", ms=4, mec=bars[0].get_color(), mfc="w")
    if len(values) and values.min() > 0 and values.max() > _SPREAD * values.min():
        axes.set_yscale("log")
    axes.set(xlabel="number", ylabel="eigenvalue")
    return axes


def plot_estimate(result: Estimate, ax: Axes | None = None) -> Axes:
    """Draw an estimate as a result: a number with its 95% interval."""
    axes = _axes(result, ax)
    low, high = result.interval()
    reach = [[result.value - low], [high - result.value]]
    row = len(axes.containers)  # further estimates stand below
    axes.errorbar([result.value], [-row], xerr=reach, fmt="o", capsize=4)
    axes.set_yticks([])
    axes.set_xlabel("value, with its 95% interval" if not result.exact else "value")
    return axes


def plot_density(result: Density, ax: Axes | None = None) -> Axes:
    """Draw a spectral density as a result, with its band, on a logarithmic axis."""
    axes = _axes(result, ax)
    table = result.to_frame()
    (line,) = axes.plot(table["eigenvalue"], table["density"])
    band = table["eigenvalue"], table["low"], table["high"]
    axes.fill_between(*band, color=line.get_color(), alpha=0.25, lw=0)
    _logarithmic(axes, table["density"].to_numpy())
    axes.set(xlabel="eigenvalue", ylabel="density")
    return axes


def plot_plan(result: Plan, ax: Axes | None = None) -> Axes:
    """Draw a plan as a result: the time of every route, grey where memory is short."""
    axes = _axes(result, ax)
    seconds = np.array([route.seconds for route in result.routes])
    colors = [COLORS[0] if route.fits else "0.75" for route in result.routes]
    _bars(axes, [route.name for route in result.routes], seconds, color=colors)
    axes.set(xscale="log", xlabel="estimated seconds")
    return axes


def plot_criticality(result: Criticality, ax: Axes | None = None) -> Axes:
    """Draw the result of resetting each layer: the drop of the metric, and the tolerance."""
    axes = _axes(result, ax)
    layers = result.layers
    colors = [{"critical": COLORS[1], "robust": COLORS[0]}.get(e.verdict, "0.6") for e in layers]
    drops, errors = (np.array([getattr(e, n) for e in layers]) for n in ("drop", "drop_stderr"))
    _bars(axes, [entry.layer for entry in layers], drops, 2 * errors, color=colors)
    axes.axvline(result.tolerance, color="0.35", lw=1, ls=":", label="tolerance")
    axes.set_xlabel("drop when the layer is reset")
    axes.legend()
    return axes


def plot_sweep(result: Sweep, ax: Axes | None = None) -> Axes:
    """Draw a sweep's result over the fraction selected, with two standard errors."""
    axes = _axes(result, ax)
    table = result.to_frame().sort_values("fraction")
    (line,) = axes.plot(table["fraction"], table["value"], "o-", ms=3)
    band = table["value"] - 2 * table["stderr"], table["value"] + 2 * table["stderr"]
    axes.fill_between(table["fraction"], *band, color=line.get_color(), alpha=0.2, lw=0)
    axes.set(xlabel="fraction of the weights selected", ylabel="measured")
    return axes


def plot_prunable(result: Prunable, ax: Axes | None = None) -> Axes:
    """Draw the result of pruning: the metric by fraction, with two errors of the paired drop."""
    axes = _axes(result, ax)
    axes.axvspan(*result.interval, color=COLORS[1], alpha=0.2, lw=0)
    axes.axvline(result.fraction, color=COLORS[1], label=f"{result.fraction:.1%}")
    known = np.isfinite(result.stored_values)
    if known.any():
        stored = result.fractions[known], result.stored_values[known]
        axes.plot(*stored, "--", color="0.5", label="stored statistics")
    label = "re-estimated where better" if known.any() else None
    axes.plot(result.fractions, result.values, "o-", ms=3, color=COLORS[0], label=label)
    error = 2 * result.drop_stderr
    band = result.values - error, result.values + error
    axes.fill_between(result.fractions, *band, color=COLORS[0], alpha=0.2, lw=0)
    axes.axhline(result.baseline, color="0.3", lw=0.8)
    axes.set(xlabel=f"fraction of the {result.unit} pruned", ylabel=result.metric)
    axes.legend()
    return axes


def plot_overlap(result: Overlap, ax: Axes | None = None) -> Axes:
    """Draw an overlap result beside independence, with two standard deviations."""
    axes = _axes(result, ax)
    errors = np.array([0.0, 2 * result.stderr])
    values = np.array([result.ratio, result.expected])
    _bars(axes, ["measured", "independent"], values, errors, color=[COLORS[0], "0.7"])
    axes.set_xlabel("fraction of the first selection in the second")
    return axes


def plot_points(result: StreamedInPCA, ax: Axes | None = None) -> Axes:
    """Draw a result's points: the first two coordinates of every model."""
    axes = _axes(result, ax)
    if result.embedding.shape[1] < 2:
        reason = "it has a single coordinate"
        raise ArgumentError("result", result, reason, "Use n_components=2 or more.")
    axes.plot(*result.embedding[:, :2].T, "o", ms=3)
    axes.set(xlabel="component 1", ylabel="component 2")
    return axes


def plot_history(result: TrainingResult, ax: Axes | None = None) -> Axes:
    """Draw a training result: the loss, and the test loss if any, over the epochs."""
    axes = _axes(result, ax)
    table = result.to_frame()
    _lines(axes, table, [name for name in ("epoch", "loss", "test_loss") if name in table])
    axes.set_ylabel("loss")
    axes.legend()
    return axes


def plot_batch_sharpness(result: BatchSharpness, ax: Axes | None = None) -> Axes:
    """Draw the result of sharpness over mini-batches: distribution, mean, pooled value."""
    axes = _axes(result, ax)
    axes.hist(result.values, bins="auto", alpha=0.5, label=f"batches of {result.batch_size}")
    axes.axvline(result.mean, color=COLORS[0], label="their mean")
    axes.axvline(result.pooled, color=COLORS[1], ls="--", label="all their samples")
    axes.set(xlabel="largest Hessian eigenvalue", ylabel="mini-batches")
    axes.legend()
    return axes


def plot_layer_curvature(result: LayerCurvature, ax: Axes | None = None) -> Axes:
    """Draw a result by layer: the largest eigenvalue of every block."""
    axes = _axes(result, ax)
    _bars(axes, list(result.layers), result.eigenvalues[:, 0], result.residuals[:, 0])
    axes.set_xlabel("largest eigenvalue of the layer's block")
    return axes


def plot_variance_flatness(result: VarianceFlatness, ax: Axes | None = None) -> Axes:
    """Draw a result's variance against flatness, mode by mode, and the power law."""
    axes = _axes(result, ax)
    table = result.to_frame()
    table = table[(table["variance"] > 0) & (table["flatness"] > 0)]
    slow = table[~table["resolved"]]
    table = table[table["resolved"]]
    flatness, variance = np.asarray(table["flatness"]), np.asarray(table["variance"])
    (points,) = axes.plot(flatness, variance, "o", ms=4)
    if len(slow):
        options = {"ms": 4, "mfc": "none", "color": points.get_color(), "label": "not resolved"}
        axes.plot(slow["flatness"], slow["variance"], "o", **options)
    if len(flatness) and np.isfinite(result.exponent):
        middle = np.log(variance).mean() + result.exponent * np.log(flatness).mean()
        line = np.exp(middle) * flatness**-result.exponent
        label = f"ψ = {result.corrected_exponent:.3g}"
        if not result.doubt:
            label += " ({:.3g} to {:.3g})".format(*result.interval)
        if not result.stationarity.stationary:
            label += ", not stationary"
        axes.plot(flatness, line, "--", color=points.get_color(), lw=1, label=label)
        axes.legend()
    axes.set(xscale="log", yscale="log", xlabel="flatness F", ylabel="variance")
    return axes


def plot_layer_fluctuations(result: LayerFluctuations, ax: Axes | None = None) -> Axes:
    """Draw a layer's result: measured and predicted variances against the curvature."""
    axes = _axes(result, ax)
    table = result.to_frame()
    table = table[table["curvature"] > 0]
    slow = table[~table["resolved"]]
    seen = table[table["resolved"]]
    (points,) = axes.plot(seen["curvature"], seen["variance"], "o", ms=4, label="measured")
    options = {"ms": 4, "mfc": "none", "color": points.get_color(), "label": "not resolved"}
    if len(slow):
        axes.plot(slow["curvature"], slow["variance"], "o", **options)
    if "predicted_variance" in table:
        shown = table[table["predicted_variance"] > 0]
        axes.plot(shown["curvature"], shown["predicted_variance"], "x", ms=4, label="predicted")
    axes.set(xlabel="curvature", ylabel="variance", title=result.name)
    if len(table):
        axes.set(xscale="log", yscale="log")
    axes.legend(title=None if result.stationary else "not stationary")
    return axes


def plot_fluctuations(result: Fluctuations, ax: Axes | None = None) -> Axes:
    """Draw the result ψ with its interval, a row per layer; open circles: not stationary."""
    axes = _axes(result, ax)
    table = result.to_frame().assign(place=np.arange(len(result.layers))[::-1])
    place = np.asarray(table["place"])
    known = table[np.isfinite(table["psi"])]
    for stationary, fill in ((True, COLORS[0]), (False, "none")):
        rows = known[known["stationary"] == stationary]
        psi = np.asarray(rows["psi"])
        options = {"fmt": "o", "ms": 4, "capsize": 2, "color": COLORS[0], "mfc": fill}
        if len(rows):
            options["label"] = "stationary" if stationary else "not stationary"
            error = [psi - np.asarray(rows["low"]), np.asarray(rows["high"]) - psi]
            axes.errorbar(psi, rows["place"], xerr=error, **options)
    if any(not row.stationary for row in result.layers.values() if row.flatness):
        axes.legend()
    axes.axvline(2.0, color="0.6", lw=1, ls=":")
    names = [
        f"{name} ({row.resolved:.0f} of {row.resolved + row.unresolved:.0f})"
        for name, row in table.iterrows()
    ]
    axes.set_yticks(place, names)
    axes.set(xlabel="exponent ψ", ylabel="layer (modes resolved)")
    axes.set_ylim(-0.7, len(table) - 0.3)
    return axes


def plot_sharpness_forecast(result: Any, ax: Axes | None = None) -> Axes:
    """Draw the sharpness's predicted path as a result, its band and the stability limit."""
    axes = _axes(result, ax)
    color, last = COLORS[0], result.steps[-1]
    axes.plot(result.steps, result.path, "o-", color=color, markersize=3, label="expected")
    ends = [[result.value - result.low], [result.high - result.value]]
    axes.errorbar([last], [result.value], ends, color=color, capsize=3)
    if np.isfinite(result.ceiling):
        axes.axhline(result.ceiling, color="0.5", ls="--", lw=1, label="stability limit")
    axes.set_xscale("symlog", linthresh=1)
    axes.set(yscale="log", xlim=(-0.2, 2 * last), xlabel="step", ylabel="sharpness")
    axes.legend(loc="center left")
    return axes


def _axes(result: Result, ax: Axes | None) -> Axes:
    if not isinstance(result, Result):
        raise ArgumentError("result", result, "expected a result", "Give one of hr.eigsh, ….")
    if ax is not None and not hasattr(ax, "plot"):
        remedy = "Give one of plt.subplots(), or None for a new figure."
        raise ArgumentError("ax", ax, "expected matplotlib axes", remedy)
    return new_figure()[1] if ax is None else ax


def _table(result: Result) -> pd.DataFrame:
    table = result.to_frame()
    table = table.reset_index() if table.index.name else table
    if not any(column.dtype.kind in "iuf" for _, column in table.items()):
        raise ArgumentError("result", result, "it has no numbers", "Use to_frame().")
    return table


def _lines(axes: Axes, table: pd.DataFrame, names: list[str]) -> None:
    """Draw columns of a result over the first of them."""
    marker = "o" if len(table) <= _MARKED else ""
    for name in names[1:]:
        axes.plot(table[names[0]], table[name], marker=marker, ms=3, label=_plain(name))
    axes.set_xlabel(_plain(names[0]))


def _band(axes: Axes, table: pd.DataFrame, names: list[str]) -> None:
    x, y = (table[name] for name in names)
    look = {"color": axes.lines[-1].get_color(), "alpha": 0.2, "lw": 0}
    if {"low", "high"} <= set(table.columns):
        axes.fill_between(x, table["low"], table["high"], **look)
    elif "stderr" in table and np.any(table["stderr"] > 0):
        reach = 2 * table["stderr"]
        axes.fill_between(x, y - reach, y + reach, **look)


def _bars(
    axes: Axes, names: list[str], values: np.ndarray, errors: Any = None, color: Any = None
) -> None:
    place = np.arange(len(names))[::-1]
    axes.barh(place, values, xerr=errors, height=0.7, color=color, error_kw={"lw": 0.8})
    short = [n if len(n) <= _LABELS else "…" + n[1 - _LABELS :] for n in names]
    axes.set_yticks(place, [_plain(name) for name in short])


def _logarithmic(axes: Axes, values: np.ndarray) -> None:
    positive = values[np.isfinite(values) & (values > 0)]
    if len(positive):
        top = positive.max()
        axes.set_yscale("log")
        axes.set_ylim(max(positive.min(), top / 10**_DECADES) / 1.5, 1.5 * top)


def _plain(text: str) -> str:
    """Return text of a result's plot that matplotlib does not read as mathematics."""
    return text.replace("$", r"\$")
