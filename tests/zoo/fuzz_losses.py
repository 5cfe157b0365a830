"""Random losses with targets that fit given outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["Goal", "random_goal"]


@dataclass
class Goal:
    """A loss, the targets, what comes behind the model, and why it may be refused."""

    loss: Any
    targets: torch.Tensor
    head: nn.Module | None = None
    may_be_refused: str = ""


Maker = Callable[[Random, tuple[int, ...]], Goal]

_UNEVEN = "samples have different weights, which a function does not tell"


def _classes(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randint(shape[1], (shape[0], *shape[2:]))


def _weights(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.rand(shape[1]).double() + 0.3


def _cross_entropy(rng: Random, shape: tuple[int, ...]) -> Goal:
    targets = _classes(shape)
    options: dict[str, Any] = {}
    if rng.random() < 0.3:
        options["weight"] = _weights(shape)
    if rng.random() < 0.3:
        options["label_smoothing"] = 0.15
    if rng.random() < 0.3:
        options["reduction"] = "sum"
    if rng.random() < 0.2:
        targets = torch.softmax(torch.randn(shape).double(), 1)
    elif rng.random() < 0.3:
        targets[0] = -100
    if rng.random() < 0.3:
        return Goal(partial(F.cross_entropy, **options), targets)
    return Goal(nn.CrossEntropyLoss(**options), targets)


def _cross_entropy_by_lambda(rng: Random, shape: tuple[int, ...]) -> Goal:
    weight = _weights(shape) if rng.random() < 0.5 else None
    loss = lambda f, y: F.cross_entropy(f, y, weight=weight)  # noqa: E731
    return Goal(loss, _classes(shape), may_be_refused=_UNEVEN if weight is not None else "")


def _nll(rng: Random, shape: tuple[int, ...]) -> Goal:
    weight = _weights(shape) if rng.random() < 0.5 else None
    loss = nn.NLLLoss(weight=weight, reduction=rng.choice(["mean", "sum"]))
    return Goal(loss, _classes(shape), nn.LogSoftmax(1), _UNEVEN if weight is not None else "")


def _squared(rng: Random, shape: tuple[int, ...]) -> Goal:
    loss = rng.choice([nn.MSELoss(), nn.MSELoss(reduction="sum"), F.mse_loss])
    return Goal(loss, torch.randn(shape).double())


def _binary(rng: Random, shape: tuple[int, ...]) -> Goal:
    targets = (torch.rand(shape) > 0.5).double()
    if rng.random() < 0.4:
        return Goal(nn.BCELoss(reduction=rng.choice(["mean", "sum"])), targets, nn.Sigmoid())
    weight = torch.rand(shape[1:]).double() + 0.5 if rng.random() < 0.3 else None
    positive = torch.tensor(2.5).double() if rng.random() < 0.4 else None
    loss = nn.BCEWithLogitsLoss(
        weight=weight, pos_weight=positive, reduction=rng.choice(["mean", "sum"])
    )
    return Goal(loss, targets)


def _divergence(rng: Random, shape: tuple[int, ...]) -> Goal:
    targets = torch.softmax(torch.randn(shape).double(), 1)
    log = rng.random() < 0.3
    reduction = rng.choice(["batchmean", "sum", "mean"])
    loss = nn.KLDivLoss(reduction=reduction, log_target=log)
    return Goal(
        loss,
        targets.log() if log else targets,
        nn.LogSoftmax(1),
        "its reduction is not mean or sum" if reduction == "batchmean" else "",
    )


def _robust(rng: Random, shape: tuple[int, ...]) -> Goal:
    reduction = rng.choice(["mean", "sum"])
    loss = rng.choice(
        [
            nn.HuberLoss(delta=0.7, reduction=reduction),
            nn.SmoothL1Loss(beta=0.6, reduction=reduction),
            nn.L1Loss(reduction=reduction),
        ]
    )
    return Goal(loss, 2 * torch.randn(shape).double())


def _poisson(rng: Random, shape: tuple[int, ...]) -> Goal:
    loss = nn.PoissonNLLLoss(reduction=rng.choice(["mean", "sum"]))
    return Goal(loss, torch.randint(4, shape).double())


def _quartic_mean(f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return ((f - y) ** 4).flatten(1).sum(1).mean() if f.ndim > 1 else ((f - y) ** 4).mean()


def _cosh_sum(f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.log(torch.cosh(f - y)).sum() / 3


def _not_convex(f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cos(f - y).sum()


def _masked(f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    seen = y > 0
    return ((f - y) ** 2)[seen].sum() / seen.sum()


def _function(rng: Random, shape: tuple[int, ...]) -> Goal:
    loss = rng.choice([_quartic_mean, _cosh_sum, _not_convex, _masked])
    return Goal(
        loss, torch.randn(shape).double(), may_be_refused=_UNEVEN if loss is _masked else ""
    )


_LABELLED: list[Maker] = [
    _cross_entropy,
    _cross_entropy,
    _cross_entropy_by_lambda,
    _nll,
    _divergence,
]
_VALUED: list[Maker] = [_squared, _binary, _robust, _poisson, _function, _function]


def random_goal(rng: Random, shape: tuple[int, ...]) -> Goal:
    """Return a loss and targets for outputs of a shape, (n, …)."""
    makers = _VALUED if len(shape) == 1 or shape[1] < 2 else _LABELLED + _VALUED
    return rng.choice(makers)(rng, shape)
