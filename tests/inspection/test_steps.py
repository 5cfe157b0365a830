"""The steps of an inspection are found by walking its parts, in the order that they state."""

import re
import sys
from pathlib import Path

from hyperribbon.inspection import inspect, parts
from hyperribbon.inspection.engine import inspecting
from hyperribbon.inspection.engine.steps import STEPS, find_steps

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "add-part.md"
NAMES = [
    "stability",
    "noise",
    "fisher",
    "subnetworks",
    "layers",
    "sloppiness",
    "slices",
    "path",
    "theory",
    "trace",
    "density",
    "spectrum",
]


def test_the_most_telling_steps_come_first():
    assert [step.name for step in STEPS] == NAMES
    assert len({step.order for step in STEPS}) == len(STEPS)


def test_every_step_returns_the_part_of_its_name(trained, quiet):
    model, loss, data, _ = trained
    found = inspect(model, loss, data, optimizer=0.1, budget=30, k=12, console=quiet)
    done = {o.step for o in found.outcomes if o.status == "done"}
    named = {step.name for step in STEPS if step.title in done}
    assert {"stability", "noise", "layers", "slices", "spectrum"} <= named <= set(found.parts)


def test_the_file_of_the_page_becomes_a_step(trained, quiet, monkeypatch, tmp_path):
    first = re.search(r"^```python\n(.*?)^```", PAGE.read_text(), re.S | re.M)[1]
    (tmp_path / "descent.py").write_text(first)
    name = f"{parts.__name__}.descent"
    monkeypatch.setattr(parts, "__path__", [*parts.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, name, raising=False)
    try:
        steps = find_steps()
        assert [step.name for step in steps] == [*NAMES[:2], "descent", *NAMES[2:]]
        monkeypatch.setattr(inspecting, "STEPS", tuple(s for s in steps if s.name == "descent"))
        model, loss, data, _ = trained
        found = inspect(model, loss, data, budget=20, k=2, console=quiet)
    finally:
        sys.modules.pop(name, None)
        vars(parts).pop("descent", None)
    assert found["descent.curvature"].value > 0
    assert any("Along its gradient" in sentence for sentence in found.reading())
