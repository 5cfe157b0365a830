"""Sharpness recorded by name: the right number, its limit, gaps where there was no time."""

import copy
import json
import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import hyperribbon as hr
from hyperribbon.application.inspection.copies import as_source
from hyperribbon.application.inspection.recorded_curvature import Curvature
from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.store import git_commit
from hyperribbon.papers.training import mlp
from hyperribbon.recording import RecordingWarning
from inspection.autograd import sharpest
from inspection.language import language_model, tokens

LOSS = nn.CrossEntropyLoss()


@pytest.fixture(scope="module")
def data():
    return hr.load_data("digits", limit=200).flat()


def network():
    return nn.Sequential(mlp((64, 12), seed=0), nn.BatchNorm1d(12), nn.Dropout(0.2), mlp((12, 10)))


def loop(recorder, model, optimizer, data, steps=12, schedule=None):
    recorder.attach(model, optimizer)
    for _ in range(steps):
        value = LOSS(model(data.inputs), data.targets)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] *= 1 if schedule is None else schedule
        recorder.step(value)
    recorder.close()
    return hr.Trajectory.open(recorder.folder)


def dense_sharpness(model, data, mode):
    """Return the largest eigenvalue on the fixed sample by dense double backward, in float64."""
    ((inputs, targets),) = as_source(model, (data.inputs, data.targets)).few(64, 0).batches()
    twin = copy.deepcopy(model).double().eval()
    for part in twin.modules():
        part.training = mode == "train" and isinstance(part, nn.BatchNorm1d)
    return sharpest(twin, lambda: LOSS(twin(inputs.double()), targets))[0]


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_recorded_sharpness_is_the_largest_eigenvalue(data, tmp_path, mode):
    """Of the network as it trains, with batch norm's statistics of the sample and no dropout."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    options = {"loss": LOSS, "data": (data.inputs, data.targets), "max_overhead": np.inf}
    measure = "sharpness"
    if mode == "eval":
        measure = hr.recording.Measurement("sharpness", hr.inspection.Curvature(mode="eval"))
    recorder = hr.Recorder(tmp_path, "4it", measure=measure, **options)
    table = loop(recorder, model, optimizer, data).metrics()
    assert np.isfinite(table["sharpness"]).all()
    expected = dense_sharpness(model, data, mode)
    last = table.iloc[-1]
    assert abs(last["sharpness"] - expected) <= last["sharpness.error"] <= 0.02 * expected
    np.testing.assert_allclose(table["sharpness.limit"], 2 * 1.9 / 0.1)
    words = "training mode, dropout off, one batch of 64 samples"
    assert (words if mode == "train" else "evaluation mode") in note(tmp_path)


def test_the_sharpness_of_a_language_model_is_that_of_its_own_loss(tmp_path):
    model = language_model()
    batch = {"input_ids": tokens(12), "labels": tokens(12)}
    options = {"measure": "sharpness", "data": batch, "max_overhead": np.inf}
    recorder = hr.Recorder(tmp_path, "1it", **options)
    recorder.attach(model)
    recorder.close()
    model.eval()
    expected, _ = sharpest(model, lambda: model(**batch).loss)
    (found,) = hr.Trajectory.open(tmp_path).metric("sharpness")
    assert found == pytest.approx(expected, rel=0.02)


def note(folder):
    return json.loads((folder / "recording.json").read_text())["notes"]["sharpness"]


def test_the_limit_follows_the_rate_and_adam_has_none(data, tmp_path):
    pair = (data.inputs, data.targets)
    options = {"measure": "sharpness", "loss": LOSS, "data": pair, "max_overhead": np.inf}
    model = mlp((64, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, weight_decay=0.5)
    trajectory = loop(
        hr.Recorder(tmp_path / "a", "4it", **options), model, optimizer, data, schedule=0.5
    )
    rates = 0.1 * 0.5 ** trajectory.steps.astype(float)
    np.testing.assert_allclose(trajectory.metric("sharpness.limit"), 2 / rates - 0.5)
    axes = trajectory.plot("sharpness")
    assert [line.get_label() for line in axes.lines] == [
        "sharpness",
        "stability limit at each record",
    ]
    np.testing.assert_allclose(axes.lines[0].get_ydata(), trajectory.metric("sharpness"))
    np.testing.assert_allclose(axes.lines[1].get_ydata(), trajectory.metric("sharpness.limit"))
    model = mlp((64, 10))
    recorder = hr.Recorder(tmp_path / "b", "4it", **options)
    adam = loop(recorder, model, torch.optim.Adam(model.parameters()), data)
    assert "sharpness.limit" not in adam.metric_names() and "sharpness" in adam.metric_names()


def test_several_names_and_functions_together(data, tmp_path):
    def norm(model):
        return sum(float(p.detach().square().sum()) for p in model.parameters())

    recorder = hr.Recorder(tmp_path, "1ep", measure=["spectrum", norm], max_overhead=np.inf)
    hr.train(mlp((64, 10)), LOSS, data, epochs=2, lr=0.1, recorder=recorder)
    table = hr.Trajectory.open(tmp_path).metrics()
    columns = [f"spectrum.eigenvalues.{i}" for i in range(1, 11)]
    assert {*columns, "norm", "spectrum"} <= set(table)
    assert (np.diff(table[columns].to_numpy(), axis=1) <= 0).all()
    np.testing.assert_array_equal(table["spectrum"], table["spectrum.eigenvalues.1"])


def test_training_is_the_same_with_it_and_without(data, tmp_path):
    finals = []
    for folder in (None, tmp_path):
        recorder = folder and hr.Recorder(folder, "2it", measure="sharpness", max_overhead=np.inf)
        model = network()
        hr.train(model, LOSS, data, epochs=2, lr=0.1, batch_size=50, recorder=recorder)
        finals.append(model.state_dict())
    assert all(torch.equal(finals[0][name], finals[1][name]) for name in finals[0])


def test_a_killed_run_goes_on_warm(data, tmp_path):
    def run(folder, epochs):
        recorder = hr.Recorder(folder, "1ep", measure="sharpness", max_overhead=np.inf)
        hr.train(mlp((64, 10)), LOSS, data, epochs=epochs, lr=0.1, recorder=recorder)
        return hr.Trajectory.open(folder).metrics()

    run(tmp_path / "a", 2)
    torch.testing.assert_close(
        run(tmp_path / "a", 4).to_numpy(), run(tmp_path / "b", 4).to_numpy(), equal_nan=True
    )


def test_what_there_is_no_time_for_is_a_gap_and_said(data, tmp_path, monkeypatch):
    """On a clock of its own: 1 s a training step, 3 s a measurement."""
    now = 0.0
    monkeypatch.setattr("hyperribbon.recording.cadence.perf_counter", lambda: now)
    measured = []

    def slow(self, model):
        nonlocal now
        now += 3
        self.next_seconds = 3.0
        measured.append(now)
        return {"": 1.0}

    monkeypatch.setattr(hr.inspection.Curvature, "__call__", slow)
    recorder = hr.Recorder(
        tmp_path, "5it", measure="sharpness", loss=LOSS, data=(data.inputs, data.targets)
    )
    recorder.attach(mlp((64, 10)))
    with pytest.warns(RecordingWarning, match="more than 10% of the training time") as caught:
        for _ in range(600):
            now += 1
            recorder.step(0.1)
        recorder.close()
    assert len(caught) == 1
    overhead, table = recorder.overhead, hr.Trajectory.open(tmp_path).metrics()
    assert len(table) == 121, "records are made all the same"
    gaps = int(np.isnan(table["sharpness"]).sum())
    assert gaps == overhead.left_out["sharpness"] == 121 - len(measured)
    assert 0.05 < overhead.fraction <= 0.1
    assert f"sharpness {gaps} times" in str(overhead)


@pytest.mark.parametrize(
    "every, product, samples", [(5, 1e-4, 64), (5, 2e-3, 16), (5, 5e-3, 8), (1, 2e-3, 16)]
)
def test_a_run_gets_enough_points_within_a_tenth(
    data, tmp_path, monkeypatch, every, product, samples
):
    """On a clock of its own: 1 s a training step, `product` s a product and sample."""
    now = 0.0
    for room in ("recording.cadence", "recording.capture"):
        monkeypatch.setattr(f"hyperribbon.{room}.perf_counter", lambda: now)

    def time_products(self, model):
        nonlocal now
        now += 4 * product * self._number
        return product * self._number, product * self._number

    def measure(self, model):
        nonlocal now
        seconds = (20 if self.next_seconds > self.usual_seconds else 8) * product * self._number
        now += seconds
        self.next_seconds = self.usual_seconds = 8 * product * self._number
        return {"": 1.0, "samples": float(self._drawn.samples)}

    monkeypatch.setattr(hr.inspection.Curvature, "_time_products", time_products)
    monkeypatch.setattr(hr.inspection.Curvature, "__call__", measure)
    options = {"measure": "sharpness", "loss": LOSS, "data": (data.inputs, data.targets)}
    recorder = hr.Recorder(tmp_path, f"{every}it", **options)
    recorder.attach(mlp((64, 10)), total="200it")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecordingWarning)
        for _ in range(200):
            now += 1
            recorder.step(0.1)
        recorder.close()
    table = hr.Trajectory.open(tmp_path).metrics()
    assert np.isfinite(table["sharpness"]).sum() >= 15
    assert recorder.overhead.fraction <= 0.1
    assert set(table["sharpness.samples"].dropna()) == {samples}
    fewer = "64 would have taken too long" in note(tmp_path)
    assert fewer == (samples < 64) and f"on {samples} samples drawn from 200" in note(tmp_path)


def test_errors_name_what_is_missing(tmp_path):
    with pytest.raises(ArgumentError, match="measure='sharpnes'"):
        hr.Recorder(tmp_path, measure="sharpnes")
    recorder = hr.Recorder(tmp_path, measure="sharpness")
    with pytest.raises(ArgumentError, match="data=None: measuring curvature needs the data"):
        recorder.attach(mlp((64, 10)))
    pair = torch.randn(8, 64), torch.arange(8)
    recorder = hr.Recorder(tmp_path / "a", measure="sharpness", data=pair)
    with pytest.raises(ArgumentError, match="loss=None: the output of Sequential has no loss"):
        recorder.attach(nn.Sequential(nn.Linear(64, 10)))


@pytest.mark.parametrize(("is_normalised", "samples"), [(False, 8), (True, 32)])
def test_samples_are_not_halved_where_fewer_are_another_objective(is_normalised, samples):
    """Batch statistics of fewer samples would be those of another loss."""
    norm = nn.BatchNorm1d(4) if is_normalised else nn.Identity()
    model = nn.Sequential(nn.Linear(3, 4), norm, nn.Tanh(), nn.Linear(4, 2))
    data = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
    curvature = Curvature(samples=32)
    curvature.begin(model, None, nn.CrossEntropyLoss(), data)
    curvature.fit_to(model, 0.0, is_final=True)
    assert curvature(model)["samples"] == samples


def test_recorded_gradients_are_those_of_autograd(data, tmp_path):
    """Norm, largest entry, norms of layers and noise scale, from gradients of single samples."""
    model = mlp((64, 12, 10), "tanh", seed=0)
    recorder = hr.Recorder(
        tmp_path / "run",
        every="4it",
        measure="gradient",
        loss=LOSS,
        data=data,
        max_overhead=math.inf,
    )
    run = loop(recorder, model, torch.optim.SGD(model.parameters(), 0.1), data)
    source = as_source(model, (data.inputs, data.targets)).few(256, 0)
    ((inputs, targets),) = source.batches()
    twin = copy.deepcopy(model).double()
    names = [name for name, _ in twin.named_parameters()]
    rows = []
    for x, y in zip(inputs.double(), targets, strict=True):
        slopes = torch.autograd.grad(LOSS(twin(x[None]), y[None]), list(twin.parameters()))
        rows.append(torch.cat([slope.flatten() for slope in slopes]))
    single = torch.stack(rows)
    mean, table = single.mean(0), run.metrics().iloc[-1]
    spread = float((single - mean).square().sum(1).mean())
    assert table["gradient"] == pytest.approx(float(mean.norm()), rel=1e-4)
    assert table["gradient.largest"] == pytest.approx(float(mean.abs().max()), rel=1e-4)
    assert table["gradient.noise_scale"] == pytest.approx(spread / float(mean @ mean), rel=1e-3)
    sizes = [parameter.numel() for parameter in twin.parameters()]
    norms: dict[str, float] = {}
    for name, part in zip(names, mean.split(sizes), strict=True):
        layer = name.rpartition(".")[0]
        norms[layer] = norms.get(layer, 0.0) + float(part @ part)
    layers = run.metric("gradient.layers")[-1]
    assert layers == pytest.approx([norm**0.5 for norm in norms.values()], rel=1e-4)
    assert table["gradient.samples"] == len(inputs)


def test_gradients_with_batch_norm_have_no_noise_scale(data, tmp_path):
    model = network()
    known = {"loss": LOSS, "data": data, "max_overhead": math.inf}
    recorder = hr.Recorder(tmp_path / "run", every="6it", measure="gradient", **known)
    run = loop(recorder, model, torch.optim.SGD(model.parameters(), 0.1), data)
    assert "gradient" in run.metric_names() and "gradient.noise_scale" not in run.metric_names()


def test_settings_time_and_commit_of_a_run_are_recorded(data, tmp_path):
    model = mlp((64, 10), seed=0)
    recorder = hr.Recorder(tmp_path / "run", every="4it", config={"width": 64})
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    run = loop(recorder, model, optimizer, data)
    config = run.about["config"]
    assert config["optimizer"] == "SGD" and config["lr"] == 0.1 and config["momentum"] == 0.9
    assert config["width"] == 64 and config.get("commit", "") == git_commit()
    assert (np.diff(run.seconds) > 0).all() and run.seconds[0] >= 0
    with pytest.raises(ArgumentError, match="number or a str"):
        hr.Recorder(tmp_path / "other", config={"a": [1]})
