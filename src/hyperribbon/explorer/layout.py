"""How a page looks: its head, controls, pictures, numbers and code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dash import dcc, html

from hyperribbon.explorer.controls import Values, aria
from hyperribbon.explorer.pages import Page, Picture, Readings

__all__ = ["page_layout", "reading_rows", "shell"]


def shell(menu: Sequence[tuple[str, str]], visitor: str) -> html.Div:
    """Return the frame around every page: head, menu, place for the page.

    Args:
        menu: Path and name of each page.
        visitor: Name of this visit; background work belongs to it.
    """
    return html.Div(
        [
            dcc.Location(id="url", refresh="callback-nav"),
            dcc.Store(id="visitor", data=visitor),
            html.A("Skip to the content", href="#content", className="skip"),
            html.Header(
                [
                    html.Span("hyperribbon", className="brand"),
                    html.Nav(
                        [dcc.Link(name, href=f"/{key}", id=f"menu-{key}") for key, name in menu],
                        **aria("Pages"),
                    ),
                    html.Button(
                        "Light / dark", id="theme", type="button", className="quiet", n_clicks=0
                    ),
                ]
            ),
            html.Main(id="content", tabIndex="-1"),
        ]
    )


def page_layout(page: Page, values: Values) -> html.Div:
    """Return a theory page with its controls set to values."""
    controls = [
        _placed(control.component(page.key), control.position(values[control.name]))
        for control in page.controls
        if not control.group
    ]
    bars = [
        _placed(control.component(page.key), control.position(values[control.name]))
        for control in page.controls
        if control.group
    ]
    if bars:
        controls.append(html.Div(bars, className="bars"))
    return html.Div(
        [
            dcc.Store(id=f"{page.key}-link"),
            dcc.Store(id=f"{page.key}-overlay"),
            dcc.Download(id=f"{page.key}-download"),
            html.H1(page.title),
            html.P(page.lead, className="lead"),
            *page.extra,
            html.Div(
                [
                    html.Section(
                        [*controls, *_action(page)],
                        className="controls",
                        **aria("Settings"),
                    ),
                    html.Div(
                        [_picture(page, picture) for picture in page.pictures], className="pictures"
                    ),
                ],
                className="columns",
            ),
            html.Section(
                [
                    html.H2("Numbers"),
                    html.Dl(id=f"{page.key}-readings", className="readings"),
                ],
                role="status",
            ),
            html.Details(
                [
                    html.Summary("The Python lines that make this"),
                    html.Div(
                        [
                            dcc.Clipboard(
                                target_id=f"{page.key}-code", title="Copy", className="copy"
                            ),
                            html.Pre(id=f"{page.key}-code", tabIndex="0"),
                        ]
                    ),
                ],
                className="code",
            ),
        ],
        className="page",
        id=f"page-{page.key}",
    )


def reading_rows(readings: Readings) -> list[Any]:
    """Return the numbers as terms and definitions."""
    return [html.Div([html.Dt(name), html.Dd(value)]) for name, value in readings]


def _placed(component: Any, position: Any) -> Any:
    component.children[1].value = position
    return component


def _action(page: Page) -> list[Any]:
    if page.action is None:
        return []
    return [
        html.Div(
            [
                html.Button(page.action.label, id=f"{page.key}-start", type="button", n_clicks=0),
                html.Button(
                    "Stop",
                    id=f"{page.key}-stop",
                    type="button",
                    className="quiet",
                    disabled=True,
                    n_clicks=0,
                ),
                html.Progress(id=f"{page.key}-progress", value="0", max="1"),
                html.Div(id=f"{page.key}-status", role="status", className="message"),
                dcc.Interval(id=f"{page.key}-tick", interval=400, disabled=True),
            ],
            className="action",
        )
    ]


def _picture(page: Page, picture: Picture) -> html.Figure:
    name = f"{page.key}-{picture.name}"
    exports = [
        html.Button(
            kind,
            id=f"{name}-{kind.lower()}",
            type="button",
            className="quiet",
            n_clicks=0,
            **aria(f"Export {picture.title} as {kind}"),
        )
        for kind in ("SVG", "PNG", "CSV")
    ]
    return html.Figure(
        [
            html.Figcaption([html.H2(picture.title), html.Div(exports, className="exports")]),
            html.Div(
                dcc.Graph(id=name, config={"displaylogo": False, "responsive": True}),
                role="img",
                **aria(picture.describe),
            ),
        ]
    )
