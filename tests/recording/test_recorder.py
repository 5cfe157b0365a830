import errno
import resource
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch import nn

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.mask import Mask
from hyperribbon.core.states import load_state
from hyperribbon.papers.training import DivergenceError, mlp, train
from hyperribbon.recording import Measurement, Recorder, RecordingWarning, predict
from hyperribbon.recording.cadence import Cadence
from hyperribbon.recording.measurements import random_state
from hyperribbon.recording.resume_state import save_state
from hyperribbon.recording.trajectory import Trajectory
from hyperribbon.spectra import Tracker

LOSS = nn.CrossEntropyLoss()


def network():
    return nn.Sequential(mlp((64, 16), seed=0), nn.BatchNorm1d(16), nn.Dropout(0.2), mlp((16, 3)))


def fit(images, folder=None, model=None, epochs=3, **options):
    """Train a net with batch norm and dropout; return the result and the recorder."""
    model = network() if model is None else model
    recorder = None if folder is None else Recorder(folder, **options)
    settings = {"epochs": epochs, "lr": 0.05, "momentum": 0.9, "batch_size": 30, "seed": 1}
    result = train(model, LOSS, images, recorder=recorder, test=images, **settings)
    if recorder is not None:
        recorder.close()
    return result, recorder


def greedy(model):
    """A measurement that touches everything it should not."""
    torch.manual_seed(0)
    np.random.seed(0)
    model.eval()
    model.train()
    outputs = model(torch.randn(8, 64))
    outputs.sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    return {"mean": outputs.mean().item(), "spread": outputs.detach().std(0)}


def equal_states(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


def test_training_is_bit_identical_with_and_without_recorder(images, tmp_path):
    plain, _ = fit(images)
    recorded, _ = fit(images, tmp_path / "a", every="2it", measure=[greedy], probe=images[0])
    assert equal_states(plain.final, recorded.final)
    assert equal_states(plain.initial, recorded.initial)
    for name, values in plain.history.items():
        np.testing.assert_array_equal(values, recorded.history[name])


def test_a_bare_loop_is_left_alone_too(images, tmp_path):
    finals, randomness = [], []
    for folder in (None, tmp_path / "a"):
        torch.manual_seed(0)
        model = network()
        optimizer = torch.optim.Adam(model.parameters())
        loader = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(*images), 20, shuffle=True
        )
        recorder = None
        if folder is not None:
            recorder = Recorder(folder, measure=[greedy], probe=images[0])
            recorder.attach(model, optimizer)
        for epoch in range(3):
            for number, (inputs, labels) in enumerate(loader):
                loss = LOSS(model(inputs), labels)
                loss.backward()  # gradients are kept on purpose: a recorder must not clear them
                optimizer.step()
                if recorder is not None:
                    recorder.step(loss, epoch=epoch + (number + 1) / len(loader))
        if recorder is not None:
            recorder.close()
            assert len(recorder.trajectory) == 4
        finals.append({k: v.clone() for k, v in model.state_dict().items()})
        randomness.append(random_state()["torch"])
    assert equal_states(*finals)
    assert torch.equal(*randomness)


def test_records_hold_what_the_model_was(images, tmp_path):
    seen = {}

    def note(step, model):
        seen[step] = {k: v.clone() for k, v in model.state_dict().items()}

    model = network()
    recorder = Recorder(tmp_path / "a", every="1ep", probe=images[0])
    settings = {"lr": 0.05, "batch_size": 30, "on_step": note, "test": images}
    train(model, LOSS, images, epochs=2, recorder=recorder, **settings)
    recorder.close()
    trajectory = Trajectory.open(tmp_path / "a")
    assert trajectory.steps.tolist() == [0, 3, 6]
    assert trajectory.epochs.tolist() == [0, 1, 2]
    for index, step in [(1, 3), (2, 6)]:
        assert equal_states(trajectory.weights(index), seen[step])
    expected = predict(model, images[0])
    np.testing.assert_array_equal(trajectory.predictions(2), expected.numpy())
    table = trajectory.metrics()
    assert {"step", "epoch", "loss", "epoch_loss", "lr", "test_loss", "test_accuracy"} == set(table)
    assert np.isnan(table["loss"][0]) and table["test_accuracy"][2] > 0.3


