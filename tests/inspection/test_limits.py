"""Hard limits of an inspection: memory of every part, time on every route."""

import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from torch import nn

import hyperribbon as hr
from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.trajectory import Trajectory
from hyperribbon.inspection import Budget
from hyperribbon.inspection.clock import Clock, OutOfTimeError
from hyperribbon.inspection.comparing import embed_runs
from hyperribbon.inspection.notebook import Notebook
from hyperribbon.inspection.path import path_part
from hyperribbon.inspection.subject import Subject
from hyperribbon.training import mlp


@pytest.fixture
def subject():
    data = torch.randn(64, 6), torch.randint(0, 3, (64,))
    return Subject(mlp((6, 8, 3), "tanh", seed=0), nn.CrossEntropyLoss(), data, memory=1e8)


ROUTES = {
    "products": lambda s: s.hessian @ s.vector,
    "Gauss-Newton products": lambda s: s.ggn @ s.vector,
    "Gram matrix": lambda s: s.ggn.gram(),
    "diagonal": lambda s: s.ggn.diagonal(),
    "trace": lambda s: s.ggn.trace(),
    "dense": lambda s: s.hessian.to_dense(),
    "gradient": lambda s: s.gradient,
    "loss": lambda s: s.hessian.risk.value(),
    "covariance": lambda s: s.covariance.trace(),
    "Fisher": lambda s: s.fisher("categorical").trace(),
    "layers": lambda s: next(iter(s.hessian.layers().values())).to_dense(),
}


@pytest.mark.parametrize("route", ROUTES)
def test_no_route_begins_when_the_time_is_up(subject, route):
    _ = subject.hessian, subject.ggn, subject.covariance, subject.vector
    subject.clock.end = time.monotonic() - 1
    with pytest.raises(OutOfTimeError):
        ROUTES[route](subject)


def test_operators_share_their_graphs(subject):
    assert subject.hessian.risk is subject.ggn.risk is subject.covariance.risk
    assert subject.risk.memory == 0.25e8


def test_groups_have_a_share_of_the_memory_and_are_not_kept(subject):
    for group in subject.groups(4, 0):
        assert group.memory == 0.125e8
        assert group.risk is not subject.risk


def test_few_eigenvectors_are_kept(subject):
    notebook = Notebook(k=20, seed=0, clock=Clock(), memory=16 * 4 * 83 * 5)
    found = hr.eigsh(subject.hessian, 12)
    kept = notebook.keep("hessian", found)
    assert kept.eigenvectors.shape == (83, 5)
    assert len(kept.eigenvalues) == 12
    assert kept.eigenvectors.untyped_storage().nbytes() == 83 * 5 * 4


def test_a_budget_without_memory_takes_half_of_what_is_free():
    assert Budget.of(5).memory > 0
    assert Budget.of(Budget(5, 1e8)).memory == 1e8


GROWTH = """
import gc, sys, threading, time, torch
from rich.console import Console
from torch import nn
from hyperribbon.inspection import Budget, inspect
from hyperribbon.training import mlp

def used():
    return int(open("/proc/self/status").read().split("VmRSS:")[1].split()[0]) / 1000

def run(widths, samples, budget):
    model = mlp(widths, "tanh", seed=0)
    start = {n: t + 0.01 for n, t in model.state_dict().items()}
    data = torch.randn(samples, widths[0]), torch.randint(0, widths[-1], (samples,))
    gc.collect()
    base, peak, done = used(), [0.0], []
    def watch():
        while not done:
            peak[0] = max(peak[0], used() - base)
            time.sleep(0.005)
    thread = threading.Thread(target=watch)
    thread.start()
    began = time.monotonic()
    inspect(model, nn.CrossEntropyLoss(), data, start, k=50, budget=budget, optimizer=0.1,
            batch_size=32, console=Console(quiet=True))
    done.append(1)
    thread.join()
    return peak[0], time.monotonic() - began

torch.set_num_threads(1)
run((6, 8, 3), 64, 10)
peak, seconds = run((784, 300, 300, 10), 2000, Budget(60, 200e6))
print(peak, seconds)
"""


@pytest.mark.slow
def test_the_memory_of_every_part_stays_below_the_budget():
    """In a process of its own: 200 MB for a network of 330,000 weights, 60 s."""
    found = subprocess.run(
        [sys.executable, "-c", GROWTH], capture_output=True, text=True, check=True, timeout=600
    )
    peak, seconds = map(float, found.stdout.split())
    assert peak < 200
    assert seconds < 1.2 * 60


def test_a_training_that_never_moved_has_no_path(subject, tmp_path):
    trajectory = Trajectory.create(tmp_path / "run")
    scores = np.random.default_rng(0).standard_normal((7, 3))
    for step in range(5):
        trajectory.append(step, predictions=scores)
    assert embed_runs([trajectory]) is None
    with pytest.raises(ArgumentError, match="never changed"):
        path_part(subject, Notebook(k=2, seed=0, trajectory=trajectory), 5)
