"""Numbers of stored inspections are shown with their uncertainties, each under its own run."""

import json

import pytest

from hyperribbon.application.report import write_report
from hyperribbon.application.report.inspections import inspection_tabs


def stored(folder, title, sharpness, loss=0.25):
    """Write an inspection with two numbers."""
    folder.mkdir()
    names = {"hessian.largest": "Sharpness", "model.loss": "Loss"}
    numbers = {"hessian.largest": sharpness, "model.loss": (loss, 0.0)}
    quantities = [
        {
            "key": key,
            "name": names[key],
            "value": value,
            "error": error,
            "method": "Lanczos",
            "certainty": "standard error over samples",
            "samples": 0,
        }
        for key, (value, error) in numbers.items()
    ]
    part = {
        "name": "hessian",
        "title": "Hessian",
        "group": "Curvature",
        "readings": [],
        "notes": [],
        "quantities": quantities,
        "charts": [],
        "tables": {},
    }
    content = {
        "title": title,
        "where": "all 40 samples",
        "reading": [],
        "answers": [],
        "statistics": {},
        "missing": {},
        "parts": [part],
        "outcomes": [],
    }
    (folder / "inspection.json").write_text(json.dumps(content))
    (folder / "run.json").write_text(json.dumps({"config": {}, "environment": {}}))
    return folder


def tables(tabs):
    return {
        table.name: table for tab in tabs for section in tab.sections for table in section.tables
    }


def test_a_number_is_shown_with_its_error_and_how_certain_it_is(tmp_path):
    folder = stored(tmp_path / "a", "A", (3.63142, 0.0517))
    tabs = inspection_tabs([folder])
    assert tables(tabs)["hessian-numbers"].rows == [
        ["Sharpness", "3.631 ± 0.052", "Lanczos", "standard error over samples"],
        ["Loss", "0.25", "Lanczos", "standard error over samples"],
    ]
    facts = {name: (value, error) for name, value, error in tabs[0].sections[0].facts}
    assert facts == {"Sharpness": ("3.63", "± 0.052"), "Loss": ("0.25", "")}
    assert "3.631 ± 0.052" in write_report([folder], tmp_path / "report.html").read_text()


def test_two_inspections_stand_side_by_side_in_their_own_columns(tmp_path):
    folders = [
        stored(tmp_path / "a", "small", (2.0, 0.5), loss=0.1),
        stored(tmp_path / "b", "large", (70.0, 3.0), loss=None),
    ]
    for name in ("comparison", "hessian-numbers"):
        table = tables(inspection_tabs(folders))[name]
        assert tuple(table.columns) == ("number", "small", "large")
        assert table.rows == [["Sharpness", "2 ± 0.5", "70 ± 3"], ["Loss", "0.1", "not finite"]]


@pytest.mark.parametrize("error", [None, 0.0])
def test_a_number_whose_error_is_not_known_has_none(tmp_path, error):
    tabs = inspection_tabs([stored(tmp_path / "a", "A", (3.5, error))])
    assert tables(tabs)["hessian-numbers"].rows[0][1] == "3.5"


def test_a_missing_table_and_a_damaged_part_are_one_line_each(tmp_path):
    folder = stored(tmp_path / "a", "A", (3.5, 0.1))
    content = json.loads((folder / "inspection.json").read_text())
    (part,) = content["parts"]
    broken = {**part, "name": "noise", "quantities": [{"key": "x"}]}
    content["parts"] = [{**part, "tables": {"By layer": "layers.csv"}}, broken]
    content["title"] = ["not", {"a": "title", "b": "\ud800"}]
    (folder / "inspection.json").write_text(json.dumps(content))
    summary, curvature = inspection_tabs([folder])
    assert "Damaged: part 2" in summary.sections[0].warning
    assert [note.split(" (")[0] for note in curvature.sections[0].text] == [
        "Damaged: table By layer"
    ]
    html = write_report([folder], tmp_path / "report.html").read_text()
    assert "3.5 ± 0.1" in html and "Damaged: table By layer" in html
