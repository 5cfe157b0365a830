"""The Dash application: pages, menu, routing, and theme."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

from dash import Dash, Input, Output, State, dcc, html

from hyperribbon.application.explorer.access import protect
from hyperribbon.application.explorer.controls import aria, read_link
from hyperribbon.application.explorer.jobs import Jobs
from hyperribbon.application.explorer.papers import fluctuations, linear_networks, ribbons
from hyperribbon.application.explorer.runs.home import HomePage
from hyperribbon.application.explorer.runs.live import LivePage
from hyperribbon.application.explorer.runs.stored import StoredPage
from hyperribbon.application.explorer.runs.table import Factory, TablePage

_THEORY = (ribbons.PAGE, linear_networks.PAGE, fluctuations.PAGE, fluctuations.TWO_LAYER_PAGE)
_TOGGLE_THEME = """
function(clicks) {
    const root = document.documentElement;
    const dark = window.matchMedia('(prefers-color-scheme: dark)').matches;
    let theme = window.localStorage.getItem('hyperribbon-theme') || (dark ? 'dark' : 'light');
    if (clicks) {  // until then the pages follow the system, also when it changes
        theme = theme === 'dark' ? 'light' : 'dark';
        window.localStorage.setItem('hyperribbon-theme', theme);
    }
    root.setAttribute('data-theme', theme);
    return 'Switch to ' + (theme === 'dark' ? 'light' : 'dark');
}
"""

_MARK_HERE = """
function(path) {
    for (const link of document.querySelectorAll('header nav a')) {
        link.classList.toggle('here', link.pathname === path);
    }
    return %s.includes(path.replaceAll('/', ''));
}
"""


def create_app(store: str | Path, *, token: str, factory: Factory | None = None) -> Dash:
    """Return the explorer's Dash app for a folder of runs.

    Args:
        store: Folder of stored runs; it may be empty or absent.
        token: Access token that every request must have.
        factory: Returns (model, loss, data) of the recordings, for comparing them.
    """
    app = Dash(
        __name__,
        title="hyperribbon",
        update_title="",
        serve_locally=True,
        suppress_callback_exceptions=True,
        assets_folder=str(Path(__file__).parent / "assets"),
        meta_tags=[{"name": "viewport", "content": "width=device-width, initial-scale=1"}],
    )
    folder = Path(store)
    jobs = Jobs()
    table = TablePage(folder, jobs, factory)
    pages = HomePage(folder), table, LivePage(folder), StoredPage(folder)
    runs = {page.key: page for page in pages}
    theory = {page.key: page for page in _THEORY}
    app.layout = lambda: _shell(_links(runs), _links(theory))
    for page in runs.values():
        page.connect(app)
    for page in theory.values():
        page.connect(app, jobs)
    ribbons.connect_data(app)

    @app.callback(Output("content", "children"), Input("url", "pathname"), State("url", "search"))
    def _open(path: str | None, search: str | None) -> Any:
        key = (path or "/").strip("/")
        if key in theory:
            return theory[key].layout(read_link(search, theory[key].controls))
        if key in runs:
            return runs[key].layout(search)
        return html.P(f"There is no page {path!r}.", className="message")

    app.clientside_callback(_TOGGLE_THEME, Output("theme", "children"), Input("theme", "n_clicks"))
    mark = _MARK_HERE % json.dumps(list(theory))
    app.clientside_callback(mark, Output("menu-theory", "open"), Input("url", "pathname"))
    protect(app, token)
    return app


def _links(pages: dict[str, Any]) -> list[Any]:
    return [
        dcc.Link(page.title, href=f"/{key}", id=f"menu-{key or 'home'}")
        for key, page in pages.items()
    ]


def _shell(runs: list[Any], theory: list[Any]) -> html.Div:
    """Return the layout shared by the explorer app's pages: header, menu, and content area."""
    parts = [html.Summary("Theory"), html.Div(theory)]
    beside = html.Details(parts, id="menu-theory", className="menu-part")
    menu = [*runs, beside]
    button = {"type": "button", "className": "quiet", "n_clicks": 0}
    return html.Div(
        [
            dcc.Location(id="url", refresh="callback-nav"),
            dcc.Store(id="visitor", data=uuid.uuid4().hex),
            html.A("Skip to the content", href="#content", className="skip"),
            html.Header(
                [
                    html.Span("hyperribbon", className="brand"),
                    html.Nav(menu, **aria("Pages")),
                    html.Button("Light / dark", id="theme", **button),
                ]
            ),
            html.Main(id="content", tabIndex="-1"),
        ]
    )
