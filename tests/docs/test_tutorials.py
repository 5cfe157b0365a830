"""The tutorials are scripts, and they run."""

import re
import runpy
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name, *arguments):
    runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](*arguments)


def test_every_tutorial_is_tested_here_or_with_the_recorder():
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert names == {
        "inspect_a_model",
        "record_training",
        "step_and_sharpness",
        "which_weights_matter",
    }


def test_larger_steps_end_in_flatter_places(tmp_path, capsys):
    run("step_and_sharpness", tmp_path)
    printed = capsys.readouterr().out.splitlines()
    ends, limits = zip(
        *(
            [
                float(re.search(pattern, line)[1])
                for pattern in (r"start, ([\d.]+)", r"2/η = ([\d.]+)")
            ]
            for line in printed
        ),
        strict=True,
    )
    assert len(ends) == 3
    assert ends[0] > 1.5 * ends[1] > 1.5**2 * ends[2]
    assert all(end < limit for end, limit in zip(ends, limits, strict=True))


def test_an_inspected_model_has_its_report(tmp_path, capsys):
    run("inspect_a_model", tmp_path)
    printed = capsys.readouterr().out
    assert "The sharpness is" in printed
    assert "of the largest stable one" in printed
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
