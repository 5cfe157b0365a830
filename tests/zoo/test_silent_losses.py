"""Losses that are not what they seem: not a mean, not of the outputs alone, not of each sample."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import hyperribbon as hr
from zoo.checking import FEW, ONE, check_ggn, check_hessian, mlp, or_refused, points
from zoo.untouched import untouched

pytestmark = pytest.mark.filterwarnings("ignore:var")  # of a loss on a single sample


def _with_penalty(model: nn.Module) -> Callable[..., torch.Tensor]:
    return lambda f, y: (
        F.cross_entropy(f, y) + 0.1 * sum(p.square().sum() for p in model.parameters())
    )


def _with_distillation(model: nn.Module) -> Callable[..., torch.Tensor]:
    return lambda f, y: F.mse_loss(f, model(torch.ones(len(f), 4).double()))


@pytest.mark.parametrize("make", [_with_penalty, _with_distillation])
@pytest.mark.parametrize("kind", [hr.Hessian, hr.GGN, hr.GradientCovariance])
def test_a_loss_that_touches_the_weights_is_refused(kind, make):
    model, (x, y) = mlp(), points()
    with untouched(model), pytest.raises(hr.ArgumentError, match="loss"):
        operator = kind(model, make(model), (x, y))
        operator @ torch.ones(operator.shape[0]).double()


def _masked(f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    seen = y >= 0
    return ((f - y) ** 2)[seen].sum() / seen.sum()


def _contrastive(f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(f @ f.T, torch.arange(len(f)))


WEIGHTS = torch.tensor([0.2, 1.0, 5.0]).double()
UNEVEN: dict[str, Any] = {
    "masked mean": _masked,
    "ignored labels": lambda f, y: F.cross_entropy(f, y),
    "weights by lambda": lambda f, y: F.cross_entropy(f, y, weight=WEIGHTS),
    "weights of NLLLoss": nn.NLLLoss(weight=WEIGHTS),
    "ignored labels of NLLLoss": nn.NLLLoss(),
    "contrastive": _contrastive,
    "batch statistics": lambda f, y: f.var(0).sum() + f.square().mean(),
    "sum over a constant": lambda f, y: F.cross_entropy(f, y, reduction="sum") / 7.0,
}


@pytest.mark.parametrize("memory", [None, FEW, pytest.param(ONE, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", UNEVEN)
def test_losses_of_uneven_samples(name, memory):
    """The first samples show nothing: all labels count there, and all have the same weight."""
    (x, y), model = points(24), mlp()
    if "NLL" in name:
        model = mlp(nn.LogSoftmax(1))
    if "ignored" in name:
        y[19::2] = -100
    if "weights" in name:
        y[:18] = 1
    if name == "masked mean":
        y = torch.rand(24, 3).double()
        y[19:, :2] = -1
    for check in (check_hessian, check_ggn):
        with or_refused():
            check(model, UNEVEN[name], x, y, memory=memory)


@pytest.mark.parametrize("name", ["ignored labels", "sum over a constant"])
def test_usual_losses_written_as_functions_work_uncut(name):
    (x, y), model = points(24), mlp()
    check_hessian(model, UNEVEN[name], x, y)


def test_a_loss_that_takes_all_samples_or_none_is_right_on_one_batch():
    """Each sample's class is its partner in the batch: no part of the data has all the classes."""
    (x, _), model = points(24), mlp()
    partners = torch.randperm(24, generator=torch.Generator().manual_seed(0))

    def similar(f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(f @ f.T, y)

    check_hessian(model, similar, x, partners)
    check_ggn(model, similar, x, partners)
    pieces = [(x[:12], partners[:12]), (x[12:], partners[12:])]
    with pytest.raises(hr.ArgumentError, match="loss"):
        hr.Hessian(model, similar, pieces)


def test_samples_that_are_learned_by_heart_say_nothing_of_the_others():
    """The curvature of the few that are looked at is lost in rounding, that of all is not."""
    (x, _), model = points(24), mlp()
    with torch.no_grad():
        model[-1].weight.mul_(200)
        y = model(x).argmax(1)
    H = hr.Hessian(mlp_in(torch.float32, model), nn.CrossEntropyLoss(), (x.float(), y))
    vectors = torch.eye(H.shape[0], dtype=torch.float64)
    expected = hr.Hessian(model, nn.CrossEntropyLoss(), (x, y)) @ vectors
    assert (H @ vectors.float() - expected).norm() < 1e-4 * expected.norm()


def test_derivatives_that_are_lost_in_rounding_are_named_so():
    """A loss at its floor in single precision: the model is right, its precision is not enough."""
    (x, _), model = points(24), mlp()
    with torch.no_grad():
        model[-1].weight.mul_(200)
        x = x[model(x).sort().values.diff()[:, -1] > 12]
        y = model(x).argmax(1)
    with pytest.raises(hr.ArgumentError, match="lost in rounding") as refused:
        hr.Hessian(mlp_in(torch.float32, model), nn.CrossEntropyLoss(), (x.float(), y))
    assert refused.value.argument == "model" and "double" in str(refused.value)
    hr.Hessian(model, nn.CrossEntropyLoss(), (x, y))


def mlp_in(dtype: torch.dtype, model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).to(dtype)


def test_a_small_memory_really_cuts_the_data():
    """Without this the tests above would say nothing."""
    model, (x, y) = mlp(), points(24)
    seen = []

    def forward(model: nn.Module, batch: Any) -> torch.Tensor:
        seen.append(len(batch[0]))
        return model(batch[0])

    for memory, most in ((ONE, 1), (FEW, 16)):
        operator = hr.Hessian(model, nn.CrossEntropyLoss(), (x, y), forward=forward, memory=memory)
        seen.clear()
        operator @ torch.ones(operator.shape[0]).double()
        assert 1 <= max(seen) <= most
    assert max(seen) > 1
