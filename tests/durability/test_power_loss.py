"""The power fails at every fsync of a run: nothing that was reported as written is lost."""

import random
import shutil

import pytest
from power import Disk
from tasks import assert_reported_is_there, content, record, reproduce, sweep

SHORT = {
    "record": lambda folder, report: record(folder, report, epochs=1, every="2it"),
    "sweep": lambda folder, report: sweep(folder, report, points=4),
    "reproduce": reproduce,
}


def lose_power(task, tmp_path, draws, stride=1):
    """Run a task, cut the power at every moment, look at what is left and go on from there."""
    work, losses = SHORT[task], 0
    root = tmp_path / "disk"
    root.mkdir()
    with Disk(root) as disk:
        work(root / "run", disk.report)
        whole = content(task, root / "run")
        assert len(disk.moments) > 15
        for number, moment in enumerate(disk.moments[::stride]):
            for draw in range(draws):
                after = tmp_path / "after"
                rng = random.Random(number * draws + draw) if draw else None
                disk.after_power_loss(moment, after, rng)
                if moment.reported is not None:
                    assert_reported_is_there(task, after / "run", whole, moment.reported)
                elif task != "record" and (after / "run").exists():
                    assert_reported_is_there(task, after / "run", whole, 0)
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr("os.fsync", disk._fsync)  # nobody watches this part
                    work(after / "run", lambda number: None)
                assert content(task, after / "run") == whole
                shutil.rmtree(after)
                losses += 1
    return losses


@pytest.mark.parametrize("task", ["record", "sweep"])
def test_power_loss_costs_nothing_that_was_reported(tmp_path, task):
    assert lose_power(task, tmp_path, draws=2, stride=2) > 15


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "draws", "stride"), [("record", 12, 1), ("sweep", 12, 1), ("reproduce", 2, 2)]
)
def test_power_loss_at_every_moment(tmp_path, task, draws, stride):
    assert lose_power(task, tmp_path, draws, stride) > 30
