"""What a recording takes of the disk: chosen weights, states by choice, forecasts, statuses."""

import json
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from hyperribbon.core.checks import ArgumentError
from hyperribbon.papers.training import mlp, train
from hyperribbon.recording import Projection, Recorder, RecordingWarning, disk_space
from hyperribbon.recording.cadence import TimeShare
from hyperribbon.recording.status import read_status
from hyperribbon.recording.trajectory import Trajectory
from hyperribbon.recording.writer import BackgroundWriter

LOSS = nn.CrossEntropyLoss()


def size_of(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def fit(folder, images, model=None, epochs=3, **options):
    model = mlp((64, 200, 3)) if model is None else model
    recorder = Recorder(folder, **options)
    train(model, LOSS, images, epochs=epochs, lr=0.05, momentum=0.9, recorder=recorder)
    return recorder


def test_without_weights_no_weights_are_written(images, tmp_path):
    """Neither as records nor as a state to go on from, unless that is asked for."""
    fit(tmp_path / "none", images, weights=False, resume=False)
    assert size_of(tmp_path / "none") < 10_000
    fit(tmp_path / "resume", images, weights=False, resume=True)
    assert size_of(tmp_path / "resume") > 3 * 4 * 64 * 200  # the start, weights and momenta
    with pytest.raises(ArgumentError, match="no state to resume from"):
        Recorder(tmp_path / "none", weights=False).attach(mlp((64, 200, 3)))
    fit(tmp_path / "all", images, resume=False)
    assert not (tmp_path / "all" / "state").exists()
    assert len(Trajectory.open(tmp_path / "all").weights(-1)) == 4


def test_resume_false_neither_stores_a_state_nor_goes_on_from_one(images, tmp_path):
    fit(tmp_path, images)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}
    with pytest.raises(ArgumentError, match="resume=False was given"):
        Recorder(tmp_path, resume=False).attach(mlp((64, 200, 3)))
    assert files == {path: path.read_bytes() for path in files}
    last = Trajectory.open(tmp_path)[-1].step
    recorder = Recorder(tmp_path, resume=False)
    assert recorder.attach(mlp((64, 200, 3)), step=last) == last  # restored by the caller
    recorder.release()


def test_module_names_choose_weights(images, tmp_path):
    fit(tmp_path / "a", images, weights="layer2", resume=False)
    assert list(Trajectory.open(tmp_path / "a").weights(-1)) == ["layer2.weight", "layer2.bias"]


def test_a_projection_keeps_distances(images, tmp_path):
    """Squared distances along a run are right to 2/k of their variance, over 40 seeds."""
    full = tmp_path / "full"
    fit(full, images, epochs=4)
    trajectory = Trajectory.open(full)
    states = [trajectory.weights(i) for i in (0, -1)]
    vectors = [torch.cat([t.reshape(-1) for t in state.values()]).double() for state in states]
    expected = float((vectors[0] - vectors[1]).square().sum())
    k, found = 200, []
    for seed in range(40):
        projection = Projection(k, seed=seed)
        found.append(float((projection(states[0]) - projection(states[1])).square().sum()))
    ratios = np.array(found) / expected
    error = np.sqrt(2 / k)
    assert abs(ratios.mean() - 1) < 4 * error / np.sqrt(40)
    assert ratios.std(ddof=1) < 1.5 * error
    fit(tmp_path / "b", images, epochs=4, weights=Projection(k, seed=3), resume=False)
    stored = Trajectory.open(tmp_path / "b")
    torch.testing.assert_close(stored.weight_vector(-1), Projection(k, seed=3)(states[1]))
    assert size_of(tmp_path / "b") < size_of(full) / 5


