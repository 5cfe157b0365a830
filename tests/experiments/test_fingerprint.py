"""Fingerprints of functions: whatever a result depends on changes them."""

import functools
import importlib
import sys
import textwrap
import threading
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from torch import nn

import hyperribbon as hr
from hyperribbon.core import ArgumentError
from hyperribbon.papers.experiments import find_experiment
from hyperribbon.papers.experiments.fingerprint import fingerprint

STUDY = {
    "study.py": """
        import helpers
        from helpers import scale
        from tools import deeper

        FACTOR = {"a": [1.0, 2.0]}
        UNUSED = 1

        def add(value, offset=1):
            return value + offset

        class Model:
            gain = 1.0

            def run(self, value):
                return add(value) * self.gain

        def make(power):
            def raised(value):
                return value**power
            return raised

        cube = make(3)

        def measure(point):
            "Measure."
            # a remark
            from late import finish
            value = Model().run(scale(point["x"])) + FACTOR["a"][0] + helpers.constant
            return {"value": finish(cube(value)) + sum(i for i in [deeper.level(1)])}

        def other(point):
            return UNUSED
    """,
    "helpers.py": """
        constant = 0.0
        def scale(value):
            return 2.0 * value
    """,
    "late.py": """
        import later
        def finish(value):
            return later.shift + value
    """,
    "later.py": "shift = 0.0\n",
    "tools/__init__.py": "",
    "tools/deeper.py": """
        from .deepest import BASE
        def level(value):
            return value * BASE
    """,
    "tools/deepest.py": "BASE = 1.0\n",
}

CHANGES = [
    ("study.py", "Model().run(scale", "2 * Model().run(scale"),
    ("study.py", "offset=1", "offset=2"),
    ("study.py", "gain = 1.0", "gain = 3.0"),
    ("study.py", "value + offset", "value - offset"),
    ("study.py", "cube = make(3)", "cube = make(2)"),
    ("study.py", '"a": [1.0, 2.0]', '"a": [5.0, 2.0]'),
    ("helpers.py", "2.0 * value", "4.0 * value"),
    ("helpers.py", "constant = 0.0", "constant = 1.0"),
    ("late.py", "later.shift + value", "later.shift - value"),
    ("later.py", "shift = 0.0", "shift = 1.0"),
    ("tools/deeper.py", "value * BASE", "value + 3 * BASE"),
    ("tools/deepest.py", "BASE = 1.0", "BASE = 2.0"),
]


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Writes the study, with one change, and returns it freshly imported."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(tmp_path))
    names = [Path(name).with_suffix("").as_posix().replace("/", ".") for name in STUDY]

    def load(file="study.py", old="", new=""):
        for name, text in STUDY.items():
            text = textwrap.dedent(text)
            assert name != file or old in text
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text.replace(old, new) if name == file and old else text)
        for name in [*names, "tools"]:
            sys.modules.pop(name.removesuffix(".__init__"), None)
        importlib.invalidate_caches()
        return importlib.import_module("study")

    yield load
    for name in [*names, "tools"]:
        sys.modules.pop(name.removesuffix(".__init__"), None)


@pytest.mark.parametrize(("file", "old", "new"), CHANGES)
def test_a_sweep_never_serves_the_results_of_other_code(study, tmp_path, file, old, new):
    before = hr.sweep(study().measure, {"x": [1.0]}, out=tmp_path / "out")[0]["result"]
    changed = study(file, old, new).measure
    after = hr.sweep(changed, {"x": [1.0]}, out=tmp_path / "out")[0]["result"]
    assert after == changed({"x": 1.0}) != before


def test_the_same_code_has_the_same_fingerprint(study):
    assert fingerprint(study().measure) == fingerprint(study().measure)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("study.py", "# a remark", "# another remark"),
        ("study.py", '"Measure."', '"Measure a point."'),
        ("study.py", "class Model:", 'class Model:\n    """A model."""'),
        ("study.py", "return value**power", '"""Raise."""\n        return value**power'),
        ("helpers.py", "constant = 0.0", 'constant = 0.0\n"""What is added."""'),
        ("tools/deepest.py", "BASE = 1.0", '"""A module."""\n\nBASE = 1.0'),
    ],
)
def test_comments_and_docstrings_do_not_count(study, file, old, new):
    if sys.version_info >= (3, 13) and "Raise" in new:
        pytest.skip("a function's first docstring changes its code here")
    before = fingerprint(study().measure)
    assert fingerprint(study(file, old, new).measure) == before


def test_code_in_memory_is_not_taken_for_an_edited_file(study):
    loaded = study().measure
    edited = study(*CHANGES[0]).measure
    assert fingerprint(loaded) != fingerprint(edited)


