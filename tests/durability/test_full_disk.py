"""Records that gathered while the disk filled up are kept as far as they fit."""

import errno

import numpy as np
import pytest
import torch

from hyperribbon.core.store import record_log
from hyperribbon.recording.records import Draft
from hyperribbon.recording.writer import PendingRecord, RecordWriter


def taken(step):
    draft = Draft(step, weights={"w": torch.ones(3)}, metrics={"loss": np.array(1.0)})
    return PendingRecord(draft, b"state")


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The files of a run on a disk whose blocks have room for five records."""
    files = RecordWriter(tmp_path / "run")
    files.start({})
    files._write([taken(0)])
    (block,) = record_log.block_files(tmp_path / "run" / "records")
    room, write = 5 * block.stat().st_size + 20, record_log._write_at

    def limited(handle, start, data):
        if start + len(data) > room:
            write(handle, start, data[: room - start])
            raise OSError(errno.ENOSPC, "No space left on device")
        write(handle, start, data)

    monkeypatch.setattr(record_log, "_write_at", limited)
    yield files
    files.close()


def test_a_gathered_batch_is_kept_as_far_as_it_fits(files):
    """Kept as a whole or not at all, it would leave room for later ones, and so a gap."""
    with pytest.raises(OSError, match="No space"):
        files._write([taken(step) for step in range(1, 9)])
    assert files.trajectory.steps.tolist() == [0, 1, 2, 3, 4]
    assert files.newest_state() == 4
    for step in (9, 10):
        with pytest.raises(OSError, match="No space"):
            files._write([taken(step)])
    assert files.trajectory.steps.tolist() == [0, 1, 2, 3, 4]
    assert files.written == 4


def test_a_batch_that_fits_is_written_once(files, monkeypatch):
    calls = []
    extend = files.trajectory.extend
    monkeypatch.setattr(files.trajectory, "extend", lambda drafts: calls.append(extend(drafts)))
    files._write([taken(step) for step in range(1, 5)])
    assert len(calls) == 1
    assert files.trajectory.steps.tolist() == [0, 1, 2, 3, 4]
