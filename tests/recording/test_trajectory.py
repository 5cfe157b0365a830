import pickle

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from hyperribbon.core import ArgumentError
from hyperribbon.core.states import load_state
from hyperribbon.core.store.record_log import write_count
from hyperribbon.recording.records import Draft
from hyperribbon.recording.trajectory import Trajectory


def fill(trajectory, steps):
    for step in steps:
        trajectory.append(
            step,
            epoch=step / 10,
            weights={"b": torch.full((2,), float(step)), "a": torch.ones(1, 2) * step},
            predictions=np.full((3, 2), step, dtype=np.float32),
            metrics={"loss": 1 / (1 + step), "top": np.arange(3.0) + step},
        )


def test_records_come_back(tmp_path):
    fill(Trajectory.create(tmp_path / "run"), range(0, 50, 10))
    again = Trajectory.open(tmp_path / "run")
    assert again.steps.tolist() == [0, 10, 20, 30, 40]
    np.testing.assert_allclose(again.epochs, [0, 1, 2, 3, 4])
    assert torch.equal(again.weights(2)["b"], torch.full((2,), 20.0))
    assert again.weight_vector(-1).tolist() == [40.0] * 4
    assert again.predictions(3).tolist() == [[30.0, 30.0]] * 3
    assert again.predictions().shape == (5, 3, 2)
    assert again.predictions(slice(1, 3)).shape == (2, 3, 2)
    np.testing.assert_allclose(again.metric("loss"), 1 / (1 + again.steps))
    assert again.metric("top").shape == (5, 3)
    assert list(again.metrics().columns) == ["step", "epoch", "loss", "top.1", "top.2", "top.3"]
    np.testing.assert_array_equal(again.metrics()["top.2"], again.metric("top")[:, 1])


def test_a_metric_measured_now_and_then_is_nan_between(tmp_path):
    trajectory = Trajectory.create(tmp_path)
    for step in range(4):
        trajectory.append(step, metrics={"x": step} if step % 2 else None)
    np.testing.assert_array_equal(trajectory.metric("x"), [np.nan, 1, np.nan, 3])


def test_what_a_killed_record_left_behind_does_not_count(tmp_path):
    trajectory = Trajectory.create(tmp_path)
    fill(trajectory, [0, 10])
    block = tmp_path / "records" / "block-000000.bin"
    block.write_bytes(block.read_bytes()[:-1])
    write_count(tmp_path / "records", 1)  # the second was not reported yet
    again = Trajectory.create(tmp_path)
    assert len(again) == 1
    fill(again, [15])
    assert again.steps.tolist() == [0, 15]
    assert again.predictions(1)[0, 0] == 15
    assert Trajectory.open(tmp_path).weights(1)["b"][0] == 15


def test_several_records_follow_one_another_and_none_change_nothing(tmp_path):
    trajectory = Trajectory.create(tmp_path)
    trajectory.extend([])
    trajectory.extend([Draft(0), Draft(5)])
    trajectory.extend([])
    assert Trajectory.open(tmp_path).steps.tolist() == [0, 5]
    with pytest.raises(ArgumentError, match="step 7"):
        trajectory.extend([Draft(7), Draft(7)])


def test_truncate_goes_back(tmp_path):
    trajectory = Trajectory.create(tmp_path)
    fill(trajectory, [0, 10, 20])
    trajectory.truncate(10)
    fill(trajectory, [11])
    assert Trajectory.open(tmp_path).steps.tolist() == [0, 10, 11]


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (lambda t: t.append(5), "Steps must increase"),
        (lambda t: t.append(20, predictions=np.zeros((9, 2))), "earlier records have shape"),
        (lambda t: t.metric("speed"), "Available: loss, top"),
        (lambda t: Trajectory.create(t.folder, resume=False), "already contains a trajectory"),
        (lambda t: Trajectory.open(t.folder / "nowhere"), "does not contain a trajectory"),
    ],
)
def test_mistakes_are_explained(tmp_path, action, words):
    trajectory = Trajectory.create(tmp_path)
    fill(trajectory, [0, 10])
    with pytest.raises(ArgumentError, match=words):
        action(trajectory)
    assert len(Trajectory.open(tmp_path)) == 2


def test_records_without_weights_or_predictions_say_so(tmp_path):
    trajectory = Trajectory.create(tmp_path)
    trajectory.append(1, metrics={"x": 1.0})
    with pytest.raises(ArgumentError, match="no weights"):
        trajectory.weights(0)
    with pytest.raises(ArgumentError, match="no predictions"):
        trajectory.predictions()


def test_a_folder_of_checkpoints_opens_in_order_of_steps(tmp_path):
    for step in (5, 100, 20):
        save_file({"w": torch.full((2,), float(step))}, tmp_path / f"step-{step}.safetensors")
    torch.save({"state_dict": {"w": torch.full((2,), 7.0)}}, tmp_path / "step-7.pt")
    trajectory = Trajectory.from_checkpoints(tmp_path)
    assert trajectory.steps.tolist() == [5, 7, 20, 100]
    assert [trajectory.weights(i)["w"][0].item() for i in range(4)] == [5, 7, 20, 100]
    with pytest.raises(ArgumentError, match="read-only"):
        trajectory.append(200)


class Payload:
    def __reduce__(self):
        return (exec, ("raise SystemExit('ran')",))


def test_files_that_would_run_code_are_refused(tmp_path):
    path = tmp_path / "model.pt"
    torch.save({"w": Payload()}, path)
    with pytest.raises(ArgumentError, match="would run code"):
        load_state(path)
    path.write_bytes(pickle.dumps(Payload()))
    with pytest.raises(ArgumentError, match="would run code"):
        load_state(path)


def test_truncated_checkpoints_are_named(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"w": torch.zeros(100)}, path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ArgumentError, match="damaged or truncated"):
        load_state(path)
    with pytest.raises(ArgumentError, match="file does not exist"):
        load_state(tmp_path / "absent.pt")
