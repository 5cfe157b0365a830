"""Recognises losses, so that those with closed forms use them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeGuard, cast

import torch.nn.functional as F
from torch import nn

from hyperribbon.core.checks import ArgumentError
from hyperribbon.operators.risk.losses import binary, elementwise, labels
from hyperribbon.operators.risk.losses.base import Loss
from hyperribbon.operators.risk.losses.callables import CallableLoss
from hyperribbon.operators.risk.losses.cross_entropy import CrossEntropy

__all__ = ["recognise"]

_CLOSED: dict[type, Callable[[Any], Loss]] = {
    nn.CrossEntropyLoss: CrossEntropy,
    nn.MSELoss: elementwise.SquaredError,
    nn.BCEWithLogitsLoss: binary.BinaryCrossEntropy,
    nn.BCELoss: binary.ProbabilityCrossEntropy,
    nn.L1Loss: elementwise.AbsoluteError,
    nn.SmoothL1Loss: elementwise.SmoothAbsoluteError,
    nn.HuberLoss: elementwise.Huber,
    nn.PoissonNLLLoss: elementwise.PoissonLikelihood,
    nn.GaussianNLLLoss: elementwise.GaussianLikelihood,
    nn.SoftMarginLoss: binary.SoftMargin,
    nn.HingeEmbeddingLoss: binary.HingeEmbedding,
    nn.MultiLabelSoftMarginLoss: binary.MultiLabelSoftMargin,
    nn.NLLLoss: labels.LogLikelihood,
    nn.KLDivLoss: labels.Divergence,
    nn.MultiMarginLoss: labels.MultiMargin,
    nn.MultiLabelMarginLoss: labels.MultiLabelMargin,
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
    F.gaussian_nll_loss: nn.GaussianNLLLoss,
    F.soft_margin_loss: nn.SoftMarginLoss,
    F.hinge_embedding_loss: nn.HingeEmbeddingLoss,
    F.multilabel_soft_margin_loss: nn.MultiLabelSoftMarginLoss,
    F.nll_loss: nn.NLLLoss,
    F.kl_div: nn.KLDivLoss,
    F.multi_margin_loss: nn.MultiMarginLoss,
    F.multilabel_margin_loss: nn.MultiLabelMarginLoss,
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
    reduction = getattr(module, "reduction", "mean")
    known = ("mean", "sum", "batchmean") if isinstance(module, nn.KLDivLoss) else ("mean", "sum")
    if reduction == "none" or (type(module) in _CLOSED and reduction not in known):
        raise ArgumentError(
            "loss", loss, f"it has reduction={reduction!r}", "Use reduction='mean' or 'sum'."
        )
    closed = _CLOSED.get(type(cast(object, module)))
    return CallableLoss(loss) if closed is None else closed(module)


def _is_partial(loss: object) -> TypeGuard[partial[Any]]:
    return isinstance(loss, partial)


def _as_module(loss: Any) -> Any:
    """Return the torch.nn loss that a functional form stands for, else the loss itself."""
    function: Any = loss
    keywords: dict[str, Any] = {}
    if _is_partial(loss) and not loss.args:
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
