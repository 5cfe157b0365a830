"""A loss that sums over samples gives N times what its mean gives, on any number of them."""

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

import hyperribbon as hr
from hyperribbon.application.inspection.comparison.networks import Side
from hyperribbon.application.inspection.engine.subject import Subject
from hyperribbon.application.inspection.sampling import sharpness_error, standard_error

SAMPLES = 96


def network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def data():
    generator = torch.Generator().manual_seed(5)
    return torch.randn(SAMPLES, 4, generator=generator), torch.arange(SAMPLES) % 3


def losses():
    return [nn.CrossEntropyLoss(reduction=reduction) for reduction in ("mean", "sum")]


@pytest.fixture(scope="module", params=["all samples", "half of them"])
def subjects(request):
    found = [Subject(network(1), loss, data()) for loss in losses()]
    return found if request.param == "all samples" else [s.with_samples(48, seed=3) for s in found]


def test_loss_gradient_and_curvature(subjects):
    mean, whole = subjects
    v = torch.ones(mean.risk.space.dimension)
    assert whole.risk.value() == pytest.approx(SAMPLES * mean.risk.value(), rel=1e-5)
    for name, power in (("hessian", 1), ("ggn", 1), ("covariance", 2)):
        one, other = getattr(mean, name) @ v, getattr(whole, name) @ v
        torch.testing.assert_close(other, SAMPLES**power * one, rtol=1e-4, atol=1e-4)


def test_sampling_errors(subjects):
    def trace(part):
        return float(np.trace(part.hessian.to_dense().double().numpy()))

    top = hr.eigsh(subjects[0].hessian, 1, tol=1e-6)
    v, λ = top.eigenvectors[:, 0], float(top.eigenvalues[0])
    mean, whole = (standard_error(s, trace, seed=2, mean=trace(s)) for s in subjects)
    assert whole == pytest.approx(SAMPLES * mean, rel=1e-3)
    mean, whole = (
        sharpness_error(s, v, 2, value=λ * scale)
        for s, scale in zip(subjects, (1, SAMPLES), strict=True)
    )
    assert whole == pytest.approx(SAMPLES * mean, rel=1e-3)


EXTENSIVE = {"model.loss", "model.gradient", "hessian.largest", "hessian.trace", "noise.gradient"}
EXTENSIVE |= {"gauss_newton.trace", "layers.sharpest", "slices.1.curvature"}


def test_the_table_of_an_inspection():
    kwargs = {"budget": 4, "console": Console(quiet=True)}
    mean, whole = (
        hr.inspect(network(1), loss, data(), **kwargs).table().set_index("key") for loss in losses()
    )
    both = mean.join(whole.add_suffix("_sum"), how="inner").query("samples == samples_sum")
    found = both.loc[both.index.isin(EXTENSIVE)]
    assert {"model.loss", "model.gradient"} <= set(found.index)
    np.testing.assert_allclose(found["value_sum"], SAMPLES * found["value"], rtol=0.01)
    noisy = found[found["error"] > 1e-3 * found["value"].abs()]
    np.testing.assert_allclose(noisy["error_sum"], SAMPLES * noisy["error"], rtol=0.01)


def test_groups_of_a_comparison():
    mean, whole = (Side(Subject(network(1), loss, data()), 4, 0, "all") for loss in losses())
    v = torch.ones(mean.subject.risk.space.dimension)
    for a, b in zip(
        (mean.hessians().whole, *mean.hessians().groups),
        (whole.hessians().whole, *whole.hessians().groups),
        strict=True,
    ):
        torch.testing.assert_close(b @ v, SAMPLES * (a @ v), rtol=1e-4, atol=1e-4)
    others = [side.hessians().without(1, v) for side in (mean, whole)]
    torch.testing.assert_close(others[1], SAMPLES * others[0], rtol=1e-4, atol=1e-4)


def test_the_table_of_a_comparison():
    a, b = network(1), network(2)
    kwargs = {"parts": ("trace", "pruning"), "samples": 48, "groups": 4}
    mean, whole = (
        hr.compare(a, b, loss, data(), console=Console(quiet=True), **kwargs).table()
        for loss in losses()
    )
    assert {"loss", "trace", "pruned.0.5"} <= set(mean["key"])
    for one, other in zip(mean.to_dict("records"), whole.to_dict("records"), strict=True):
        for column in ("a", "b", "difference", "stderr"):
            expected = SAMPLES * one[column]
            assert other[column] == pytest.approx(expected, rel=1e-3, abs=1e-2), one["key"]


def test_the_sharpness_of_mini_batches():
    """The sum over a mini-batch is what one trains with: its size counts, not that of the data."""
    mean, whole = (hr.batch_sharpness(network(1), loss, data(), batch_size=32) for loss in losses())
    np.testing.assert_allclose(whole.values, 32 * mean.values, rtol=1e-3)
    assert whole.pooled == pytest.approx(32 * mean.pooled, rel=1e-3)
