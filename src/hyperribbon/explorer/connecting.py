"""Callbacks of the theory pages: sliders, buttons, clicks, and uploads."""

from __future__ import annotations

from typing import Any

from dash import Dash, Input, Output, State, ctx, no_update

from hyperribbon.core.checks import ArgumentError, MissingExtraError
from hyperribbon.explorer.controls import Slider, Values, write_link
from hyperribbon.explorer.guarding import Guard
from hyperribbon.explorer.jobs import Jobs
from hyperribbon.explorer.layout import reading_rows
from hyperribbon.explorer.pages import TheoryPage
from hyperribbon.explorer.papers.uploads import dataset_slope, matrix_slope, read_matrix

__all__ = ["connect_page", "connect_uploads", "keep_link"]

_REDRAWS = 10
_NO_TOKEN = "To start this, open the full address shown in the terminal, including its token."
_REPLACE_LINK = """
function(link) {
    const here = window.location.pathname;
    if (link !== undefined && link !== null && here === '/%s') {
        window.history.replaceState(null, '', here + link);
    }
    return window.dash_clientside.no_update;
}
"""
_EXPORT = """
function(clicks) {
    if (clicks) { window.hyperribbon.exportPlot('%s', '%s', '%s'); }
    return window.dash_clientside.no_update;
}
"""


def keep_link(app: Dash, key: str) -> None:
    """Show a page's stored link in the address bar while that page is open."""
    store = f"{key or 'home'}-link"
    app.clientside_callback(
        _REPLACE_LINK % key, Output(store, "modified_timestamp"), Input(store, "data")
    )


def connect_page(app: Dash, page: TheoryPage, jobs: Jobs, guard: Guard) -> None:
    """Register the callbacks of a theory page."""
    key, controls = page.key, page.controls
    moved = [Input(f"{key}-{control.name}", "value") for control in controls]

    def values_of(positions: tuple[Any, ...]) -> Values:
        return {
            control.name: control.default if position is None else control.value(position)
            for control, position in zip(controls, positions, strict=True)
        }

    @app.callback(
        [Output(f"{key}-{picture.name}", "figure") for picture in page.pictures],
        [Output(f"{key}-{control.name}-shown", "children") for control in controls],
        Output(f"{key}-readings", "children"),
        Output(f"{key}-code", "children"),
        Output(f"{key}-link", "data"),
        moved,
        Input(f"{key}-overlay", "data"),
    )
    def _update(*arguments: Any) -> Any:
        *positions, overlay = _flat(arguments)
        values = values_of(tuple(positions))
        result = _fresh(page, values, overlay)
        return (
            *(picture.draw(values, result) for picture in page.pictures),
            *(control.show(values[control.name]) for control in controls),
            reading_rows(page.read(values)),
            page.code(values),
            write_link(values, controls),
        )

    keep_link(app, key)
    held = [State(f"{key}-{control.name}", "value") for control in controls]
    for picture in page.pictures:
        name = f"{key}-{picture.name}"
        for kind in ("svg", "png", "csv"):
            app.clientside_callback(
                _EXPORT % (name, kind, f"hyperribbon-{name}"),
                Output(f"{name}-{kind}", "title"),
                Input(f"{name}-{kind}", "n_clicks"),
                prevent_initial_call=True,
            )
        if picture.sets is not None:
            _connect_click(app, page, picture)
    if page.action is not None:
        _connect_action(app, page, jobs, guard, held, values_of)


