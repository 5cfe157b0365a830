"""`check_folder`: what it finds, what it mends, and that nothing whole is lost."""

import contextlib
import json
import os
import random
import shutil
import socket

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from hyperribbon.application.cli.app import app
from hyperribbon.core import ArgumentError
from hyperribbon.core.store import Store, record_log, save_tree
from hyperribbon.core.store.check import check_folder
from hyperribbon.recording import Recorder
from hyperribbon.recording.trajectory import Trajectory


def fill(folder, steps):
    trajectory = Trajectory.create(folder)
    for step in steps:
        trajectory.append(
            step,
            weights={"w": torch.full((2,), float(step))},
            predictions=np.full((3, 2), step, dtype=np.float32),
            metrics={"loss": 1.0 * step, "top": np.arange(3.0) + step},
        )
    return trajectory


def assert_holds(folder, steps):
    trajectory = Trajectory.open(folder)
    assert trajectory.steps.tolist() == list(steps)
    assert trajectory.metric("loss").tolist() == list(steps)
    assert trajectory.metric("top")[:, 0].tolist() == list(steps)
    assert trajectory.predictions()[:, 0, 0].tolist() == list(steps)


def change(path, place, bit=1):
    content = bytearray(path.read_bytes())
    content[place] ^= bit
    path.write_bytes(content)


