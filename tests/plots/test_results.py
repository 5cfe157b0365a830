"""Every public result: a CSV file and a figure on the user's own axes, in two lines."""

from __future__ import annotations

import inspect
import io
import pkgutil
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hyperribbon as hr
from hyperribbon.core.result import Result
from hyperribbon.noise import compare_covariance, measure_noise, stationarity
from hyperribbon.operators.linear_operator import LinearOperator
from hyperribbon.papers.simulation import simulate_one_layer, simulate_two_layer, train_linear
from hyperribbon.subnetworks import metric_of, sweep_selection
from hyperribbon.theory.linear_networks import Moments

QUIET = Console(file=io.StringIO())
NOT_RESULTS = {
    "an argument": """Budget Context Loss Moments Risk StateMetric TargetNorm Whitened
        Workers""",
    "what a closed form gives, numbers and arrays": """Bound Count FisherStatistics LyapunovForm
        OrderParameters PhaseDiagram Ribbon Slope StationaryState TrajectoryCovariance
        TwoLayerModes""",
    "a network, or weights of one": """LinearizedNetwork Mask ParameterSpace Ranking UnitRanking
        Units""",
    "samples": "Chunk LabelledData",
    "a few numbers of a recorder or an operator": "Cost Footprint Forecast Overhead",
    "a server": "Explorer",
    "a run or its verdict: run.to_frame() has a figure's numbers": """Band Claim Ensemble Experiment
        RunFolder RunOutcome""",
    "a row of a result's table": "Answer Assumption Measurement Part Record Route Rung",
}
"""Classes that public functions return without a table of their own, by what they are."""


def _network(seed: int = 0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    return model, nn.CrossEntropyLoss(), (torch.randn(48, 4), torch.randint(0, 3, (48,)))


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict[str, object]:
    model, loss, data = _network()
    start = {name: torch.zeros_like(t) for name, t in model.state_dict().items()}
    hessian, noise = hr.Hessian(model, loss, data), hr.GradientCovariance(model, loss, data)
    top = hr.eigsh(hessian, 5)
    rng = np.random.default_rng(0)
    metric = metric_of(model, data)
    folder = tmp_path_factory.mktemp("run")
    recorder = hr.Recorder(folder / "it", every="1ep")
    trained = hr.train(model, loss, data, epochs=3, lr=0.1, recorder=recorder)
    outputs = rng.normal(size=(600, 6)) * np.arange(1, 7) ** -0.5
    mask = hr.select(model.state_dict(), start, fraction=0.5)
    squared = (data[0][:6], torch.randn(6, 2))
    linear = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 2, bias=False))
    manifold = hr.predict_manifold(linear, nn.MSELoss(), squared, steps=4, lr=0.05)
    predictions = rng.dirichlet(np.ones(3), (5, 8))
    ridge = np.diag(np.arange(1.0, 7.0))
    leading = hr.stationary_covariance(hr.GGN(model, loss, data), noise, 0.01, k=3)
    moving = rng.normal(size=(60, hessian.shape[0]))
    inspection = hr.inspect(model, loss, data, k=3, budget=3, console=QUIET)
    loader = DataLoader(TensorDataset(*data), batch_size=8, shuffle=True)
    sgd = torch.optim.SGD(model.parameters(), lr=0.05)
    fluctuating = hr.fluctuations(model, loss, loader, sgd, steps=40)
    X, Y = rng.normal(size=(3, 8)), rng.normal(size=(2, 8))
    chain = {"lr": 0.05, "batch_size": 2, "chains": 4}
    layers = rng.normal(size=(3, 3)), rng.normal(size=(2, 3))
    weights = [layer / 3 for layer in layers]
    found = [
        top,
        hr.trace(hessian),
        hr.Estimate(10.0, 1.0, False, 5, "hutchinson", 4),
        hr.density(hessian, probes=3, steps=8),
        hr.plan(hessian, 3),
        hr.summarize(top),
        hr.batch_sharpness(model, loss, data, batch_size=8),
        hr.layer_curvature(hessian, 2),
        hr.diagonal(hessian),
        hr.alignment(top, hr.eigsh(noise, 3)),
        hr.stream_inpca(predictions, 2),
        hr.InPCA(2).fit(predictions),
        hr.layer_criticality(model, start, metric),
        sweep_selection(model, model.state_dict(), start, data, fractions=[0.0, 0.5, 1.0]),
        hr.overlap_ratio(mask, mask),
        hr.prunable(model, loss, data),
        hr.find_ticket(model, lambda m: None, metric, levels=2),
        hr.variance_flatness(outputs, ridge, warn=False),
        hr.weight_covariance(outputs),
        stationarity(outputs),
        measure_noise(model, loss, data, k=3),
        leading,
        compare_covariance(moving, leading),
        manifold,
        manifold.measure(2),
        trained,
        hr.Trajectory.open(folder / "it"),
        inspection,
        inspection.plan,
        hr.compare(model, _network(1)[0], loss, data, k=2, console=QUIET),
        hr.compare_with_theory(linear, nn.MSELoss(), squared),
        hr.inspection.measure_anisotropy(model, data[0], k=3),
        fluctuating,
        next(iter(fluctuating.layers.values())),
        hr.predict_sharpness(model, loss, data, optimizer=0.1, steps=20),
        hr.PCA(2).fit(predictions),
        simulate_one_layer(X, Y[0], steps=30, **chain),
        simulate_two_layer(X, Y, *layers, record=[0, 5, 10], **chain),
        train_linear(weights, Moments.of(X, Y), lr=0.01, epochs=5),
    ]
    return {type(entry).__name__: entry for entry in found}