def test_a_mask_and_names_choose_what_is_stored(images, tmp_path):
    model = mlp((64, 4, 3))
    mask = Mask({"layer2.weight": torch.eye(3, 4).bool()})
    fit(images, tmp_path / "a", model=model, weights=mask, resume=False)
    stored = Trajectory.open(tmp_path / "a").weights(-1)
    assert torch.equal(stored["layer2.weight"], model.layer2.weight[mask["layer2.weight"]])
    fit(images, tmp_path / "b", model=mlp((64, 4, 3)), weights="layer1.*", resume=False)
    assert list(Trajectory.open(tmp_path / "b").weights(-1)) == ["layer1.weight", "layer1.bias"]
    fit(images, tmp_path / "c", model=mlp((64, 4, 3)), weights=False, resume=False)
    assert Trajectory.open(tmp_path / "c")[0].weights is None


def test_predictions_of_any_kind(images, tmp_path):
    model = mlp((64, 3))
    fit(images, tmp_path / "a", model=model, probe=images[0], predictions="outputs")
    stored = Trajectory.open(tmp_path / "a").predictions(-1)
    np.testing.assert_array_equal(stored, model(images[0]).detach().numpy())
    fit(images, tmp_path / "b", probe=images[0], predictions=lambda m, x: m(x).argmax(-1))
    assert Trajectory.open(tmp_path / "b").predictions().shape == (4, 90)


def test_measurements_keep_their_state_over_a_kill(images, tmp_path):
    def measure():
        return [Measurement("count", Counting()), Measurement("rare", float_one, every=2)]

    fit(images, tmp_path / "a", measure=measure(), epochs=2)
    fit(images, tmp_path / "a", measure=measure(), epochs=4)
    trajectory = Trajectory.open(tmp_path / "a")
    assert trajectory.metric("count").tolist() == [0, 1, 2, 3, 4]
    assert np.isnan(trajectory.metric("rare")).tolist() == [False, True, False, True, False]


class Counting:
    def __init__(self):
        self.count = torch.zeros(())

    def __call__(self, model):
        self.count += 1
        return self.count.item() - 1

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


def test_tracked_spectra_go_on_warm_over_a_kill(images, tmp_path):
    def measure():
        tracker = Tracker(2, lambda model: torch.diag(model[0].layer1.weight[0].detach()), tol=1e-3)
        return [Measurement("top", tracker)]

    fit(images, tmp_path / "whole", measure=measure(), epochs=4)
    fit(images, tmp_path / "killed", measure=measure(), epochs=2)
    fit(images, tmp_path / "killed", measure=measure(), epochs=4)
    whole, killed = (Trajectory.open(tmp_path / name) for name in ("whole", "killed"))
    assert whole.metric("top.eigenvalues").shape == (5, 2)
    assert whole.metric("top.residual").max() <= 1e-3 * whole.metric("top.eigenvalues").max()
    for name in ("top.eigenvalues", "top.products"):
        np.testing.assert_array_equal(whole.metric(name), killed.metric(name))


def float_one(model):
    return 1.0


def test_a_measurement_that_fails_later_does_not_stop_training(images, tmp_path):
    calls = []

    def fragile(model):
        calls.append(0)
        if len(calls) == 2:
            raise RuntimeError("no convergence")
        return 1.0

    with pytest.warns(RecordingWarning, match="'fragile' failed at step 3.*no convergence"):
        fit(images, tmp_path / "a", measure=[fragile])
    assert np.isnan(Trajectory.open(tmp_path / "a").metric("fragile")).tolist() == [0, 1, 0, 0]
    with pytest.raises(RuntimeError, match="no convergence"):
        calls[:] = [0]
        fit(images, tmp_path / "b", measure=[fragile])


def test_going_on_later_equals_one_run(images, tmp_path):
    whole, _ = fit(images, tmp_path / "whole", every="2it", probe=images[0], epochs=5)
    fit(images, tmp_path / "parts", every="2it", probe=images[0], epochs=2)
    torch.manual_seed(99)
    parts, _ = fit(images, tmp_path / "parts", every="2it", probe=images[0], epochs=5)
    assert equal_states(whole.final, parts.final)
    assert equal_states(whole.initial, parts.initial)
    np.testing.assert_array_equal(whole.history["loss"], parts.history["loss"])
    first, second = (Trajectory.open(tmp_path / name) for name in ("whole", "parts"))
    assert first.steps.tolist() == [0, 2, 4, 6, 8, 10, 12, 14, 15]
    assert second.steps.tolist() == first.steps.tolist()
    np.testing.assert_array_equal(first.predictions(), second.predictions())


