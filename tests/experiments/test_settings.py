"""Experiments run one's own way: other settings, several seeds, and what shows of it."""

import json

import pytest
from matplotlib.text import Text

from hyperribbon.application.report import write_report
from hyperribbon.core import ArgumentError
from hyperribbon.papers.experiments import find_experiment, run, runner
from hyperribbon.papers.experiments.settings import read_changes


def test_changes_are_read_as_the_kind_that_the_setting_has():
    config = find_experiment("linear_networks/fig1-right").config("smoke")
    changes = read_changes(["depth=3", "data=digits,mnist5k", "lr=0.1"], config)
    assert changes == {"depth": 3, "data": ("digits", "mnist5k"), "lr": 0.1}
    for wrong, match in (("dept=3", "depth"), ("depth", "="), ("depth=x", "depth")):
        with pytest.raises(ArgumentError, match=match):
            read_changes([wrong], config)


def test_a_run_with_other_settings_and_several_seeds_says_so_everywhere(tmp_path):
    folder = run("ribbons/fig4", {"samples": 20, "batches": 1}, seeds=3, out=tmp_path)
    assert folder.info["changed"] == {"samples": 20, "batches": 1}
    assert folder.info["seeds"] == [0, 1, 2]
    assert folder.info["seconds"] > 0
    claims = {claim.id.split("/")[-1]: claim for claim in folder.load_claims()}
    assert len(set(claims["simulation"].seeds)) == 3
    assert claims["simulation"].uncertainty > 0
    assert claims["bound"].exact
    assert all(claim.setting.startswith("Changed: samples = 20") for claim in claims.values())
    assert "samples = 20" in (folder.figures / "figure.svg").read_text()
    page = write_report([tmp_path], tmp_path / "report.html").read_text()
    assert "3 seeds; samples = 20; batches = 1" in page
    plain = run("ribbons/fig4", out=tmp_path)
    assert plain.path != folder.path
    assert "changed" not in plain.info


def test_what_was_changed_stands_within_the_picture_and_below_the_axes(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(runner, "_save_figure", lambda figure, folder, name: drawn.append(figure))
    run("ribbons/fig4", {"samples": 20, "batches": 1}, seeds=2, out=tmp_path)
    (figure,) = drawn
    figure.draw_without_rendering()
    (text,) = [one for one in figure.findobj(Text) if "samples = 20" in one.get_text()]
    assert "seed 0 of 2" in text.get_text()
    box = text.get_window_extent()
    assert figure.bbox.contains(box.x0, box.y0) and figure.bbox.contains(box.x1, box.y1)
    assert all(box.y1 <= axis.get_tightbbox().y0 for axis in figure.axes)


def test_seeds_of_several_runs_are_those_of_single_runs(tmp_path):
    together = run("ribbons/fig4", seeds=2, out=tmp_path).load_claims()
    alone = [run("ribbons/fig4", seed=seed, out=tmp_path).load_claims() for seed in (0, 1)]
    simulation = next(claim for claim in together if claim.id.endswith("simulation"))
    assert simulation.seeds == tuple(
        claim.measured for claims in alone for claim in claims if claim.id == simulation.id
    )
    json.dumps([claim.to_json() for claim in together], allow_nan=False)
