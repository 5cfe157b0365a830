import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

from hyperribbon.application.inspection import inspect
from hyperribbon.application.report import write_report
from hyperribbon.papers.training import mlp, train
from hyperribbon.recording import Recorder
from hyperribbon.recording.trajectory import Trajectory

pytestmark = pytest.mark.browser
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    """A model with a hostile layer name, inspected and stored twice, and its recorded training."""
    folder = tmp_path_factory.mktemp("models")
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(120) % 3
    inputs = 2 * torch.randn(3, 6, generator=generator)[labels]
    inputs = inputs + torch.randn(120, 6, generator=generator)
    model = mlp((6, 8, 3), "tanh", seed=0)
    model.add_module(HOSTILE, nn.Linear(3, 3))
    recorder = Recorder(folder / "runs" / "<b>training", every="1ep", probe=inputs[:20])
    result = train(
        model,
        nn.CrossEntropyLoss(),
        (inputs, labels),
        epochs=5,
        lr=0.1,
        batch_size=32,
        recorder=recorder,
    )
    recorder.close()
    found = inspect(
        model,
        nn.CrossEntropyLoss(),
        (inputs, labels),
        initial=result.initial,
        k=4,
        budget=30,
        trajectory=recorder.trajectory,
        optimizer=0.1,
        console=Console(quiet=True),
    )
    assert found.is_complete, found.outcomes
    shutil.copytree(found.save(folder / "runs" / "model0"), folder / "runs" / "model1")
    return write_report([folder / "runs"], folder / "report.html")


def test_every_tab_draws_its_charts_without_an_error_or_a_request(report, open_page):
    watched = open_page()
    page = watched.open(report)
    page.on("dialog", lambda dialog: watched.problems.append(dialog.message))
    labels = page.locator("[role=tab]").all_inner_texts()
    assert {"Summary", "Curvature", "Noise", "Landscape", "Sub-networks"} <= set(labels)
    assert {"Trajectory", "Training", "Data", "Theory"} <= set(labels)
    for index, tab in enumerate(page.locator("[role=tab]").all()):
        tab.click()
        panel = page.locator("[role=tabpanel]").nth(index)
        charts = panel.locator(".chart-data").count()
        page.wait_for_function(
            "([i, n]) => document.querySelectorAll('[role=tabpanel]')[i]"
            ".querySelectorAll('.drawn .main-svg, [data-state=image]').length >= n",
            arg=[index, charts],
        )
    assert HOSTILE in page.locator("main").evaluate("element => element.textContent")
    assert page.locator("main img[src=x]").count() == 0
    assert watched.problems == []
    assert watched.requests == []


def test_a_logarithmic_axis_can_be_switched(report, open_page):
    page = open_page().open(report)
    page.get_by_role("tab", name="Curvature").click()
    figure = page.locator(".picture.drawn", has=page.locator("[data-toggles='x y']")).first
    button = figure.get_by_role("button", name="log y")
    button.wait_for()
    kind = "el => el.querySelector('.chart').layout.yaxis.type"
    assert figure.evaluate(kind) == "log"
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert figure.evaluate(kind) == "linear"


def test_two_models_stand_side_by_side(report, open_page):
    page = open_page().open(report)
    side = page.locator("#panel-1 table", has=page.locator("th", has_text="Sequential (model1)"))
    heads = side.first.locator("th").all_inner_texts()
    assert heads == ["number", "Sequential (model0)", "Sequential (model1)"]
    assert "Sharpness" in page.locator("#panel-1").inner_text()


def test_twenty_runs_of_a_hundred_checkpoints_stay_small_and_open(
    tmp_path, open_page, monkeypatch, record_property, capsys
):
    monkeypatch.setattr("hyperribbon.core.store.atomic.sync", lambda path: None)
    rng = np.random.default_rng(0)
    goal = rng.standard_normal((50, 10))
    for run in range(2):
        trajectory = Trajectory.create(tmp_path / f"run-{run}-0")
        start, values = rng.standard_normal((50, 10)), rng.random((3, 100))
        for step in range(100):
            metrics = dict(zip(("loss", "sharpness", "accuracy"), values[:, step], strict=True))
            scores = start + step / 50 * (goal - start)
            trajectory.append(10 * step, epoch=step / 10, metrics=metrics, predictions=scores)
        for copy in range(1, 10):
            shutil.copytree(trajectory.folder, tmp_path / f"run-{run}-{copy}")
    page_file = write_report([tmp_path], tmp_path / "report.html")
    assert page_file.stat().st_size < 15e6
    watched = open_page()
    began = time.monotonic()
    page = watched.open(page_file)
    page.locator("table td").first.wait_for(state="visible")
    opened = time.monotonic() - began
    record_property("report.opened.s", round(opened, 2))
    with capsys.disabled():
        print(f"\nreport of 20 runs opened in {opened:.2f} s (asked on an idle machine: 3 s)")
    page.locator(".drawn .main-svg").first.wait_for(state="visible")
    page.wait_for_function("document.querySelectorAll('.drawn .scatterlayer .trace').length == 60")
    assert page.locator(".picture").first.locator("h4").inner_text().startswith("Paths")
    assert watched.problems == []
