"""Page of stored runs: open one and compare it with another."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from dash import ALL, MATCH, Dash, Input, Output, State, ctx, dcc, html, no_update

from hyperribbon.application.explorer.controls import aria, read_query, write_query
from hyperribbon.application.explorer.figures import code_block, picture_block
from hyperribbon.application.explorer.runs.catalogue import Entry, find_entries
from hyperribbon.application.explorer.runs.recording_figures import (
    draw_embedding,
    draw_metrics,
    draw_spectra,
    has_path,
    point_colors,
)
from hyperribbon.application.explorer.runs.summaries import summarize
from hyperribbon.application.explorer.theory_page import keep_link
from hyperribbon.recording.trajectory import Trajectory

_VERDICTS = ("holds", "fails", "undecided")
_DEFAULTS: dict[str, Any] = {"color": "step", "fraction": 0.8}


class StoredPage:
    """The explorer's page of stored runs, with their figures and tables.

    Args:
        store: Folder of stored runs; it may be absent.
    """

    key = "runs"
    title = "Open and compare"

    def __init__(self, store: Path) -> None:
        self._store = store

    def layout(self, search: str | None) -> html.Div:
        """Return the stored-runs page with the runs named in a link opened."""
        stated, entries = read_query(search), find_entries(self._store)
        options = [
            {"label": f"{'damaged' if entry.damage else entry.shown_kind}: {name}", "value": name}
            for name, entry in entries.items()
        ]
        known = {option["value"] for option in options}
        if not stated.keys() & {"run", "with"}:
            stated = {**stated, **_newest(entries)}

        def chooser(name: str, label: str) -> html.Div:
            value = stated.get(name)
            return html.Div(
                [
                    html.Label(label, htmlFor=f"runs-{name}"),
                    dcc.Dropdown(
                        id=f"runs-{name}",
                        options=options,
                        value=value if value in known else None,
                        placeholder="choose a run",
                    ),
                ],
                className="control",
            )

        empty = (
            f"There are no runs in {self._store} yet. Make some with: "
            "hyperribbon reproduce --all --preset smoke"
        )
        return html.Div(
            [
                dcc.Store(id="runs-link"),
                html.H1("Open and compare"),
                html.P(
                    "Every stored experiment, inspection and recording." if options else empty,
                    className="lead",
                ),
                html.Div(
                    [chooser("run", "Run"), chooser("with", "Compare with")], className="choosers"
                ),
                html.Div(id="runs-shown", className="side-by-side"),
            ],
            className="page",
            id="page-runs",
        )

    def connect(self, app: Dash) -> None:
        """Register the callbacks of the stored-runs page."""

        @app.callback(
            Output("runs-shown", "children"),
            Input("runs-run", "value"),
            Input("runs-with", "value"),
            State("url", "search"),
        )
        def _show(first: str | None, second: str | None, search: str | None) -> Any:
            entries = find_entries(self._store)
            stated = read_query(search)
            chosen = {"run": first, "with": second}
            return [
                _show_or_explain(entries[name], side, stated)
                for side, name in chosen.items()
                if name in entries
            ]

        @app.callback(
            Output("runs-link", "data"),
            Input("runs-run", "value"),
            Input("runs-with", "value"),
            Input({"type": "color", "side": ALL}, "value"),
            Input({"type": "fraction", "side": ALL}, "value"),
        )
        def _link(first: str | None, second: str | None, *_: Any) -> Any:
            chosen = {"run": first, "with": second}
            stated = {side: name for side, name in chosen.items() if name}
            for entry in [moved for group in ctx.inputs_list[2:] for moved in group]:
                side, kind = entry["id"]["side"], entry["id"]["type"]
                if side in stated and entry.get("value") not in (None, _DEFAULTS[kind]):
                    stated[_link_name(kind, side)] = entry["value"]
            return write_query(stated)

        keep_link(app, self.key)

        for side in ("run", "with"):

            @app.callback(
                Output({"type": "stored", "of": f"{side}-embedding"}, "figure"),
                Input({"type": "color", "side": side}, "value"),
                State({"type": "name", "side": side}, "data"),
                prevent_initial_call=True,
            )
            def _color(choice: str, name: str) -> Any:
                entry = find_entries(self._store).get(name)
                trajectory = None if entry is None else entry.trajectory()
                return no_update if trajectory is None else draw_embedding(trajectory, choice)

        @app.callback(
            Output({"type": "pruned", "side": MATCH}, "children"),
            Input({"type": "fraction", "side": MATCH}, "value"),
            State({"type": "name", "side": MATCH}, "data"),
        )
        def _pruned(fraction: float, name: str) -> Any:
            entry = find_entries(self._store).get(name)
            if entry is None:
                return no_update
            return [
                html.Div([html.Dt(curve), html.Dd(f"{np.interp(_number(fraction), x, y):.3f}")])
                for curve, (x, y) in entry.curves().items()
            ]


def _newest(entries: Mapping[str, Entry]) -> dict[str, str]:
    """Return for the stored-runs page the newest run, and the one before it of the same kind."""
    there = [entry for entry in entries.values() if not entry.damage]
    there.sort(key=lambda entry: summarize(entry).when, reverse=True)
    alike = [entry.name for entry in there if entry.kind == there[0].kind]
    return dict(zip(("run", "with"), alike, strict=False))


def _show_or_explain(entry: Entry, side: str, stated: Mapping[str, str]) -> html.Article:
    """Return the stored-runs page of one run, or an error message if it cannot be shown."""
    try:
        if not entry.damage:
            return _show_entry(entry, side, stated)
        reason = entry.damage
    except Exception as error:  # a run's files may be damaged in any way
        reason = str(error) or repr(error)
    message = f"This run is damaged and cannot be shown: {reason}"
    return html.Article(
        [html.H2(entry.name), html.P(message, className="message")], **aria(entry.name)
    )


def _show_entry(entry: Entry, side: str, stated: Mapping[str, str]) -> html.Article:
    about: list[Any] = [f"{entry.shown_kind} {entry.name}"]
    if entry.kind == "trajectory":
        about += [" · ", dcc.Link("follow", href=f"/live{write_query({'run': entry.name})}")]
    blocks: list[Any] = [
        html.H2(entry.info["title"]),
        html.P(about, className="quiet-text"),
        dcc.Store(id={"type": "name", "side": side}, data=entry.name),
    ]
    blocks += [html.P([html.B(finding), rest]) for finding, rest in entry.answers]
    more = [html.P(sentence) for sentence in entry.reading[len(entry.answers) :]]
    if more and entry.answers:
        more = [html.Details([html.Summary(f"{len(more)} more sentences"), *more])]
    blocks += more
    if entry.curves():
        blocks.append(_fraction_slider(side, stated))
    figures, trajectory = entry.figures(), entry.trajectory()
    if trajectory is not None and len(trajectory):
        metrics = draw_metrics({entry.name: trajectory})
        figures = {**draw_spectra(trajectory), **metrics, **figures}
    blocks += [
        _stored_picture(name, f"{name} of {entry.name}", f"{side}-{number}", figure)
        for number, (name, figure) in enumerate(figures.items())
    ]
    blocks += _embedding_blocks(trajectory, side, stated)
    for name, source in entry.images().items():
        blocks.append(html.Img(src=source, alt=f"Figure {name} of {entry.name}", className="print"))
    if entry.claims:
        blocks.append(_claims_table(entry.claims))
    blocks.append(code_block({"type": "code", "side": side}, entry.code()))
    return html.Article(blocks, **aria(entry.name))


def _fraction_slider(side: str, stated: Mapping[str, str]) -> html.Div:
    label = "Fraction of weights pruned or re-initialised"
    return html.Div(
        [
            html.Label(label),
            dcc.Slider(
                id={"type": "fraction", "side": side},
                min=0,
                max=1,
                step=0.01,
                value=_number(stated.get(_link_name("fraction", side))),
                marks={0: "0", 1: "1"},
                updatemode="drag",
                allow_direct_input=False,
            ),
            html.Dl(id={"type": "pruned", "side": side}, className="readings"),
        ],
        className="control",
        role="group",
        **aria(label),
    )


def _stored_picture(title: str, describe: str, number: str, figure: Any) -> html.Figure:
    id = {"type": "stored", "of": number}
    return picture_block(title, describe, id, figure, export=f"hyperribbon-{number}")


def _embedding_blocks(
    trajectory: Trajectory | None, side: str, stated: Mapping[str, str]
) -> list[Any]:
    if trajectory is None or not has_path(trajectory):
        return []
    choices = list(point_colors(trajectory))
    color = stated.get(_link_name("color", side))
    return [
        _stored_picture(
            "Training in the space of predictions (inPCA)",
            "Training trajectory in three dimensions; drag to rotate",
            f"{side}-embedding",
            draw_embedding(trajectory, color or choices[0]),
        ),
        html.Fieldset(
            [
                html.Legend("Coloured by"),
                dcc.RadioItems(
                    id={"type": "color", "side": side},
                    options=[{"label": choice, "value": choice} for choice in choices],
                    value=color if color in choices else choices[0],
                    className="choices",
                ),
            ]
        ),
    ]


def _link_name(kind: str, side: str) -> str:
    return kind if side == "run" else f"{kind}2"


def _number(text: Any) -> float:
    try:
        number = float(text)
    except (TypeError, ValueError):
        return _DEFAULTS["fraction"]
    return min(max(number, 0.0), 1.0) if math.isfinite(number) else _DEFAULTS["fraction"]


def _claims_table(claims: list[dict[str, Any]]) -> html.Div:
    head = html.Tr([html.Th(name) for name in ("Verdict", "Place", "Claim", "Measured", "Why")])
    rows = [
        html.Tr(
            [
                html.Td(
                    claim["verdict"],
                    className=claim["verdict"] if claim["verdict"] in _VERDICTS else "",
                ),
                html.Td(claim["place"]),
                html.Td(claim["reading"]),
                html.Td("—" if claim["measured"] is None else f"{claim['measured']:.4g}"),
                html.Td(claim["why"]),
            ]
        )
        for claim in claims
    ]
    return html.Div(html.Table([html.Thead(head), html.Tbody(rows)]), className="table")
