"""A keyword either changes the answer or is refused: nothing the user asks for is ignored."""

import numpy as np
import pytest
import torch
from torch import nn

import hyperribbon as hr
from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.data import load_data
from hyperribbon.papers import simulation, training

INPUTS = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
DATA = (INPUTS, torch.arange(12) % 2)
LOSS = nn.CrossEntropyLoss()
SIZE = 30
MATRIX = np.diag(np.linspace(1, SIZE, SIZE)) + 0.1
SERIES = np.random.default_rng(0).standard_normal((400, 3)) * [2, 1, 0.5]
MODELS = np.random.default_rng(0).dirichlet(np.ones(2), (6, 4))
STATE = training.mlp((3, 4, 2), seed=1).state_dict()
REGRESSION = np.random.default_rng(1).standard_normal((3, 8))


class Operator:
    """Only a shape and a product."""

    shape = MATRIX.shape

    def __matmul__(self, block):
        return MATRIX @ np.asarray(block)


def model():
    return training.mlp((3, 4, 2), "tanh")


def fisher(**options):
    return hr.Fisher(model(), INPUTS, **options).to_dense()


def covariance(**options):
    return hr.GradientCovariance(model(), LOSS, DATA, **options).to_dense()


def eigsh(**options):
    found = hr.eigsh(Operator(), 3, **options)
    return found.matvecs, found.eigenvalues, found.residuals


def embed(X=MODELS, **options):
    return hr.InPCA(2, **options).fit(X).embedding_


def flatness(**options):
    trajectory = options.pop("trajectory", None)
    covariance = hr.weight_covariance(SERIES) if trajectory is None else trajectory
    found = hr.variance_flatness(covariance, np.diag([4.0, 1.0, 0.25]), warn=False, **options)
    return found.exponent, *found.interval


def train(**options):
    trained = model()
    hr.train(trained, LOSS, DATA, **{"epochs": 2, "lr": 0.1, "batch_size": 4, **options})
    return torch.cat([tensor.detach().flatten() for tensor in trained.parameters()])


def simulate(**options):
    X, Y = REGRESSION[:2], REGRESSION[2]
    found = simulation.simulate_one_layer(
        X, Y, lr=0.05, batch_size=2, chains=2, steps=40, burn_in=4, **options
    )
    return found.covariance


def load(**options):
    return torch.cat([part.flatten().float() for part in load_data(limit=20, **options)])


def select(**options):
    mask = hr.select(STATE, **options)
    return torch.cat([mask[name].flatten() for name in mask])


def stationary(**options):
    return hr.stationary_covariance(np.diag([3.0, 2.0, 1.0]), np.eye(3), 0.1, **options)


def momentum_of_ones_own(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


LIKELIHOOD = {"variance": 3.0, "scale": 3.0, "df": 7.0, "outputs": "softmax", "samples": 4}
LANCZOS = {
    "v0": torch.ones(SIZE),
    "max_matvecs": 6,
    "max_seconds": 1e-9,
    "basis": 6,
    "storage": "disk",
    "memory": 10.0,
}
DISTANCES = {
    "log": True,
    "floor": 0.3,
    "precision": "single",
    "landmarks": 4,
    "streaming": hr.Streaming(memory=1e3),
}
MADE = {"slope": 0.9, "dimensions": 7, "noise": 5.0, "folder": "/nonexistent"}
OPTIMISER = {"momentum": 0.5, "nesterov": True, "weight_decay": 0.1}
CASES = [
    *(
        (fisher, {"likelihood": name, **more, **how}, LIKELIHOOD)
        for name, more in (
            ("categorical", {}),
            ("gaussian", {}),
            ("bernoulli", {}),
            ("poisson", {}),
            ("laplace", {}),
            ("student", {"df": 4.0}),
        )
        for how in ({}, {"estimator": "mc"})
    ),
    (covariance, {}, {"centered": False, "batch_size": 3, "replacement": False}),
    (covariance, {"batch_size": 3}, {"centered": False, "replacement": False}),
    (eigsh, {"method": "dense"}, LANCZOS),
    (eigsh, {"method": "lanczos"}, {n: v for n, v in LANCZOS.items() if n != "storage"}),
    (eigsh, {}, {name: LANCZOS[name] for name in ("v0", "basis", "storage", "memory")}),
    (embed, {}, DISTANCES),
    (embed, {"X": hr.bhattacharyya(MODELS), "metric": "precomputed"}, DISTANCES),
    (flatness, {}, {"k": 2, "start": 100, "window": 40, "params": "x", "confidence": 0.5}),
    (flatness, {"trajectory": SERIES}, {"k": 2, "start": 100, "window": 40, "params": "x"}),
    (stationary, {}, {"k": 1, "time": "discrete"}),
    (train, {}, {**OPTIMISER, "schedule": {1: 0.1}, "sampling": "replacement", "seed": 3}),
    (train, {"optimizer": "adam"}, OPTIMISER),
    (train, {"optimizer": momentum_of_ones_own}, {**OPTIMISER, "lr": 0.5}),
    (simulate, {}, {"sampling": "without_replacement", "substeps": 3, "seed": 3}),
    (simulate, {"dynamics": "flow"}, {"sampling": "shuffle", "substeps": 3}),
    (load, {"name": "digits"}, MADE),
    (load, {"name": "sloppy"}, MADE),
    (load, {"name": "teacher_student"}, MADE),
    (select, {"fraction": 0.5}, {"order": "largest", "scope": "layer", "include": "all"}),
    (select, {"between": (0.0, 0.3)}, {"order": "largest", "scope": "layer", "include": "all"}),
]


def same(first, second):
    if isinstance(first, tuple):
        return all(same(*pair) for pair in zip(first, second, strict=True))
    first, second = np.asarray(first), np.asarray(second)
    return first.shape == second.shape and np.array_equal(first, second)


@pytest.mark.parametrize(
    ("function", "given", "keyword", "value"),
    [(function, given, *pair) for function, given, more in CASES for pair in more.items()],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_no_keyword_is_ignored(function, given, keyword, value):
    before = function(**given)
    try:
        after = function(**{**given, keyword: value})
    except ArgumentError as error:
        assert error.argument
    else:
        assert not same(before, after)


def test_a_recorder_without_a_probe_has_no_predictions(tmp_path):
    with pytest.raises(ArgumentError, match=r"predictions=.*no probe"):
        hr.Recorder(tmp_path, predictions="outputs")


def test_an_initializer_without_its_branch_is_refused():
    with pytest.raises(ArgumentError, match="reinitialized"):
        hr.find_ticket(
            model(), lambda m: None, lambda s: 0.5, branches=("random",), initializer=STATE
        )


def test_memory_bounds_the_route_that_was_asked_for():
    with pytest.raises(ArgumentError, match=r"memory=.*method='dense' takes"):
        hr.eigsh(torch.eye(400), 1, method="dense", memory=3e5)