def test_nan_loss_is_said_once_and_earlier_records_stay(images, tmp_path):
    model = mlp((64, 3))
    recorder = Recorder(tmp_path / "a", every="1it")
    recorder.attach(model)
    recorder.step(0.5)
    with pytest.warns(RecordingWarning, match=r"the loss is nan at step 2.*last step: 1") as caught:
        recorder.step(torch.tensor(float("nan")))
        recorder.step(float("nan"))
    assert len(caught) == 1
    assert recorder.step(0.4)
    with torch.no_grad():
        model.layer1.weight[0, 0] = float("inf")
    with pytest.warns(RecordingWarning, match="weights are NaN or infinite at step 5"):
        recorder.step(0.3)
    recorder.release()
    assert recorder.overhead.failed == 3
    assert Trajectory.open(tmp_path / "a").steps.tolist() == [0, 1, 4]


def test_a_diverged_run_goes_on_with_a_lower_rate(images, tmp_path):
    targets = images[0].flatten(1)[:, :3]
    settings = {"epochs": 6, "batch_size": 30, "seed": 1}
    rates = {3: 1e9}  # the run is fine for three epochs
    first = Recorder(tmp_path / "a")
    with pytest.raises(DivergenceError):
        train(
            mlp((64, 8, 3)),
            nn.MSELoss(),
            (images[0], targets),
            lr=0.01,
            schedule=rates,
            recorder=first,
            **settings,
        )
    kept = Trajectory.open(tmp_path / "a")
    assert kept.steps.tolist() == [0, 3, 6, 9]
    again = Recorder(tmp_path / "a")  # the first one has let go of the folder
    result = train(
        mlp((64, 8, 3)), nn.MSELoss(), (images[0], targets), lr=0.001, recorder=again, **settings
    )
    assert result.history["lr"].tolist() == [0.01, 0.01, 0.01, 0.001, 0.001, 0.001]
    whole = Trajectory.open(tmp_path / "a")
    assert whole.steps.tolist() == [0, 3, 6, 9, 12, 15, 18]
    assert equal_states(whole.weights(3), kept.weights(3))


def test_a_full_disk_loses_nothing_and_training_goes_on(images, tmp_path, monkeypatch):
    plain, _ = fit(images, epochs=6)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(step, model):  # from step 7 to 12 no file may grow beyond 2 kB
        room = 2000 if 7 <= step <= 12 else limits[0]
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))

    recorder = Recorder(tmp_path / "a", probe=images[0], every="1ep", wait=True)
    settings = {"lr": 0.05, "momentum": 0.9, "batch_size": 30, "seed": 1, "test": images}
    try:
        with pytest.warns(RecordingWarning, match="step 9 could not be written.*last step: 6"):
            full = train(
                network(), LOSS, images, epochs=6, recorder=recorder, on_step=fill, **settings
            )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    recorder.close()
    assert equal_states(plain.final, full.final)
    trajectory = Trajectory.open(tmp_path / "a")
    assert trajectory.steps.tolist() == [0, 3, 6, 15, 18]
    assert equal_states(trajectory.weights(-1), plain.final)
    assert trajectory.predictions().shape == (5, 90, 3)
    assert np.isfinite(trajectory.metric("loss")[1:]).all()


def test_no_space_left_is_named(images, tmp_path, monkeypatch):
    recorder = Recorder(tmp_path / "a", every="1it", wait=True)
    recorder.attach(mlp((64, 3)))

    def full(*arguments, **keywords):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("hyperribbon.recording.writer.save_state", full)
    with pytest.warns(RecordingWarning, match="No space left on device"):
        assert not recorder.step(0.1)
    recorder.release()


def test_overhead_bound_is_kept_and_said(tmp_path, monkeypatch):
    """On a clock of its own: 1 s a training step, 5 s a measurement, later 10 s."""
    now = 0.0
    monkeypatch.setattr("hyperribbon.recording.cadence.perf_counter", lambda: now)

    def slow(model):
        nonlocal now
        now += 5 if now < 400 else 10
        return 1.0

    recorder = Recorder(tmp_path / "a", every="2it", measure=[slow], max_overhead=0.2)
    recorder.attach(mlp((4, 2)))
    with pytest.warns(RecordingWarning, match="more than 20% of the training time") as caught:
        for step in range(1, 802):
            now += 1
            recorder.step(0.0)
            if step > 100:
                assert recorder.overhead.fraction <= 0.2
        recorder.close()
    overhead = recorder.overhead
    assert len(caught) == 1
    assert overhead.training_seconds == 801
    assert overhead.fraction <= 0.2
    assert overhead.recording_seconds > 0.16 * 801, "the time allowed is used"
    assert overhead.records + overhead.skipped == 1 + 400 + 1
    assert "records skipped" in str(overhead)
    assert recorder.trajectory.steps[-1] == 801
    assert (np.diff(recorder.trajectory.steps[1:-1]) % 2 == 0).all()


