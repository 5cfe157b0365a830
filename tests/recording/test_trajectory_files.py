"""The files of a trajectory: damage is said, nothing outside the folder is touched."""

import contextlib
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from hyperribbon.core import ArgumentError
from hyperribbon.core.states import refusal
from hyperribbon.core.store import record_log
from hyperribbon.core.store.atomic import clear_leftovers, digest_of, stored_path, writing
from hyperribbon.core.store.check import check_folder
from hyperribbon.core.store.record_log import write_count
from hyperribbon.recording import Measurement, Recorder
from hyperribbon.recording.trajectory import Trajectory

# Its state holds numbers of a kind that torch 2.4 cannot read.
IS_READABLE = tuple(int(part) for part in torch.__version__.split(".")[:2]) > (2, 4)


def fill(folder, steps, size=3):
    trajectory = Trajectory.create(folder)
    for step in steps:
        trajectory.append(
            step,
            epoch=step / 4,
            weights={"w": torch.full((2,), float(step))},
            predictions=np.full((size, 2), step, dtype=np.float32),
            metrics={"loss": 1 / (1 + step), "top": np.arange(3.0) + step},
        )
    return trajectory


def assert_whole(trajectory, steps):
    assert trajectory.steps.tolist() == list(steps)
    if not len(steps):
        return
    for index, step in enumerate(steps):
        assert trajectory.weights(index)["w"].tolist() == [step, step]
        assert (trajectory.predictions(index) == step).all()
    np.testing.assert_array_equal(trajectory.metric("loss"), 1 / (1 + np.array(steps)))
    np.testing.assert_array_equal(trajectory.metric("top")[:, 0], steps)


def rewrite(folder, change):
    """Change the last record's line and give it the checksum of its new content."""
    block = folder / "records" / "block-000000.bin"
    data = block.read_bytes()
    start = data.rindex(b'{"index": ')
    line, rest = data[start:].split(b"\n", 1)
    text = json.dumps(change(json.loads(line.rpartition(b"\t")[0])))
    new = f"{text}\t{digest_of(text.encode())}\n".encode()
    block.write_bytes(data[:start] + new + rest)


@pytest.mark.parametrize("name", ["{outside}", "../victim", "weights/../../victim", "", "linked/v"])
def test_names_that_lead_outside_the_folder_touch_nothing(tmp_path, name):
    victim = tmp_path / "victim"
    victim.write_text("dear")
    folder = tmp_path / "run"
    name = name.format(outside=victim)
    fill(folder, [0, 1])
    rewrite(folder, lambda content: content | {"weights": name})
    (tmp_path / "elsewhere").mkdir()
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ArgumentError, match="outside the folder"):
        Trajectory.open(folder).truncate(0)
    assert victim.read_text() == "dear"


def test_a_linked_folder_of_weights_is_not_cleaned(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "123.safetensors").write_text("dear")
    folder = tmp_path / "run"
    trajectory = fill(folder, [])
    shutil.rmtree(folder / "weights")
    (folder / "weights").symlink_to(tmp_path / "models")
    trajectory.append(1)
    assert (tmp_path / "models" / "123.safetensors").read_text() == "dear"


