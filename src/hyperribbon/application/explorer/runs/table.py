"""Table of runs: settings and last values; sort, filter by value, overlay and compare."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dash import ALL, Dash, Input, Output, State, ctx, dcc, html

from hyperribbon.application.explorer.controls import aria, write_query
from hyperribbon.application.explorer.jobs import Jobs
from hyperribbon.application.explorer.runs.catalogue import UNREADABLE, Entry, find_entries
from hyperribbon.application.explorer.runs.overlay import overlay_blocks
from hyperribbon.application.explorer.runs.recording_figures import AXES
from hyperribbon.application.explorer.runs.summaries import RunSummary, summarize

if TYPE_CHECKING:
    from hyperribbon.application.inspection.comparison.result import Comparison

_FIRST = ("loss", "accuracy", "test_accuracy", "sharpness")
_FIRST += ("lr", "batch_size", "optimizer", "commit")
_MOST_COLUMNS = 12
Factory = Callable[[], tuple[Any, Any, Any]]
_SECONDS = 60.0
"""Time budget of a comparison."""
_COMPARED = re.compile(r"([\w.]+)\s*(<=|>=|<|>|=)\s*(\S+)")
_SIGNS = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge}


def matches(row: Mapping[str, Any], text: str) -> bool:
    """Return whether a row of the table of runs satisfies a filter: every comparison and word.

    >>> matches({"run": "b", "accuracy": 0.93}, "accuracy > 0.9")
    True
    >>> matches({"run": "b", "accuracy": 0.93}, "b accuracy>0.95"), matches({}, "loss<1")
    (False, False)
    """
    for name, sign, given in _COMPARED.findall(text):
        value = row.get(name)
        if value is None:
            return False
        try:
            if not (_SIGNS[sign](value, float(given)) if sign != "=" else value == float(given)):
                return False
        except (TypeError, ValueError):
            if sign != "=" or str(value) != given:
                return False
    words = " ".join(map(str, row.values())).lower()
    return all(word in words for word in _COMPARED.sub(" ", text).lower().split())


class TablePage:
    """The explorer's table of runs.

    Args:
        store: Folder of stored runs; it may be absent.
        jobs: Where comparisons run.
        factory: Returns (model, loss, data), for comparing recordings; None where there is none.
    """

    key = "table"
    title = "Table"

    def __init__(self, store: Path, jobs: Jobs, factory: Factory | None = None) -> None:
        self._store, self._jobs, self._factory = store, jobs, factory

    def layout(self, search: str | None) -> html.Div:
        """Return the layout of the explorer's table of runs."""
        names = self._columns(self._rows())
        heads = [
            html.Button(name, id={"type": "sort", "column": name}, className="quiet")
            for name in names
        ]
        choices = {"options": list(AXES), "value": "step", "className": "choices"}
        slider = {"min": 0, "max": 0.95, "step": 0.05, "value": 0, "marks": {0: "0", 0.95: ".95"}}
        placeholder = "Filter: accuracy > 0.9  lr = 0.1  words"
        return html.Div(
            [
                html.H1("Runs as a table"),
                html.P(
                    "Click a heading to sort, again for the other direction. Tick runs to overlay "
                    "them; tick two inspections, or two recordings, to compare them.",
                    className="lead",
                ),
                dcc.Input(id="table-filter", type="search", placeholder=placeholder),
                dcc.Store(id="table-filter-typed", data=""),
                dcc.Store(id="table-order", data=["", True]),
                html.P(id="table-count", className="quiet-text", role="status"),
                html.Div(
                    [
                        html.Div(heads, className="table-row table-head", style=_grid(names)),
                        dcc.Checklist(id="table-body", options=[], value=[]),
                    ],
                    className="scroll",
                ),
                html.Div(
                    [
                        html.Label("x axis"),
                        dcc.RadioItems(id="table-x", **choices),
                        html.Label("smoothing"),
                        html.Div(dcc.Slider(id="table-smooth", **slider), className="table-slider"),
                    ],
                    className="tools",
                ),
                html.Section(
                    [
                        html.H2("Which one is flatter?"),
                        html.P(id="table-compare-note", className="quiet-text"),
                        html.Button("Compare", id="table-compare", type="button", n_clicks=0),
                        html.Div(id="table-verdict", role="status"),
                        dcc.Interval(id="table-tick", interval=500, disabled=True),
                    ],
                    id="table-comparison",
                    hidden=True,
                ),
                html.Section(id="table-overlay", **aria("Overlay and comparison")),
            ],
            className="page",
            id="page-table",
        )

    def connect(self, app: Dash) -> None:
        """Register the callbacks of the table page."""

        @app.callback(
            Output("table-order", "data"),
            Input({"type": "sort", "column": ALL}, "n_clicks"),
            State("table-order", "data"),
            prevent_initial_call=True,
        )
        def _order(clicks: list[int | None], order: list[Any]) -> list[Any]:
            if not any(clicks) or not isinstance(ctx.triggered_id, dict):
                return order
            column = ctx.triggered_id["column"]
            return [column, not order[1] if order[0] == column else True]

        @app.callback(
            Output("table-body", "options"),
            Output("table-count", "children"),
            Input("table-filter-typed", "data"),
            Input("table-order", "data"),
        )
        def _fill(text: str | None, order: list[Any]) -> Any:
            rows = self._rows()
            shown = {name: row for name, row in rows.items() if matches(row, str(text or ""))}
            columns = self._columns(rows)
            labels = [_row(name, shown[name], columns) for name in _sorted(shown, *order)]
            return labels, f"{len(shown):,} of {len(rows):,} runs"

        @app.callback(
            Output("table-overlay", "children"),
            Input("table-body", "value"),
            Input("table-x", "value"),
            Input("table-smooth", "value"),
        )
        def _overlay(chosen: list[str] | None, x: str, weight: float) -> Any:
            found = find_entries(self._store)
            entries = [found[name] for name in chosen or () if name in found]
            over = {"axis": x if x in AXES else "step", "smoothing": float(weight or 0)}
            return _comparison(entries) or overlay_blocks(entries, "table-chart", **over)

        @app.callback(
            output={
                "hidden": Output("table-comparison", "hidden"),
                "note": Output("table-compare-note", "children"),
                "off": Output("table-compare", "disabled"),
                "verdict": Output("table-verdict", "children"),
                "idle": Output("table-tick", "disabled"),
            },
            inputs={
                "chosen": Input("table-body", "value"),
                "_clicks": Input("table-compare", "n_clicks"),
                "_ticks": Input("table-tick", "n_intervals"),
                "visitor": State("visitor", "data"),
            },
        )
        def _compare(chosen: list[str] | None, visitor: str, **_: Any) -> dict[str, Any]:
            found = find_entries(self._store)
            pair = [found[name] for name in chosen or () if name in found]
            job, owner = None, f"{visitor}-table"
            is_pair = len(pair) == 2 and all(entry.kind == "trajectory" for entry in pair)
            note = "" if not is_pair or self._factory else _how_to_compare(*pair)
            if is_pair and not note and ctx.triggered_id == "table-compare":
                job = self._jobs.start(owner, lambda report: self._compared(*pair), chosen)
            elif is_pair and not note and ctx.triggered_id == "table-tick":
                job = self._jobs.get(owner)
            running = job is not None and not job.finished
            verdict: Any = []
            if job is not None:
                verdict = job.message or ("Comparing…" if running else _verdict(*job.result))
            return {
                "hidden": not is_pair,
                "note": note or "Measures both on the same samples, in about a minute.",
                "off": running or bool(note),
                "verdict": verdict,
                "idle": not running,
            }

    def _compared(self, first: Entry, second: Entry) -> tuple[Comparison, str, str]:
        """Compare the last weights of two recordings ticked in the table by `hr.compare`."""
        from rich.console import Console

        from hyperribbon.application.inspection import compare

        assert self._factory is not None
        model, loss, data = self._factory()
        names = first.label, second.label
        options = {"model": model, "names": names, "budget": _SECONDS}
        quiet = Console(quiet=True)
        found = compare(first.folder, second.folder, loss, data, console=quiet, **options)
        return found, *names

    def _rows(self) -> dict[str, dict[str, Any]]:
        found = {entry.name: summarize(entry) for entry in find_entries(self._store).values()}
        return {name: _values(summary) for name, summary in found.items()}

    def _columns(self, rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Return the columns of the table of runs, the most asked for first."""
        there = dict.fromkeys(name for row in rows.values() for name in row)
        fixed = [name for name in ("run", "kind", "state", "date") if name in there]
        first = [name for name in _FIRST if name in there]
        rest = [name for name in there if name not in (*fixed, *first)]
        return [*fixed[:1], *first, *rest, *fixed[1:]][: _MOST_COLUMNS + len(fixed)]


def _values(summary: RunSummary) -> dict[str, Any]:
    about = {"run": summary.label, "kind": summary.kind}
    return {**about, **summary.values, "state": summary.state, "date": summary.date}


def _sorted(rows: Mapping[str, Mapping[str, Any]], column: str, ascending: bool) -> list[str]:
    """Return the names of the runs' table rows by a column; those without a value stand last."""
    if not column:
        return sorted(rows, key=lambda name: str(rows[name]["date"]), reverse=True)
    there = [name for name in rows if rows[name].get(column) is not None]
    numbers = all(isinstance(rows[name][column], int | float) for name in there)
    there.sort(
        key=lambda name: rows[name][column] if numbers else str(rows[name][column]),
        reverse=not ascending,
    )
    return [*there, *(name for name in rows if name not in there)]


def _row(name: str, row: Mapping[str, Any], columns: list[str]) -> dict[str, Any]:
    """Return a row of the runs' table as an option of the list that ticks it."""
    page = "live" if row["kind"] == "recording" else "runs"
    link = html.A(str(row["run"]), href=f"/{page}{write_query({'run': name})}")
    cells = [link if column == "run" else html.Span(_shown(row.get(column))) for column in columns]
    return {"label": html.Div(cells, className="table-row", style=_grid(columns)), "value": name}


def _grid(columns: list[str]) -> dict[str, str]:
    return {"gridTemplateColumns": f"12rem repeat({len(columns) - 1}, 8.5rem)"}


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if isfinite(value) else "–"
    return "–" if value is None else str(value)


def _comparison(entries: list[Entry]) -> list[Any]:
    """Return the verdict of `hr.compare` on two inspections ticked in the runs' table."""
    inspections = [entry for entry in entries if entry.kind == "inspection"]
    if len(entries) != 2 or len(inspections) != 2:
        return []
    from hyperribbon.application.inspection.comparison.compare import compare_inspections

    first, second = inspections
    try:
        found = compare_inspections(first.folder, second.folder, (first.label, second.label))
    except UNREADABLE as error:
        return [html.H2("Comparison"), html.P(str(error), className="message")]
    return [html.H2("Comparison"), *_verdict(found, first.label, second.label)]


def _how_to_compare(first: Entry, second: Entry) -> list[Any]:
    """Explain below the table how to compare two recordings of an unknown model."""
    call = f"hr.compare({str(first.folder)!r}, {str(second.folder)!r}, loss, data, model=model)"
    command = "hyperribbon explore RUNS --model mymodel.py:make"
    return [
        "hr.compare needs the model, the loss and the data: start the explorer with ",
        *(html.Code(command), ", or run ", html.Code(call), "."),
    ]


def _verdict(found: Comparison, first: str, second: str) -> list[Any]:
    """Return the sentences and numbers of a comparison, to be shown below the table of runs."""
    heads = ["", first, second, "difference", "95% interval"]
    rows = []
    for entry in found.differences:
        low, high = entry.interval
        known = f"{low:.3g} to {high:.3g}" if isfinite(high - low) else "not measured"
        numbers = [f"{entry.a:.4g}", f"{entry.b:.4g}", f"{entry.difference:.3g}"]
        rows.append([entry.name, *numbers, known])
    table = html.Table(
        [
            html.Thead(html.Tr([html.Th(head) for head in heads])),
            html.Tbody([html.Tr([html.Td(cell) for cell in row]) for row in rows]),
        ]
    )
    sentences = [html.Li(sentence) for sentence in found.reading()]
    return [html.Ul(sentences), html.Div(table, className="scroll")]
