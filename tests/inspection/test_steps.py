"""Measurements are found by walking the parts of an inspection, in the order that they state."""

import re
import sys
from pathlib import Path

from hyperribbon.application.inspection import inspect, parts
from hyperribbon.application.inspection.engine import inspect as inspecting
from hyperribbon.application.inspection.engine.inspect import MEASUREMENTS, find_measurements

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "add-part.md"
REPEATED = ["loss", "noise_scale", "trace", "sharpness", "stability", "shares", "ends"]
ONCE = [
    "subnetworks",
    "noise",
    "layers",
    "fisher",
    "sloppiness",
    "slices",
    "path",
    "hessian_trace",
    "density",
    "spectrum",
    "theory",
]


def test_headline_numbers_come_first_and_theory_last():
    assert [entry.name for entry in MEASUREMENTS] == [*REPEATED, *ONCE]
    assert [entry.name for entry in MEASUREMENTS if entry.refine is not None] == REPEATED
    assert len({entry.order for entry in MEASUREMENTS}) == len(MEASUREMENTS)


def test_every_step_returns_the_part_of_its_name(trained, quiet):
    model, loss, data, _ = trained
    found = inspect(model, loss, data, optimizer=0.1, budget=30, k=12, console=quiet)
    done = {o.step for o in found.outcomes if o.status == "done"}
    named = {entry.name for entry in MEASUREMENTS if entry.title in done}
    assert {"noise", "layers", "slices", "spectrum"} <= named
    assert named - {"hessian_trace"} <= set(found.parts)


def test_the_file_of_the_page_becomes_a_step(trained, quiet, monkeypatch, tmp_path):
    first = re.search(r"^```python\n(.*?)^```", PAGE.read_text(), re.S | re.M)[1]
    (tmp_path / "descent.py").write_text(first)
    name = f"{parts.__name__}.descent"
    monkeypatch.setattr(parts, "__path__", [*parts.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, name, raising=False)
    try:
        found = find_measurements()
        assert [entry.name for entry in found] == [*REPEATED, *ONCE[:2], "descent", *ONCE[2:]]
        own = tuple(entry for entry in found if entry.name in ("sharpness", "descent"))
        monkeypatch.setattr(inspecting, "MEASUREMENTS", own)
        model, loss, data, _ = trained
        found = inspect(model, loss, data, budget=20, k=2, console=quiet)
    finally:
        sys.modules.pop(name, None)
        vars(parts).pop("descent", None)
    assert found["descent.curvature"].value > 0
    assert any("Along its gradient" in sentence for sentence in found.reading())
