"""What inspections, comparisons and recorders report is the objective that the user trains.

Numbers are held against the dense references, to which `test_objective.py` holds the operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn
from torch.utils.data import DataLoader

import hyperribbon as hr
from contract.cases import REGISTRY
from contract.dense import SHARPNESS, Dense
from contract.problems import Case, Problem, chosen

QUIET = Console(quiet=True)
LOSS = {torch.float64: 1e-6, torch.float32: 1e-5}
TREES = torch.utils._pytree
SLOW = pytest.mark.slow


def samples(problem: Problem) -> int:
    data = problem.data.dataset.tensors if isinstance(problem.data, DataLoader) else problem.data
    parts = data if isinstance(data, list) else [data]
    return sum(len(TREES.tree_leaves(part)[0]) for part in parts)


@pytest.mark.usefixtures("headlines_only")
@pytest.mark.parametrize("name", chosen())
def test_an_inspection_reports_the_objective(name):
    entry = REGISTRY[name]
    truth, problem = Dense(entry.build()), entry.build()
    found = hr.inspect(*problem.arguments(), k=1, budget=20, console=QUIET, **problem.keywords())
    loss, top = found["model.loss"], found["hessian.largest"]
    assert loss.value == pytest.approx(truth.value, rel=LOSS[entry.precision])
    assert top.value == pytest.approx(truth.sharpness(), rel=SHARPNESS[entry.precision])
    assert loss.samples == top.samples == samples(problem)


def second(entry: Case) -> Problem:
    """Return another network of the same kind: its weights are a quarter larger."""
    problem = entry.build()
    with torch.no_grad():
        for parameter in problem.model.parameters():
            parameter.mul_(1.25)
    return problem


def compared(entry: Case, change: Any = lambda problem: problem) -> tuple[Any, Dense, Dense]:
    """Return the comparison of two networks, and the references of both."""
    a, b = change(entry.build()), change(second(entry))
    parts = {"parts": ("sharpness",), "groups": 3, "console": QUIET}
    found = hr.compare(a.model, b.model, loss=a.loss, data=a.data, **parts, **a.keywords())
    return found, Dense(change(entry.build())), Dense(change(second(entry)))


@pytest.mark.parametrize("name", chosen())
def test_a_comparison_reports_the_objective(name):
    """Its sharpness, ½(λ + mean over groups along the others' directions), is at most λ.

    What is no sum over samples has no groups: that is right, or refused.
    """
    entry = REGISTRY[name]
    try:
        found, *truths = compared(entry)
    except hr.ArgumentError:
        if not entry.is_whole:
            raise
    else:
        check_compared(entry, found, truths)


WHOLE = [name for name, entry in REGISTRY.items() if entry.is_whole and name != "nt_xent"]


@pytest.mark.parametrize("name", ["nt_xent", *(pytest.param(n, marks=SLOW) for n in WHOLE)])
def test_inspections_of_what_has_no_groups_are_compared(name):
    entry = REGISTRY[name]
    problems, options = (entry.build(), second(entry)), {"k": 1, "budget": 20, "console": QUIET}
    inspections = [hr.inspect(*p.arguments(), **options, **p.keywords()) for p in problems]
    check_compared(entry, hr.compare(*inspections), [Dense(problem) for problem in problems])


def check_compared(entry: Case, found: Any, truths: list[Dense]) -> None:
    for side, truth in zip("ab", truths, strict=True):
        loss, top = (getattr(found[key], side) for key in ("loss", "sharpness"))
        assert loss == pytest.approx(truth.value, rel=LOSS[entry.precision])
        assert top <= truth.sharpness() * (1 + SHARPNESS[entry.precision])


def repeated(problem: Problem) -> Problem:
    """Return the problem on its first sample, twelve times: all groups say the same."""
    problem.data = TREES.tree_map(
        lambda leaf: leaf[:1].repeat(12, *[1] * (leaf.ndim - 1)), problem.data
    )
    return problem


def is_repeatable(entry: Case) -> bool:
    return not entry.is_whole and "batches" not in entry.name


SINGLE = [case for case in chosen() if is_repeatable(REGISTRY[case.values[0]])]


@pytest.mark.parametrize("name", SINGLE)
def test_a_comparison_on_equal_samples_has_the_sharpness_itself(name):
    """To the solver's residual r = 1e-3 λ: an eigenvalue is off by r, and by r² over the gap."""
    entry = REGISTRY[name]
    found, *truths = compared(entry, repeated)
    for side, truth in zip("ab", truths, strict=True):
        *_, next_one, top = torch.linalg.eigvalsh(truth.hessian.double()).tolist()
        residual = 1e-3 * top
        solved = min(residual, residual**2 / max(top - next_one, 1e-300))
        tolerance = SHARPNESS[entry.precision] * top + solved
        assert getattr(found["sharpness"], side) == pytest.approx(top, abs=tolerance)


def as_trained(problem: Problem) -> Problem:
    """Return the problem with batch statistics in its normalisation layers and dropout off."""
    problem.mode = None
    problem.model.eval()
    for module in problem.model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.train()
    return problem


def recorded(
    entry: Case, folder: Any, measure: Any, meant: Callable[[Problem], Problem]
) -> Iterator[tuple[float, float, Dense]]:
    """Record two steps of a bare loop; yield the sharpness, its error, and what it is."""
    problem = entry.build()
    options = {"measure": measure, "loss": problem.loss, "data": problem.data}
    recorder = hr.Recorder(folder, "1it", **options, max_overhead=np.inf)
    optimizer = torch.optim.SGD(problem.model.parameters(), lr=0.05)
    recorder.attach(problem.model, optimizer)
    truths = [Dense(meant(entry.build()))]
    for _ in range(2):
        if problem.mode is not None:
            problem.model.train()
        batches = [problem.data] if problem.batches is None else problem.batches
        value = problem.reference(problem.model, batches[0])
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        recorder.step(value.detach())
        twin = entry.build()
        twin.model.load_state_dict(problem.model.state_dict())
        truths.append(Dense(meant(twin)))
    recorder.close()
    trajectory = hr.Trajectory.open(folder)
    found, errors = (trajectory.metric(key) for key in ("sharpness", "sharpness.error"))
    return zip(found, errors, truths, strict=True)


def check_recorded(entry: Case, *how: Any) -> None:
    for value, error, truth in recorded(entry, *how):
        expected = truth.sharpness()
        assert error <= 0.02 * expected
        assert abs(value - expected) <= error + SHARPNESS[entry.precision] * expected


@pytest.mark.parametrize("name", chosen())
def test_a_recorder_writes_down_the_sharpness_of_what_is_trained(name, tmp_path):
    """By its name it is that of the mode in which one trains, but for dropout, which is off."""
    entry = REGISTRY[name]
    meant = as_trained if entry.build().mode != "train" else lambda problem: problem
    check_recorded(entry, tmp_path, "sharpness", meant)


@pytest.mark.parametrize("name", ["batchnorm_cnn", "batchnorm_frozen_by_hand"])
def test_a_recorder_writes_down_the_sharpness_of_the_mode_it_is_told(name, tmp_path):
    entry = REGISTRY[name]
    curvature = hr.inspection.Curvature(mode=entry.build().mode)
    measure = hr.recording.Measurement("sharpness", curvature)
    check_recorded(entry, tmp_path, measure, lambda problem: problem)


@pytest.mark.usefixtures("headlines_only")
def test_log_probabilities_are_inspected_as_their_logits():
    """NLLLoss is linear in log-probabilities: of these outputs the Gauss-Newton matrix is zero."""
    torch.manual_seed(0)
    logits = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    inputs, labels = torch.randn(24, 5).double(), torch.arange(24) % 3
    labels[:4] = -1
    options = {"weight": torch.tensor([1.0, 0.5, 2.0]).double(), "ignore_index": -1}
    data, kwargs = (inputs, labels), {"budget": 20, "k": 3, "console": QUIET}
    model = nn.Sequential(logits, nn.LogSoftmax(-1))
    ours = hr.inspect(model, nn.NLLLoss(**options), data, **kwargs)
    expected = hr.inspect(logits, nn.CrossEntropyLoss(**options), data, **kwargs)
    for key in ("model.loss", "hessian.largest", "gauss_newton.trace", "gauss_newton.largest"):
        assert ours[key].value == pytest.approx(expected[key].value, rel=1e-6)
    found = hr.compare_with_theory(model, nn.NLLLoss(**options), data)
    theory = hr.compare_with_theory(logits, nn.CrossEntropyLoss(**options), data)
    for ours, other in zip(found.assumptions, theory.assumptions, strict=True):
        assert (ours.name, ours.holds) == (other.name, other.holds)
        assert ours.effects == pytest.approx(other.effects, rel=1e-6)
