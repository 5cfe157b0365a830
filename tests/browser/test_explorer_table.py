"""The explorer's table of runs, in Chromium: 100 runs, sorted, filtered, overlaid, compared."""

import time

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

import hyperribbon as hr

pytestmark = pytest.mark.browser
RUNS = 100
RANGES = """() => [...document.querySelectorAll('#table-overlay .js-plotly-plot')]
    .map(plot => JSON.stringify(plot._fullLayout.xaxis.range))"""
SHARED = """(range) => [...document.querySelectorAll('#table-overlay .js-plotly-plot')]
    .every(plot => JSON.stringify(plot._fullLayout.xaxis.range) === range)"""
FILLED = "() => document.querySelector('#table-count')?.innerText === '100 of 100 runs'"
FILTERED = (
    r"() => /^[1-9]\d? of 100 runs$/.test(document.querySelector('#table-count')?.innerText ?? '')"
)
FIRST = "(name) => document.querySelector('#table-body label a')?.innerText === name"
OTHER = """(name) => {
    const first = document.querySelector('#table-body label a');
    return first && first.innerText !== name;
}"""
DRAWN = "() => document.querySelectorAll('#table-overlay .js-plotly-plot').length >= 3"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """100 recordings with loss, accuracy and sharpness; the flattest accurate one is run-42."""
    folder = tmp_path_factory.mktemp("many")
    rng = np.random.default_rng(0)
    for number in range(RUNS):
        accuracy, sharpness = rng.uniform(0.5, 0.99), rng.uniform(5.0, 50.0)
        if number == 42:
            accuracy, sharpness = 0.93, 4.0
        if number == 7:
            accuracy, sharpness = 0.6, 1.0  # flatter, and not accurate
        run = hr.Trajectory.create(folder / f"run-{number}")
        for step in range(5):
            numbers = {"loss": 2.0 / (step + 1), "accuracy": accuracy, "sharpness": sharpness}
            run.append(step, epoch=step / 2, metrics=numbers | {"lr": 0.1})
    return folder


@pytest.fixture(scope="module")
def address(store, serving):
    with serving(store) as address:
        yield address


def rows(page):
    return page.locator("#table-body label")


def open_table(page):
    page.locator("#menu-table").click()
    page.wait_for_function(FILLED)  # rows outside the window are drawn when one scrolls to them
    rows(page).nth(8).wait_for()


@pytest.mark.slow  # a busy machine takes longer
def test_a_table_of_100_runs_opens_within_two_seconds(visit):
    page = visit("live")
    page.locator("#menu-table").wait_for()
    began = time.monotonic()
    open_table(page)
    seconds = time.monotonic() - began
    assert seconds < 2.0, f"the table of 100 runs opened in {seconds:.2f} s"


def test_the_flattest_accurate_run_takes_three_clicks_at_most(visit):
    page = visit("live")
    open_table(page)
    page.locator("#table-filter").press_sequentially("accuracy > 0.9", delay=5)  # one
    page.wait_for_function(FILTERED)
    page.get_by_role("button", name="sharpness", exact=True).click()  # two
    page.wait_for_function(FIRST, arg="run-42")
    page.get_by_role("button", name="sharpness", exact=True).click()
    page.wait_for_function(OTHER, arg="run-42")


def test_ticked_runs_share_their_axes(visit):
    page = visit("table")
    rows(page).nth(1).locator("input").check()
    rows(page).nth(2).locator("input").check()
    page.wait_for_function(DRAWN)
    assert set(page.evaluate(RANGES)) == {"[0,4]"}
    page.locator("#table-x input").nth(1).check()
    page.wait_for_function(SHARED, arg="[0,2]")


def test_characters_typed_while_the_table_is_filled_stay_in_order(visit):
    """Faster than the answers come, with pauses after which one is asked for."""
    page = visit("table")
    page.wait_for_function(FILLED)
    box, text = page.locator("#table-filter"), "run-4 accuracy > 0.1 sharpness < 100"
    for part in text.split(" "):
        box.press_sequentially(f"{part} ", delay=1)
        page.wait_for_timeout(170)
    assert box.input_value() == f"{text} "
    page.wait_for_function(
        "() => /^1[01] of 100/.test(document.querySelector('#table-count').innerText)"
    )


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Two recordings of one model, and the factory that makes it."""
    folder = tmp_path_factory.mktemp("pair")
    loss, data = nn.CrossEntropyLoss(), hr.load_data("digits", limit=128).flat()
    for name, scale in (("low", 1.0), ("high", 3.0)):
        model = hr.training.mlp((64, 8, 10), "tanh", seed=0)
        with torch.no_grad():
            next(model.parameters()).mul_(scale)
        recorder = hr.Recorder(folder / name, every="1ep", config={"scale": scale})
        hr.train(model, loss, data, epochs=2, lr=0.1, batch_size=32, recorder=recorder)
        recorder.close()

    def make():
        return hr.training.mlp((64, 8, 10), "tanh", seed=1), loss, data

    return folder, make


@pytest.mark.parametrize("has_model", [True, False])
def test_two_ticked_recordings_are_compared(recorded, has_model, serving, open_page):
    folder, make = recorded
    with serving(folder, factory=make if has_model else None) as address:
        page = open_page().page
        page.goto(address.page("table"))
        rows(page).nth(1).wait_for()
        assert page.locator("#table-comparison").is_hidden()
        heads = page.locator(".table-head button").all_inner_texts()
        assert {"lr", "batch_size", "optimizer", "scale"} <= set(heads)
        for number in (0, 1):
            rows(page).nth(number).locator("input").check()
        page.locator("#table-comparison").wait_for()
        if not has_model:
            assert "--model mymodel.py:make" in page.locator("#table-compare-note").inner_text()
            assert page.locator("#table-compare").is_disabled()
            return
        page.locator("#table-compare").click()
        page.locator("#table-verdict table").wait_for()
        quiet = Console(quiet=True)
        model, loss, data = make()
        found = hr.compare(
            *(folder / name for name in ("low", "high")),
            *(loss, data),
            model=model,
            names=("low", "high"),
            console=quiet,
        )
        text = page.locator("#table-verdict").inner_text()
        shown = {f"{found['sharpness'].a:.4g}", f"{found['sharpness'].b:.4g}"}
        assert all(number in text for number in shown), text
        page.locator("#table-x input").nth(2).check()  # training time
        page.wait_for_function(
            "() => document.querySelector('#table-overlay .xtitle')?.textContent.includes('time')"
        )
