"""A theory page: its controls, figures, numbers and code, their layout and their callbacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dash import Dash, Input, Output, State, ctx, dcc, html, no_update

from hyperribbon.application.explorer.controls import Control, Values, aria, write_link
from hyperribbon.application.explorer.figures import Drawing, code_block, picture_block
from hyperribbon.application.explorer.jobs import Jobs, Report
from hyperribbon.core.checks import ArgumentError

Numbers = Sequence[tuple[str, str]]
"""Numbers below the figures: label and formatted value."""

_REDRAWS = 10
_REPLACE_LINK = """
function(link) {
    const here = window.location.pathname;
    if (link !== undefined && link !== null && here === '/%s') {
        window.history.replaceState(null, '', here + link);
    }
    return window.dash_clientside.no_update;
}
"""


def keep_link(app: Dash, key: str) -> None:
    """Keep a theory page's link in the address bar while that page is open."""
    store = f"{key or 'home'}-link"
    app.clientside_callback(
        _REPLACE_LINK % key, Output(store, "modified_timestamp"), Input(store, "data")
    )


@dataclass(frozen=True)
class Picture:
    """A figure of a theory page.

    Attributes:
        name: Part of its id and of the exported file's name.
        title: Heading.
        draw: Returns a figure from the values and the result of the last measurement (or None).
        describe: One sentence on what it shows, for screen readers.
    """

    name: str
    title: str
    draw: Callable[[Values, Any], Drawing]
    describe: str


@dataclass(frozen=True)
class Action:
    """A button of a theory page that starts a measurement and overlays it on the figures.

    Attributes:
        label: The button's text.
        run: Returns the final result (plain values) from the values and a progress callback.
    """

    label: str
    run: Callable[[Values, Report], Any]