def connect_uploads(app: Dash, page: TheoryPage, control: str, guard: Guard) -> None:
    """Set the slope control from a data set or an uploaded matrix."""
    slider = next(c for c in page.controls if isinstance(c, Slider) and c.name == control)

    @app.callback(
        Output(f"{page.key}-{control}", "value", allow_duplicate=True),
        Output(f"{page.key}-upload-message", "children"),
        Input(f"{page.key}-upload", "contents"),
        Input(f"{page.key}-dataset", "value"),
        State(f"{page.key}-upload", "filename"),
        prevent_initial_call=True,
    )
    def _place(contents: str | None, dataset: str | None, filename: str | None) -> Any:
        uploaded = ctx.triggered_id == f"{page.key}-upload"
        if not (contents if uploaded else dataset):
            return no_update, ""
        if uploaded and not guard.may_start():
            return no_update, _NO_TOKEN
        try:
            found = (
                matrix_slope(read_matrix(contents or "", filename or ""))
                if uploaded
                else dataset_slope(dataset or "")
            )
        except (ArgumentError, MissingExtraError) as error:
            return no_update, str(error)
        name = filename if uploaded else dataset
        text = f"{name}: slope c = {found['slope']:.4f} ± {found['stderr']:.1g}"
        inside = min(max(found["slope"], slider.low), slider.high)
        if inside != found["slope"]:
            text += f" (outside the diagram, shown at {inside})"
        return slider.position(round(inside, 2)), text


def _flat(arguments: tuple[Any, ...]) -> list[Any]:
    flat = []
    for argument in arguments:
        flat += argument if isinstance(argument, list) else [argument]
    return flat


def _fresh(page: TheoryPage, values: Values, overlay: Any) -> Any:
    """Return the overlay's result if it matches the current settings."""
    if overlay is None or page.action is None:
        return None
    same = all(overlay["values"].get(name) == values[name] for name in page.action.uses)
    return overlay["result"] if same else None


def _connect_click(app: Dash, page: TheoryPage, picture: Any) -> None:
    by_name = {control.name: control for control in page.controls}
    probe = picture.sets({"x": 1.0, "y": 1.0})

    @app.callback(
        [Output(f"{page.key}-{name}", "value", allow_duplicate=True) for name in probe],
        Input(f"{page.key}-{picture.name}", "clickData"),
        prevent_initial_call=True,
    )
    def _click(click: dict[str, Any] | None) -> Any:
        if not click:
            return [no_update] * len(probe)
        chosen = picture.sets(click["points"][0])
        controls: Any = [by_name[name] for name in chosen]
        return [
            control.position(control.parse(str(value)))
            for control, value in zip(controls, chosen.values(), strict=True)
        ]


def _connect_action(
    app: Dash, page: TheoryPage, jobs: Jobs, guard: Guard, held: Any, values_of: Any
) -> None:
    key, action = page.key, page.action
    assert action is not None
    outputs = [
        Output(f"{key}-tick", "disabled"),
        Output(f"{key}-start", "disabled"),
        Output(f"{key}-stop", "disabled"),
        Output(f"{key}-progress", "value"),
        Output(f"{key}-status", "children"),
    ]

    @app.callback(
        outputs,
        Output(f"{key}-overlay", "data"),
        Input(f"{key}-start", "n_clicks"),
        Input(f"{key}-stop", "n_clicks"),
        Input(f"{key}-tick", "n_intervals"),
        held,
        State("visitor", "data"),
        State(f"{key}-overlay", "data"),
        prevent_initial_call=True,
    )
    def _drive(start: int, stop: int, ticks: int, *arguments: Any) -> Any:
        *positions, visitor, overlay = _flat(arguments)
        if not guard.is_visitor(visitor):
            return True, False, True, "0", "Reload the page.", no_update
        owner = f"{visitor}/{key}"
        if ctx.triggered_id == f"{key}-start":
            if not guard.may_start():
                return True, False, True, "0", _NO_TOKEN, no_update
            values = values_of(tuple(positions))
            try:
                jobs.start(
                    owner, lambda report: action.run(values, report), values, user=guard.user()
                )
            except ArgumentError as error:
                return True, False, True, "0", str(error), no_update
            return False, True, False, "0", "Running…", no_update
        if ctx.triggered_id == f"{key}-stop":
            jobs.stop(owner)
        job = jobs.get(owner)
        if job is None:
            return True, False, True, "0", "", no_update
        found = no_update
        shown = int(_REDRAWS * job.progress)
        # Redrawing faster than the browser renders would never show a figure.
        if job.result and (job.finished or shown != (overlay or {}).get("shown")):
            found = {"values": job.settings, "result": job.result, "shown": shown}
        status = job.message or ("Done." if job.finished else f"{job.progress:.0%}")
        running = not job.finished
        return not running, running, not running, str(job.progress), status, found
