"""Chromium for tests: skipped where there is none, except in continuous integration."""

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

CHROMIUM = "/usr/bin/chromium"
PATIENCE_S = 120  # a first picture takes 3 s on an idle machine and may share a busy one
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--renderer-process-limit=1",
    "--in-process-gpu",
    "--disable-site-isolation-trials",
    "--enable-unsafe-swiftshader",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


class Address(str):
    """The address of a running explorer, without the token that its pages need."""

    def __new__(cls, link: str) -> "Address":
        address, _, token = link.partition("/?token=")
        made = super().__new__(cls, address)
        made.token = token
        return made

    def page(self, path: str = "") -> str:
        """Return the link to a page, with the token."""
        return f"{self}/{path}{'&' if '?' in path else '?'}token={self.token}"


@dataclass
class Watched:
    """A page, what it wrote to the console and what it asked the network for."""

    page: object
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def open(self, path: Path):
        self.page.goto(path.as_uri())
        return self.page


@pytest.fixture(scope="session")
def chromium() -> Iterator[object]:
    if not Path(CHROMIUM).exists() and not os.environ.get("CI"):
        pytest.skip(f"{CHROMIUM} is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as profile:
        # One profile for all pages, so that scripts are read and compiled once.
        context = playwright.chromium.launch_persistent_context(
            profile, executable_path=CHROMIUM, args=ARGUMENTS, accept_downloads=True
        )
        context.set_default_timeout(1000 * PATIENCE_S)
        yield context
        context.close()


@pytest.fixture
def open_page(chromium) -> Iterator[object]:
    pages = []

    def make(*, width: int = 1200, height: int = 900, scheme: str = "light") -> Watched:
        page = chromium.new_page()
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=scheme)
        pages.append(page)
        watched = Watched(page)
        watched.page.on(
            "console",
            lambda m: watched.problems.append(m.text) if m.type == "error" else None,
        )
        watched.page.on("pageerror", lambda error: watched.problems.append(str(error)))
        watched.page.on(
            "request",
            lambda request: (
                watched.requests.append(request.url)
                if not request.url.startswith(("file:", "data:", "blob:"))
                else None
            ),
        )
        return watched

    yield make
    for page in pages:
        if not page.is_closed() and page.url.startswith(("http:", "file:")):
            page.evaluate("() => { localStorage.clear(); sessionStorage.clear(); }")
        page.close()
    chromium.clear_cookies()


@pytest.fixture(scope="session")
def serving():
    """Serve the explorer over a store for as long as a block lasts."""
    import threading
    from contextlib import contextmanager

    from hyperribbon.application.explorer import serve

    @contextmanager
    def run(store: Path, **options: object) -> Iterator[str]:
        server = serve(store, port=0, **options)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield Address(server.address)
        server.shutdown()
        thread.join(10)

    return run


@pytest.fixture
def visit(open_page, address):
    """Open pages of the explorer; at the end none wrote an error or asked for anything outside."""
    watched = []

    def go(path: str, **options):
        seen = open_page(**options)
        watched.append(seen)
        seen.page.goto(address.page(path))
        return seen.page

    yield go
    for seen in watched:
        assert seen.problems == []
        assert all(url.startswith((address, "data:", "blob:")) for url in seen.requests)


PLOTTED = """(id) => {
    const plot = document.getElementById(id)?.querySelector('.js-plotly-plot');
    if (!plot || !plot._fullData || !plot._fullData.length) { return null; }
    return plot._fullData.map(t => ({
        name: t.name, x: Array.from(t.x ?? []), y: Array.from(t.y ?? [])
    }));
}"""


@pytest.fixture(scope="session")
def curves():
    """Read what a picture shows, once it is drawn: the heights of every curve by name."""
    import time

    import numpy as np

    def read(page, picture: str, until=lambda shown: True):
        """Wait for the picture and then for `until` to be true of what it shows."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            drawn = page.wait_for_function(PLOTTED, arg=picture).json_value()
            shown = {curve["name"]: np.array(curve["y"], float) for curve in drawn}
            if until(shown):
                return shown
            assert time.monotonic() < deadline, f"{picture} still shows {shown}"
            page.wait_for_timeout(20)

    return read
