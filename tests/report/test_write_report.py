import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from hyperribbon.application.report import write_report
from hyperribbon.application.report.page import ClaimRow
from hyperribbon.application.report.trajectories import trajectory_tabs
from hyperribbon.core import ArgumentError, Band, Claim
from hyperribbon.core.store import Store
from hyperribbon.papers.experiments.statements import Ledger, estimate, says
from hyperribbon.recording.trajectory import Trajectory

HOSTILE = "<script>alert('x')</script><img src=x onerror=alert(1)>"
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489"
    "0000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
)


def _claim(measured: float, name: str = "x", statement: str = "x is about one") -> Claim:
    said = says(
        name, "Fig. 4", "x is about one", statement, Band(0.9, 1.1, "words"), setting="as printed"
    )
    return Ledger("ribbons/fig4", said).judge({name: estimate(measured, 0.01, "because")})[0]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "runs")
    run = store.run("ribbons/fig4", {"slope": 0.5}, 0, title="A figure", preset="smoke")
    (run.figures / "figure.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    (run.figures / "figure.png").write_bytes(PNG)
    run.save_claims([_claim(1.0, "good"), _claim(2.0, "bad"), _claim(float("nan"), "odd")])
    return store


class _Elements(HTMLParser):
    """Collects tags with their attributes and the text outside scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._raw = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._raw = tag if tag in ("script", "style") else ""

    def handle_endtag(self, tag):
        self._raw = ""

    def handle_data(self, data):
        if not self._raw:
            self.text += data


def test_a_report_shows_every_claim_with_its_verdict_and_numbers(store: Store, tmp_path: Path):
    page = _Elements(write_report([store.folder], tmp_path / "r.html").read_text())
    for verdict in ("✓ holds", "✗ fails", "? undecided"):
        assert verdict in page.text
    assert "2 ± 0.01" in page.text
    assert "0.9 to 1.1" in page.text
    assert "slope" in page.text
    assert "torch" in page.text


def test_everything_a_report_shows_is_inside_it(store: Store, tmp_path: Path):
    page = _Elements(write_report([store.folder], tmp_path / "r.html").read_text())
    addresses = [a for _, attrs in page.tags for k in ("src", "href") if (a := attrs.get(k))]
    assert len(addresses) >= 2
    assert all(address.startswith("data:") for address in addresses)


def test_names_paths_and_claims_cannot_carry_markup(tmp_path: Path):
    store = Store(tmp_path / "<b>runs")
    run = store.run("ribbons/fig4", {"note": HOSTILE}, 0, title=HOSTILE, preset=HOSTILE)
    (run.figures / "<i>name.png").write_bytes(PNG)
    (run.figures / "chart.plotly.json").write_text(
        '{"data": [], "layout": {"title": {"text": "</script><script>alert(2)</script>"}}}'
    )
    run.save_claims([_claim(1.0, HOSTILE.replace("/", ""), HOSTILE)])
    html = write_report([store.folder], tmp_path / "r.html").read_text()
    page = _Elements(html)
    assert not any("onerror" in attrs for _, attrs in page.tags)
    assert "alert('x')" in page.text
    assert "<script>alert" not in html
    assert "</script><script>alert" not in html
    assert not any(tag in ("b", "i") and not attrs for tag, attrs in page.tags if tag == "i")


def test_plotly_is_carried_once_and_only_when_a_chart_needs_it(store: Store, tmp_path: Path):
    plain = write_report([store.folder], tmp_path / "plain.html")
    assert plain.stat().st_size < 100_000
    for name in ("one", "two"):
        (store.runs()[0].figures / f"{name}.plotly.json").write_text('{"data": [], "layout": {}}')
    drawn = write_report([store.folder], tmp_path / "drawn.html")
    assert 4e6 < drawn.stat().st_size < 6e6


def test_runs_of_one_experiment_stand_side_by_side(store: Store, tmp_path: Path):
    other = store.run("ribbons/fig4", {"slope": 0.7}, 0, title="A figure", preset="laptop")
    other.save_claims([_claim(1.0, "good")])
    page = _Elements(write_report([store.folder], tmp_path / "r.html").read_text())
    assert "2 experiment runs" in page.text
    columns = re.search(r"Claim\s*(laptop|smoke)\s*(laptop|smoke)", page.text)
    assert columns
    assert {columns[1], columns[2]} == {"laptop", "smoke"}


def test_a_damaged_or_unfinished_run_does_not_hide_the_others(store: Store, tmp_path: Path):
    store.run("ribbons/fig5", {}, 0, title="Unfinished", preset="smoke")
    damaged = store.run("ribbons/fig6", {}, 0, title="Damaged")
    (damaged.path / "run.json").write_text("{ not json")
    page = _Elements(write_report([store.folder], tmp_path / "r.html").read_text())
    assert "Not finished" in page.text
    assert "Damaged: run.json" in page.text
    assert "✗ fails" in page.text


def test_a_folder_without_runs_is_refused_and_nothing_is_written(tmp_path: Path):
    out = tmp_path / "r.html"
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(ArgumentError, match="paths="):
            write_report([path], out)
    assert not out.exists()
    with pytest.raises(ArgumentError, match="it is a folder"):
        write_report([tmp_path], tmp_path)


def test_a_failed_write_leaves_the_old_report(store: Store, tmp_path: Path, monkeypatch):
    out = write_report([store.folder], tmp_path / "r.html")
    before = out.read_text()

    def full_disk(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full_disk)
    with pytest.raises((OSError, ArgumentError)):
        write_report([store.folder], out)
    assert out.read_text() == before
    assert [p.name for p in tmp_path.iterdir() if p.name.endswith(".tmp")] == []


@pytest.mark.parametrize("measured", [0.0, 1.0, 1.1, 5.0, -1e300, float("inf")])
def test_the_gauge_places_measurement_and_band_in_their_order(measured: float):
    row = ClaimRow.of(_claim(measured), "smoke")
    assert row.band[0] <= row.band[1]
    if row.mark is None:
        assert measured == float("inf")
    else:
        assert 0 <= row.mark <= 100
        assert (row.mark < row.band[0]) == (measured < 0.9)
        assert (row.mark > row.band[1]) == (measured > 1.1)


def test_trainings_are_shown_together_and_a_damaged_one_does_not_hide_the_others(tmp_path: Path):
    for name in ("first", "second", "broken"):
        trajectory = Trajectory.create(tmp_path / name)
        for step in range(5):
            predictions = np.full((4, 3), 1 / 3) + 0.01 * step * np.eye(4, 3)
            trajectory.append(step, metrics={"loss <i>": 1 / (step + 1)}, predictions=predictions)
    block = tmp_path / "broken" / "records" / "block-000000.bin"
    block.write_bytes(block.read_bytes().replace(b'"step": 2', b'"step": 3'))
    page = _Elements(write_report([tmp_path], tmp_path / "r.html").read_text())
    assert "3 recorded trainings" in page.text
    assert "Damaged: the recording" in page.text
    assert "loss <i>" in page.text
    assert "Paths of the predictions" in page.text
    assert page.text.count("0.2") >= 2


def test_a_damaged_inspection_is_named(tmp_path: Path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    (tmp_path / "run" / "inspection.json").write_text("{}")
    page = _Elements(write_report([tmp_path / "run"], tmp_path / "r.html").read_text())
    assert "Damaged: inspection.json" in page.text


def test_a_report_runs_its_own_scripts_only(store: Store, tmp_path: Path):
    run = next(iter((tmp_path / "runs").glob("*/figures")))
    (run / "figure.plotly.json").write_text('{"data": [], "layout": {}}')
    html = write_report([tmp_path / "runs"], tmp_path / "report.html").read_text()
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    (allowed,) = re.findall("script-src ([^;]*)", policy)
    assert "unsafe" not in allowed and "default-src 'none'" in policy and "http" not in policy
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", html, re.S)
    run_or_added = [text for head, text in scripts if "application/json" not in head]
    assert len(run_or_added) == 2
    for text in run_or_added:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in allowed


@pytest.mark.parametrize("chart", ["", "{", "[]", '{"data": 3, "layout": {}}', '{"data": []}'])
def test_charts_that_are_none_leave_their_image(store: Store, tmp_path: Path, chart: str):
    run = next(iter((tmp_path / "runs").glob("*/figures")))
    (run / "figure.plotly.json").write_text(chart)
    html = write_report([tmp_path / "runs"], tmp_path / "report.html").read_text()
    assert 'chart-data">' not in html
    assert "data:image/svg+xml" in html


def test_links_out_of_a_run_are_not_reported(store: Store, tmp_path: Path):
    (tmp_path / "secret").write_bytes(PNG + b"secret")
    run = next(iter((tmp_path / "runs").glob("*/figures")))
    (run / "other.png").symlink_to(tmp_path / "secret")
    html = write_report([tmp_path / "runs"], tmp_path / "report.html").read_text()
    assert base64.b64encode(PNG + b"secret").decode() not in html


def test_charts_of_many_trainings_share_one_axis_and_one_legend(tmp_path):
    for number in range(4):
        run = Trajectory.create(tmp_path / f"run-{number}")
        for step in range(3 + number):
            numbers = {"loss": 1.0 / (step + 1), "lr": 0.1, "sharpness.limit": 20.0}
            vectors = {"sharpness": 2.0, "spectrum.eigenvalues": np.array([2.0, 1.0])}
            run.append(step, metrics=numbers | vectors)
    (tab,) = trajectory_tabs(sorted(tmp_path.iterdir()))
    (section,) = tab.sections
    charts = {p.title: json.loads(p.chart) for p in section.pictures}
    titles = {"loss", "lr", "sharpness and stability limit", "spectrum.eigenvalues.1"}
    assert set(charts) == titles
    layouts = [chart["layout"] for chart in charts.values()]
    assert {tuple(layout["xaxis"]["range"]) for layout in layouts} == {(-0.15, 5.15)}
    assert [layout["showlegend"] for layout in layouts] == [True, False, False, False]
    assert charts["lr"]["layout"]["yaxis"]["range"] == [0.0, 0.2]  # not -0.9 to 1.1