@pytest.mark.parametrize("name", ["records", "metrics", "weights", "state"])
def test_links_to_folders_elsewhere_are_not_written_through(tmp_path, name):
    """Somebody else's run, made part of a folder by a link, stays as it is."""
    theirs, folder = tmp_path / "theirs", tmp_path / "run"
    for place in (folder, theirs):
        drive(place, 5)
    before = {path: path.read_bytes() for path in theirs.rglob("*") if path.is_file()}
    if (folder / name).exists():
        shutil.rmtree(folder / name)
    (folder / name).symlink_to(theirs / name)
    for action in (
        lambda: drive(folder, 9),
        lambda: Trajectory.open(folder).append(50, weights={"w": torch.ones(2)}),
        lambda: Trajectory.open(folder).truncate(0),
    ):
        with contextlib.suppress(ArgumentError):
            action()
    assert before == {path: path.read_bytes() for path in theirs.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "change",
    [
        {"step": 2**70},
        {"step": "1"},
        {"step": True},
        {"step": 0},
        {"index": 7},
        {"epoch": []},
        {"metrics": "loss"},
        {"metrics": [3]},
        {"metrics": ["loss", "speed"]},
        {"numbers": []},
        {"numbers": {"loss": "1"}},
        {"arrays": {}},
        {"arrays": {"predictions": ["|O", [3, 2], "x"]}},
        {"arrays": {"predictions": ["<f4", [3.0, 2], "x"]}},
        {"arrays": {"predictions": ["<f4", [-3, -2], "x"]}},
        {"arrays": {"predictions": ["<f4", [2**62, 2**62], "x"]}},
        {"arrays": {"predictions": ["<f4,<f8", [3], "x"]}},
        {"arrays": [1]},
    ],
)
def test_a_hostile_record_with_right_checksums_is_refused(tmp_path, change):
    fill(tmp_path, [0, 1])
    rewrite(tmp_path, lambda content: content | change)
    try:
        trajectory = Trajectory.open(tmp_path)
        for name in ("loss", "top", "speed"):
            trajectory.metric(name)
        trajectory.predictions()
    except ArgumentError:
        return
    assert_whole(trajectory, [0])


def test_stored_names():
    folder = Path("/somewhere")
    assert stored_path(folder, "weights/1.safetensors") == folder / "weights" / "1.safetensors"
    for name in ("/etc/passwd", "..", "a//b", "./a", 3, None):
        with pytest.raises(ArgumentError, match="outside the folder"):
            stored_path(folder, name)


def test_a_missing_block_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(record_log, "_BLOCK_RECORDS", 2)
    fill(tmp_path, range(6))
    names = sorted(path.name for path in (tmp_path / "records").glob("block*"))
    assert names == ["block-000000.bin", "block-000002.bin", "block-000004.bin"]
    assert_whole(Trajectory.open(tmp_path), range(6))
    (tmp_path / "records" / "block-000002.bin").unlink()
    with pytest.raises(ArgumentError, match="record 2 is missing before block-000004"):
        Trajectory.open(tmp_path)


@pytest.mark.parametrize("counted", [True, False])
def test_every_changed_byte_is_said_or_drops_only_an_unreported_record(tmp_path, counted):
    """Each byte of a block is changed in turn: no value that is read is ever wrong."""
    fill(tmp_path, range(3))
    block = tmp_path / "records" / "block-000000.bin"
    whole = block.read_bytes()
    last = whole.rindex(b'{"index": ')
    assert len(whole) > 600
    if not counted:
        write_count(tmp_path / "records", 2)  # killed before the last was reported
    for place in range(0, len(whole), 3):
        block.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        if place >= last and not counted:
            assert_whole(Trajectory.open(tmp_path), range(2))
            continue
        with pytest.raises(ArgumentError, match="damaged"):
            assert_whole(Trajectory.open(tmp_path), range(3))


def test_every_cut_leaves_the_records_before_it(tmp_path):
    fill(tmp_path, range(3))
    block = tmp_path / "records" / "block-000000.bin"
    whole = block.read_bytes()
    starts = [found.start() for found in re.finditer(rb'\{"index": ', whole)] + [len(whole)]
    places = {place + offset for place in starts for offset in (-2, -1, 0, 1)}
    for place in sorted({*range(0, len(whole), 29), *places} & set(range(len(whole)))):
        block.write_bytes(whole[:place])
        count = sum(start <= place for start in starts[1:])
        with pytest.raises(ArgumentError, match=f"the last {3 - count} of 3 records are missing"):
            Trajectory.open(tmp_path)
        write_count(tmp_path / "records", count)  # as if killed before they were reported
        assert_whole(Trajectory.open(tmp_path), range(count))
        fill(tmp_path, range(count, 3))
        assert block.read_bytes() == whole


