"""Home page: all runs with status and sparklines; search, filter, and overlay."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from dash import ALL, Dash, Input, Output, State, ctx, dcc, html

from hyperribbon.application.explorer.controls import aria, write_query
from hyperribbon.application.explorer.runs.catalogue import find_entries
from hyperribbon.application.explorer.runs.overlay import overlay_blocks
from hyperribbon.application.explorer.runs.summaries import RunSummary, sparkline, summarize
from hyperribbon.application.explorer.theory_page import keep_link
from hyperribbon.plots.style import COLORS

_MOST_SHOWN = 300
_FILTERS = ("all", "running", "recording", "inspection", "experiment", "damaged")
_CURVE_COLORS = {"loss": COLORS[0], "sharpness": COLORS[1]}
_EXAMPLE = """\
import hyperribbon as hr

recorder = hr.Recorder("{folder}/first", every="50it", measure="sharpness")
hr.train(model, loss, data, epochs=10, lr=0.1, recorder=recorder)
hr.explore("{folder}")"""


class HomePage:
    """The explorer's home page: the list of runs.

    Args:
        store: Folder of stored runs; it may be absent.
    """

    key = ""
    title = "Runs"

    def __init__(self, store: Path) -> None:
        self._store = store

    def layout(self, search: str | None) -> html.Div:
        """Return the home page with the search, filter and overlay given in a link."""
        stated = parse_qsl((search or "").lstrip("?"))
        given = dict(stated)
        picked = {value for name, value in stated if name == "pick"}
        found = [summarize(entry) for entry in find_entries(self._store).values()]
        found.sort(key=lambda summary: (summary.state != "running", -summary.when))
        if not found:
            return html.Div(self._welcome(), className="page", id="page-home")
        text, choice = given.get("search", ""), given.get("show", "all")
        return html.Div(
            [
                dcc.Store(id="home-link"),
                html.H1("Runs"),
                html.P(self._lead(found), className="lead"),
                _tools(text, choice if choice in _FILTERS else "all", found),
                html.Section(
                    [_card(summary, summary.name in picked) for summary in found[:_MOST_SHOWN]],
                    className="cards",
                    **aria("Runs"),
                ),
                html.P(id="home-none", className="message", role="status"),
                html.Section(id="home-overlay", **aria("Overlay of the selected runs")),
            ],
            className="page",
            id="page-home",
        )

    def _lead(self, found: list[RunSummary]) -> str:
        running = sum(summary.state == "running" for summary in found)
        more = f", of which the newest {_MOST_SHOWN} are shown" if len(found) > _MOST_SHOWN else ""
        return (
            f"{len(found):,} runs in {self._store}{more}. "
            + (f"{running} running: follow them live. " if running else "")
            + "Open one, or tick several to overlay them."
        )

    def _welcome(self) -> list[Any]:
        """Return the home page's instructions for an empty folder."""
        example = _EXAMPLE.format(folder=self._store)
        return [
            html.H1("No runs yet"),
            html.P(
                f"Nothing is recorded in {self._store}. Three lines record a training run and "
                "show it here while it runs:",
                className="lead",
            ),
            html.Pre(example, tabIndex="0", id="home-example"),
            html.P("In your own training loop:", className="lead"),
            html.Pre(
                f'recorder = hr.Recorder("{self._store}/first", every="50it", '
                'measure="sharpness", loss=loss, data=(inputs, targets))\n'
                "recorder.attach(model, optimizer)\n"
                "recorder.step(value)        # after every optimizer.step(); recorder.close() at "
                "the end",
                tabIndex="0",
            ),
            html.P(
                [
                    "Then reload this page. To try it without a model: ",
                    html.Code(f"hyperribbon demo --out {self._store}"),
                    ", or explore the theory pages above.",
                ],
                className="lead",
            ),
        ]

    def connect(self, app: Dash) -> None:
        """Register the callbacks of the home page."""

        @app.callback(
            Output({"type": "card", "run": ALL}, "hidden"),
            Output("home-none", "children"),
            Input("home-search-typed", "data"),
            Input("home-show", "value"),
            State({"type": "card", "run": ALL}, "id"),
        )
        def _filter(text: str | None, choice: str, ids: list[dict[str, str]]) -> Any:
            entries = find_entries(self._store)
            hidden = [
                name not in entries
                or not summarize(entries[name]).matches(str(text or ""), str(choice))
                for name in (given["run"] for given in ids)
            ]
            return hidden, "No run matches this search." if all(hidden) else ""

        @app.callback(
            Output("home-overlay", "children"),
            Input({"type": "pick", "run": ALL}, "value"),
            State({"type": "pick", "run": ALL}, "id"),
        )
        def _overlay(values: list[Any], ids: list[dict[str, str]]) -> Any:
            entries = find_entries(self._store)
            chosen = [given["run"] for given, on in zip(ids, values, strict=True) if on]
            return overlay_blocks([entries[n] for n in chosen if n in entries], "overlay")

        @app.callback(
            Output("home-link", "data"),
            Input("home-search-typed", "data"),
            Input("home-show", "value"),
            Input({"type": "pick", "run": ALL}, "value"),
        )
        def _link(text: str | None, choice: str, _: Any) -> str:
            stated = [("search", text)] if text else []
            stated += [("show", choice)] if choice != "all" else []
            stated += [
                ("pick", part["id"]["run"]) for part in ctx.inputs_list[2] if part.get("value")
            ]
            return write_query(stated)

        keep_link(app, self.key)


def _tools(text: str, choice: str, found: list[RunSummary]) -> html.Div:
    there = {"all", *(s.kind for s in found), *(s.state for s in found)}
    options = [{"label": name, "value": name} for name in _FILTERS if name in there]
    chosen = choice if choice in there else "all"
    search = dcc.Input(
        id="home-search",
        type="search",
        value=text,
        placeholder="Search the runs",
        autoComplete="off",
    )
    legend = html.Legend("Show", className="unseen")
    show = dcc.RadioItems(id="home-show", options=options, value=chosen, className="choices")
    kept = dcc.Store(id="home-search-typed", data=text)
    return html.Div([search, kept, html.Fieldset([legend, show])], className="tools", role="search")


def _card(summary: RunSummary, is_picked: bool) -> html.Article:
    page = "live" if summary.kind == "recording" else "runs"
    address = f"/{page}{write_query({'run': summary.name})}"
    curves = [
        html.Div(
            [
                html.Span(f"{label} {float(series[1][-1]):.3g}", className="quiet-text"),
                html.Img(
                    src=sparkline(series, _CURVE_COLORS[label]),
                    alt=f"{label} of {summary.label} over training",
                ),
            ],
            className="spark",
        )
        for label, series in summary.curves.items()
    ]
    tick = dcc.Checklist(
        id={"type": "pick", "run": summary.name},
        options=[{"label": "overlay", "value": "on"}],
        value=["on"] if is_picked else [],
        className="choices",
    )
    return html.Article(
        [
            html.Div(
                [
                    dcc.Link(summary.label, href=address, className="run-name"),
                    html.Span(summary.state, className=f"badge {summary.state}"),
                ],
                className="card-head",
            ),
            html.P(summary.text, className="card-text"),
            html.Div(curves, className="sparks"),
            html.Div(
                [
                    html.Span(f"{summary.kind} · {summary.date} · {summary.size}"),
                    *([tick] if summary.kind == "recording" else []),
                ],
                className="card-foot",
            ),
        ],
        id={"type": "card", "run": summary.name},
        className="card",
        hidden=False,
        **aria(summary.label),
    )
