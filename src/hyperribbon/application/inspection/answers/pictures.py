"""The small picture beside each answer, readable on light and dark paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from math import isfinite
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hyperribbon.application.inspection.answers.sentences import Answer
from hyperribbon.application.inspection.quantities import Part, Quantity
from hyperribbon.plots import COLORS, Bars, Curve, Path, label_logs

_INK = "#7d8590"  # on white and on a dark page alike
_BLUE, _RED, _GREEN = COLORS[0], COLORS[1], COLORS[2]
_STYLE: dict[Any, Any] = {
    "font.size": 8,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color"), _INK),
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "hyperribbon",
}
_LAYERS = 5  # of the chart
_NAME = 18  # characters of a layer's name
_COLUMNS, _LINE = 3, 40  # panels in a row of all answers, characters in a line of a title

Numbers = Mapping[str, Quantity]
Parts = Mapping[str, Part]


def answer_picture(term: str, parts: Parts, config: Mapping[str, Any]) -> bytes | None:
    """Return the picture of an answer as an SVG file; None where its numbers are missing.

    Args:
        term: Name of the answer's explanation, such as "sharpness".
        parts: What was measured.
        config: Settings of the inspection, for the batch size.
    """
    draw = _DRAWN.get(term)
    numbers = {q.key: q for part in parts.values() for q in part.quantities}
    with rc_context(_STYLE):
        figure = Figure(figsize=(3.1, 1.55), layout="constrained")
        if draw is None or not draw(figure.subplots(), numbers, parts, config):
            return None
        label_logs(figure)
        content = BytesIO()
        figure.savefig(content, format="svg", transparent=True, metadata={"Date": None})
    return content.getvalue()


def draw_answers(answers: Sequence[Answer], parts: Parts, config: Mapping[str, Any]) -> Figure:
    """Return all answers as one figure: a picture of each below its finding.

    Args:
        answers: Of an inspection.
        parts: What was measured.
        config: Settings of the inspection.
    """
    shown = [answer for answer in answers if answer.term in _DRAWN]
    numbers = {q.key: q for part in parts.values() for q in part.quantities}
    rows = -(-len(shown) // _COLUMNS)
    style: dict[Any, Any] = {**_STYLE, "text.color": "#1c2128"}
    with rc_context(style):
        figure = Figure(figsize=(3.6 * _COLUMNS, 2.5 * rows), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12)  # type: ignore[union-attr]
        panels = figure.subplots(rows, _COLUMNS, squeeze=False).ravel()
        for axes in panels[len(shown) :]:
            axes.set_visible(False)
        for answer, axes in zip(shown, panels, strict=False):
            axes.set_visible(_DRAWN[answer.term](axes, numbers, parts, config))
            title = fill(answer.finding.replace("$", r"\$"), _LINE)
            axes.set_title(title, loc="left", fontsize=8.5, fontweight="bold")
        label_logs(figure)
    return figure


def _spectrum(axes: Axes, numbers: Numbers, parts: Parts, config: Mapping[str, Any]) -> bool:
    values = parts["hessian"].arrays.get("eigenvalues") if "hessian" in parts else None
    if values is None or not (values > 0).any():
        return False
    shown = values[values > 0]
    axes.semilogy(np.arange(1, len(shown) + 1), shown, "o", ms=3, color=_BLUE)
    edge = numbers.get("stability.curvature")
    if edge is not None and edge.value > 0:
        axes.axhline(edge.value, color=_RED, lw=1, ls="--")
        place = {"xy": (1, edge.value), "xycoords": ("axes fraction", "data")}
        axes.annotate("largest stable curvature", **place, ha="right", va="bottom", color=_RED)
        axes.set_ylim(top=3 * max(edge.value, shown[0]))
    axes.set(xlabel="number", ylabel="eigenvalue")
    axes.minorticks_off()
    return True


def _gauge(axes: Axes, numbers: Numbers, parts: Parts, config: Mapping[str, Any]) -> bool:
    ratio = numbers.get("stability.ratio")
    if ratio is None or not isfinite(ratio.value):
        return False
    top = max(1.25, 1.1 * (ratio.value + max(ratio.error, 0)))
    for low, high, color in ((0, 0.8, _GREEN), (0.8, 1, COLORS[4]), (1, top, _RED)):
        axes.axvspan(low, high, color=color, alpha=0.25, lw=0)
    axes.errorbar([ratio.value], [0], xerr=max(ratio.error, 0), fmt="o", color=_BLUE, capsize=3)
    for place, side, offset, text in ((0.8, "right", -3, "20% margin"), (1, "left", 3, "limit")):
        axes.axvline(place, color=_INK, lw=1)
        axes.annotate(text, (place, 0.62), (offset, 0), textcoords="offset points", ha=side)
    axes.annotate("your step", (ratio.value, 0), (0, -14), textcoords="offset points", ha="center")
    axes.set(xlim=(0, top), ylim=(-1, 1), yticks=[], xlabel="of the largest stable step")
    axes.xaxis.set_major_formatter("{x:.0%}")
    axes.spines["left"].set_visible(False)
    return True


def _shares(axes: Axes, numbers: Numbers, parts: Parts, config: Mapping[str, Any]) -> bool:
    trace = numbers.get("gauss_newton.trace")
    values = parts["gauss_newton"].arrays.get("eigenvalues") if "gauss_newton" in parts else None
    if trace is None or values is None or trace.value <= 0 or len(values) < 2:
        return False
    axes.plot(np.arange(1, len(values) + 1), np.cumsum(values) / trace.value, color=_BLUE)
    axes.set(ylim=(0, 1.05), xlabel="directions", ylabel="share of curvature")
    axes.yaxis.set_major_formatter("{x:.0%}")
    return True


def _layer_bars(axes: Axes, numbers: Numbers, parts: Parts, config: Mapping[str, Any]) -> bool:
    bars = _mark(parts, "layer-trace", Bars)
    if bars is None:
        return False
    names = [n if len(n) <= _NAME else "…" + n[1 - _NAME :] for n in bars.names[:_LAYERS]]
    place = np.arange(len(names))[::-1]
    errors = None if bars.errors is None else bars.errors[:_LAYERS]
    axes.barh(place, bars.values[:_LAYERS], xerr=errors, color=_BLUE, ecolor=_INK, height=0.7)
    axes.set_yticks(place, [name.replace("$", r"\$") for name in names])
    axes.set_xlabel("share of curvature")
    axes.xaxis.set_major_formatter("{x:.0%}")
    return True


def _batch_curve(axes: Axes, numbers: Numbers, parts: Parts, config: Mapping[str, Any]) -> bool:
    scale = numbers.get("noise.scale")
    if scale is None or not isfinite(scale.value) or scale.value <= 0:
        return False
    own = config.get("batch_size")
    ends = [scale.value, *([own] if own else [])]
    batch = np.geomspace(min(ends) / 10, max(ends) * 10, 200)
    axes.semilogx(batch, batch / (batch + scale.value), color=_BLUE)
    error = max(scale.error, 0.0) if isfinite(scale.error) else 0.0
    axes.axvspan(max(scale.value - error, batch[0]), scale.value + error, color=_BLUE, alpha=0.2)
    axes.axvline(scale.value, color=_BLUE, lw=1, ls="--", label="critical")
    if own:
        axes.plot([own], [own / (own + scale.value)], "o", color=_RED, label="yours")
    axes.set(xlabel="batch size", ylabel="progress per step", ylim=(0, 1.05))
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.legend(loc="upper left", handlelength=1.2, borderaxespad=0.1)
    axes.minorticks_off()
    return True


def _pruning_curve(axes: Axes, numbers: Numbers, parts: Parts, config: Mapping[str, Any]) -> bool:
    curve = _mark(parts, "fractions", Curve)
    if curve is None:
        return False
    axes.plot(curve.x, curve.y, color=_BLUE)
    whole, share = numbers.get("subnetworks.baseline"), numbers.get("subnetworks.prunable")
    kept = numbers.get("subnetworks.pruned")
    if whole is not None:
        axes.axhline(whole.value, color=_INK, lw=1, ls="--", label="whole network")
    if share is not None and kept is not None:
        axes.plot([share.value], [kept.value], "o", color=_RED, label="still harmless")
    is_accuracy = whole is not None and "ccuracy" in whole.name
    axes.set(xlabel="zeroed, smallest first", ylabel="accuracy" if is_accuracy else "loss")
    axes.xaxis.set_major_formatter("{x:.0%}")
    if is_accuracy:
        axes.set_ylim(0, 1.05)
        axes.yaxis.set_major_formatter("{x:.0%}")
    axes.legend(loc="lower left", handlelength=1.2, borderaxespad=0.1)
    return True


def _ends(axes: Axes, numbers: Numbers, parts: Parts, config: Mapping[str, Any]) -> bool:
    largest, smallest = numbers.get("hessian.largest"), numbers.get("hessian.smallest")
    if largest is None or smallest is None:
        return False
    values = [largest.value, smallest.value]
    axes.barh([1, 0], values, color=[_BLUE, _RED if smallest.value < 0 else _BLUE], height=0.6)
    axes.axvline(0, color=_INK, lw=1)
    axes.set_yticks([1, 0], ["largest", "smallest"])
    axes.set_xlabel("Hessian eigenvalue")
    return True


def _path(axes: Axes, numbers: Numbers, parts: Parts, config: Mapping[str, Any]) -> bool:
    path = _mark(parts, "inpca", Path)
    if path is None or len(path.points) < 2:
        return False
    x, y = path.points[:, :2].T
    axes.plot(x, y, color=_INK, lw=0.8)
    times = np.arange(len(x)) if path.values is None else path.values
    axes.scatter(x, y, c=times, cmap="viridis", s=10, zorder=3)
    axes.set(xlabel="first component", ylabel="second")
    axes.locator_params(nbins=4)
    return True


def _mark(parts: Parts, name: str, kind: type[Any]) -> Any:
    """Return the first mark of a kind in the chart that an answer's picture shows."""
    charts = (chart for part in parts.values() for chart in part.charts if chart.name == name)
    return next((mark for chart in charts for mark in chart.marks if isinstance(mark, kind)), None)


_DRAWN: dict[str, Callable[[Axes, Numbers, Parts, Mapping[str, Any]], bool]] = {
    "sharpness": _spectrum,
    "stability": _gauge,
    "concentration": _shares,
    "layers": _layer_bars,
    "noise": _batch_curve,
    "pruning": _pruning_curve,
    "path": _path,
    "negative": _ends,
}
