"""The page of stored runs: open one, look at everything in it, put another beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import numpy as np
import plotly.graph_objects as go
from dash import MATCH, Dash, Input, Output, State, dcc, html, no_update

from hyperribbon.explorer.callbacks import REPLACE_LINK
from hyperribbon.explorer.catalogue import Entry, find_entries
from hyperribbon.explorer.controls import aria
from hyperribbon.explorer.pages import style_figure
from hyperribbon.explorer.recordings import (
    color_choices,
    draw_embedding,
    draw_metrics,
    draw_spectra,
)

__all__ = ["RunsPage"]


class RunsPage:
    """Every stored run.

    Args:
        store: Folder of stored runs; it may be absent.
    """

    key = "runs"
    title = "Runs"

    def __init__(self, store: Path) -> None:
        self._store = store

    def layout(self, search: str | None) -> html.Div:
        """Return the page with the runs that a link names opened."""
        stated = dict(parse_qsl((search or "").lstrip("?")))
        options = [
            {"label": f"{entry.kind}: {name}", "value": name}
            for name, entry in find_entries(self._store).items()
        ]
        known = {option["value"] for option in options}

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
                html.H1("Runs"),
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
        """Register the callbacks of the page."""

        @app.callback(
            Output("runs-shown", "children"),
            Output("runs-link", "data"),
            Input("runs-run", "value"),
            Input("runs-with", "value"),
        )
        def _show(first: str | None, second: str | None) -> Any:
            entries = find_entries(self._store)
            chosen = {"run": first, "with": second}
            stated = {key: name for key, name in chosen.items() if name in entries}
            shown = [_show_entry(entries[name], key) for key, name in stated.items()]
            return shown, f"?{urlencode(stated)}" if stated else ""

        app.clientside_callback(
            REPLACE_LINK, Output("runs-link", "modified_timestamp"), Input("runs-link", "data")
        )

        @app.callback(
            Output({"type": "embedding", "side": MATCH}, "figure"),
            Input({"type": "color", "side": MATCH}, "value"),
            State({"type": "name", "side": MATCH}, "data"),
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
                html.Div([html.Dt(curve), html.Dd(f"{np.interp(fraction, x, y):.3f}")])
                for curve, (x, y) in entry.curves().items()
            ]


def _show_entry(entry: Entry, side: str) -> html.Article:
    info = entry.info
    blocks: list[Any] = [
        html.H2(info.get("title", entry.name)),
        html.P(f"{entry.kind} {entry.name}", className="quiet-text"),
        dcc.Store(id={"type": "name", "side": side}, data=entry.name),
    ]
    blocks += [html.P(sentence) for sentence in entry.reading]
    blocks += _trajectory_blocks(entry, side)
    curves = entry.curves()
    if curves:
        blocks.append(
            html.Div(
                [
                    html.Label("Fraction of weights removed"),
                    dcc.Slider(
                        id={"type": "fraction", "side": side},
                        min=0,
                        max=1,
                        step=0.01,
                        value=0.8,
                        marks={0: "0", 1: "1"},
                        updatemode="drag",
                        allow_direct_input=False,
                    ),
                    html.Dl(id={"type": "pruned", "side": side}, className="readings"),
                ],
                className="control",
            )
        )
    for name, figure in entry.figures().items():
        figure.update_layout(paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)")
        blocks.append(html.H3(name))
        blocks.append(dcc.Graph(figure=figure, config={"displaylogo": False}))
    for name, source in entry.images().items():
        blocks.append(html.Img(src=source, alt=f"Figure {name} of {entry.name}", className="print"))
    if entry.claims:
        blocks.append(_claims_table(entry.claims))
    return html.Article(blocks, **aria(entry.name))


def _trajectory_blocks(entry: Entry, side: str) -> list[Any]:
    trajectory = entry.trajectory()
    if trajectory is None or len(trajectory) == 0:
        return []
    blocks: list[Any] = []
    for title, figure in {**draw_spectra(trajectory), **draw_metrics(trajectory)}.items():
        blocks += [html.H3(title), dcc.Graph(figure=figure, config={"displaylogo": False})]
    if all(record.has_predictions for record in trajectory) and len(trajectory) > 3:
        choices = color_choices(trajectory)
        blocks += [
            html.H3("Training in the space of predictions (inPCA)"),
            dcc.RadioItems(
                id={"type": "color", "side": side},
                options=[{"label": choice, "value": choice} for choice in choices],
                value=choices[0],
                className="choices",
            ),
            dcc.Graph(
                id={"type": "embedding", "side": side},
                figure=style_figure(go.Figure(), x="", y=""),
                config={"displaylogo": False},
            ),
        ]
    return blocks


def _claims_table(claims: list[dict[str, Any]]) -> html.Div:
    head = html.Tr([html.Th(name) for name in ("Verdict", "Place", "Claim", "Measured", "Why")])
    rows = [
        html.Tr(
            [
                html.Td(claim["verdict"], className=claim["verdict"]),
                html.Td(claim["place"]),
                html.Td(claim["statement"]),
                html.Td("—" if claim["measured"] is None else f"{claim['measured']:.4g}"),
                html.Td(claim["why"]),
            ]
        )
        for claim in claims
    ]
    return html.Div(html.Table([html.Thead(head), html.Tbody(rows)]), className="table")
