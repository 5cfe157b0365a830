"""Good calls of what compares models, runs experiments, writes reports and transforms."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

import hyperribbon as hr
from errors.calling import Call
from errors.network_calls import DATA, INPUTS, LOSS, PATHS, model
from hyperribbon import manifold, operators, plots, subnetworks
from hyperribbon.application import inspection, report
from hyperribbon.papers import experiments
from hyperribbon.theory.linear_networks import Moments

_rng = np.random.default_rng(0)
LAYERS = [_rng.standard_normal((3, 4)), _rng.standard_normal((2, 3))]
MOMENTS = Moments.of(_rng.standard_normal((4, 9)), _rng.standard_normal((2, 9)))


def _compare(**options: Any) -> Any:
    return hr.compare(**options).flatter


def _likelihood(kind: Any, **options: Any) -> Any:
    return hr.Fisher(model(), INPUTS, likelihood=kind(**options)).trace()


def _interval(confidence: Any) -> Any:
    return hr.trace(torch.eye(3)).interval(confidence)


def _transform(X: Any, embedding: Any) -> Any:
    return embedding.fit(PATHS[0]).transform(X)


def _stream(**options: Any) -> Any:
    return hr.stream_inpca(PATHS[0], 2, streaming=hr.Streaming(**options)).embedding


def _ranking() -> Any:
    return subnetworks.rank(model(), model())


def _select(fraction: Any) -> Any:
    return _ranking().select(fraction)


def _between(low: Any, high: Any) -> Any:
    return _ranking().between(low, high)


def _prune(**options: Any) -> Any:
    return subnetworks.to_torch_prune(**{"model": model(), **options})


def _run(**options: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return experiments.run(**{"out": folder, **options})


def _run_several(ids: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return [outcome.id for outcome in experiments.run_experiments(ids, out=folder)]


def _report(**options: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return report.write_report(**{"out": Path(folder) / "report.html", **options})


def _chart(**options: Any) -> Any:
    return plots.draw_interactive(plots.Chart(**options))


def other_calls() -> Iterator[Call]:
    """Yield them."""
    yield Call(
        _compare,
        {
            "a": model(),
            "b": model(),
            "loss": LOSS,
            "data": DATA,
            "model": None,
            "names": ("A", "B"),
            "parts": ("weights",),
            "samples": 8,
            "groups": 4,
            "k": 2,
            "params": "*",
            "forward": None,
            "memory": 1e9,
            "seed": 0,
            "console": None,
        },
    )
    for kind, options in (
        (operators.Gaussian, {"variance": 2.0, "space": "model"}),
        (operators.Laplace, {"scale": 2.0}),
        (operators.StudentT, {"df": 4.0, "scale": 2.0}),
        (operators.FromDistribution, {"function": lambda f: torch.distributions.Normal(f, 1.0)}),
    ):
        yield Call(_likelihood, options, f"likelihoods.{kind.__name__}", {"kind": kind})
    H = hr.Hessian(model(), LOSS, DATA)
    yield Call(operators.Rescaled, {"operator": H, "scale": torch.ones(26), "shift": 0.5})
    yield Call(_interval, {"confidence": 0.9})
    for kind in (hr.InPCA, hr.PCA):
        yield Call(
            _transform, {"X": PATHS[1]}, f"{kind.__name__}.transform", {"embedding": kind(2)}
        )
    yield Call(
        _stream,
        {
            "folder": None,
            "disk": 1e9,
            "memory": 1e9,
            "executor": None,
            "progress": False,
            "tol": 1e-9,
        },
    )
    yield Call(manifold.TileRule, {"log": False, "floor": 1e-9, "precision": "double"})
    yield Call(_select, {"fraction": 0.5})
    yield Call(_between, {"low": 0.0, "high": 0.5})
    yield Call(subnetworks.layer_of, {"name": "a.weight"})
    yield Call(subnetworks.state_of, {"source": model()}, "", {"argument": "source"})
    yield Call(_prune, {"mask": hr.select(model(), fraction=0.5)})
    spectrum = inspection.measure_anisotropy(model(), INPUTS, vectors=True, keep=True)
    yield Call(
        inspection.eigenfunctions,
        {"model": model(), "spectrum": spectrum, "inputs": INPUTS, "state": None, "which": (0,)},
    )
    yield Call(
        inspection.leading_eigenvalues,
        {"weights": LAYERS, "moments": MOMENTS, "k": 1, "tol": 1e-5, "seed": 0, "memory": 1e9},
    )
    yield Call(inspection.linear_measurements, {"moments": MOMENTS, "names": ("trace",)})
    yield Call(
        _run,
        {
            "id": "ribbons/fig4",
            "config": None,
            "preset": "smoke",
            "seeds": 1,
            "seed": 0,
            "with_data": False,
            "fresh": False,
            "progress": None,
            "workers": None,
        },
    )
    yield Call(_run_several, {"ids": ["ribbons/fig4"]})
    yield Call(experiments.choose_workers, {"jobs": 1, "dask": None})
    yield Call(experiments.ProcessWorkers, {"processes": 1})
    yield Call(_report, {"paths": [], "title": "A title"})
    yield Call(plots.label_logs, {"figure": Figure()})
    yield Call(
        _chart,
        {
            "name": "a",
            "title": "A",
            "x_label": "x",
            "y_label": "y",
            "marks": (),
            "caption": "",
            "z_label": "",
            "log_x": False,
            "log_y": True,
            "toggles": ("x",),
        },
    )
