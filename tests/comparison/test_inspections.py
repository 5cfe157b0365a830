"""Two inspections laid together: what both have, with the errors of both."""

import json
from dataclasses import replace
from math import hypot, isnan

import numpy as np
import pytest
import torch
from rich.console import Console
from scipy.special import stdtrit
from torch import nn

import hyperribbon as hr
from hyperribbon.application.inspection.engine import inspect as inspecting
from hyperribbon.application.inspection.parts import headlines
from hyperribbon.core.checks import ArgumentError

QUIET = Console(quiet=True)
DATA = torch.randn(64, 6, generator=torch.Generator().manual_seed(0)), torch.arange(64) % 3


def network(scale):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    with torch.no_grad():
        model[0].weight.mul_(scale)
        model[2].weight.mul_(scale)
    return model


def inspected(scale, seed=0):
    return hr.inspect(
        network(scale), nn.CrossEntropyLoss(), DATA, k=3, budget=20, seed=seed, console=QUIET
    )


@pytest.fixture(scope="module")
def pair():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inspecting, "MEASUREMENTS", headlines.MEASUREMENTS)
        return inspected(1.0), inspected(4.0)


def test_differences_are_those_of_the_statistics_with_both_errors(pair):
    a, b = pair
    found = hr.compare(a, b, names=("small", "large"))
    for key in ("sharpness", "trace"):
        first, second = a.statistics[f"{key}@64"], b.statistics[f"{key}@64"]
        entry = found[key]
        assert (entry.a, entry.b) == (first.value, second.value)
        assert entry.stderr == pytest.approx(hypot(first.error, second.error))
        reach = (entry.interval[1] - entry.interval[0]) / 2
        assert reach == pytest.approx(stdtrit(7, 0.975) * entry.stderr)  # eight groups
    assert isnan(found["loss"].stderr)  # exact on these samples, unknown over others
    assert found["loss"].lower is None
    assert "64 samples" in found.where
    assert "samples" in found["trace"].name


def test_none_is_called_flatter_without_a_measure_that_scaling_cannot_change(pair):
    a, b = pair
    known = b.statistics["sharpness@64"]
    sharper = {**b.statistics, "sharpness@64": replace(known, value=10 * known.value)}
    found = hr.compare(a, replace(b, statistics=sharper))
    assert found["sharpness"].lower == "a"
    assert found.flatter is None
    assert found.reading()[0].startswith("A has the lower sharpness")
    assert "neither is called flatter" in found.reading()[0]
    assert "–" in found.table()["groups agreeing"].tolist()


def test_the_largest_common_number_of_samples_counts(pair):
    a, b = pair
    few = {name: q for name, q in b.statistics.items() if name.endswith("@8")}
    found = hr.compare(a, replace(b, statistics=few))
    assert found["sharpness"].a == a.statistics["sharpness@8"].value
    assert found["sharpness"].interval[1] - found["sharpness"].interval[0] == pytest.approx(
        2 * stdtrit(3, 0.975) * found["sharpness"].stderr
    )  # four groups


def test_numbers_of_more_samples_than_both_have_are_named(pair):
    a, b = pair
    few = {name: q for name, q in b.statistics.items() if name != "sharpness@64"}
    found = hr.compare(a, replace(b, statistics=few), names=("one", "two"))
    assert found["sharpness"].a == a.statistics["sharpness@8"].value
    assert found["trace"].a == a.statistics["trace@64"].value
    told = "one alone has numbers of more samples, which are not compared: sharpness of 64."
    assert found.notes[1:] == (told,)
    assert hr.compare(a, b).notes[1:] == ()


def test_data_of_other_sizes_are_not_the_same_samples(pair):
    a, b = pair
    assert a.config["total"] == 64
    found = hr.compare(a, replace(b, config={**b.config, "total": 1000}))
    assert "64 and 1,000 samples, so the inspections used different samples" in found.notes[1]
    older = {key: value for key, value in b.config.items() if key != "total"}
    assert hr.compare(a, replace(b, config=older)).notes[1:] == ()


def test_stored_inspections_are_the_same(pair, tmp_path, monkeypatch):
    folders = [found.save(tmp_path / name) for name, found in zip("ab", pair, strict=True)]
    ours, stored = hr.compare(*pair), hr.compare(*folders)
    for one, other in zip(ours.differences, stored.differences, strict=True):
        assert (one.key, one.name) == (other.key, other.name)
        values = [(e.a, e.b, e.stderr) for e in (one, other)]
        assert np.allclose(*values, rtol=1e-12, equal_nan=True)
    page = stored.report(tmp_path / "page.html").read_text()
    assert "These are inspections" in page
    monkeypatch.setenv("COLUMNS", "150")
    assert all(e.name in stored.summary() for e in stored.differences)


def test_mistakes_are_explained(pair, tmp_path):
    a, b = pair
    with pytest.raises(ArgumentError, match="as for the other argument"):
        hr.compare(a, network(1.0))
    with pytest.raises(ArgumentError, match="as they are"):
        hr.compare(a, b, nn.CrossEntropyLoss(), DATA)
    with pytest.raises(ArgumentError, match="seed=0"):
        hr.compare(a, replace(b, config={**b.config, "seed": 1}))
    with pytest.raises(ArgumentError, match="no statistic"):
        hr.compare(a, replace(b, statistics={}))
    folder = b.save(tmp_path / "b")
    (folder / "inspection.json").write_text(json.dumps({"title": "x"}))
    with pytest.raises(ArgumentError, match="damaged"):
        hr.compare(a, folder)
    with pytest.raises(ArgumentError, match="data is required"):
        hr.compare(network(1.0), network(2.0), nn.CrossEntropyLoss())