def test_a_whole_trajectory_is_left_as_it_is(tmp_path):
    fill(tmp_path, range(4))
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    checked = check_folder(tmp_path)
    assert (checked.trajectories, checked.records, checked.findings) == (1, 4, ())
    assert before == {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    assert check_folder(tmp_path, repair=True).is_whole
    assert_holds(tmp_path, range(4))


@pytest.mark.parametrize("lost", [0, 1, 2])
@pytest.mark.parametrize("part", ["line", "array"])
def test_a_damaged_record_is_dropped_and_the_others_are_kept(tmp_path, lost, part, monkeypatch):
    monkeypatch.setattr(record_log, "_BLOCK_RECORDS", 3)
    fill(tmp_path, range(5))
    block = tmp_path / "records" / "block-000000.bin"
    start = block.read_bytes().index(b'{"index": %d' % lost)
    line = block.read_bytes().index(b"\n", start)
    change(block, start + 14 if part == "line" else line + 5)
    checked = check_folder(tmp_path)
    assert [f.kind for f in checked.findings] == ["damage"] and not checked.is_whole
    assert "record" in checked.findings[0].what
    assert check_folder(tmp_path, repair=True).is_whole
    rest = [step for step in range(5) if step != lost]
    assert_holds(tmp_path, rest)
    assert check_folder(tmp_path).findings == ()
    fill(tmp_path, [9])
    assert_holds(tmp_path, [*rest, 9])
    assert list(tmp_path.glob("damaged-1/records/block-000000.bin")), "nothing is deleted"


def test_a_missing_block_costs_its_records_only(tmp_path, monkeypatch):
    monkeypatch.setattr(record_log, "_BLOCK_RECORDS", 2)
    fill(tmp_path, range(6))
    (tmp_path / "records" / "block-000002.bin").unlink()
    assert "2 records before record 4 are missing" in check_folder(tmp_path).findings[0].what
    check_folder(tmp_path, repair=True)
    assert_holds(tmp_path, [0, 1, 4, 5])


def test_damaged_weights_are_set_aside_and_the_record_stays(tmp_path):
    trajectory = fill(tmp_path, range(3))
    change(trajectory[1].weights, -1)
    trajectory[2].weights.unlink()
    checked = check_folder(tmp_path)
    assert [f.what for f in checked.findings] == [
        "the weights of step 1 are damaged",
        "the weights of step 2 are missing",
    ]
    assert check_folder(tmp_path, repair=True).is_whole
    assert_holds(tmp_path, range(3))
    assert [record.weights is None for record in Trajectory.open(tmp_path)] == [False, True, True]
    assert (tmp_path / "weights" / "000000001.safetensors.damaged").is_file()


@pytest.mark.parametrize("content", [None, "{ cut", "[]"])
def test_a_header_is_written_again(tmp_path, content):
    fill(tmp_path, range(3))
    header = tmp_path / "trajectory.json"
    header.unlink() if content is None else header.write_text(content)
    assert not check_folder(tmp_path).is_whole
    assert check_folder(tmp_path, repair=True).is_whole
    assert_holds(tmp_path, range(3))


def test_the_remains_of_an_unfinished_record_are_no_damage(tmp_path):
    fill(tmp_path, range(3))
    block = tmp_path / "records" / "block-000000.bin"
    whole = block.read_bytes()
    block.write_bytes(whole + b'{"index": 3, "st')
    (finding,) = check_folder(tmp_path).findings
    assert finding.kind == "leftover" and check_folder(tmp_path).is_whole
    check_folder(tmp_path, repair=True)
    assert block.read_bytes() == whole


def test_a_newer_format_is_said_and_left_alone(tmp_path):
    fill(tmp_path, range(2))
    header = {"format": "hyperribbon trajectory", "version": 3}
    (tmp_path / "trajectory.json").write_text(json.dumps(header))
    for repair in (False, True):
        checked = check_folder(tmp_path, repair=repair)
        assert not checked.is_whole and "newer hyperribbon" in checked.findings[0].what
    assert json.loads((tmp_path / "trajectory.json").read_text()) == header


def test_a_running_recorder_is_not_disturbed(tmp_path):
    model = nn.Linear(2, 2)
    with Recorder(tmp_path, every="1it") as recorder:
        recorder.attach(model)
        recorder.step(0.5)
        assert check_folder(tmp_path).findings == ()
        checked = check_folder(tmp_path, repair=True)
        assert "a recorder is writing to it" in checked.findings[0].what
    assert Trajectory.open(tmp_path).steps.tolist() == [0, 1]


def test_a_damaged_state_is_said(tmp_path):
    with Recorder(tmp_path, every="1it") as recorder:
        recorder.attach(nn.Linear(2, 2))
        recorder.step(0.5)
    (state,) = (tmp_path / "state").glob("step-*.safetensors")
    change(state, -40)
    assert "the resume state is damaged" in {f.what for f in check_folder(tmp_path).findings}
    assert check_folder(tmp_path, repair=True).is_whole
    assert [f.kind for f in check_folder(tmp_path).findings] == ["note"]


def spoil(path, rng):
    content = bytearray(path.read_bytes())
    place = rng.randrange(len(content))
    length = rng.randrange(1, 60)
    kind = rng.choice(["flip", "cut", "delete", "garbage", "zeros", "twice", "gap"])
    if kind == "flip":
        content[place] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del content[place:]
    elif kind == "garbage":
        content[place : place + length] = rng.randbytes(length)
    elif kind == "zeros":
        content[place : place + length] = bytes(length)
    elif kind == "twice":
        content[place:place] = content[:place]
    elif kind == "gap":
        del content[place : place + length]
    path.unlink() if kind == "delete" else path.write_bytes(content)


def assert_never_wrong(folder):
    """Whatever is read is right, or refused: the step says what every number must be."""
    trajectory = Trajectory.open(folder)
    steps = trajectory.steps.tolist()
    assert steps == sorted(set(steps)) and set(steps) <= set(range(8))
    if not steps:
        return
    assert_holds(folder, steps)
    for record in trajectory:
        if record.weights is not None:
            assert trajectory.weights(record.index)["w"].tolist() == [record.step] * 2


def spoil_and_repair(folder, seed):
    rng = random.Random(seed)
    fill(folder, range(8))
    files = [path for path in folder.rglob("*") if path.suffix in (".bin", ".json", ".safetensors")]
    for path in rng.sample(sorted(files), rng.choice([1, 1, 2, 3])):
        spoil(path, rng)
    with contextlib.suppress(ArgumentError):
        assert_never_wrong(folder)
    assert check_folder(folder, repair=True).is_whole
    assert_never_wrong(folder)
    assert not check_folder(folder).findings
    fill(folder, [9])
    return len(Trajectory.open(folder)) - 1


def test_whatever_is_spoilt_nothing_wrong_is_read_and_the_rest_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(record_log, "_BLOCK_RECORDS", 3)
    kept = [spoil_and_repair(tmp_path / str(seed), seed) for seed in range(25)]
    assert sum(kept) / len(kept) > 6, "most records are saved"


@pytest.mark.slow
def test_whatever_is_spoilt_two_thousand_times(tmp_path, monkeypatch):
    monkeypatch.setattr(record_log, "_BLOCK_RECORDS", 3)
    for seed in range(2000):
        spoil_and_repair(tmp_path / "run", seed)
        shutil.rmtree(tmp_path / "run")


def test_damaged_results_are_set_aside_and_made_again(tmp_path):
    run = Store(tmp_path).run("ribbons/x", {"a": 1}, 0)
    run.save_result({"x": np.arange(30.0)})
    run.save_claims([])
    save_tree(run.parts / "part.safetensors", {"x": np.arange(30.0)})
    assert check_folder(tmp_path).findings == () and check_folder(tmp_path).files == 4
    for path in (run.path / "result.safetensors", run.parts / "part.safetensors"):
        change(path, -2)
    assert [f.what for f in check_folder(tmp_path).findings] == [
        "its checksum is wrong",
        "the result file is damaged (its checksum is wrong)",
    ]
    assert check_folder(tmp_path, repair=True).is_whole
    assert not run.is_complete and not run.has_result and not list(run.parts.glob("*.safetensors"))


def record(folder, steps=8):
    """Return the folder of a finished recording."""
    model = nn.Linear(2, 2)
    with Recorder(folder, every="1it", probe=torch.eye(2)) as recorder:
        recorder.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(steps):
            recorder.step(0.5)
    return folder


def contents(folder):
    return sorted(p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.stat().st_size)


def test_an_emptied_block_is_damage_and_costs_no_weights(tmp_path):
    block = record(tmp_path) / "records" / "block-000000.bin"
    weights = {path.name: path.read_bytes() for path in (tmp_path / "weights").iterdir()}
    assert len(weights) == 9
    block.write_bytes(b"")
    with pytest.raises(ArgumentError, match="the last 9 of 9 records are missing"):
        Trajectory.open(tmp_path)
    with pytest.raises(ArgumentError, match="records are missing"):
        Recorder(tmp_path, every="1it")
    assert not check_folder(tmp_path).is_whole
    assert check_folder(tmp_path, repair=True).is_whole
    assert weights == {path.name: path.read_bytes() for path in (tmp_path / "weights").iterdir()}


@pytest.mark.parametrize("name", ["manifest.json", "recording.json", "records/count", "state"])
def test_a_missing_part_of_a_finished_recording_is_damage(tmp_path, name):
    path = record(tmp_path) / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert not check_folder(tmp_path).is_whole
    assert check_folder(tmp_path, repair=True).is_whole
    assert [f for f in check_folder(tmp_path).findings if f.kind == "damage"] == []
    assert len(Trajectory.open(tmp_path)) == 9


@pytest.mark.parametrize("kind", ["pipe", "folder", "link", "deep", "socket"])
def test_only_regular_files_are_opened(tmp_path, kind):
    folder = record(tmp_path / "recording")
    run = Store(tmp_path / "runs").run("ribbons/x", {"a": 1}, 0)
    run.save_result({"x": np.arange(30.0)})
    run.save_claims([])
    targets = [run.path / "run.json", run.path / "claims.json", run.path / "result.safetensors"]
    targets += [folder / "trajectory.json", folder / "recording.json", folder / "manifest.json"]
    targets += [*folder.glob("records/*"), *folder.glob("weights/*"), *folder.glob("state/*")]
    for target in targets:
        kept = target.read_bytes()
        target.unlink()
        if kind == "pipe":
            os.mkfifo(target)
        elif kind == "folder":
            target.mkdir()
        elif kind == "link":
            target.symlink_to("/dev/zero")
        elif kind == "deep":
            target.write_text("[" * 100_000)
        else:
            with socket.socket(socket.AF_UNIX) as server, contextlib.chdir(target.parent):
                server.bind(target.name)
        assert not check_folder(tmp_path).is_whole, target
        shutil.rmtree(target) if kind == "folder" else target.unlink()
        target.write_bytes(kept)
    assert check_folder(tmp_path).findings == ()


def test_the_command_says_what_it_found_by_its_exit_status(tmp_path):
    trajectory = fill(tmp_path / "run", range(3))
    runner = CliRunner()
    whole = runner.invoke(app, ["check", str(tmp_path)])
    assert whole.exit_code == 0 and "3 intact records" in whole.stdout
    change(trajectory[1].weights, -1)
    broken = runner.invoke(app, ["check", str(tmp_path)])
    assert broken.exit_code == 1 and "repair it with --repair" in broken.stdout
    assert "000000001" in broken.stdout
    assert runner.invoke(app, ["check", str(tmp_path), "--repair"]).exit_code == 0
    assert runner.invoke(app, ["check", str(tmp_path)]).exit_code == 0
    with pytest.raises(ArgumentError, match="folder does not exist"):
        check_folder(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArgumentError, match="does not contain a trajectory"):
        check_folder(tmp_path / "empty")