@pytest.mark.parametrize("left", [0, 5, 15])
def test_a_shortened_number_of_records_is_found(tmp_path, left):
    fill(tmp_path, range(3))
    os.truncate(tmp_path / "records" / "count", left)
    with pytest.raises(ArgumentError, match="does not count records"):
        Trajectory.open(tmp_path)
    assert [f.place.name for f in check_folder(tmp_path).findings] == ["count"]
    check_folder(tmp_path, repair=True)
    assert check_folder(tmp_path).is_whole
    assert_whole(Trajectory.open(tmp_path), range(3))


def test_a_linked_number_of_records_is_found(tmp_path):
    """A link could lead to the number of another recording."""
    fill(tmp_path / "run", range(3))
    count = tmp_path / "run" / "records" / "count"
    count.rename(tmp_path / "elsewhere")
    count.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ArgumentError, match="does not count records"):
        Trajectory.open(tmp_path / "run")


def test_an_older_recording_has_a_zero_for_every_record(tmp_path):
    fill(tmp_path, range(3))
    (tmp_path / "records" / "count").write_bytes(bytes(3))
    fill(tmp_path, [3])
    assert_whole(Trajectory.open(tmp_path), range(4))
    assert (tmp_path / "records" / "count").stat().st_size == 16


def test_records_of_nan_and_of_nothing_go_on_after_a_kill(tmp_path):
    trajectory = Trajectory.create(tmp_path)
    empty = np.zeros((0, 2), dtype=np.float32)
    trajectory.append(0, predictions=empty, metrics={"x": np.nan, "y": [np.inf, -0.0]})
    with open(tmp_path / "records" / "block-000000.bin", "ab") as block:
        block.write(b'{"index": 1, "st')
    again = Trajectory.open(tmp_path)
    again.append(1, predictions=empty, metrics={"x": 1.0})
    assert again.predictions().shape == (2, 0, 2)
    np.testing.assert_array_equal(Trajectory.open(tmp_path).metric("x"), [np.nan, 1.0])
    assert np.signbit(Trajectory.open(tmp_path).metric("y")[0, 1])


def test_changed_weights_are_said(tmp_path):
    trajectory = fill(tmp_path, [0, 1])
    path = trajectory[1].weights
    path.write_bytes(trajectory[0].weights.read_bytes())
    with pytest.raises(ArgumentError, match=r"weights/000000001.safetensors has a wrong checksum"):
        trajectory.weights(1)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"format": "hyperribbon trajectory", "version": 3}, "written by a newer hyperribbon"),
        ({"format": "something else", "version": 1}, "says format 'something else'"),
        ({"format": "hyperribbon trajectory", "version": "2"}, "version '2'"),
        ({"format": "hyperribbon trajectory", "version": 2, "records": "../x"}, "names '../x'"),
        ([], "cannot be read"),
    ],
)
def test_the_version_is_read(tmp_path, header, words):
    fill(tmp_path, [0])
    (tmp_path / "trajectory.json").write_text(json.dumps(header))
    for action in (Trajectory.open, Trajectory.create):
        with pytest.raises(ArgumentError, match=words):
            action(tmp_path)


def test_a_lost_folder_of_records_is_not_an_empty_run(tmp_path):
    fill(tmp_path, [0])
    shutil.rmtree(tmp_path / "records")
    for action in (Trajectory.open, Trajectory.create):
        with pytest.raises(ArgumentError, match="the folder records is missing"):
            action(tmp_path)
    assert not check_folder(tmp_path).is_whole


def test_a_lost_header_does_not_begin_a_second_run(tmp_path):
    fill(tmp_path, [0])
    (tmp_path / "trajectory.json").unlink()
    with pytest.raises(ArgumentError, match=r"trajectory.json is missing"):
        Trajectory.create(tmp_path)


