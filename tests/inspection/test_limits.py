"""Hard limits of an inspection: memory of every part, time on every route."""

import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from torch import nn

import hyperribbon as hr
from hyperribbon.application.inspection import Budget
from hyperribbon.application.inspection.engine.clock import Clock, OutOfTimeError
from hyperribbon.application.inspection.engine.notebook import Level, Notebook
from hyperribbon.application.inspection.engine.subject import Subject
from hyperribbon.application.inspection.joint_embedding import embed_runs
from hyperribbon.application.inspection.parts.training_path import path_part
from hyperribbon.core.checks import ArgumentError
from hyperribbon.papers.training import mlp
from hyperribbon.recording.trajectory import Trajectory


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
        assert group.memory == 0.5e8
        assert group.risk is not subject.risk


def test_few_eigenvectors_are_kept(subject):
    notebook = Notebook(k=20, seed=0, clock=Clock(), memory=16 * 4 * 83 * 5)
    found = hr.eigsh(subject.hessian, 12)
    kept = notebook.trim(found)
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
from hyperribbon.application.inspection import Budget, inspect
from hyperribbon.papers.training import mlp

class Recurrent(nn.Module):
    def __init__(self, inputs, hidden):
        super().__init__()
        self.layer, self.head = nn.LSTM(inputs, hidden, batch_first=True), nn.Linear(hidden, 10)
    def forward(self, x):
        return self.head(self.layer(x)[0][:, -1])

class Sentences(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.block = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True)
        self.head = nn.Linear(width, 10)
    def forward(self, tokens):
        return self.head(self.block(self.table(tokens)).mean(1))

class Vocabulary(nn.Module):
    def __init__(self, words, width, hidden):
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.layer, self.head = nn.LSTM(width, hidden, batch_first=True), nn.Linear(hidden, 10)
    def forward(self, tokens):
        return self.head(self.layer(self.table(tokens))[0][:, -1])

def images(channels):
    return nn.Sequential(
        nn.Conv2d(3, channels, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(channels, 2 * channels, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        nn.Linear(32 * channels, 10),
    )

MODELS = {
    "dense": lambda: (mlp((784, 300, 300, 10), "tanh", seed=0), torch.randn(2000, 784)),
    "images": lambda: (images(32), torch.randn(500, 3, 32, 32)),
    "recurrent": lambda: (Recurrent(40, 128), torch.randn(500, 40, 40)),
    "sentences": lambda: (Sentences(20_000, 64), torch.randint(0, 20_000, (500, 24))),
    "vocabulary": lambda: (Vocabulary(15_000, 100, 64), torch.randint(0, 15_000, (400, 16))),
}

def used():
    return int(open("/proc/self/status").read().split("VmRSS:")[1].split()[0]) * 1024

def run(model, inputs, budget):
    start = {n: t + 0.01 for n, t in model.state_dict().items()}
    data = inputs, torch.randint(0, 3, (len(inputs),))
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
torch.manual_seed(0)
run(mlp((6, 8, 3), "tanh", seed=0), torch.randn(64, 6), 10)  # what a process loads once
print(*run(*MODELS[sys.argv[1]](), Budget(SECONDS, float(sys.argv[2]))))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "memory"),
    [
        ("dense", 200e6),
        ("images", 200e6),
        ("recurrent", 200e6),
        ("sentences", 200e6),
        ("vocabulary", 150e6),
        ("dense", 600e6),
        ("images", 600e6),
        ("recurrent", 600e6),
        ("sentences", 600e6),
    ],
)
def test_memory_and_time_of_every_part_stay_below_the_budget(name, memory):
    """In a process of its own, networks of 30,000 to 1,540,000 weights."""
    seconds = 40.0
    code = GROWTH.replace("SECONDS", str(seconds))
    ran = subprocess.run(
        [sys.executable, "-c", code, name, str(memory)],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    peak, took = map(float, ran.stdout.split())
    print(f"{name}: {peak / 1e6:.0f} MB of {memory / 1e6:.0f}, {took:.1f} s of {seconds:.0f}")
    assert peak < memory
    assert took < 1.1 * seconds


def test_a_training_that_never_moved_has_no_path(subject, tmp_path):
    trajectory = Trajectory.create(tmp_path / "run")
    scores = np.random.default_rng(0).standard_normal((7, 3))
    for step in range(5):
        trajectory.append(step, predictions=scores)
    assert embed_runs([trajectory]) is None
    with pytest.raises(ArgumentError, match="never changed"):
        path_part(Level(subject), Notebook(k=2, seed=0, trajectory=trajectory))
