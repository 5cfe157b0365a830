"""A user's script under a type checker: no result of the public API is Any."""

from __future__ import annotations

import ast
import inspect
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from inspect import ismodule
from pathlib import Path

import pytest

import hyperribbon as hr

SCRIPT = """
import torch
from torch import nn
import hyperribbon as hr

model, loss = nn.Linear(4, 3), nn.CrossEntropyLoss()
data = (torch.randn(8, 4), torch.zeros(8, dtype=torch.long))
H = hr.Hessian(model, loss, data)
top = hr.eigsh(H, 2)
found = hr.inspect(model, loss, data)
mask = hr.select(model, fraction=0.5)
run = hr.Trajectory.open("run")
"""
CALLS = """
H @ torch.ones(15); top; top.eigenvalues; top.plot(); top.to_frame(); hr.trace(H); hr.density(H)
hr.diagonal(H); hr.frobenius(H); hr.plan(H, 2); hr.summarize(top); hr.alignment(top, top); found
found.table(); found["hessian.largest"]; found.plot(); found.answers(); mask; run; run.metrics()
run.plot(); hr.compare(model, model, loss, data); hr.compare(model, model).flatter
hr.load_data("digits"); hr.load_data("digits").inputs; hr.train(model, loss, data, epochs=1, lr=0.1)
hr.InPCA(2).fit([]); hr.InPCA(2).plot(); hr.prune(model, mask); hr.overlap_ratio(mask, mask)
hr.variance_flatness([], H); hr.weight_covariance([]); hr.stationary_covariance(H, H, 0.1)
hr.predict_manifold(model, loss, data, steps=3, lr=0.1); hr.Risk(model, loss, data)
hr.Fisher(model, data[0]); hr.NTK(model, data[0]); hr.layer_criticality(model, model, lambda s: 1.0)
hr.find_ticket(model, lambda m: None, lambda s: 1.0); hr.batch_sharpness(model, loss, data)
hr.GGN(model, loss, data); hr.GradientCovariance(model, loss, data); hr.Jacobian(model, data[0])
H.to_dense(); H.layers(); H.trace(); H.diagonal(); H.shape; H.cost(); hr.layer_curvature(H)
hr.predict_sharpness(model, loss, data, optimizer=0.1); hr.compare_with_theory(model, loss, data)
hr.sweep(lambda p: 1, {"a": [1]}); hr.prunable(model, loss, data).fraction; hr.shrink(model, mask)
hr.bhattacharyya(data[0]); hr.bhattacharyya(data[0], report=True); hr.Trajectories([run])
hr.explore("runs"); hr.experiments.run("ribbons/fig4"); found.report("a"); found.statistics
top.bounds; top.residuals; top.converged; top.eigenvectors; hr.trace(H).value; hr.density(H).values
run.weights(0); run.metric("loss"); run.seconds; hr.Recorder("a").attach(model)
hr.Recorder("a").trajectory; hr.InPCA(2).embedding_; hr.InPCA(2).eigenvalues_
hr.InPCA(2).fit_transform([]); hr.training.mlp((2, 3))
"""


OWN = re.compile(r"Experiment|Context|Workers|Progress|RunOutcome")
"""Classes of the papers' experiments, whose configurations and results are the experiment's own."""
PLAIN = {"to_json", "state_dict", "about", "config", "environment"}
"""Values of any kind by name, as JSON has them."""
ANY = {
    *("ArgumentError.args", "ArgumentError.value", "Tracker.make", "Measurement.function"),
    *("Risk.evaluate", "Likelihood.sampled", "new_figure", "STYLE", "linear_measurements"),
}
"""What takes or returns the user's own objects."""


def names_of(cls: type) -> list[str]:
    """Return the public attributes of a class, those that its methods set included."""
    names = set()
    for base in cls.__mro__:
        if base.__module__.startswith("hyperribbon"):
            names |= {*vars(base), *getattr(base, "__annotations__", {})}
            names |= set(re.findall(r"\bself\.(\w+)(?=[^()\n]* = )", inspect.getsource(base)))
    return sorted(name for name in names if not name.startswith("_"))


def walk() -> Iterator[tuple[str, str]]:
    """Yield a name and a line that reveals its type, for every public name and attribute."""
    for room in ("hr", *(f"hr.{name}" for name in hr.__all__ if ismodule(getattr(hr, name)))):
        module = eval(room, {"hr": hr})
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if name.startswith("_") or ismodule(value) or OWN.search(name):
                continue
            yield name, f"reveal_type({room}.{name})"
            for attribute in names_of(value) if isinstance(value, type) else ():
                line = f"def use(x: {room}.{name}): reveal_type(x.{attribute})"
                yield f"{name}.{attribute}", line


def returned(kind: str) -> str:
    """Return what a function returns, as a type checker prints it; another type as it is."""
    kind = re.sub(r"ndarray\[.*?\]\]", "ndarray", kind)  # of any shape
    kind = re.sub(r"(slice|dtype)\[[Any, ]*\]", r"\1", kind)
    if kind.startswith("Overload["):
        return " ".join(re.findall(r"\) -> ([^(]*?)(?:, \(|\]$)", kind))
    return kind.rpartition(") -> ")[2] if kind.startswith("(") else kind


def test_names_are_exported_to_type_checkers():
    """A package with py.typed exports what `from a import b as b` names, and no other import."""
    text = Path(hr.__file__).read_text(encoding="utf-8")
    block = next(node for node in ast.parse(text).body if isinstance(node, ast.If))
    names = [alias for node in block.body for alias in node.names]
    assert all(alias.asname == alias.name for alias in names)
    assert {alias.name for alias in names} == set(hr.__all__) - {"__version__"}


@pytest.mark.slow
def test_no_public_result_is_any(tmp_path):
    calls = [call.strip() for line in CALLS.split("\n") for call in line.split(";") if call.strip()]
    asked = [(call, f"reveal_type({call})") for call in calls] + list(walk())
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + "\n".join(line for _, line in asked) + "\nhr.nosuch\n")
    checker = shutil.which("pyright") or f"{sys.prefix}/bin/pyright"
    command = [checker, "--pythonpath", sys.executable, str(script)]
    text = subprocess.run(command, capture_output=True, text=True, timeout=900).stdout
    kinds = re.findall(r'information: Type of ".*" is "(.*)"', text)
    assert len(kinds) == len(asked), text
    vague = {
        name: kind
        for (name, _), kind in zip(asked, kinds, strict=True)
        if re.search(r"\b(Any|Unknown)\b", returned(kind))
        and name not in ANY
        and name.rpartition(".")[2] not in PLAIN
    }
    assert vague == {}, "\n".join(f"{name}: {kind}" for name, kind in vague.items())
    (error,) = (e for e in re.findall(r"error: .*", text) if "obscured" not in e)
    assert "nosuch" in error