NOTEBOOK = """
import helpers

RATE, NAMES = 0.1, {"a", "b"}

class Model:
    gain = 1.0

    @property
    def size(self):
        return 3

    @staticmethod
    def run(value):
        return value + 1

def scale(value, *, power=2):
    return value**power

def measure(point):
    "Measure."
    return [RATE * scale(x) + Model.run(x) * Model().size + len(NAMES) for x in range(2)]
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("RATE, NAMES = 0.1", "RATE, NAMES = 0.2"),
        ('"b"}', '"b", "c"}'),
        ("gain = 1.0", "gain = 2.0"),
        ("return 3", "return 4"),
        ("value + 1", "value - 1"),
        ("value**power", "value + power"),
        ("power=2", "power=3"),
        ("range(2)", "range(3)"),
    ],
)
def test_code_without_a_file_counts_as_it_is_in_memory(study, old, new):
    study()
    prints = []
    for text in (NOTEBOOK, NOTEBOOK, NOTEBOOK.replace(old, new)):
        exec(text, names := {"__name__": "__main__"})
        prints.append(fingerprint(names["measure"]))
    assert prints[0] == prints[1] != prints[2]


def test_a_docstring_in_memory_does_not_count(study):
    study()
    prints = set()
    for text in ("Measure.", "Measure a point."):
        exec(NOTEBOOK.replace("Measure.", text), names := {"__name__": "__main__"})
        prints.add(fingerprint(names["measure"]))
    assert len(prints) == 1


def test_an_own_version_stands_for_the_code(study, tmp_path):
    settings = {"out": tmp_path / "out", "version": "1"}
    before = hr.sweep(study().measure, {"x": [1.0]}, **settings)
    changed = study(*CHANGES[0]).measure
    assert hr.sweep(changed, {"x": [1.0]}, **settings) == before
    settings["version"] = "2"
    assert hr.sweep(changed, {"x": [1.0]}, **settings) != before


DATA, MODULE, LAYER = np.arange(3.0), nn.CrossEntropyLoss(), nn.Linear(2, 2)


def reads_data(point):
    return DATA.sum() + MODULE(LAYER.weight, point) + chi2.cdf(1.0, 2)


def test_data_and_modules_that_are_read_count():
    before = fingerprint(reads_data)
    assert fingerprint(reads_data) == before
    for change in (
        lambda: DATA.__setitem__(0, 5.0),
        lambda: LAYER.weight.data.add_(1),
        lambda: setattr(MODULE, "label_smoothing", 0.1),
    ):
        change()
        after = fingerprint(reads_data)
        assert after != before
        before = after


def make_reader(data, gain=1.0):
    return lambda point, offset=gain: data["x"] * offset


@pytest.mark.parametrize("data", [torch.ones(2), torch.ones(2, dtype=torch.bfloat16), np.ones(2)])
def test_data_in_closures_and_defaults_count(data):
    before = fingerprint(make_reader({"x": data}))
    assert fingerprint(make_reader({"x": data + 0})) == before
    assert fingerprint(make_reader({"x": data + 1})) != before
    assert fingerprint(make_reader({"x": data}, gain=2.0)) != before
    assert fingerprint(functools.partial(make_reader, data)) != fingerprint(
        functools.partial(make_reader, data + 1)
    )


@functools.lru_cache
def remembered(value):
    return value + 1


def calls_remembered(point):
    return remembered(point["x"])


def test_what_was_remembered_does_not_count():
    before = fingerprint(calls_remembered)
    calls_remembered({"x": 1})
    assert fingerprint(calls_remembered) == before


GENERATOR, LOCK = torch.Generator(), threading.Lock()
NUMPY_GENERATOR = {"rng": np.random.default_rng(0)}


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda p: torch.randn(1, generator=GENERATOR), "Generator draws other numbers"),
        (lambda p: NUMPY_GENERATOR["rng"].normal(), "Generator draws other numbers"),
        (lambda p: LOCK.locked(), "_thread.lock"),
        (lambda p, source=LOCK: source.locked(), "_thread.lock"),
        (functools.partial(max, GENERATOR), "Generator draws other numbers"),
    ],
)
def test_what_cannot_be_hashed_is_refused(tmp_path, function, words):
    with pytest.raises(ArgumentError, match=words) as caught:
        hr.sweep(function, {"x": [1]}, out=tmp_path)
    assert 'version="1"' in str(caught.value)


NUMBERS = {0, 8, 16}


def reads_a_set(point):
    return NUMBERS


def test_the_order_of_sets_does_not_count():
    backwards = {number for number in (16, 8, 0)}  # noqa: C416 - filled in this order
    other = types.FunctionType(reads_a_set.__code__, {"NUMBERS": backwards}, "reads_a_set")
    other.__module__ = reads_a_set.__module__
    assert list(other({})) != list(reads_a_set({})), "they differ in order alone"
    assert fingerprint(other) == fingerprint(reads_a_set)


def test_a_changed_helper_makes_another_experiment(monkeypatch, tmp_path):
    """Of hyperribbon the experiments' own modules count; the rest counts by its version."""
    from hyperribbon.papers.experiments.subnetworks import _runs
    from hyperribbon.papers.training import loop

    experiment = find_experiment("subnetworks/fig3.1")
    before = experiment.code
    for module in (loop, _runs):
        assert experiment.code == before
        changed = tmp_path / Path(module.__file__).name
        changed.write_text(Path(module.__file__).read_text() + "\nchanged = 1\n")
        monkeypatch.setattr(module, "__file__", str(changed))
    assert experiment.code != before