def test_the_forecast_is_what_is_written(images, tmp_path):
    model = mlp((64, 200, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    recorder = Recorder(tmp_path / "a", "1it", probe=images[0])
    said = recorder.forecast(model, optimizer, total="20it")
    assert said.records == 21
    recorder.attach(model, optimizer)
    for _ in range(20):
        LOSS(model(images[0].flatten(1)), images[1]).backward()
        optimizer.step()
        recorder.step(0.1)
    recorder.close()
    states = size_of(tmp_path / "a" / "state")
    assert size_of(tmp_path / "a") - states == pytest.approx(21 * said.record_bytes, rel=0.05)
    assert 0.45 * said.state_bytes < states < said.state_bytes, "one of two states is there at rest"


def test_a_disk_that_is_too_small_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    free = SimpleNamespace(free=3_000_000)
    monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda folder: free)
    model = mlp((64, 200, 3))
    recorder = Recorder(tmp_path, "1it")
    with pytest.raises(ArgumentError, match=r"101 records make 5\.\d+ MB, and 3 MB are free"):
        recorder.attach(model, total="100it")
    assert size_of(tmp_path) < 1000
    assert Recorder(tmp_path, "1it").attach(model, total="10it") == 0


def test_a_large_forecast_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(disk_space, "_LARGE", 1e6)
    recorder = Recorder(tmp_path, "1it")
    with pytest.warns(RecordingWarning, match="each record takes .* records make 5"):
        recorder.attach(mlp((64, 200, 3)), total="100it")
    recorder.release()


def test_a_record_of_a_small_model_takes_milliseconds(tmp_path):
    """Of the training's own time; a disk that takes 200 ms a sync does not hold it up."""
    model = mlp((64, 32, 10))
    optimizer = torch.optim.Adam(model.parameters())
    recorder = Recorder(tmp_path, "1it", probe=torch.randn(20, 64))
    recorder.attach(model, optimizer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda handle: time.sleep(0.2))
        waited, worked = [], []
        for _ in range(10):
            begun, busy = time.perf_counter(), time.thread_time()
            recorder.step(0.1)
            worked.append(time.thread_time() - busy)
            waited.append(time.perf_counter() - begun)
    recorder.close()
    assert np.median(worked) < 0.01
    assert np.median(waited) < 0.2
    assert Trajectory.open(tmp_path).steps.tolist() == list(range(11))


def test_written_never_runs_ahead_of_the_disk(tmp_path):
    recorder = Recorder(tmp_path, "1it", probe=torch.randn(5, 64))
    recorder.attach(mlp((64, 10)))
    for _ in range(10):
        recorder.step(0.1)
        written = recorder.written
        assert written <= Trajectory.open(tmp_path)[-1].step
    recorder.flush()
    assert recorder.written == 10
    recorder.release()


def test_a_writer_keeps_order_and_does_not_pile_up():
    seen, most = [], 0

    def write(batch):
        nonlocal most
        time.sleep(0.01)
        most = max(most, len(batch))
        seen.extend(batch)

    writer = BackgroundWriter(write)
    for number in range(30):
        writer.put(number, 20 * 2**20)  # three of these are more than may wait
    results = writer.results(wait=True)
    assert seen == list(range(30)) and most <= 3
    assert sum(len(items) for items, _ in results) == 30
    writer.close()


def test_the_status_says_running_finished_or_stopped(images, tmp_path):
    recorder = Recorder(tmp_path, "1it")
    recorder.attach(mlp((64, 3)))
    assert read_status(tmp_path)["state"] == "running"
    recorder.close()
    found = read_status(tmp_path)
    assert found["state"] == "finished" and "records" in found["overhead"]
    status = json.loads((tmp_path / "recording.json").read_text())
    del status["checksum"]
    (tmp_path / "recording.json").write_text(json.dumps({**status, "state": "running"}))
    assert read_status(tmp_path)["state"] == "stopped", "nobody holds the folder: it was killed"
    (tmp_path / "recording.json").write_text("[")
    assert read_status(tmp_path)["state"] == "recorded"


def test_a_measurement_has_an_interval_of_its_own(images, tmp_path):
    from hyperribbon.recording import Measurement

    measure = [Measurement("rare", lambda model: 1.0, every="3it")]
    recorder = Recorder(tmp_path, "1it", measure=measure)
    recorder.attach(mlp((64, 3)))
    for _ in range(7):
        recorder.step(0.1)
    recorder.close()
    there = np.isfinite(Trajectory.open(tmp_path).metric("rare"))
    assert np.flatnonzero(there).tolist() == [0, 3, 6]
    with pytest.raises(ArgumentError, match="not an interval"):
        Measurement("rare", lambda model: 1.0, every="3 steps")


@pytest.mark.parametrize("records", [5, 20, 400])
def test_measurements_half_as_long_again_as_allowed_use_up_the_share(records):
    """The first one starts cold and takes longer."""
    clock = TimeShare(0.1)
    clock.start(training=100.0)
    clock.stop()
    allowed = clock.seconds_per_point(made=4, records=records)
    whole = 100.0 * records / 4  # training time of the run at this speed
    assert 1.5 * allowed * min(records, 20) == pytest.approx(0.1 * whole, rel=1e-3)
