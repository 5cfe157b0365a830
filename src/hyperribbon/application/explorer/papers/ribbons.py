"""Ribbons page: spectrum of training trajectories and its phase diagram."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from dash import Dash, Input, Output, State, ctx, no_update

from hyperribbon.application.explorer.controls import Slider, Values
from hyperribbon.application.explorer.figures import Drawing, curve, drawing, plain
from hyperribbon.application.explorer.papers.uploads import matrix_slope, read_matrix, upload_panel
from hyperribbon.application.explorer.theory_page import Numbers, Picture, TheoryPage
from hyperribbon.core.checks import ArgumentError, MissingExtraError
from hyperribbon.core.data import load_data
from hyperribbon.plots.style import COLORS
from hyperribbon.theory.ribbons import Part, PhaseDiagram, Ribbon, phase_diagram, weyl_bound

_CONTROLS = (
    Slider("n", "Samples n", 10, 200, 50, 1, whole=True, help="Training samples."),
    Slider("c", "Slope c", 0.02, 1.5, 0.2, 0.01, help="Decay of the data's log-eigenvalues."),
    Slider("T", "Steps T", 1, 1e5, 50, 0.02, log=True, whole=True, help="Training time."),
    Slider("ratio", "σ* / σw", 0.1, 30, 4.47, 0.01, log=True, help="Truth over start."),
    Slider("alpha", "Learning rate α", 0.05, 1.0, 1.0, 0.01, help="In units of 1/λ₁."),
    Slider("b", "Batch size b (0: full)", 0, 256, 0, 1, whole=True, help="Constant-noise SGD."),
    Slider("decay", "Weight decay", 0.0, 0.5, 0.0, 0.005, help="Coefficient of ‖w‖²/2."),
)
_PARTS: dict[Part, tuple[str, str]] = {
    "P": ("all points, P", COLORS[0]),
    "P1_y": ("targets, P₁(y)", COLORS[1]),
    "P1_sigma": ("initial weights, P₁(σw)", COLORS[2]),
}
_GRID_STEPS = np.unique(np.round(np.logspace(0, 5, 46)).astype(int))
_GRID_SLOPES = np.linspace(0.02, 1.5, 38)
_FLOOR = 1e-14
_DASHES = {"color": COLORS[3], "dash": "dash"}
_NOTE = {"y": 1, "xanchor": "left", "yanchor": "top", "showarrow": False}


@lru_cache(maxsize=8)
def _ribbon(**values: Any) -> Ribbon:
    return Ribbon.exponential(
        values["n"],
        values["c"],
        sigma_star=values["ratio"],
        alpha=values["alpha"] / (1 + values["decay"]),
        steps=values["T"],
        weight_decay=values["decay"],
        batch_size=values["b"] or None,
    )


@lru_cache(maxsize=64)
def _diagram(n: int, ratio: float, alpha: float) -> PhaseDiagram:
    return phase_diagram(n, _GRID_STEPS, _GRID_SLOPES, ratio, alpha=alpha)


def _draw_spectrum(values: Values, overlay: Any) -> Drawing:
    ribbon = _ribbon(**values)
    index = np.arange(1, values["n"] + 1)
    traces = [
        curve(
            name,
            index,
            _positive(ribbon.spectrum(part)),
            mode="lines+markers" if part == "P" else "lines",
            line={"color": color, "width": 2.5 if part == "P" else 1.5},
            marker={"size": 4},
        )
        for part, (name, color) in _PARTS.items()
    ]
    try:
        bound = weyl_bound(ribbon)
    except ArgumentError:
        pass  # the bound is for full batches without weight decay
    else:
        line = {"color": "#888888", "dash": "dot", "width": 1.5}
        traces.append(curve("bound, Eq. 7", index, _positive(bound.upper), line=line))
    k = ribbon.dimensions(0.95)
    mark = {"xref": "x", "yref": "y domain"}
    return drawing(
        traces,
        "index",
        "eigenvalue",
        log="y",
        shapes=[{**mark, "type": "line", "x0": k, "x1": k, "y0": 0, "y1": 1, "line": _DASHES}],
        annotations=[{**mark, **_NOTE, "x": k, "text": f"95%: {k}"}],
    )


def _draw_diagram(values: Values, overlay: Any) -> Drawing:
    diagram = _diagram(values["n"], values["ratio"], values["alpha"])
    heights = {
        "type": "heatmap",
        "x": plain(diagram.steps),
        "y": plain(diagram.slopes),
        "z": plain(diagram.dimensions),
        "colorscale": "Viridis",
        "colorbar": {"title": {"text": "dimensions"}, "thickness": 12, "outlinewidth": 0},
        "hovertemplate": "T = %{x}<br>c = %{y:.3f}<br>%{z} dimensions<extra></extra>",
        "name": "dimensions",
    }
    here = curve(
        "you are here",
        [values["T"]],
        [values["c"]],
        mode="markers",
        marker={
            "size": 15,
            "symbol": "cross",
            "color": COLORS[1],
            "line": {"width": 2, "color": "#fff"},
        },
        hovertemplate="T = %{x}, c = %{y}<extra>here</extra>",
    )
    return drawing([heights, here], "steps T", "slope c", log="x", showlegend=False)


def _positive(values: np.ndarray) -> np.ndarray:
    return np.where(values > _FLOOR * max(values[0], _FLOOR), values, np.nan)


def _numbers(values: Values) -> Numbers:
    ribbon = _ribbon(**values)
    spectrum = ribbon.spectrum()
    slowest = 1 / (values["alpha"] * ribbon.eigenvalues[-1])
    share = spectrum[0] / spectrum.sum() if spectrum.sum() > 0 else float("nan")
    return [
        ("Dimensions for 95% of the variance", str(ribbon.dimensions(0.95))),
        ("Dimensions for 99%", str(ribbon.dimensions(0.99))),
        ("Share of the first", f"{share:.1%}"),
        ("1/(α λₙ), steps of the slowest direction", f"{slowest:.3g}"),
    ]


def _code(values: Values) -> str:
    extra = f", batch_size={values['b']}" if values["b"] else ""
    extra += f", weight_decay={values['decay']}" if values["decay"] else ""
    rate = values["alpha"] / (1 + values["decay"])
    return (
        "import hyperribbon as hr\n\n"
        f"ribbon = hr.theory.ribbons.Ribbon.exponential(\n"
        f"    {values['n']}, {values['c']}, sigma_star={values['ratio']}, alpha={rate:.6g}, "
        f"steps={values['T']}{extra}\n)\n"
        "ribbon.spectrum(), ribbon.dimensions(0.95)\n"
        f"hr.theory.ribbons.phase_diagram({values['n']}, [1, 10, 100, 1000], [0.1, 0.2, 0.5], "
        f"{values['ratio']}, alpha={values['alpha']}).dimensions\n"
    )


PAGE = TheoryPage(
    key="ribbons",
    title="Ribbons",
    lead="Training trajectories of linear models lie on a thin ribbon. Move the data's slope, the "
    "training time and the ratio of truth to start, and see how many dimensions it has.",
    controls=_CONTROLS,
    pictures=(
        Picture(
            "spectrum", "Variance along each principal direction", _draw_spectrum,
            "Eigenvalues of the covariance of all points on training trajectories, its parts and "
            "the upper bound, against their index, on a logarithmic axis.",
        ),
        Picture(
            "phase", "Dimensions over training time and slope", _draw_diagram,
            "Number of dimensions that carry 95 percent of the variance, over training time and "
            "slope, for full-batch gradient descent without weight decay. Click to move the point.",
        ),
    ),
    numbers=_numbers,
    code=_code,
    extra=(upload_panel(),),
)  # fmt: skip


def connect_data(app: Dash) -> None:
    """Set the ribbon page's sliders by a click on its diagram, a data set, or an upload."""
    sliders = {control.name: control for control in _CONTROLS}
    slope = Output("ribbons-c", "value", allow_duplicate=True)

    @app.callback(
        Output("ribbons-T", "value", allow_duplicate=True),
        slope,
        Input("ribbons-phase", "clickData"),
        prevent_initial_call=True,
    )
    def _click(click: dict[str, Any] | None) -> Any:
        if not click:
            return no_update, no_update
        point = click["points"][0]
        steps = sliders["T"].parse(point["x"])
        return sliders["T"].position(steps), sliders["c"].parse(round(float(point["y"]), 2))

    @app.callback(
        slope,
        Output("ribbons-upload-message", "children"),
        Input("ribbons-upload", "contents"),
        Input("ribbons-dataset", "value"),
        State("ribbons-upload", "filename"),
        prevent_initial_call=True,
    )
    def _place(contents: str | None, dataset: str | None, filename: str | None) -> Any:
        uploaded = ctx.triggered_id == "ribbons-upload"
        name = filename if uploaded else dataset
        if not (contents if uploaded else dataset):
            return no_update, ""
        try:
            if uploaded:
                matrix = read_matrix(contents or "", filename or "")
            else:
                matrix = load_data(dataset or "", "all").flat().inputs.double().numpy()
            found = matrix_slope(matrix)
        except (ArgumentError, MissingExtraError) as error:
            return no_update, str(error)
        text = f"{name}: slope c = {found.value:.4f} ± {found.stderr:.1g}"
        inside = min(max(found.value, sliders["c"].low), sliders["c"].high)
        if inside != found.value:
            text += f" (outside the diagram, shown at {inside})"
        return round(inside, 2), text
