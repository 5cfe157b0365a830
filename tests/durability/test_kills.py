"""Work that is killed, or runs out of disk, loses nothing it reported and ends the same."""

import kill
import pytest


def run(in_fork, folder, seed, seconds, kills):
    """Disturb tasks as often as is said: kills and full disks by task."""
    process = in_fork(disturb, folder, seed, kills, seconds=seconds)
    process.join()
    assert process.exitcode == 0


def disturb(folder, seed, kills):
    kill.do_not_sync()
    for task, (count, disks) in kills.items():
        kill.main(folder, seed, task, count, disks)


def test_kills_and_full_disks(tmp_path, in_fork):
    short = {
        "sweep/short": (6, 1),
        "find_ticket/short": (3, 0),
        "reproduce": (1, 0),
        "compare": (4, 0),
    }
    ensembles = {"ensemble": (2, 0), "ensemble/together": (2, 1)}
    recordings = {"record/short": (6, 1), "record/wait": (3, 1)}
    run(in_fork, tmp_path, 7, 600, recordings | ensembles | short)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "kills"),
    [("record", 400), ("sweep", 300), ("find_ticket", 150), ("reproduce", 150), ("compare", 150)],
)
def test_a_thousand_kills(tmp_path, in_fork, task, kills):
    run(in_fork, tmp_path, 11, 3000, {task: (kills, 8)})