def test_two_writers_are_told_apart(tmp_path):
    first = fill(tmp_path, [0])
    second = Trajectory.open(tmp_path)
    first.append(1, weights={"w": torch.ones(2)})
    with pytest.raises(ArgumentError, match="another process has changed its records"):
        second.append(5)
    second = Trajectory.open(tmp_path)
    second.append(2)
    with pytest.raises(ArgumentError, match="another process has changed its records"):
        first.append(3)
    assert Trajectory.open(tmp_path).steps.tolist() == [0, 1, 2]
    assert Trajectory.open(tmp_path).weights(1)["w"].tolist() == [1, 1]


def test_truncate_over_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(record_log, "_BLOCK_RECORDS", 2)
    for keep in range(7):
        folder = tmp_path / str(keep)
        trajectory = fill(folder, range(7))
        trajectory.truncate(keep - 1)
        assert_whole(Trajectory.open(folder), range(keep))
        assert len(list((folder / "weights").iterdir())) == keep
        fill(folder, range(keep, 9))
        assert_whole(Trajectory.open(folder), range(9))


def eigenvalues(model):
    return torch.arange(3.0) + model.weight.detach()[0, 0]


def drive(folder, steps):
    """Record a run of dyadic numbers."""
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.fill_(0.5)
        model.bias.fill_(-0.25)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    rare = Measurement("rare", lambda model: model.bias[0].item(), every=2)
    recorder = Recorder(
        folder,
        every="1it",
        probe=torch.eye(2),
        predictions="outputs",
        measure=[Measurement("top", eigenvalues), rare],
    )
    for step in range(recorder.attach(model, optimizer), steps):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        recorder.step(2.0**-step, epoch=(step + 1) / 4)
    recorder.release()
    return Trajectory.open(folder)


def test_an_unreleased_format_is_refused(tmp_path):
    fill(tmp_path, [0])
    header = json.loads((tmp_path / "trajectory.json").read_text())
    del header["checksum"]
    (tmp_path / "trajectory.json").write_text(json.dumps(header | {"version": 1}))
    with pytest.raises(ArgumentError, match="version 1"):
        Trajectory.open(tmp_path)


def test_a_killed_writer_leaves_nothing_behind(tmp_path):
    fill(tmp_path, [0])
    for place in ("trajectory.json", "weights/1.safetensors", "records/block-000000.bin"):
        pid = os.fork()
        if pid == 0:
            with writing(tmp_path / place) as temporary:
                temporary.write_text("half")
                os._exit(0)
        os.waitpid(pid, 0)
    (tmp_path / "weights" / "000000009.safetensors").write_text("of a record that never was")
    assert len(list(tmp_path.rglob("*.tmp"))) == 3
    fill(tmp_path, [1])
    assert not list(tmp_path.rglob("*.tmp"))
    assert len(list((tmp_path / "weights").iterdir())) == 2
    assert_whole(Trajectory.open(tmp_path), [0, 1])


def test_the_temporary_file_of_a_living_writer_stays(tmp_path):
    with writing(tmp_path / "file") as temporary:
        temporary.write_text("half")
        assert clear_leftovers(tmp_path) == []
    assert (tmp_path / "file").read_text() == "half"
    assert os.listdir(tmp_path) == ["file"]


def test_a_failed_append_leaves_the_records_as_they_were(tmp_path, monkeypatch):
    trajectory = fill(tmp_path, [0])
    whole = (tmp_path / "records" / "block-000000.bin").read_bytes()
    written = os.pwrite

    def full(handle, data, place):
        written(handle, data[:7], place)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="No space"):
            trajectory.append(1)
    assert (tmp_path / "records" / "block-000000.bin").read_bytes() == whole
    trajectory.append(1, metrics={"loss": 0.5})
    assert Trajectory.open(tmp_path).steps.tolist() == [0, 1]


def test_a_type_that_torch_cannot_read_is_no_code():
    """What torch 2.4 says of unsigned numbers, and what it says of a call."""
    said = "Unsupported global: GLOBAL torch.uint32 was not an allowed global by default."
    assert refusal(Exception(said)).endswith("cannot read torch.uint32; use a newer version")
    assert refusal(Exception("GLOBAL posix.system was not")) == "it names posix.system"
    assert refusal(Exception("GLOBAL torch.load was not")) == "it names torch.load"
