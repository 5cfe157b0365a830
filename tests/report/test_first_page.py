"""The first page of a report: a picture beside every answer, and one meaning of ±."""

from __future__ import annotations

import json
import re
import shutil
from html import unescape

import pytest
import torch
from rich.console import Console
from torch import nn

import hyperribbon as hr

SAMPLING = r"standard error|interval over samples"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(120) % 3
    inputs = 2 * torch.randn(3, 6, generator=generator)[labels]
    data = inputs + torch.randn(120, 6, generator=generator), labels
    model, loss = hr.training.mlp((6, 8, 3), "tanh", seed=0), nn.CrossEntropyLoss()
    recorder = hr.Recorder(folder / "it", every="1ep", probe=data[0][:20])
    trained = hr.train(model, loss, data, epochs=4, lr=0.1, batch_size=32, recorder=recorder)
    recorder.close()
    options = {"initial": trained.initial, "trajectory": recorder.trajectory, "batch_size": 32}
    quiet = Console(quiet=True)
    return hr.inspect(model, loss, data, optimizer=0.1, k=4, budget=60, console=quiet, **options)


@pytest.fixture(scope="module")
def stored(found, tmp_path_factory):
    return found.save(tmp_path_factory.mktemp("stored") / "it")


@pytest.fixture(scope="module")
def page(stored, tmp_path_factory):
    path = hr.report.write_report([stored], tmp_path_factory.mktemp("page") / "report.html")
    return re.sub(r"<script.*?</script>", "", path.read_text(), flags=re.S)


def test_every_answer_has_its_picture(found, stored, page):
    terms = [answer.term for answer in found.answers()]
    assert terms == ["sharpness", "stability", "layers", "noise", "pruning", "path"]
    assert page.count('<img class="small"') == len(terms)
    for term in terms:
        drawn = (stored / "figures" / f"answer-{term}.svg").read_text()
        assert "<path" in drawn and "NaN" not in drawn


def test_every_plus_minus_is_a_sampling_error_or_the_solvers(found, page):
    quantities = [*found, *found.statistics.values()]
    for quantity in quantities:
        if "±" in quantity.text() and "(solver)" not in quantity.text():
            assert re.search(SAMPLING, quantity.certainty), quantity
    errors = [q.error for q in quantities if q.error > 0 and re.search(SAMPLING, q.certainty)]
    known = {f"{e:.2g}" for e in errors} | {f"{e:,.2g}" for e in errors}
    known |= {f"{100 * e:.{digits}f}%" for e in errors for digits in (0, 1)}
    known |= {f"{e:.2f}" for e in errors}
    text = unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page)))
    behind = re.findall(r"± ?([\d.,e+-]*\d%?)( \(solver\))?", text)
    assert len(behind) > 10 and len(behind) == text.count("±")
    assert [error for error, solver in behind if not solver and error not in known] == []


def test_what_was_skipped_is_one_line(stored, tmp_path):
    sentence = "Skipped for time: spectra (about 90 s); budget=150 would include them."
    copy = shutil.copytree(stored, tmp_path / "copy")
    content = json.loads((copy / "inspection.json").read_text()) | {"skipped": sentence}
    (copy / "inspection.json").write_text(json.dumps(content))
    (copy / "manifest.json").unlink(missing_ok=True)
    page = hr.report.write_report([copy], tmp_path / "report.html").read_text()
    assert page.count("Skipped for time") == 1
