"""What experiments cost: measured, collected from runs, and estimated between bounds."""

import math
import os
import signal
import time
from pathlib import Path

import pytest

from hyperribbon.papers.experiments import costs, find_experiment, run
from hyperribbon.papers.experiments.costs import RunCost, collect, cost_of
from hyperribbon.papers.experiments.workers import SerialWorkers


@pytest.fixture
def experiment():
    return find_experiment("ribbons/fig5")  # paper: 4 times the batches, 10 times the draws


@pytest.fixture
def known(monkeypatch, experiment):
    """Return a table to fill with what is measured, by preset."""
    table = {}
    monkeypatch.setattr(costs, "_read_costs", lambda: {experiment.id: table} if table else {})
    return table


def test_a_measured_preset_is_told_as_it_is(experiment, known):
    assert cost_of(experiment, "laptop") is None
    known["laptop"] = (3.0, 400.0)
    assert cost_of(experiment, "laptop") == RunCost(3.0, 3.0, 400.0, True)


def test_one_measured_preset_tells_a_bound_only(experiment, known):
    known["laptop"] = (3.0, 400.0)
    assert cost_of(experiment, "paper") == RunCost(3.0, math.inf, 400.0, False)
    assert cost_of(experiment, "smoke") == RunCost(0.0, 3.0, 400.0, False)


def test_two_measured_presets_tell_how_the_work_grows(experiment, known):
    known |= {"smoke": (1.0, 300.0), "laptop": (3.0, 400.0)}
    assert cost_of(experiment, "paper") == RunCost(1 + 2 * 10, 1 + 2 * 40, 400.0, False)
    known["laptop"] = (1.0, 400.0)  # no longer than smoke: nothing can be told from it
    assert cost_of(experiment, "paper") == RunCost(1.0, math.inf, 400.0, False)


def test_a_preset_between_two_measured_ones_takes_a_time_between_theirs(experiment, known):
    known |= {"smoke": (1.0, 300.0), "paper": (90.0, 500.0)}
    assert cost_of(experiment, "laptop") == RunCost(1.0, 90.0, 500.0, False)


def test_costs_are_collected_from_runs_with_the_settings_of_a_preset(tmp_path):
    run("ribbons/fig3", {"samples": 20}, out=tmp_path / "other")
    assert collect([tmp_path / "other"]) == {}
    folder = run("ribbons/fig3", seeds=2, out=tmp_path / "store")
    (seconds, megabytes) = collect([tmp_path / "store"])["ribbons/fig3"]["smoke"]
    assert seconds == pytest.approx(folder.info["cpu_seconds"] / 2, abs=0.01)
    assert megabytes > 50


def test_a_run_on_several_processes_does_not_tell_what_it_cost(tmp_path):
    class Elsewhere:
        def run(self, function, jobs, lost=None):
            return SerialWorkers().run(function, jobs, lost)

    run("ribbons/fig3", out=tmp_path, workers=Elsewhere())
    assert collect([tmp_path]) == {}


def test_a_run_adds_up_what_its_processes_took(tmp_path, monkeypatch):
    """One is killed after a while, and its time is that of the next heartbeat at the most."""
    monkeypatch.setattr(costs, "_HEARTBEAT", 0.05)
    file = tmp_path / "cost.json"

    def spend(seconds):
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass

    for _ in range(2):
        if (pid := os.fork()) == 0:
            with costs.Meter(file):
                spend(0.3)
                os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(pid, 0)
    with costs.Meter(file) as meter:
        spend(0.1)
        meter.add(os.getpid(), 5.0)  # counted already
        meter.add(-1, 2.0)
        found = meter.cost()
    assert 2.1 + 2 * 0.1 < found["cpu_seconds"] <= 2.9
    assert found["seconds"] > 0.3 and found["peak_megabytes"] > 10


def test_what_a_stored_run_took_is_told_and_not_estimated():
    stored = collect([Path(__file__).parents[2] / "docs" / "runs"])
    assert len(stored) > 30
    for id, presets in stored.items():
        assert all(cost_of(find_experiment(id), preset).measured for preset in presets), id