def test_overhead_is_reported_over_sessions(tmp_path, monkeypatch):
    now = 0.0
    monkeypatch.setattr("hyperribbon.recording.cadence.perf_counter", lambda: now)

    def slow(model):
        nonlocal now
        now += 1
        return 1.0

    for session in (1, 2):
        recorder = Recorder(tmp_path / "a", every="5it", measure=[slow])
        recorder.attach(mlp((4, 2)))
        for _ in range(20):
            now += 3
            recorder.step(0.0)
        recorder.close()
        now += 1000
        assert recorder.overhead.training_seconds == pytest.approx(60 * session)
        written = recorder.overhead.recording_seconds - (1 + 4 * session)
        assert 0 <= written < 1  # the clock of the writing beside it is the processor's


def test_two_recorders_do_not_disturb_each_other(images, tmp_path):
    models = [network(), network()]
    optimizers = [torch.optim.SGD(m.parameters(), 0.05, momentum=0.9) for m in models]
    recorders = [
        Recorder(tmp_path / "one", every="1it", probe=images[0]),
        Recorder(tmp_path / "two", every="3it", measure=[greedy]),
    ]
    for m, o, r in zip(models, optimizers, recorders, strict=True):
        r.attach(m, o)
    for step in range(6):
        for m, o, r in zip(models, optimizers, recorders, strict=True):
            torch.manual_seed(step)
            o.zero_grad()
            LOSS(m(images[0]), images[1]).backward()
            o.step()
            r.step()
    for r in recorders:
        r.close()
    one, two = (Trajectory.open(tmp_path / name) for name in ("one", "two"))
    assert one.steps.tolist() == list(range(7)) and two.steps.tolist() == [0, 3, 6]
    for i, j in [(0, 0), (3, 1), (6, 2)]:
        assert equal_states(one.weights(i), two.weights(j))


def test_one_folder_has_one_recorder(tmp_path, monkeypatch):
    first, second = (Recorder(tmp_path / "a") for _ in range(2))
    first.attach(mlp((4, 2)))
    monkeypatch.setattr(second._lock, "acquire", _impatient(second._lock.acquire))
    with pytest.raises(ArgumentError, match="another recorder"):
        second.attach(mlp((4, 2)))
    first.close()


def _impatient(acquire):
    return lambda timeout: acquire(timeout=0.05)


def test_a_run_is_never_overwritten_unasked(tmp_path):
    with Recorder(tmp_path / "a", every="1it") as recorder:
        recorder.attach(mlp((4, 2)))
        for _ in range(3):
            recorder.step()
    with pytest.raises(ArgumentError, match="up to step 3, but this run starts at 0"):
        Recorder(tmp_path / "a").attach(mlp((4, 2)), step=0)
    with pytest.raises(ArgumentError, match="the stored run has"):
        model = mlp((4, 2))
        Recorder(tmp_path / "a").attach(model, torch.optim.SGD(model.parameters()))
    assert Trajectory.open(tmp_path / "a").steps.tolist() == [0, 1, 2, 3]
    again = Recorder(tmp_path / "a", every="1it")
    assert again.attach(mlp((4, 2)), step=2) == 2
    again.step()
    again.close()
    assert Trajectory.open(tmp_path / "a").steps.tolist() == [0, 1, 2, 3]


