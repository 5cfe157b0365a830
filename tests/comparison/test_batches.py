"""Small against large batches: which minimum is flatter, by `compare` and on all the data."""

import numpy as np
import pytest
from rich.console import Console
from torch import nn

import hyperribbon as hr

STEPS = 3600
PAIRS = {0.1: (16, 360), 0.5: (8, 360)}  # batch sizes by rate, for as many steps each


def trained(batch, rate, make, data, seed):
    model = make(seed)
    each = -(-len(data[0]) // batch)
    hr.train(
        model,
        nn.CrossEntropyLoss(),
        data,
        epochs=STEPS // each,
        lr=rate,
        batch_size=batch,
        seed=seed,
    )
    return model


def exact_sharpness(model, data):
    """Return the largest Hessian eigenvalue on all the data, from the matrix written out."""
    dense = hr.Hessian(model.double(), nn.CrossEntropyLoss(), data).to_dense()
    return float(np.linalg.eigvalsh(dense.numpy())[-1])


MAKERS = {
    "relu": lambda seed: hr.training.mlp((64, 16, 10), seed=seed),
    "tanh": lambda seed: hr.training.mlp((64, 12, 12, 10), "tanh", seed=seed),
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("rate", PAIRS)
@pytest.mark.parametrize("name", MAKERS)
def test_the_verdict_on_batches_is_that_of_all_the_data(name, rate, seed):
    inputs, targets = hr.load_data("digits").flat()
    data = inputs.float(), targets
    networks = [trained(batch, rate, MAKERS[name], data, seed) for batch in PAIRS[rate]]
    found = hr.compare(
        *networks,
        nn.CrossEntropyLoss(),
        data,
        samples=1024,
        parts=("sharpness",),
        console=Console(quiet=True),
    )
    a, b = (exact_sharpness(model, (inputs.double(), targets)) for model in networks)
    told = found["sharpness"]
    # Eight groups give t with 7 degrees of freedom: |t| > 5 once in 600. The mean of two curvatures
    # that is compared lies below the eigenvalue of all samples, by a tenth at most.
    assert abs(told.difference - (a - b)) < 5 * told.stderr + 0.1 * max(a, b)
    if found.flatter is not None:
        assert found.flatter == ("a" if a < b else "b")
    if abs(a - b) > 10 * told.stderr:
        assert (told.difference < 0) == (a < b)
