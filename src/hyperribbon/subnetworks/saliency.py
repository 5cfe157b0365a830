"""Data-dependent saliency scores: gradient times weight, and the Fisher diagonal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hyperribbon.core.checks import check_finite, torch_module, validate
from hyperribbon.operators import GradientCovariance, Hessian, Risk
from hyperribbon.operators.risk.data import Data

Loss = Callable[[Any, Any], torch.Tensor] | None


@validate()
def gradient_saliency(model: nn.Module, loss: Loss, data: Data) -> dict[str, torch.Tensor]:
    r"""Return the gradient saliency: the loss's first-order change when an entry is set to zero.

    $$s_i = \Bigl|\theta_i \, \frac{\partial L}{\partial \theta_i}\Bigr|,\qquad
      L = \frac1N\sum_n \ell(f(x_n), y_n)$$

    Args:
        model: Any module; it stays as it is and is read in evaluation mode.
        loss: As `hr.Risk` takes it; None for the model's own.
        data: As `hr.Risk` takes them.

    Returns:
        Scores by parameter name, for the argument `criterion` of `select`.
    """
    risk = _risk(model, loss, data)
    slopes = risk.space.unflatten(risk.gradient())
    return _finite({name: (value * slopes[name]).abs() for name, value in risk.weights().items()})


@validate()
def fisher_saliency(model: nn.Module, loss: Loss, data: Data) -> dict[str, torch.Tensor]:
    r"""Return the Fisher saliency: the loss's second-order change when an entry is set to zero.

    $$s_i = \tfrac12 \theta_i^2 F_{ii},\qquad
      F_{ii} = \frac1N\sum_n \Bigl(\frac{\partial \ell_n}{\partial\theta_i}\Bigr)^2$$

    F is the empirical Fisher matrix (the labels of the data); see `hr.GradientCovariance`.

    Args:
        model: Any module; it stays as it is and is read in evaluation mode.
        loss: The negative log-likelihood, as `hr.Risk` takes it; None for the model's own.
        data: As `hr.Risk` takes them.

    Returns:
        Scores by parameter name, for the argument `criterion` of `select`.
    """
    risk = _risk(model, loss, data)
    squares = risk.space.unflatten(GradientCovariance(risk, centered=False).diagonal())
    return _finite(
        {name: 0.5 * value.square() * squares[name] for name, value in risk.weights().items()}
    )


def _finite(scores: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    for name, score in scores.items():
        check_finite(f"data (scores of {name!r})", score)
    return scores


@validate()
def hessian_saliency(model: nn.Module, loss: Loss, data: Data) -> dict[str, torch.Tensor]:
    r"""Return the Hessian saliency: the loss's second-order change when an entry is set to zero.

    $$s_i = \tfrac12 \theta_i^2 \Bigl|\frac{\partial^2 L}{\partial\theta_i^2}\Bigr|$$

    as in optimal brain damage. The diagonal is exact, for models that are piecewise linear in each
    weight; see `hr.Hessian`.

    Args:
        model: Any module; it stays as it is and is read in evaluation mode.
        loss: As `hr.Risk` takes it; None for the model's own.
        data: As `hr.Risk` takes them.

    Returns:
        Scores by parameter name, for the argument `criterion` of `select`.
    """
    risk = _risk(model, loss, data)
    curvatures = risk.space.unflatten(Hessian(risk).diagonal().abs())
    return _finite(
        {name: 0.5 * value.square() * curvatures[name] for name, value in risk.weights().items()}
    )


SALIENCIES = {
    "gradient": gradient_saliency,
    "fisher": fisher_saliency,
    "hessian": hessian_saliency,
}
"""Scores of the data by name, for `prunable`."""


def _risk(model: nn.Module, loss: Loss, data: Data) -> Risk:
    """Return the loss for a saliency, as a function of all parameters, frozen ones too."""
    names = [name for name, _ in torch_module("model", model).named_parameters()]
    return Risk(model, loss, data, params=names)
