from pathlib import Path

import plotly.graph_objects as go
import pytest

from hyperribbon.application.report import write_report
from hyperribbon.core import Band
from hyperribbon.core.store import Store
from hyperribbon.papers.experiments.statements import Ledger, exact, says
from hyperribbon.plots.style import new_figure

pytestmark = pytest.mark.browser
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    store = Store(folder / "runs")
    run = store.run("ribbons/fig4", {"name": HOSTILE}, 0, title=HOSTILE, preset="smoke")
    figure, axis = new_figure()
    axis.plot([1, 2, 3], [1, 10, 100])
    figure.savefig(run.figures / "curve.svg")
    chart = go.Figure(go.Scatter(x=[1, 2, 3], y=[1, 10, 100], name=HOSTILE))
    (run.figures / "curve.plotly.json").write_text(chart.to_json())
    values = {"a": 1.0, "b": 2.0, "c": 3.0}
    band = Band(0.5, 1.5, "words")
    said = [says(n, "Fig. 4", HOSTILE, HOSTILE, band, setting=HOSTILE) for n in values]
    measured = {name: exact(value, "measured") for name, value in values.items()}
    run.save_claims(Ledger("ribbons/fig4", *said).judge(measured))
    return write_report([store.folder], folder / "report.html")


def test_the_page_opens_without_an_error_or_a_request_and_escapes_names(report, open_page):
    watched = open_page()
    page = watched.open(report)
    page.on("dialog", lambda dialog: watched.problems.append(dialog.message))
    assert HOSTILE in page.locator("#panel-1").inner_text()
    for tab in page.locator("[role=tab]").all():
        tab.click()
        page.wait_for_timeout(50)
    assert watched.problems == []
    assert watched.requests == []


def test_tabs_show_one_panel_at_a_time_and_draw_their_charts(report, open_page):
    page = open_page().open(report)
    assert page.locator("[role=tabpanel]:visible").count() == 1
    page.get_by_role("tab", name="Figures").click()
    page.locator("#panel-2 .chart .main-svg").first.wait_for(state="visible")
    assert page.locator("#panel-2 .chart .scatterlayer .trace").count() == 1
    assert not page.locator("#panel-1").is_visible()
    page.get_by_role("tab", name="Figures").press("ArrowRight")
    assert page.locator("#panel-3").is_visible()


def test_verdict_toggles_hide_and_show_claims(report, open_page):
    page = open_page().open(report)
    rows = page.locator("#panel-1 tbody tr:visible")
    assert rows.count() == 3
    button = page.locator(".filters [data-verdict=fails]")
    assert "2" in button.inner_text()
    button.click()
    assert rows.count() == 1
    button.click()
    assert rows.count() == 3


def test_the_theme_follows_the_system_and_the_button(report, open_page):
    def background(page):
        return page.evaluate("getComputedStyle(document.documentElement).backgroundColor")

    light, dark = open_page().open(report), open_page(scheme="dark").open(report)
    assert background(light) != background(dark)
    before = background(light)
    light.locator("#theme").click()
    assert background(light) == background(dark) != before


def test_tables_and_figures_can_be_saved(report, open_page):
    page = open_page().open(report)
    with page.expect_download() as download:
        page.locator("#panel-1 .claims > .tools button").click()
    lines = Path(download.value.path()).read_text().splitlines()
    assert len(lines) == 4
    assert lines[1].count('","') == 5
    page.get_by_role("tab", name="Figures").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="SVG").first.click()
    assert download.value.suggested_filename.endswith("curve.svg")
    assert "<svg" in Path(download.value.path()).read_text()


def test_nothing_is_wider_than_a_phone(report, open_page):
    page = open_page(width=360, height=700).open(report)
    for tab in page.locator("[role=tab]").all():
        tab.click()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_in_print_every_panel_and_the_static_images_show(report, open_page):
    page = open_page().open(report)
    page.get_by_role("tab", name="Figures").click()
    page.emulate_media(media="print")
    assert page.locator("[role=tabpanel]:visible").count() == 3
    assert page.locator("#panel-2 img").is_visible()
    assert not page.locator("#panel-2 .chart").is_visible()
    assert not page.locator("nav.tabs").is_visible()
