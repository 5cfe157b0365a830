"""Page layout: header, controls, figures, readouts, and code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dash import dcc, html

from hyperribbon.explorer.controls import Values, aria
from hyperribbon.explorer.pages import Readings, TheoryPage, TheoryPicture

__all__ = ["EXPORTS", "code_block", "page_layout", "picture_block", "reading_rows", "shell"]

EXPORTS = ("SVG", "PNG", "CSV")


def shell(menu: Sequence[tuple[str, str]], visitor: str, own: int) -> html.Div:
    """Return the layout shared by every page: header, menu, and content area.

    Args:
        menu: Path and name of each page.
        visitor: Identifier of the visit, which owns its background work.
        own: Number of leading pages that show the user's runs; the others are theory.
    """
    links = [dcc.Link(name, href=f"/{key}", id=f"menu-{key or 'home'}") for key, name in menu]
    return html.Div(
        [
            dcc.Location(id="url", refresh="callback-nav"),
            dcc.Store(id="visitor", data=visitor),
            html.A("Skip to the content", href="#content", className="skip"),
            html.Header(
                [
                    html.Span("hyperribbon", className="brand"),
                    html.Nav(
                        [*links[:own], html.Span("Theory", className="menu-part"), *links[own:]],
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


def page_layout(page: TheoryPage, values: Values) -> html.Div:
    """Return the layout of a theory page with its controls set to `values`."""
    controls: list[Any] = []
    bars: list[Any] = []
    for control in page.controls:
        component: Any = control.component(page.key)
        component.children[1].value = control.position(values[control.name])
        (bars if control.is_bar else controls).append(component)
    if bars:
        controls.append(html.Fieldset([html.Legend(page.bars), html.Div(bars, className="bars")]))
    return html.Div(
        [
            dcc.Store(id=f"{page.key}-link"),
            dcc.Store(id=f"{page.key}-overlay"),
            html.H1(page.title),
            html.P(page.lead, className="lead"),
            *page.extra,
            html.Div(
                [
                    html.Section(
                        [*controls, *_action(page)], className="controls", **aria("Settings")
                    ),
                    html.Div(
                        [_picture(page, picture) for picture in page.pictures], className="pictures"
                    ),
                ],
                className="columns",
            ),
            html.Section(
                [html.H2("Numbers"), html.Dl(id=f"{page.key}-readings", className="readings")],
                role="status",
            ),
            code_block(f"{page.key}-code"),
        ],
        className="page",
        id=f"page-{page.key}",
    )


def reading_rows(readings: Readings) -> list[Any]:
    """Return the readouts as a definition list."""
    return [html.Div([html.Dt(name), html.Dd(value)]) for name, value in readings]


def _action(page: TheoryPage) -> list[Any]:
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


def picture_block(
    title: str,
    describe: str,
    id: str | dict[str, str],
    export_ids: Mapping[str, str | dict[str, str]],
    figure: Any = None,
) -> html.Figure:
    """Return a figure with its heading and export buttons.

    Args:
        title: Heading.
        describe: What it shows, for screen readers.
        id: Id of the graph.
        export_ids: Ids of the buttons by kind: "SVG", "PNG", "CSV".
        figure: The initial figure.
    """
    exports = [
        html.Button(
            kind,
            id=button,
            type="button",
            className="quiet",
            n_clicks=0,
            **aria(f"Export {title} as {kind}"),
        )
        for kind, button in export_ids.items()
    ]
    shown = {} if figure is None else {"figure": figure}
    graph = dcc.Graph(id=id, config={"displaylogo": False, "responsive": True}, **shown)
    return html.Figure(
        [
            html.Figcaption([html.H2(title), html.Div(exports, className="exports")]),
            html.Div(graph, role="img", **aria(describe)),
        ]
    )


def code_block(id: str | dict[str, str], text: str = "") -> html.Details:
    """Return collapsible Python code with a copy button."""
    return html.Details(
        [
            html.Summary("Python code for this page"),
            html.Div(
                [
                    dcc.Clipboard(target_id=id, title="Copy", className="copy"),
                    html.Pre(text, id=id, tabIndex="0"),
                ]
            ),
        ],
        className="code",
    )


def _picture(page: TheoryPage, picture: TheoryPicture) -> html.Figure:
    name = f"{page.key}-{picture.name}"
    buttons = {kind: f"{name}-{kind.lower()}" for kind in EXPORTS}
    return picture_block(picture.title, picture.describe, name, buttons)
