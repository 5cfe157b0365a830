"""The sampling error of a top eigenvalue covers that of all data, for three kinds of networks."""

import numpy as np
import pytest
import torch
from scipy.special import stdtrit
from torch import nn

from hyperribbon.application.inspection.sampling import sharpness_error, standard_error
from hyperribbon.papers.training import mlp, train

POOL = 3000
GROUPS = 8


def regression(generator):
    """A tanh network on noisy sines, inputs of very different size."""
    scales = torch.tensor([3.0, 2.0, 1.0, 0.5])
    x = torch.randn(POOL, 4, generator=generator) * scales
    y = torch.sin(x @ torch.randn(4, 1, generator=generator))
    return mlp((4, 5, 1), "tanh", seed=1), nn.MSELoss(), x, y


def classification(generator):
    """A ReLU network on four clouds."""
    labels = torch.randint(0, 4, (POOL,), generator=generator)
    x = torch.randn(4, 6, generator=generator)[labels] * 1.5
    x = x + torch.randn(POOL, 6, generator=generator)
    return mlp((6, 4, 4), "relu", seed=2), nn.CrossEntropyLoss(), x, labels


def heavy_tailed(generator):
    """A linear model whose inputs have five finite moments at most."""
    normal = torch.randn(6, POOL, 12, generator=generator)
    x = normal[0] / (normal[1:] ** 2).mean(0).sqrt()  # Student's t with five degrees of freedom
    return mlp((12, 1), seed=3), nn.MSELoss(), x, x[:, :1]


def sample_hessians(case):
    """Return the Hessian of every sample of a pool, at weights of a short training."""
    model, loss, x, y = case(torch.Generator().manual_seed(0))
    train(model, loss, (x, y), epochs=3, lr=0.05, batch_size=32)
    weights = {name: tensor.detach() for name, tensor in model.named_parameters()}
    sizes = [tensor.numel() for tensor in weights.values()]

    def risk(vector, inputs, target):
        parts = zip(weights.items(), vector.split(sizes), strict=True)
        named = {name: part.view_as(tensor) for (name, tensor), part in parts}
        return loss(torch.func.functional_call(model, named, (inputs[None],)), target[None])

    vector = torch.cat([tensor.reshape(-1) for tensor in weights.values()])
    hessian = torch.func.jacrev(torch.func.jacrev(risk))
    second = torch.func.vmap(hessian, in_dims=(None, 0, 0), chunk_size=500)
    return second(vector, x, y).double().numpy()


class Sample:
    """What the standard error asks of a subject: its size, and itself on disjoint groups."""

    def __init__(self, hessians):
        self.hessians, self.samples = hessians, len(hessians)

    @property
    def hessian(self):
        return torch.from_numpy(self.hessians.mean(axis=0))

    def groups(self, number, seed):
        order = np.random.default_rng(seed).permutation(self.samples)
        return [Sample(self.hessians[part]) for part in np.array_split(order, number)]


def coverage(hessians, samples, draws, seed):
    """Return the share of draws whose 95% interval holds the largest eigenvalue of the pool.

    And the share of those whose interval is of the scatter alone.
    """
    truth = np.linalg.eigvalsh(hessians.mean(axis=0))[-1]
    reach, rng, held = stdtrit(GROUPS - 1, 0.975), np.random.default_rng(seed), np.zeros(2)
    for draw in range(draws):
        sample = Sample(hessians[rng.integers(len(hessians), size=samples)])
        values, vectors = torch.linalg.eigh(sample.hessian)
        v = vectors[:, -1]
        scatter = standard_error(sample, lambda group, v=v: float(v @ (group.hessian @ v)), draw)
        errors = np.array([sharpness_error(sample, v, draw), scatter])
        held += abs(float(values[-1]) - truth) <= reach * errors
    return held / draws


@pytest.mark.slow
@pytest.mark.parametrize("case", [regression, classification, heavy_tailed])
@pytest.mark.parametrize("samples", [100, 400, 1600])
def test_intervals_hold_the_sharpness_of_all_data(case, samples):
    """At least 0.9 of 200, of a nominal 0.95; the scatter of vᵀHv alone has 0.70 to 0.78 of them
    where eigenvalues are nearly equal, since the sample's own eigenvector fits the sample."""
    found, scatter = coverage(sample_hessians(case), samples, draws=200, seed=0)
    print(case.__name__, samples, found, "scatter alone", scatter)
    assert found >= 0.9


def test_some_intervals_hold_the_sharpness_of_all_data():
    """Of 60 at 0.95, fewer than 51 hold it once in two thousand; without the excess some 43 do."""
    assert coverage(sample_hessians(heavy_tailed), 400, draws=60, seed=1)[0] >= 51 / 60