def _subclasses(cls: type) -> set[type]:
    return {cls} | {below for child in cls.__subclasses__() for below in _subclasses(child)}


def test_any_result_becomes_a_csv_and_a_figure_in_two_lines(results, tmp_path):
    for name, result in results.items():
        axes = Figure().subplots()
        result.to_frame().to_csv(tmp_path / f"{name}.csv")
        assert result.plot(ax=axes) is axes, name
        assert axes.has_data(), name
        assert axes.get_xlabel() or axes.get_ylabel(), name
        assert len(pd.read_csv(tmp_path / f"{name}.csv")), name
        axes.figure.savefig(tmp_path / f"{name}.png")


def test_a_result_prints_one_line_and_shows_html_in_a_notebook(results):
    for name, result in results.items():
        assert 10 < len(repr(result)) < 400 and "\n" not in repr(result).strip(), name
        assert "tensor(" not in repr(result) and "array([" not in repr(result), name
        if name != "Inspection":  # its many charts are tried where it is tested
            assert "<" in (shown := result._repr_html_()) and len(shown) < 400_000, name


def _package_classes() -> dict[str, set[type]]:
    """Return every class of the package by its name."""
    found: dict[str, set[type]] = {}
    for module in pkgutil.walk_packages(hr.__path__, "hyperribbon."):
        if not module.name.startswith(("hyperribbon.papers.experiments.", "hyperribbon.__main__")):
            for name, value in vars(import_module(module.name)).items():
                if isinstance(value, type) and value.__module__.startswith("hyperribbon"):
                    found.setdefault(name, set()).add(value)
    return found


def _functions(room) -> Iterator[Callable[..., object]]:
    """Yield the public functions of a module, and the methods and properties of its classes."""
    for value in (getattr(room, name) for name in getattr(room, "__all__", ())):
        if inspect.isfunction(value):
            yield value
        elif isinstance(value, type):
            for name in (name for name in dir(value) if not name.startswith("_")):
                found = inspect.getattr_static(value, name)
                for attribute in ("fget", "func", "__func__"):
                    found = getattr(found, attribute, found)
                if inspect.isfunction(found):
                    yield found


def _rooms(room) -> Iterator[ModuleType]:
    """Yield a public module and those that it makes public."""
    yield room
    for value in (getattr(room, name) for name in getattr(room, "__all__", ())):
        if inspect.ismodule(value):
            yield from _rooms(value)


def _returned_classes() -> Iterator[type]:
    """Yield the classes that anything public returns, whatever it is: by its annotation."""
    rooms, classes = list(_rooms(hr)), _package_classes()
    named = {
        name
        for room in rooms
        for function in _functions(room)
        for name in re.findall(r"\w+", str(function.__annotations__.get("return")))
    }
    public = [getattr(room, name) for room in rooms for name in getattr(room, "__all__", ())]
    drawn = [getattr(hr.plots, name) for name in hr.plots.__all__]
    for name in sorted(named & set(classes)):
        ours = [c for c in classes[name] if not c.__module__.endswith("report.page")]
        known = [c for c in ours if any(c is value for value in public)]
        yield from (c for c in known or ours if not any(c is value for value in drawn))


def test_no_result_class_is_forgotten(results):
    """Whatever a public function returns, and every result of the package, is tried here."""
    known = {c for c in _subclasses(Result) if c is not Result and "hyperribbon" in c.__module__}
    returned = {c for c in _returned_classes() if c is not Result}
    assert len(returned) > 60
    assert {c.__name__ for c in known} <= set(results)
    tables = {c for c in returned if hasattr(c, "to_frame") and hasattr(c, "plot")}
    assert {c.__name__ for c in tables} <= set(results)
    others = {name for names in NOT_RESULTS.values() for name in names.split()}
    skipped = (LinearOperator, str)
    assert {c.__name__ for c in returned - tables if not issubclass(c, skipped)} == others


def test_no_public_class_prints_an_array():
    """A repr made by a dataclass writes out every array, tensor and table."""
    large = re.compile(r"^(?!Callable).*(ndarray|Tensor|DataFrame|nn\.Module)")
    for cls in _returned_classes():
        if is_dataclass(cls) and hasattr(cls.__repr__, "__wrapped__"):
            shown = [f.name for f in fields(cls) if f.repr and large.search(f.type)]
            assert shown == [], f"{cls.__name__} prints {shown}"


def test_new_axes_are_made_where_none_are_given(results):
    assert isinstance(results["Spectrum"].plot(), Axes)
    assert isinstance(results["InPCA"].plot(), Figure)


def test_figures_show_the_numbers(results):
    top = results["Spectrum"]
    drawn = top.plot().lines[0].get_ydata()
    np.testing.assert_allclose(drawn, top.eigenvalues.numpy())
    bars = results["Criticality"].plot().patches
    assert [bar.get_width() for bar in bars] == [e.drop for e in results["Criticality"].layers]


def test_what_is_no_axes_is_refused(results):
    for result in results.values():
        with pytest.raises(hr.ArgumentError, match=r"expected.* axes"):
            result.plot(ax=3)
    drawing = [getattr(hr.plots, name) for name in hr.plots.__all__ if name.startswith("plot_")]
    for draw in drawing:
        if "result" in inspect.signature(draw).parameters:
            with pytest.raises(hr.ArgumentError, match="expected a result"):
                draw(3)
