"""Every public result: a CSV file and a figure on the user's own axes, in two lines."""

from __future__ import annotations

import inspect
import io
import pkgutil
from dataclasses import is_dataclass
from importlib import import_module

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from torch import nn

import hyperribbon as hr
from hyperribbon.core.result import Result
from hyperribbon.noise import compare_covariance, measure_noise, stationarity
from hyperribbon.subnetworks import metric_of, sweep_selection

QUIET = Console(file=io.StringIO())
ELSEWHERE = {"Fluctuations", "LayerFluctuations", "SharpnessPrediction"}
"""Results that take a training of their own, and are tried where that is tested."""


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


def test_no_result_class_is_forgotten(results):
    """Those of the package are tried here, and public functions return nothing else."""
    for module in pkgutil.walk_packages(hr.__path__, "hyperribbon."):
        if not module.name.startswith(("hyperribbon.papers.experiments.", "hyperribbon.__main__")):
            import_module(module.name)
    known = {c for c in _subclasses(Result) if c is not Result and "hyperribbon" in c.__module__}
    assert {c.__name__ for c in known} - set(results) == ELSEWHERE
    plain = {"Mask", "Streaming", "Claim", "Band", "Ensemble"}  # inputs, verdicts, containers
    for name in hr.__all__:
        function = getattr(hr, name)
        if inspect.isfunction(function):
            returned = function.__annotations__.get("return")
            made = vars(import_module(function.__module__)).get(str(returned))
            if is_dataclass(made) and made.__name__ not in plain:
                assert issubclass(made, Result), f"{name} returns {made.__name__}"


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