@dataclass(frozen=True)
class TheoryPage:
    """An explorer page that shows a paper's theory with its controls.

    Attributes:
        key: Its path.
        title: Its name in the menu.
        lead: One or two sentences at the top.
        controls: What can be set.
        pictures: What is drawn.
        numbers: Returns the numbers below the figures.
        code: Returns Python code that computes the same numbers.
        action: The measurement it offers, if any.
        bars: Group label of the controls drawn as bars.
        extra: Further components above the pictures.
    """

    key: str
    title: str
    lead: str
    controls: Sequence[Control]
    pictures: Sequence[Picture]
    numbers: Callable[[Values], Numbers]
    code: Callable[[Values], str]
    action: Action | None = None
    bars: str = ""
    extra: Sequence[Any] = ()

    def layout(self, values: Values) -> html.Div:
        """Return the theory page with its controls set to `values`."""
        controls: list[Any] = []
        bars: list[Any] = []
        for control in self.controls:
            component = control.component(self.key, values[control.name])
            (bars if control.is_bar else controls).append(component)
        if bars:
            group = html.Div(bars, className="bars")
            controls.append(html.Fieldset([html.Legend(self.bars), group]))
        pictures = []
        for picture in self.pictures:
            name = f"{self.key}-{picture.name}"
            block = picture_block(
                picture.title, picture.describe, name, export=f"hyperribbon-{name}"
            )
            pictures.append(block)
        return html.Div(
            [
                dcc.Store(id=f"{self.key}-link"),
                dcc.Store(id=f"{self.key}-overlay"),
                html.H1(self.title),
                html.P(self.lead, className="lead"),
                *self.extra,
                html.Div(
                    [
                        html.Section(
                            [*controls, *self._buttons()], className="controls", **aria("Settings")
                        ),
                        html.Div(pictures, className="pictures"),
                    ],
                    className="columns",
                ),
                html.Section(
                    [html.H2("Numbers"), html.Dl(id=f"{self.key}-readings", className="readings")],
                    role="status",
                ),
                code_block(f"{self.key}-code"),
            ],
            className="page",
            id=f"page-{self.key}",
        )

    def _buttons(self) -> list[Any]:
        if self.action is None:
            return []
        start = {"type": "button", "n_clicks": 0}
        stop = {**start, "className": "quiet", "disabled": True}
        return [
            html.Div(
                [
                    html.Button(self.action.label, id=f"{self.key}-start", **start),
                    html.Button("Stop", id=f"{self.key}-stop", **stop),
                    html.Progress(id=f"{self.key}-progress", value="0", max="1"),
                    html.Div(id=f"{self.key}-status", role="status", className="message"),
                    dcc.Interval(id=f"{self.key}-tick", interval=400, disabled=True),
                ],
                className="action",
            )
        ]

    def connect(self, app: Dash, jobs: Jobs) -> None:
        """Register the callbacks of the theory page."""
        key = self.key

        @app.callback(
            output={
                "figures": [Output(f"{key}-{p.name}", "figure") for p in self.pictures],
                "shown": [Output(f"{key}-{c.name}-shown", "children") for c in self.controls],
                "numbers": Output(f"{key}-readings", "children"),
                "code": Output(f"{key}-code", "children"),
                "link": Output(f"{key}-link", "data"),
            },
            inputs={
                "positions": {c.name: Input(f"{key}-{c.name}", "value") for c in self.controls},
                "overlay": Input(f"{key}-overlay", "data"),
            },
        )
        def _update(positions: Values, overlay: Any) -> Any:
            values = self._values(positions)
            result = overlay["result"] if overlay and overlay["values"] == values else None
            numbers = self.numbers(values)
            return {
                "figures": [picture.draw(values, result) for picture in self.pictures],
                "shown": [control.format(values[control.name]) for control in self.controls],
                "numbers": [html.Div([html.Dt(name), html.Dd(text)]) for name, text in numbers],
                "code": self.code(values),
                "link": write_link(values, self.controls),
            }

        keep_link(app, key)
        if self.action is not None:
            self._connect_action(app, jobs, self.action)

    def _values(self, positions: Values) -> Values:
        return {control.name: control.value(positions[control.name]) for control in self.controls}

    def _connect_action(self, app: Dash, jobs: Jobs, action: Action) -> None:
        key = self.key

        @app.callback(
            output={
                "tick": Output(f"{key}-tick", "disabled"),
                "start": Output(f"{key}-start", "disabled"),
                "stop": Output(f"{key}-stop", "disabled"),
                "progress": Output(f"{key}-progress", "value"),
                "status": Output(f"{key}-status", "children"),
                "overlay": Output(f"{key}-overlay", "data"),
            },
            inputs={
                "events": (
                    Input(f"{key}-start", "n_clicks"),
                    Input(f"{key}-stop", "n_clicks"),
                    Input(f"{key}-tick", "n_intervals"),
                )
            },
            state={
                "positions": {c.name: State(f"{key}-{c.name}", "value") for c in self.controls},
                "visitor": State("visitor", "data"),
                "overlay": State(f"{key}-overlay", "data"),
            },
            prevent_initial_call=True,
        )
        def _drive(events: Any, positions: Values, visitor: Any, overlay: Any) -> Any:
            owner = f"{str(visitor)[:40]}/{key}"
            if ctx.triggered_id == f"{key}-start":
                values = self._values(positions)
                try:
                    jobs.start(owner, lambda report: action.run(values, report), values)
                except ArgumentError as error:
                    return _progress(False, status=str(error))
                return _progress(True, status="Running…")
            job = jobs.get(owner)
            if job is None:
                return _progress(False)
            if ctx.triggered_id == f"{key}-stop":
                job.stop.set()
            found = no_update
            shown = int(_REDRAWS * job.progress)
            # Redrawing faster than the browser renders would never show a figure.
            if job.result and (job.finished or shown != (overlay or {}).get("shown")):
                found = {"values": job.settings, "result": job.result, "shown": shown}
            status = job.message or ("Done." if job.finished else f"{job.progress:.0%}")
            return _progress(not job.finished, job.progress, status, found)


def _progress(
    running: bool, progress: float = 0, status: str = "", overlay: Any = no_update
) -> dict[str, Any]:
    """Return the state of a theory page's buttons, progress bar, and result to draw."""
    return {
        "tick": not running,
        "start": running,
        "stop": not running,
        "progress": str(progress),
        "status": status,
        "overlay": overlay,
    }
