"""The Dash application: pages, routing, and theme."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dash import Dash, Input, Output, State, html

from hyperribbon.explorer.connecting import connect_page, connect_uploads
from hyperribbon.explorer.controls import read_link
from hyperribbon.explorer.guarding import Guard
from hyperribbon.explorer.jobs import Jobs
from hyperribbon.explorer.layout import page_layout, shell
from hyperribbon.explorer.papers import fluctuations, linear_networks, ribbons
from hyperribbon.explorer.runs.home import HomePage
from hyperribbon.explorer.runs.live import LivePage
from hyperribbon.explorer.runs.opened import RunsPage

__all__ = ["create_app"]

_PAGES = (ribbons.PAGE, linear_networks.PAGE, fluctuations.PAGE, fluctuations.TWO_LAYER_PAGE)
_TOGGLE_THEME = """
function(clicks) {
    const root = document.documentElement;
    const dark = window.matchMedia('(prefers-color-scheme: dark)').matches;
    let theme = window.localStorage.getItem('hyperribbon-theme') || (dark ? 'dark' : 'light');
    if (clicks) { theme = theme === 'dark' ? 'light' : 'dark'; }
    window.localStorage.setItem('hyperribbon-theme', theme);
    root.setAttribute('data-theme', theme);
    return 'Switch to ' + (theme === 'dark' ? 'light' : 'dark');
}
"""


def create_app(store: str | Path = "runs", guard: Guard | None = None) -> Dash:
    """Return the explorer's Dash application for a folder of runs.

    Args:
        store: Folder of stored runs; it may be empty or absent.
        guard: Request checks; by default only this machine has access.
    """
    guard = Guard() if guard is None else guard
    app = Dash(
        __name__,
        title="hyperribbon",
        update_title="",
        serve_locally=True,
        suppress_callback_exceptions=True,
        assets_folder=str(Path(__file__).parent / "assets"),
        meta_tags=[{"name": "viewport", "content": "width=device-width, initial-scale=1"}],
    )
    own = [kind(Path(store)) for kind in (HomePage, LivePage, RunsPage)]
    menu = [(page.key, page.title) for page in (*own, *_PAGES)]
    app.layout = lambda: shell(menu, guard.new_visitor(), len(own))
    jobs = Jobs()
    for page in _PAGES:
        connect_page(app, page, jobs, guard)
    connect_uploads(app, ribbons.PAGE, "c", guard)
    for page in own:
        page.connect(app)
    by_own_key = {page.key: page for page in own}
    by_key = {page.key: page for page in _PAGES}

    @app.callback(Output("content", "children"), Input("url", "pathname"), State("url", "search"))
    def _open(path: str | None, search: str | None) -> Any:
        key = (path or "/").strip("/")
        if key in by_key:
            return page_layout(by_key[key], read_link(search, by_key[key].controls))
        if key in by_own_key:
            return by_own_key[key].layout(search)
        return html.P(f"There is no page {path!r}.", className="message")

    app.clientside_callback(_TOGGLE_THEME, Output("theme", "children"), Input("theme", "n_clicks"))
    guard.protect(app)
    return app
