"""No text is clipped or overlaps another, on any page of the explorer and any tab of a report."""

from __future__ import annotations

import math

import pytest
import torch
from rich.console import Console
from torch import nn

import hyperribbon as hr
from browser.layout import (
    SCHEMES,
    THEORY,
    WIDTHS,
    find_faults,
    visit_explorer,
    visit_pictures,
    visit_report,
)
from hyperribbon.application.explorer.app import _THEORY
from hyperribbon.papers.experiments import run

pytestmark = pytest.mark.browser
FAULTS = {
    "overlap": '<p style="position:absolute;top:-6px">one two</p><p>three four</p>',
    "clipped": '<div style="width:40px;overflow:hidden;white-space:nowrap">longer than it is</div>',
    "beyond the page": '<div style="margin-left:380px;white-space:nowrap">out of the page</div>',
    "clipped: title": '<svg width="60" height="20"><text x="40" y="15">title of it</text></svg>',
    "overlap: 0.1": '<svg width="99"><text y="20">0.1</text><text x="9" y="22">0.2</text></svg>',
}
CLEAN = (
    '<div style="width:40px;overflow:auto;white-space:nowrap">longer than it is</div>',
    "<details><summary>short</summary><p>one<p>two</details><p>below it</p>",
    "<p>one line</p><p>another line</p>",
    '<p style="width:9px;overflow:hidden;text-overflow:ellipsis;white-space:nowrap">it ends</p>',
    '<svg width="200" height="200"><text x="40" y="60" transform="rotate(45 40 60)">one way</text>'
    '<text x="40" y="90" transform="rotate(45 40 90)">the same way</text></svg>',
)


@pytest.mark.parametrize("kind", FAULTS)
def test_faults_are_found(kind, open_page):
    page = open_page(width=390).page
    page.set_content(f"<main>{FAULTS[kind]}</main>")
    assert any(fault.startswith(kind) for fault in find_faults(page)), find_faults(page)


@pytest.mark.parametrize("content", CLEAN)
def test_what_can_be_read_is_no_fault(content, open_page):
    page = open_page(width=390).page
    page.set_content(f"<main>{content}</main>")
    assert find_faults(page) == []


def test_every_theory_page_is_visited():
    assert tuple(page.key for page in _THEORY) == THEORY


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Two recordings, two inspections and an experiment."""
    folder = tmp_path_factory.mktemp("store")
    run("ribbons/fig4", preset="smoke", out=folder, seed=0)
    data, loss = hr.load_data("digits", limit=600).flat(), nn.CrossEntropyLoss()
    for seed in (0, 1):
        model = hr.training.mlp((64, 24, 10), seed=seed)
        with torch.no_grad():
            next(model.parameters()).mul_(1 + seed)
        options = {"probe": data.inputs[:60], "measure": ["sharpness", "spectrum", "gradient"]}
        options["max_overhead"] = math.inf
        recorder = hr.Recorder(folder / f"training-{seed}", every="1ep", **options)
        shared = {"batch_size": 64, "seed": seed}
        trained = hr.train(model, loss, data, epochs=6, lr=0.1, recorder=recorder, **shared)
        recorder.close()
        known = {"initial": trained.initial, "trajectory": recorder.trajectory, "optimizer": 0.1}
        quiet = Console(quiet=True)
        found = hr.inspect(model, loss, data, **known, batch_size=64, budget=20, console=quiet)
        found.save(folder / f"inspection-{seed}")
    return folder


@pytest.mark.slow  # every page at two widths in two themes
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_no_text_is_clipped_or_overlaps(width, scheme, store, serving, open_page, tmp_path):
    report = hr.report.write_report([store], tmp_path / "report.html")
    page, faults = open_page(width=width, scheme=scheme).page, {}
    names = ["inspection-0", "training-0", next(p.name for p in store.glob("ribbons*"))]
    with serving(store) as address:
        for name in visit_explorer(page, address.page, names):
            faults[name] = find_faults(page, 5)
        for name in visit_report(page, report):
            faults[name] = find_faults(page, 5)
        for name in visit_pictures(page, store):
            faults[name] = find_faults(page, 5)
    assert {name: found for name, found in faults.items() if found} == {}
    assert len(faults) > 20