class Payload:
    """Would make a file if it were unpickled."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return (open, (str(self.target), "w"))


def test_a_state_that_is_damaged_is_refused(tmp_path):
    with Recorder(tmp_path / "a", every="1it") as recorder:
        recorder.attach(mlp((4, 2)))
        recorder.step()
    (state,) = (tmp_path / "a" / "state").glob("step-1-*.safetensors")
    whole = state.read_bytes()
    for content in (whole[: len(whole) // 2], whole[:-1] + bytes([whole[-1] ^ 1]), b""):
        state.write_bytes(content)
        with pytest.raises(ArgumentError, match="damaged"):
            Recorder(tmp_path / "a").attach(mlp((4, 2)))
    assert len(Trajectory.open(tmp_path / "a").weights(1)) == 2


def test_a_state_of_another_model_or_kind_is_refused(tmp_path):
    with Recorder(tmp_path / "a", every="1it") as recorder:
        recorder.attach(mlp((4, 2)))
        recorder.step()
    with pytest.raises(ArgumentError, match=r"does not match it.*size mismatch"):
        Recorder(tmp_path / "a").attach(mlp((5, 2)))
    for name in ("step-1", "initial"):
        folder = tmp_path / "a"
        next(folder.glob(f"state/{name}-*")).unlink()
        content = save({"w": torch.ones(2)}, metadata={"state": '{"dict": []}'})
        save_state(folder, name, content)
    with pytest.raises(ArgumentError, match="not the state of a run"):
        Recorder(tmp_path / "a").attach(mlp((4, 2)))
    with pytest.raises(ArgumentError, match="not the state of a run"):
        Recorder(tmp_path / "a").initial_state()


def test_states_of_any_structure_come_back(tmp_path):
    """Lists, tuples, integer keys, arrays and numbers that JSON does not have."""

    class Part:
        def __init__(self):
            several = torch.ones(2, dtype=torch.bfloat16), [None, float("inf")]
            self.state = {1: several, "x": np.arange(3)}

        def state_dict(self):
            return self.state

        def load_state_dict(self, state):
            self.loaded = state

    part, other = Part(), Part()
    with Recorder(tmp_path / "a", every="1it") as recorder:
        recorder.attach(mlp((4, 2)), part=part)
    Recorder(tmp_path / "a").attach(mlp((4, 2)), part=other)
    (tensor, rest), array = other.loaded[1], other.loaded["x"]
    assert tensor.dtype == torch.bfloat16 and tensor.tolist() == [1, 1]
    assert rest == [None, float("inf")] and array.tolist() == [0, 1, 2]
    part.state = {"function": print}
    with pytest.warns(RecordingWarning, match="cannot be resumed.*state of parts"):
        Recorder(tmp_path / "b").attach(mlp((4, 2)), part=part)
    with pytest.raises(ArgumentError, match="builtin_function_or_method"):
        Recorder(tmp_path / "c", resume=True).attach(mlp((4, 2)), part=part)


def test_a_run_that_cannot_resume_says_so_at_the_start(tmp_path):
    with pytest.warns(RecordingWarning, match="cannot be resumed after an interruption"):
        Recorder(tmp_path / "a", weights=False).attach(mlp((4, 2)))
    for number, options in enumerate([{"resume": True}, {"resume": False}]):
        Recorder(tmp_path / str(number), weights=False, **options).attach(mlp((4, 2)))
    Recorder(tmp_path / "trainer", weights=False).attach(mlp((4, 2)), step=0)


@pytest.mark.parametrize("version", ["2.4.1", "2.5.1+cpu"])
def test_pt_files_are_refused_by_versions_of_torch_that_may_run_code(
    tmp_path, monkeypatch, version
):
    torch.save({"parts": Payload(tmp_path / "executed")}, tmp_path / "a.pt")
    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.setattr(torch, "load", lambda *a, **k: pytest.fail("the file was loaded"))
    with pytest.raises(ArgumentError, match=r"CVE-2025-32434.*safetensors, or install torch 2.6"):
        load_state(tmp_path / "a.pt")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("every", ["0.1ep", "0.3ep", "0.7ep"])
def test_intervals_of_epochs_are_not_missed_by_rounding(every):
    """0.3 / 0.1 is below 3 in floating point."""
    cadence = Cadence.parse(every)
    moments = [(0, 0.0)] + [(k, k * cadence.amount) for k in range(1, 200)]
    assert all(cadence.passed(before, now) for before, now in pairwise(moments))


def test_arguments_are_checked(tmp_path):
    for every in ("often", "0ep", "1.5it", 3):
        with pytest.raises(ArgumentError, match="every="):
            Recorder(tmp_path / "a", every=every)
    with pytest.raises(ArgumentError, match="no name"):
        Recorder(tmp_path / "a", measure=[lambda model: 1])
    with pytest.raises(ArgumentError, match="same name"):
        Recorder(tmp_path / "a", measure=[float_one, float_one])
    with pytest.raises(ArgumentError, match="not a valid metric name"):
        Measurement("../escape", float_one)
    with pytest.raises(ArgumentError, match="attach"):
        Recorder(tmp_path / "a").step()
    recorder = Recorder(tmp_path / "a", every="1ep")
    recorder.attach(mlp((4, 2)))
    with pytest.raises(ArgumentError, match="epoch"):
        recorder.step()
    recorder.release()


def test_a_measurement_can_be_named_before_anything_else_is_imported(tmp_path):
    code = f"import hyperribbon as hr; hr.Recorder({str(tmp_path)!r}, measure='sharpness').close()"
    subprocess.run([sys.executable, "-c", code], check=True)
