"""Recognises losses, so that those with closed forms use them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hyperribbon.core.checks import ArgumentError
from hyperribbon.operators.risk.losses import elementwise
from hyperribbon.operators.risk.losses.base import Loss
from hyperribbon.operators.risk.losses.callables import CallableLoss
from hyperribbon.operators.risk.losses.cross_entropy import CrossEntropyLoss
from hyperribbon.operators.risk.losses.labels import NLLLoss

__all__ = ["recognise"]

_CLOSED: dict[type, Callable[[Any], Loss]] = {
    nn.CrossEntropyLoss: CrossEntropyLoss,
    nn.NLLLoss: NLLLoss,
    nn.MSELoss: elementwise.MSELoss,
    nn.BCEWithLogitsLoss: elementwise.BCEWithLogitsLoss,
    nn.BCELoss: elementwise.BCELoss,
    nn.KLDivLoss: elementwise.KLDivLoss,
    nn.L1Loss: elementwise.ElementwiseLoss,
    nn.SmoothL1Loss: elementwise.ElementwiseLoss,
    nn.HuberLoss: elementwise.ElementwiseLoss,
    nn.PoissonNLLLoss: elementwise.ElementwiseLoss,
    nn.SoftMarginLoss: elementwise.ElementwiseLoss,
}
_FUNCTIONAL: dict[Any, type[nn.Module]] = {
    F.cross_entropy: nn.CrossEntropyLoss,
    F.mse_loss: nn.MSELoss,
    F.binary_cross_entropy_with_logits: nn.BCEWithLogitsLoss,
    F.binary_cross_entropy: nn.BCELoss,
    F.l1_loss: nn.L1Loss,
    F.smooth_l1_loss: nn.SmoothL1Loss,
    F.huber_loss: nn.HuberLoss,
    F.poisson_nll_loss: nn.PoissonNLLLoss,
    F.soft_margin_loss: nn.SoftMarginLoss,
    F.gaussian_nll_loss: nn.GaussianNLLLoss,
    F.multi_margin_loss: nn.MultiMarginLoss,
    F.nll_loss: nn.NLLLoss,
    F.kl_div: nn.KLDivLoss,
}
_OF_MORE = (
    nn.CTCLoss,
    nn.CosineEmbeddingLoss,
    nn.MarginRankingLoss,
    nn.TripletMarginLoss,
    nn.TripletMarginWithDistanceLoss,
)


def recognise(loss: Any) -> Loss:
    """Return a loss as a sum over samples.

    The torch.nn losses of outputs and targets have closed forms, also when they are given by their
    functional form or a `functools.partial` of it; GaussianNLLLoss takes targets that are a pair
    (values, variances). A subclass of one, and any other callable, is taken as the function that it
    is.

    Args:
        loss: A torch.nn loss, its functional form, or any callable (outputs, targets) -> number
            that is a mean or a sum over samples.

    Raises:
        ArgumentError: It is not callable, has reduction "none", or takes more than outputs and
            targets.
    """
    if isinstance(loss, Loss):
        return loss
    if not callable(loss) or isinstance(loss, type):
        raise ArgumentError(
            "loss", loss, "it is not a function of outputs and targets", "Give nn.MSELoss()."
        )
    if isinstance(loss, _OF_MORE):
        remedy = (
            "Give a function: loss=lambda outputs, targets: ..., and what it needs with forward= "
            "and in the targets."
        )
        raise ArgumentError("loss", loss, "it takes more than outputs and targets", remedy)
    module = _as_module(loss)
    if type(module) is nn.GaussianNLLLoss:
        return CallableLoss(partial(_gaussian, module))
    if type(module) is nn.MultiMarginLoss:
        return CallableLoss(partial(_multi_margin, module))
    reduction = getattr(module, "reduction", "mean")
    known = ("mean", "sum", "batchmean") if isinstance(module, nn.KLDivLoss) else ("mean", "sum")
    if reduction == "none" or (type(module) in _CLOSED and reduction not in known):
        raise ArgumentError(
            "loss", loss, f"it has reduction={reduction!r}", "Use reduction='mean' or 'sum'."
        )
    closed = _CLOSED.get(type(module))
    return CallableLoss(loss) if closed is None else closed(module)


def _gaussian(module: nn.Module, f: torch.Tensor, y: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return module(f, *y)


def _multi_margin(module: nn.MultiMarginLoss, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """(w_y/C) Σ_{c≠y} max(0, margin − f_y + f_c)^p; torch's kernel has no second derivative."""
    own = y.unsqueeze(1)
    excess = (module.margin - f.gather(1, own) + f).clamp(min=0).pow(module.p)
    losses = excess.scatter(1, own, 0.0).mean(1)
    losses = losses if module.weight is None else losses * module.weight.to(f)[y]
    return losses.mean() if module.reduction == "mean" else losses.sum()


def _as_module(loss: Any) -> Any:
    """Return the torch.nn loss that a functional form stands for, else the loss itself."""
    function: Any = loss
    keywords: dict[str, Any] = {}
    if isinstance(loss, partial) and not loss.args:
        function, keywords = loss.func, loss.keywords
    try:
        module = _FUNCTIONAL.get(function)
    except TypeError:  # it has no hash
        return loss
    if module is None:
        return loss
    try:
        return module(**keywords)
    except TypeError:  # options that only the function has, such as weight= of mse_loss
        return loss
