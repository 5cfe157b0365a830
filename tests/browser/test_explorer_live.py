"""The explorer's first page and the live view of a run that is being recorded, in Chromium."""

import time
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import hyperribbon as hr
from hyperribbon.papers.training import mlp

pytestmark = pytest.mark.browser

LOSS = nn.CrossEntropyLoss()
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


class Run:
    """A training that records when it is told to."""

    def __init__(self, folder):
        self.data = hr.load_data("digits", limit=200).flat()
        self.model = mlp((64, 10), seed=0)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.2, momentum=0.5)
        self.recorder = hr.Recorder(
            folder,
            "1it",
            measure="spectrum",
            probe=self.data.inputs[:40],
            loss=LOSS,
            data=(self.data.inputs, self.data.targets),
            max_overhead=np.inf,
        )
        self.recorder.attach(self.model, self.optimizer)

    def step(self):
        """Take one step; return when its record was on disk."""
        value = LOSS(self.model(self.data.inputs), self.data.targets)
        self.optimizer.zero_grad()
        value.backward()
        self.optimizer.step()
        self.recorder.step(value)
        self.recorder.flush()
        return time.monotonic()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Two finished recordings, a damaged one, and none that runs."""
    folder = tmp_path_factory.mktemp("store")
    for name in ("first", "second"):
        run = Run(folder / name)
        for _ in range(5):
            run.step()
        run.recorder.close()
    (folder / "broken").mkdir()
    (folder / "broken" / "trajectory.json").write_text("{")
    return folder


@pytest.fixture(scope="module")
def address(store, serving):
    with serving(store) as address:
        yield address


def test_the_first_page_lists_filters_and_overlays_runs(visit, store, curves):
    page = visit("")
    card = page.get_by_role("article", name="first")
    card.wait_for()
    assert card.locator(".badge").inner_text() == "finished"
    assert page.get_by_role("article", name="broken").locator(".badge").inner_text() == "damaged"
    assert card.locator("img").count() == 2
    assert "6 records, up to step 5" in card.inner_text()
    page.locator("#home-search").fill("second")
    page.get_by_role("article", name="broken").wait_for(state="hidden")
    assert page.get_by_role("article", name="second").is_visible()
    page.locator("#home-search").fill("")
    card.wait_for()
    for name in ("first", "second"):
        page.get_by_role("article", name=name).get_by_label("overlay").check()
    page.wait_for_function("() => window.location.search.includes('pick=second')")
    picture = '{"of":"loss","type":"overlay"}'
    shown = curves(page, picture, lambda found: {"first", "second"} <= set(found))
    expected = hr.Trajectory.open(store / "first").metrics()["loss"].dropna()
    np.testing.assert_allclose(shown["first"], expected, rtol=1e-6)
    again = visit(page.url.split("/", 3)[3])
    curves(again, picture, lambda found: {"first", "second"} <= set(found))


def test_the_live_page_follows_a_run_within_two_seconds(visit, store, curves):
    run = Run(store / "now")
    for _ in range(5):
        run.step()
    page = visit("")
    card = page.get_by_role("article", name="now")
    assert card.locator(".badge").inner_text() == "running"
    card.get_by_role("link", name="now").click()
    page.wait_for_url("**/live?**")
    page.get_by_role("article").first.wait_for(state="detached")
    page.get_by_text("up to step 5").wait_for()
    waited = []
    for number in range(6, 11):
        written = run.step()
        page.get_by_text(f"up to step {number}").wait_for()
        shown = curves(page, "live-loss", lambda found, n=number: len(found["loss"]) == n)
        waited.append(time.monotonic() - written)
    assert min(waited) <= 2.0, waited
    table = hr.Trajectory.open(store / "now").metrics()
    np.testing.assert_allclose(shown["loss"], table["loss"].dropna(), rtol=1e-6)
    found = curves(page, "live-sharpness", lambda found: len(found["sharpness"]) == 11)
    np.testing.assert_allclose(found["sharpness"], table["spectrum.eigenvalues.1"], rtol=1e-6)
    np.testing.assert_allclose(found["stability limit"], 2 * 1.5 / 0.2)
    page.wait_for_function(
        "() => document.querySelector('#live-spectrum .js-plotly-plot')?._fullData?.[0].z.length"
        " === 10"
    )
    page.wait_for_function(
        "() => document.querySelector('#live-path .js-plotly-plot')?._fullData?.[0].x.length >= 11"
    )
    run.recorder.close()
    page.get_by_text("finished", exact=True).wait_for()


def test_a_link_followed_before_the_page_has_settled_is_not_undone(visit):
    page, held = visit(""), {}
    card = page.get_by_role("article", name="first")
    card.wait_for()

    def hold(route):
        output = route.request.post_data_json["output"]
        if output in ("home-link.data", "content.children"):
            held[output] = route
        else:
            route.continue_()

    page.route("**/_dash-update-component*", hold)
    with page.expect_request(lambda request: '"home-link.data"' in (request.post_data or "")):
        card.get_by_label("overlay").check()
    with page.expect_request(lambda request: '"content.children"' in (request.post_data or "")):
        card.get_by_role("link", name="first").click()
    with page.expect_response(
        lambda answer: '"home-link.data"' in (answer.request.post_data or "")
    ):
        held["home-link.data"].continue_()
    page.wait_for_timeout(200)
    held["content.children"].continue_()
    page.get_by_text("up to step 5").first.wait_for()
    assert page.url.endswith("/live?run=first")


def test_an_empty_folder_says_what_to_do(open_page, serving, tmp_path):
    with serving(tmp_path) as address:
        watched = open_page(width=390, height=800)
        watched.page.goto(address.page())
        lines = watched.page.locator("#home-example").inner_text()
        assert watched.page.evaluate(OVERFLOW) <= 0
    assert watched.problems == []
    data = hr.load_data("digits", limit=100).flat()
    scope = {"model": mlp((64, 10)), "loss": LOSS, "data": data}
    with warnings.catch_warnings():  # a run of a moment has no time for every sharpness
        warnings.simplefilter("ignore", hr.recording.RecordingWarning)
        exec(lines, scope)
    assert len(hr.Trajectory.open(tmp_path / "first")) > 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_runs_fit_a_phone(visit, scheme):
    for path in ("", "live?run=first"):
        page = visit(path, width=390, height=800, scheme=scheme)
        page.get_by_text("up to step 5").first.wait_for()
        assert page.evaluate(OVERFLOW) <= 0
