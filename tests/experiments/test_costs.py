"""What experiments cost: measured, collected from runs, and estimated between bounds."""

import pytest

from hyperribbon.experiments import costs, find_experiment, run
from hyperribbon.experiments.costs import RunCost, collect, cost_of


def test_an_estimate_lies_between_the_largest_ratio_and_the_product(monkeypatch):
    experiment = find_experiment("ribbons/fig5")  # paper: 4 times the batches, 10 times the draws
    monkeypatch.setattr(costs, "_measured", lambda: {experiment.id: {"laptop": (3.0, 400.0)}})
    assert cost_of(experiment, "laptop") == RunCost(3.0, 3.0, 400.0, True)
    found = cost_of(experiment, "paper")
    assert (found.seconds, found.at_most, found.measured) == (30.0, 120.0, False)
    smaller = cost_of(experiment, "smoke")
    assert smaller.at_most < 3.0
    monkeypatch.setattr(costs, "_measured", dict)
    assert cost_of(experiment, "paper") is None


def test_two_measured_presets_tell_how_the_time_grows(monkeypatch):
    experiment = find_experiment("ribbons/fig5")  # paper: 40 times the work of laptop
    small, large = (experiment.config(name) for name in ("smoke", "laptop"))
    product = costs.math.prod(costs._ratios(small, large))
    known = {"smoke": (1.0 + 0.1, 300.0), "laptop": (1.0 + 0.1 * product, 400.0)}
    monkeypatch.setattr(costs, "_measured", lambda: {experiment.id: known})
    found = cost_of(experiment, "paper")
    assert found.seconds == found.at_most == pytest.approx(1.0 + 0.1 * 40 * product)
    assert not found.measured
    known["laptop"] = (1.0, 400.0)  # no longer than smoke: nothing can be told from it
    found = cost_of(experiment, "paper")
    assert (found.seconds, found.at_most) == (10.0, 40.0)


def test_costs_are_collected_from_runs_with_the_settings_of_a_preset(tmp_path):
    run("ribbons/fig3", {"samples": 20}, out=tmp_path / "other")
    assert collect([tmp_path / "other"]) == {}
    folder = run("ribbons/fig3", seeds=2, out=tmp_path / "store")
    (seconds, megabytes) = collect([tmp_path / "store"])["ribbons/fig3"]["smoke"]
    assert seconds == pytest.approx(folder.info["cpu_seconds"] / 2, abs=0.01)
    assert megabytes > 50
