"""The tutorials are scripts, and they run."""

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name, *arguments):
    runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](*arguments)


def test_every_tutorial_is_tested_here_or_with_the_recorder():
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert names == {
        "edge_of_stability", "inspect_a_model", "record_training", "which_weights_matter",
    }  # fmt: skip


def test_the_sharpness_climbs_to_the_edge_of_stability(tmp_path, capsys):
    run("edge_of_stability", tmp_path)
    lines = [[float(n) for n in re.findall(r"\d+\.?\d*", line)]
             for line in capsys.readouterr().out.splitlines()]  # fmt: skip
    assert len(lines) == 3
    for _, start, end, _, limit, _ in lines:
        assert start < limit
        assert end == pytest.approx(limit, rel=0.25)


def test_an_inspected_model_has_its_report(tmp_path, capsys):
    run("inspect_a_model", tmp_path)
    printed = capsys.readouterr().out
    assert "Fisher trace" in printed
    assert "stability limit" in printed
    assert (tmp_path / "report.html").stat().st_size > 1e6


def test_few_weights_matter(capsys):
    run("which_weights_matter")
    printed = capsys.readouterr().out
    shares = {
        float(row[0].rstrip("%")): [float(n) for n in row[1:]]
        for row in map(str.split, printed.splitlines())
        if row and row[0].endswith("%")
    }
    assert shares[0][0] > 0.85
    assert shares[0][0] == shares[0][1]
    assert shares[50][0] > shares[95][0]
