"""Good calls of what trains, records, sweeps and inspects."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

import hyperribbon as hr
from errors.calling import Call
from errors.network_calls import (
    DATA,
    HALF,
    INPUTS,
    LOSS,
    NUMBERS,
    PATHS,
    SURE,
    model,
    ribbon,
)
from hyperribbon import manifold, plots, recording, subnetworks
from hyperribbon.application import inspection
from hyperribbon.core import data as core_data
from hyperribbon.core.generators import derive_seed, numpy_generator, torch_generator
from hyperribbon.papers import simulation, training
from hyperribbon.papers.training.optimizers import make_optimizer


def _training() -> Iterator[Call]:
    t = training
    image = {"shape": (1, 8, 8), "classes": 3, "seed": 0, "width": 1.0}
    yield Call(
        t.mlp,
        {
            "widths": (3, 4, 2),
            "activation": "relu",
            "seed": 0,
            "init": "torch",
            "bias": True,
            "dtype": torch.float32,
        },
    )
    yield Call(t.linear, {"inputs": 3, "outputs": 2, "seed": 0, "init": "torch"})
    yield Call(t.all_convolutional, image)
    yield Call(t.conv_mixer, image)
    yield Call(t.wide_resnet, image)
    yield Call(t.vision_transformer, {**image, "patch": 4})
    yield Call(t.make_architecture, {"name": next(iter(t.ARCHITECTURES)), **image})
    yield Call(t.initialize, {"model": model(), "generator": torch_generator(0), "init": "torch"})
    yield Call(
        t.epoch_batches,
        {"samples": 10, "batch_size": 4, "scheme": "shuffle", "seed": 0, "epoch": 1},
    )
    yield Call(
        _chain,
        {
            "samples": 10,
            "batch_size": 4,
            "chains": 2,
            "sampling": "replacement",
            "rng": np.random.default_rng(0),
        },
    )
    yield Call(
        recording.evaluate,
        {"model": model(), "loss": LOSS, "data": DATA, "batch_size": 4, "prefix": "x_"},
    )
    yield Call(
        recording.predict,
        {"model": model(), "probe": INPUTS, "log_probabilities": True, "batch_size": 4},
    )
    settings = {
        "loss": LOSS,
        "data": DATA,
        "epochs": 2,
        "lr": 0.1,
        "batch_size": 4,
        "optimizer": "sgd",
        "momentum": 0.5,
        "nesterov": False,
        "weight_decay": 0.01,
        "schedule": {1: 0.1},
        "sampling": "shuffle",
        "augment": None,
    }
    yield Call(
        _train,
        {**settings, "seed": 0, "on_epoch": None, "on_step": None, "recorder": None, "test": DATA},
    )
    yield Call(
        t.train_ensemble,
        {
            "make": lambda seed: t.mlp((3, 2), seed=seed),
            **settings,
            "seeds": (0, 1),
            "probe": INPUTS,
            "every": "1ep",
            "folder": None,
            "test": DATA,
            "together": None,
            "on_member": None,
        },
    )
    yield Call(
        make_optimizer,
        {
            "parameters": list(model().parameters()),
            "optimizer": "sgd",
            "lr": 0.1,
            "momentum": 0.5,
            "nesterov": False,
            "weight_decay": 0.0,
        },
    )
    rng = np.random.default_rng(0)
    X, Y, row = rng.standard_normal((2, 8)), rng.standard_normal((1, 8)), rng.standard_normal(8)
    W1, W2 = rng.standard_normal((2, 2)), rng.standard_normal((1, 2))
    yield Call(
        simulation.draw_linear_weights,
        {"widths": (3, 2, 1), "start": "kaiming_uniform", "generator": rng, "scale": None},
    )
    from hyperribbon.theory.linear_networks import Moments

    yield Call(
        simulation.train_linear,
        {
            "weights": [W1, W2],
            "moments": Moments.of(X, Y),
            "lr": 0.01,
            "epochs": 3,
            "schedule": simulation.HalvingSchedule(),
            "measure": None,
            "at": (0, 2),
        },
    )
    yield Call(simulation.HalvingSchedule, {"improvement": 1e-3, "window": 100})
    yield Call(
        simulation.descend_two_layer,
        {"X": X, "Y": Y, "W1": W1, "W2": W2, "lr": 0.1, "tol": 0.1, "max_steps": 3000},
    )
    one = {
        "X": X,
        "Y": row,
        "lr": 0.05,
        "batch_size": 2,
        "chains": 2,
        "sampling": "replacement",
        "start": np.zeros(2),
        "seed": 0,
    }
    yield Call(
        simulation.simulate_one_layer,
        {
            **one,
            "steps": 40,
            "dynamics": "flow",
            "burn_in": 4,
            "anneal": 1.0,
            "every": 2,
            "measure_noise": False,
            "substeps": 1,
        },
    )
    yield Call(simulation.trace_one_layer, {**one, "record": [0, 3]})
    yield Call(
        simulation.simulate_two_layer,
        {
            "X": X,
            "Y": Y,
            "W1": W1,
            "W2": W2,
            "lr": 0.01,
            "batch_size": 2,
            "record": [0, 3],
            "chains": 2,
            "dynamics": "sgd",
            "sampling": "replacement",
            "every": 1,
            "burn_in": 0,
            "seed": 0,
        },
    )
    yield Call(
        simulation.Scattering,
        {"shape": (8, 8), "scales": 1, "angles": 2, "layers": 1, "padding": "reflect"},
    )
    yield Call(
        simulation.scattering_features,
        {"images": torch.ones(2, 8, 8), "scales": 1, "angles": 2, "layers": 1, "batch_size": 1},
    )
    yield Call(simulation.RunningMoments, {"dimension": 3})
    yield Call(recording.Measurement, {"name": "norm", "function": len, "every": 1})
    yield Call(
        _recorder,
        {
            "every": "1it",
            "measure": (),
            "probe": INPUTS,
            "predictions": "log_probabilities",
            "weights": True,
            "max_overhead": 1e6,
            "log": (),
            "loss": 0.5,
            "epoch": 0.1,
            "metrics": {"a": 1.0},
            "step": 1,
            "optimizer": None,
        },
    )


def _chain(**options: Any) -> Any:
    return next(iter(simulation.chain_batches(**options)))


def _train(**options: Any) -> Any:
    return hr.train(model(), **options)


def _recorder(
    loss: Any, epoch: Any, metrics: Any, step: Any, optimizer: Any, **options: Any
) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        recorder = hr.Recorder(folder, **options)
        try:
            recorder.attach(model(), optimizer)
            recorder.step(loss, epoch=epoch, metrics=metrics, step=step)
        finally:
            recorder.release()


def _records() -> Iterator[Call]:
    yield Call(hr.Trajectory.open, {"folder": ribbon()})
    yield Call(hr.Trajectory.create, {"folder": ribbon(), "resume": True})
    yield Call(hr.Trajectory.from_checkpoints, {"folder": ribbon() / "weights"})
    for name in ("weights", "predictions", "weight_vector"):
        yield Call(_read, {"index": 1}, f"Trajectory.{name}", {"name": name})
    yield Call(_metric, {"name": "loss"})
    for draw in (plots.draw_metric, plots.metric_chart):
        yield Call(draw, {"trajectory": hr.Trajectory.open(ribbon()), "name": "loss"})
    yield Call(inspection.watch, {"name": "sharpness"})
    yield Call(
        _explored, {"folder": ribbon(), "host": "127.0.0.1", "port": 0, "browser": False}, "explore"
    )
    yield Call(
        _append,
        {
            "step": 5,
            "epoch": 0.5,
            "weights": {"a": torch.ones(2)},
            "predictions": np.ones((2, 2)),
            "metrics": {"loss": 1.0},
        },
    )
    yield Call(_truncate, {"step": 4})
    yield Call(
        core_data.load_data,
        {
            "name": "sloppy",
            "split": "train",
            "limit": 20,
            "proportions": None,
            "whiten": False,
            "seed": 0,
            "folder": None,
            "slope": 0.2,
            "dimensions": 4,
            "noise": 0.1,
        },
    )
    yield Call(core_data.sloppy_inputs, {"samples": 6, "dimensions": 3, "slope": 0.2, "seed": 0})
    yield Call(
        core_data.teacher_student,
        {"samples": 6, "dimensions": 3, "outputs": 1, "noise": 0.1, "sigma_x": 1.0, "seed": 0},
    )
    yield Call(
        core_data.wishart_inputs,
        {"samples": 6, "dimensions": 3, "covariance": np.eye(3), "seed": 0},
    )
    yield Call(derive_seed, {"seed": 0})
    yield Call(numpy_generator, {"seed": 0})
    yield Call(torch_generator, {"seed": 0, "device": "cpu"})
    yield Call(hr.Band, {"low": 0.0, "high": 1.0, "origin": "printed"})


def _explored(browser: Any = False, **options: Any) -> None:
    if browser is True:
        browser = False  # no window opens in a test
    hr.explore(browser=browser, **options).close()


def _read(index: Any, name: str) -> Any:
    return getattr(hr.Trajectory.open(ribbon()), name)(index)


def _metric(name: Any) -> Any:
    return hr.Trajectory.open(ribbon()).metric(name)


def _append(**options: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return hr.Trajectory.create(folder).append(**options)


def _truncate(step: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        trajectory = hr.Trajectory.create(folder)
        trajectory.append(step=3, metrics={"loss": 1.0})
        return trajectory.truncate(step)


def _square(point: Any) -> dict[str, Any]:
    return {"square": point["a"] ** 2}


def _sweep(**options: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return hr.sweep(**{"out": folder, **options})


def _entries() -> Iterator[Call]:
    yield Call(
        hr.inspect,
        {
            "model": model(),
            "loss": LOSS,
            "data": DATA,
            "initial": model(),
            "trajectory": ribbon(),
            "k": 2,
            "budget": 0.02,
            "optimizer": None,
            "batch_size": 4,
            "params": "*",
            "forward": None,
            "seed": 0,
            "console": None,
            "process_group": None,
        },
    )
    chain = nn.Sequential(nn.Linear(3, 2, bias=False), nn.Linear(2, 1, bias=False))
    yield Call(
        hr.compare_with_theory,
        {"model": chain, "loss": nn.MSELoss(), "data": NUMBERS, "k": 2, "seed": 0, "memory": 1e9},
    )
    yield Call(inspection.Budget, {"seconds": 1.0, "memory": 1e9})
    probe = {
        "model": model(),
        "inputs": INPUTS,
        "state": None,
        "k": 3,
        "outputs": "softmax",
        "vectors": True,
        "mask": None,
    }
    yield Call(inspection.measure_anisotropy, {**probe, "keep": False, "params": "*"})
    yield Call(inspection.anisotropy_by_layer, probe)
    for function in (inspection.effective_ranks, inspection.excess_kurtoses):
        yield Call(
            function, {"vectors": torch.randn(8, 2, generator=torch.Generator().manual_seed(1))}
        )
    yield Call(
        _sweep,
        {
            "function": _square,
            "grid": {"a": [1, 2]},
            "jobs": 1,
            "dask": None,
            "progress": None,
            "version": "1",
            "retry": False,
        },
    )
    yield Call(hr.experiments.find_experiment, {"id": "ribbons/fig4"})
    yield Call(manifold.geodesic, {"start": HALF, "end": SURE, "tau": 0.5})
    yield Call(manifold.ignorance, {"samples": 4, "classes": 3})
    yield Call(
        manifold.progress,
        {"P": PATHS[0], "end": SURE, "start": HALF, "distance": "angle"},
    )
    yield Call(
        manifold.resample,
        {"path": PATHS[0], "along": np.arange(4.0), "grid": np.array([0.5, 1.5])},
    )
    models = np.stack([HALF, SURE])
    yield Call(manifold.symmetric_kl, {"P": models, "Q": models, "log": False, "floor": 1e-9})
    yield Call(manifold.gaussian_distances, {"P": models, "Q": models})
    yield Call(plots.plot_dendrogram, {"distances": 1 - np.eye(3), "labels": ["a", "b", "c"]})
    yield Call(plots.plot_embedding, {"embedding": manifold.InPCA(2).fit(np.stack([HALF, SURE]))})
    yield Call(manifold.trajectory_distances, {"paths": PATHS, "floor": 1e-9})
    yield Call(manifold.truth, {"targets": [0, 1, 1], "classes": 2})
    yield Call(
        hr.stream_inpca,
        {
            "X": PATHS[0],
            "n_components": 2,
            "sample_weight": np.ones(4),
            "rule": None,
            "streaming": None,
            "seed": 0,
        },
    )
    yield Call(
        hr.find_ticket,
        {
            "model": model(),
            "train": lambda m: None,
            "metric": lambda s: 0.5,
            "initial": None,
            "rewind": None,
            "levels": 1,
            "fraction": 0.2,
            "criterion": "magnitude",
            "schedule": "cubic",
            "score": None,
            "scope": "global",
            "include": "weights",
            "params": None,
            "branches": ("random",),
            "initializer": None,
            "seed": 0,
        },
    )
    state = model().state_dict()
    yield Call(subnetworks.redraw, {"initializer": state, "seed": 0, "names": None})
    yield Call(
        subnetworks.eligible_names,
        {
            "source": state,
            "include": "weights",
            "params": "*",
            "model": model(),
            "initial": None,
            "frozen": False,
        },
    )
    yield Call(subnetworks.metric_of, {"model": model(), "data": DATA, "measure": "accuracy"})
    yield Call(
        hr.prunable,
        {
            "model": model(),
            "loss": LOSS,
            "data": DATA,
            "tolerance": 0.1,
            "metric": "accuracy",
            "criterion": "magnitude",
            "scope": "global",
            "include": "weights",
            "params": "*",
            "frozen": False,
            "held_out": None,
            "confidence": 0.9,
            "seed": 0,
        },
    )
    yield Call(hr.shrink, {"model": net(), "mask": net_mask(), "inputs": torch.ones(2, 3)})
    yield Call(subnetworks.find_units, {"model": net()})
    yield Call(
        subnetworks.rank_units,
        {
            "model": net(),
            "initial": None,
            "kind": "channel",
            "criterion": "magnitude",
            "order": "smallest",
            "scope": "global",
            "params": None,
            "frozen": False,
            "seed": 0,
        },
    )
    yield Call(subnetworks.hessian_saliency, {"model": model(), "loss": LOSS, "data": DATA})
    found = hr.prunable(model(), LOSS, DATA)
    yield Call(
        subnetworks.find_prunable,
        {"tolerance": 0.1, "metric": "accuracy", "confidence": 0.9, "seed": 0},
        "",
        {
            "scores": subnetworks.metric_of(model(), DATA),
            "reestimate": None,
            "state": found.state,
            "ranking": subnetworks.rank(model()),
        },
    )


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).requires_grad_(True)


def net_mask() -> hr.Mask:
    entries = {"0.weight": torch.zeros(4, 3, dtype=torch.bool)}
    entries["2.weight"] = torch.tensor([[True, False, False, False]] * 2)
    return hr.Mask(entries)


def run_calls() -> Iterator[Call]:
    """Return the calls, room by room."""
    for room in (_training, _records, _entries):
        yield from room()
