"""Planning, budgets, interruption, storage and hostile input."""

import copy
import io
import json
import time
from dataclasses import replace

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from torch import nn
from torch.utils.data import IterableDataset

from hyperribbon.application.inspection import inspect
from hyperribbon.application.inspection.copies import as_source
from hyperribbon.application.inspection.engine import inspect as inspecting
from hyperribbon.application.inspection.engine.clock import OutOfTimeError
from hyperribbon.application.inspection.engine.inspect import MEASUREMENTS
from hyperribbon.application.inspection.engine.subject import Subject
from hyperribbon.application.inspection.evaluating import loss_at
from hyperribbon.core import ArgumentError
from hyperribbon.core.store import load_tree
from hyperribbon.manifold.predictions import as_probabilities
from hyperribbon.papers.training import mlp, train
from hyperribbon.prediction.update_rules import update_rule
from hyperribbon.recording import Recorder


@pytest.fixture(scope="module")
def wide():
    """A network whose Hessian products take milliseconds, and 4,000 samples."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(4000, 100, generator=generator)
    return mlp((100, 200, 10)), nn.CrossEntropyLoss(), (inputs, torch.arange(4000) % 10)


def test_the_plan_is_shown(trained):
    model, loss, data, _ = trained
    console = Console(record=True, width=120, file=io.StringIO())
    inspect(model, loss, data, k=3, budget=10, console=console)
    text = console.export_text()
    assert "Inspecting Sequential on 240 samples" in text
    assert "Gradient noise" in text


def test_a_small_budget_is_kept_by_using_fewer_samples_and_saying_so(wide, quiet):
    model, loss, data = wide
    began = time.monotonic()
    found = inspect(Slow(model, 0.02), loss, data, k=20, budget=4, console=quiet)
    assert time.monotonic() - began < 3 * 4
    assert "drawn from 4,000" in found.where
    assert found.missing


class Slow(nn.Module):
    """The same function, slower by a time for every sample."""

    def __init__(self, model, seconds):
        super().__init__()
        self.model, self.seconds = model, seconds

    def forward(self, x):
        time.sleep(self.seconds * len(x) / 64)
        return self.model(x)


def test_no_time_at_all_still_gives_the_loss(wide, quiet):
    found = inspect(*wide, budget=1e-300, console=quiet)
    assert found["model.loss"].value > 0


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"initial": {"a": 1}}, "not a state dict"),
        ({"initial": {"a": torch.ones(2)}}, "no weight of these names"),
    ],
)
def test_requests_that_cannot_be_met_are_explained(wide, quiet, options, match):
    with pytest.raises(ArgumentError, match=match):
        inspect(*wide, **({"budget": 5, "console": quiet} | options))


NEEDY = ("noise", "subnetworks", "fisher")
"""Measurements that say little on eight samples."""


@pytest.mark.parametrize("tick", [0.0, 0.02, 0.1])
def test_every_number_says_on_how_many_samples_it_is(trained, quiet, monkeypatch, tick):
    """On clocks that stand still, and that run on whenever they are looked at."""
    model, loss, data, start = trained
    now = [0.0]

    def look():
        now[0] += tick
        return now[0]

    monkeypatch.setattr(time, "monotonic", look)
    found = inspect(model, loss, data, start, k=3, budget=20, optimizer=0.1, console=quiet)
    bare = {"model.parameters", "model.samples", "stability.limit", "stability.curvature"}
    bare.add("stability.own_rate")
    assert {quantity.key for quantity in found if not quantity.samples} <= bare
    for part in found.parts.values():
        if part.name in NEEDY and part.charts:
            assert {quantity.samples for quantity in part.quantities} <= {64, 240}
    if tick == 0.1:
        assert "subnetworks" not in found.parts
        left = next(o for o in found.outcomes if o.step == "Sub-networks")
        assert left.status != "done"
        assert left.reason


def test_an_obstacle_that_fails_is_a_reason(trained, quiet, monkeypatch):
    model, loss, data, _ = trained

    def broken(level, notebook):
        raise IndexError("tuple index out of range")

    monkeypatch.setattr(inspecting, "MEASUREMENTS", _with("noise", obstacle=broken))
    found = inspect(model, loss, data, k=3, budget=20, console=quiet)
    outcomes = {outcome.step: outcome for outcome in found.outcomes}
    assert outcomes["Gradient noise"].status == "omitted"
    assert outcomes["Gradient noise"].reason == "it could not be planned: tuple index out of range"
    assert outcomes["Slices of the loss"].status == "done"


def _with(name, **changes):
    """Return the measurements of an inspection, one of them changed."""
    return tuple(replace(m, **changes) if m.name == name else m for m in MEASUREMENTS)


def test_an_interruption_keeps_what_is_done(trained, quiet, monkeypatch):
    model, loss, data, _ = trained

    def interrupted(level, notebook):
        raise KeyboardInterrupt

    first = {"run": interrupted, "order": 8.0}
    monkeypatch.setattr(inspecting, "MEASUREMENTS", _with("noise", **first))
    found = inspect(model, loss, data, k=3, budget=20, console=quiet)
    assert set(found.parts) == {"basics", "hessian", "gauss_newton", "layer_traces", "noise"}
    assert not found.is_complete
    assert {o.step: o.status for o in found.outcomes}["Gradient noise"] == "interrupted"


def test_time_that_is_up_stops_the_step_under_way_and_keeps_what_is_done(
    trained, quiet, monkeypatch
):
    model, loss, data, _ = trained

    def endless(level, notebook):
        while True:
            level.subject.hessian @ level.subject.vector

    monkeypatch.setattr(inspecting, "MEASUREMENTS", _with("noise", run=endless))
    began = time.monotonic()
    found = inspect(model, loss, data, k=3, budget=5, console=quiet)
    assert time.monotonic() - began < 3 * 5
    assert {"basics", "hessian", "gauss_newton", "layer_traces"} <= set(found.parts)
    statuses = {outcome.step: outcome.status for outcome in found.outcomes}
    assert statuses["Gradient noise"] == "stopped"
    assert found.is_complete
    monkeypatch.setenv("COLUMNS", "150")
    assert "Gradient noise: stopped, time budget exceeded" in found.summary()


def test_nothing_begins_when_the_time_is_up(trained):
    model, loss, data, _ = trained
    subject = Subject(model, loss, data)
    _ = subject.vector, subject.hessian
    with subject.clock.at_most(0.0):
        with pytest.raises(OutOfTimeError):
            subject.hessian @ subject.vector
        with pytest.raises(OutOfTimeError):
            loss_at(subject, subject.vector)
    subject.hessian @ subject.vector


def test_a_step_that_fails_is_named_and_the_others_go_on(trained, quiet, monkeypatch):
    model, loss, data, _ = trained

    def broken(level, notebook):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(inspecting, "MEASUREMENTS", _with("noise", run=broken))
    found = inspect(model, loss, data, k=3, budget=20, console=quiet)
    failed = [o for o in found.outcomes if o.status == "failed"]
    assert [o.reason for o in failed] == ["out of luck"]
    assert "slices" in found.parts


def test_what_is_saved_can_be_read_by_other_programs(trained, quiet, tmp_path):
    model, loss, data, initial = trained
    found = inspect(model, loss, data, initial=initial, k=4, budget=20, console=quiet)
    folder = found.save(tmp_path / "run")
    table = pd.read_csv(folder / "tables" / "quantities.csv")
    assert list(table["key"]) == list(found.table()["key"])
    for part in json.loads((folder / "inspection.json").read_text())["parts"]:
        for chart in part["charts"]:
            assert "<svg" in (folder / "figures" / f"{chart['name']}.svg").read_text()
        for file in part["tables"].values():
            assert len(pd.read_csv(folder / "tables" / file))
    arrays = load_tree(folder / "result.safetensors")
    assert len(arrays["hessian"]["eigenvalues"]) == 4


def test_the_recorded_path_is_embedded(trained, quiet, tmp_path):
    _, loss, data, _ = trained
    model = mlp((6, 12, 8, 3), "tanh", seed=2)
    recorder = Recorder(tmp_path, every="1ep", probe=data[0][:50])
    train(model, loss, data, epochs=12, lr=0.1, batch_size=32, recorder=recorder)
    recorder.close()
    found = inspect(model, loss, data, trajectory=tmp_path, k=3, budget=20, console=quiet)
    assert found.parts["path"].arrays["inpca"].shape == (13, 3)
    assert 0 < found["manifold.weights"].value <= 1
    # One training run is nearly a curve: three dimensions hold nearly all of it.
    assert found["manifold.stress"].value < 0.2
    assert any("fluctuation mode" in q.name for q in found)


def test_probabilities_are_recognised_in_every_form():
    scores = torch.randn(5, 4, 3, dtype=torch.float64)
    expected = scores.softmax(-1).numpy()
    for form in (scores, scores.log_softmax(-1), scores.softmax(-1)):
        assert abs(as_probabilities(form.numpy()) - expected).max() < 1e-12


class _Stream(IterableDataset):
    def __iter__(self):
        for i in range(200):
            yield torch.full((3,), float(i)), i % 2


@given(st.integers(1, 60), st.integers(0, 3))
@settings(max_examples=20, deadline=None)
def test_fewer_samples_are_distinct_members_in_order(number, seed):
    data = (torch.arange(50.0), torch.arange(50))
    ((inputs, targets),) = as_source(nn.Linear(1, 1), data).few(number, seed).batches()
    assert len(inputs) == min(number, 50)
    assert torch.equal(inputs, targets.float())
    assert (targets.diff() > 0).all()


def test_groups_are_disjoint_and_streams_give_their_first_batches():
    groups = as_source(nn.Linear(1, 1), (torch.arange(50),)).groups(8, 0)
    members = torch.cat([inputs for group in groups for (inputs,) in group.batches()])
    assert len(members.unique()) == len(members) == 48
    stream = as_source(nn.Linear(1, 1), _Stream())
    assert stream.total is None
    assert [len(inputs) for inputs, _ in stream.few(100, 0).batches()] == [200]


@pytest.mark.parametrize(
    ("arguments", "limit"),
    [
        ({"momentum": 0.0}, 2.0),
        ({"momentum": 0.9}, 3.8),
        ({"momentum": 0.9, "nesterov": True}, 3.8 / 2.8),
        ({"momentum": 0.5, "dampening": 0.5}, 6.0),
    ],
)
def test_sgd_diverges_just_above_the_stability_limit_and_not_below(arguments, limit):
    model = nn.Linear(1, 1, bias=False)
    rule = update_rule(torch.optim.SGD(model.parameters(), lr=0.1, **arguments), model)
    assert rule.limit == pytest.approx(limit)
    for factor, grows in ((0.97, False), (1.03, True)):
        curvature = factor * rule.limit / 0.1
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **arguments)
        with torch.no_grad():
            model.weight.fill_(1.0)
        for _ in range(300):
            optimizer.zero_grad()
            (curvature / 2 * model.weight**2).sum().backward()
            optimizer.step()
        assert (not float(model.weight.detach().abs()) < 1) is grows


def test_adam_diverges_just_above_its_preconditioned_limit():
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-12)
    with pytest.raises(ArgumentError, match="taken no step"):
        update_rule(optimizer, model)
    for factor, grows in ((0.95, False), (1.05, True)):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.9, 1.0 - 1e-16))
        model.weight.grad = torch.ones(1, 1)
        optimizer.step()
        rule = update_rule(optimizer, model)
        curvature = factor * rule.limit / float(rule.rates["weight"])
        state = optimizer.state[model.weight]
        with torch.no_grad():
            model.weight.fill_(1.0)
        state["exp_avg"].zero_()
        size = float(rule.rates["weight"])
        weight, average = 1.0, 0.0
        for _ in range(600):
            average = 0.9 * average + 0.1 * curvature * weight
            weight -= size * average
        assert (abs(weight) > 1) is grows


def test_rmsprop_diverges_just_above_its_preconditioned_limit():
    options = {"lr": 0.01, "momentum": 0.5, "alpha": 1.0, "eps": 0.0}
    for factor, grows in ((0.95, False), (1.05, True)):
        model = nn.Linear(1, 1, bias=False)
        optimizer = torch.optim.RMSprop(model.parameters(), **options)
        model.weight.grad = torch.ones(1, 1)
        optimizer.step()
        state = optimizer.state[model.weight]
        state["square_avg"].fill_(4.0)  # with alpha = 1 it stays so
        state["momentum_buffer"].zero_()
        rule = update_rule(optimizer, model)
        assert float(rule.rates["weight"]) == pytest.approx(0.005)
        curvature = factor * rule.limit / 0.005
        with torch.no_grad():
            model.weight.fill_(1.0)
        for _ in range(300):
            optimizer.zero_grad()
            (curvature / 2 * model.weight**2).sum().backward()
            optimizer.step()
        assert (float(model.weight.detach().abs()) > 1) is grows


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.Adagrad])
def test_an_optimiser_of_unknown_limit_leaves_the_rest_of_an_inspection(kind, trained, quiet):
    model, loss, data, _ = trained
    few = data[0][:64], data[1][:64]
    optimizer = kind(model.parameters())
    found = inspect(model, loss, few, optimizer=optimizer, k=1, budget=20, console=quiet)
    assert "hessian.largest" in set(found.table()["key"])
    (step,) = [o for o in found.outcomes if o.step.endswith("stability limit")]
    assert step.status == "omitted" and step.reason.startswith(kind.__name__)


def test_mistakes_are_named(trained, quiet):
    model, loss, data, _ = trained
    with pytest.raises(ArgumentError, match="expected a torch"):
        inspect("model", loss, data, console=quiet)
    with pytest.raises(ArgumentError, match="budget"):
        inspect(model, loss, data, budget=-1, console=quiet)
    with pytest.raises(ArgumentError, match="updates no parameter"):
        other = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
        inspect(model, loss, data, optimizer=other, console=quiet)
    with pytest.raises(ArgumentError, match="out of range"):
        inspect(model, loss, (data[0], data[1] + 5), console=quiet)
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken.layer1.weight[0, 0] = float("nan")
    with pytest.raises(ArgumentError, match="not a finite number"):
        inspect(broken, loss, data, console=quiet)
