"""Work that is stopped before any one of its file operations ends bit for bit the same."""

import os
import random
import shutil
import sys

import pytest
import torch
from tasks import TASKS, content
from torch import nn

import hyperribbon as hr
from hyperribbon.core.store import record_log
from hyperribbon.papers.training import mlp

EVENTS = {"os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate"}


class Operations:
    """Counts operations on the files of a folder, syncs too; at the chosen one the process ends."""

    def __init__(self, folder, last):
        self.folder, self.last, self.count = str(folder), last, 0
        sys.addaudithook(self.watch)
        os.fsync = lambda handle: self.note(os.readlink(f"/proc/self/fd/{handle}"))
        pwrite = os.pwrite

        def write(handle, data, place):
            self.note(os.readlink(f"/proc/self/fd/{handle}"))
            return pwrite(handle, data, place)

        os.pwrite = write

    def watch(self, event, arguments):
        writes = event == "open" and arguments[2] & (os.O_CREAT | os.O_TRUNC)
        if writes or event in EVENTS:
            self.note(str(arguments[0]))

    def note(self, path):
        if path.startswith(self.folder):
            if self.count == self.last:
                os._exit(9)
            self.count += 1


def work(task, folder, log, last):
    """Do a task, in a process of its own, up to an operation; leave the number of all of them."""
    operations = Operations(folder, last)
    TASKS[task](folder, lambda number: None)
    log.write_text(str(operations.count))


def stop_everywhere(in_fork, place, task, few=None):
    """Stop a task before some of its operations (None: all); return how many there were."""
    whole, log, run = place / "whole", place / "log", place / "run"
    process = in_fork(work, task, whole, log, -1)
    process.join()
    expected, count = content(task, whole), int(log.read_text())
    chosen = range(count) if few is None else sorted(random.Random(task).sample(range(count), few))
    for last in chosen:
        for stop in (last, -1):
            process = in_fork(work, task, run, log, stop)
            process.join()
            assert process.exitcode == (9 if stop >= 0 else 0), (last, stop)
        assert content(task, run) == expected, f"stopped before operation {last} of {count}"
        shutil.rmtree(run)
    return count


@pytest.mark.slow
@pytest.mark.parametrize(
    "task", ["ensemble", "ensemble/together", "record/wait", "sweep/short", "find_ticket/short"]
)
def test_a_stop_before_any_operation_costs_nothing(tmp_path, in_fork, task):
    assert stop_everywhere(in_fork, tmp_path, task) > 50


def test_a_stop_between_a_record_and_its_count_costs_nothing(tmp_path, monkeypatch):
    """Where it is the last record, nothing but its count is left to be written."""
    x, write = torch.randn(8, 3), record_log.write_count

    def train(folder, last=-1):
        left = [last]

        def stop(*arguments):
            left[0] -= 1
            if left[0] == -1:
                raise KeyboardInterrupt
            write(*arguments)

        monkeypatch.setattr(record_log, "write_count", stop)
        settings = {"seeds": [0], "epochs": 1, "lr": 0.1, "batch_size": 4, "together": True}
        hr.train_ensemble(
            lambda seed: mlp((3, 2), seed=seed), nn.MSELoss(), (x, x[:, :2]), every="1it",
            folder=folder, **settings,
        )  # fmt: skip

    train(tmp_path / "whole", -2)
    expected, stops = content("ensemble", tmp_path / "whole"), 0
    while True:
        try:
            train(tmp_path / str(stops), stops)
            break
        except KeyboardInterrupt:
            train(tmp_path / str(stops), -2)
            assert content("ensemble", tmp_path / str(stops)) == expected
            stops += 1
    assert stops >= 3
