"""Untrusted runs in Chromium: nothing they carry runs, loads or leaves."""

import json
import threading

import pytest
from werkzeug.serving import make_server
from werkzeug.wrappers import Request, Response

from hyperribbon.application.report import write_report

pytestmark = pytest.mark.browser

SCRIPT = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
LINK = {
    "type": "A",
    "namespace": "dash_html_components",
    "props": {"href": "javascript:window.hacked = 1", "children": "click", "id": "trap"},
}


@pytest.fixture(scope="module")
def outside():
    """A site elsewhere, which counts what reaches it and holds a page of its own."""
    seen = []

    @Request.application
    def answer(request):
        seen.append(request.path)
        return Response("<!doctype html><title>elsewhere</title>", mimetype="text/html")

    server = make_server("127.0.0.1", 0, answer, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", seen
    server.shutdown()
    thread.join(10)


@pytest.fixture(scope="module")
def store(tmp_path_factory, outside):
    folder = tmp_path_factory.mktemp("store")
    run = folder / "trap"
    (run / "figures").mkdir(parents=True)
    info = {
        "id": f'x"); {SCRIPT}',
        "preset": SCRIPT,
        "title": SCRIPT,
        "config": {"a": SCRIPT},
        "environment": {"seed": 0, "note": SCRIPT},
    }
    claim = {
        "id": "ribbons/fig4/x",
        "verdict": "holds",
        "place": SCRIPT,
        "reading": SCRIPT,
        "measured": 1.0,
        "why": SCRIPT,
    }
    (run / "run.json").write_text(json.dumps(info))
    (run / "claims.json").write_text(json.dumps([claim]))
    link = f"<a href='javascript:window.hacked=1'>{SCRIPT}</a>"
    picture = {"source": f"{outside[0]}/beacon.png", "x": 0, "y": 1, "sizex": 1, "sizey": 1}
    chart = {
        "data": [{"type": "scatter", "x": [1, 2], "y": [1, 2], "name": link, "text": link}],
        "layout": {"title": {"text": link}, "images": [picture]},
    }
    (run / "figures" / "curve.plotly.json").write_text(json.dumps(chart))
    beacon = f"<image href='{outside[0]}/s.png'/>"
    svg = f"<svg xmlns='http://www.w3.org/2000/svg'>{beacon}{SCRIPT}</svg>"
    (run / "figures" / "other.svg").write_text(svg)
    damaged = folder / "damaged"
    damaged.mkdir()
    (damaged / "run.json").write_text(json.dumps({**info, "environment": 1, "title": LINK}))
    (damaged / "claims.json").write_text("[")
    return folder


@pytest.fixture(scope="module")
def address(store, serving):
    with serving(store) as address:
        yield address


def test_what_a_run_carries_stays_text(open_page, address, outside):
    page = open_page().page
    page.goto(address.page("runs?run=trap&with=damaged"))
    page.locator("figure .js-plotly-plot .main-svg").first.wait_for(state="visible")
    assert SCRIPT in page.locator("article h2").first.inner_text()
    assert "damaged and cannot be shown" in page.locator("article").nth(1).inner_text()
    assert page.evaluate("window.hacked") is None
    assert page.locator("#trap").count() == 0
    assert outside[1] == []


def test_scripts_that_reach_the_page_do_not_run(open_page, address):
    """The last line: even an element that was put into the page is not run."""
    page = open_page().page
    page.goto(address.page("ribbons"))
    page.locator(".js-plotly-plot .main-svg").first.wait_for(state="visible")
    page.evaluate(
        """() => {
            const script = document.createElement('script');
            script.textContent = 'window.hacked = 1';
            document.body.append(script);
            const image = document.createElement('div');
            image.innerHTML = "<img src='data:,' onerror='window.hacked = 1'>";
            document.body.append(image);
        }"""
    )
    page.wait_for_timeout(200)
    assert page.evaluate("window.hacked") is None


def test_another_site_can_neither_read_nor_start_anything(open_page, address, outside):
    page = open_page().page
    page.goto(address.page())
    page.goto(outside[0])
    outcome = page.evaluate(
        """async (address) => {
            const found = [];
            for (const options of [
                {}, {method: 'POST', body: '{}', headers: {'Content-Type': 'application/json'}},
                {method: 'POST', body: '{}', headers: {'Content-Type': 'text/plain'}},
            ]) {
                try {
                    const answer = await fetch(address + '/_dash-update-component', options);
                    found.push(await answer.text());
                } catch (error) { found.push('refused'); }
            }
            return found;
        }""",
        address,
    )
    assert outcome == ["refused"] * 3


def test_a_report_of_a_trap_runs_and_loads_nothing(open_page, store, outside, tmp_path):
    before = len(outside[1])
    page = open_page().open(write_report([store], tmp_path / "report.html"))
    for tab in page.locator("[role=tab]").all():
        tab.click()
        page.wait_for_timeout(100)
    assert page.evaluate("window.hacked") is None
    assert len(outside[1]) == before
