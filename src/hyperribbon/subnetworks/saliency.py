"""Scores that need the data: gradient times weight, and the Fisher diagonal."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from hyperribbon.core.boundary import function
from hyperribbon.subnetworks.attention import vectorisable_attention
from hyperribbon.subnetworks.states import check_data, check_module

__all__ = ["fisher_saliency", "gradient_saliency"]

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_ROWS = 64


def gradient_saliency(
    model: nn.Module, loss: Loss, data: tuple[torch.Tensor, torch.Tensor]
) -> dict[str, torch.Tensor]:
    r"""Return the first-order change of the loss when an entry is set to zero.

    $$s_i = \Bigl|\theta_i \, \frac{\partial L}{\partial \theta_i}\Bigr|,\qquad
      L = \frac1N\sum_n \ell(f(x_n), y_n)$$

    Args:
        model: Any module; it stays as it is and is read in evaluation mode.
        loss: Function of (outputs, targets) that averages over the samples it is given.
        data: Inputs and targets.

    Returns:
        Scores by parameter name, for the argument `criterion` of `select`.
    """
    function("loss", loss)
    network, parameters = _frozen(model)
    inputs, targets = check_data(data)

    def total(values: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return loss(functional_call(network, values, (x,)), y) * len(y)

    gradient = {name: torch.zeros_like(value) for name, value in parameters.items()}
    for start in range(0, len(targets), 1024):
        window = slice(start, start + 1024)
        part = grad(total)(parameters, inputs[window], targets[window])
        for name, value in part.items():
            gradient[name] += value
    return {
        name: (value * gradient[name] / len(targets)).abs() for name, value in parameters.items()
    }


def fisher_saliency(
    model: nn.Module, loss: Loss, data: tuple[torch.Tensor, torch.Tensor]
) -> dict[str, torch.Tensor]:
    r"""Return the second-order change of the loss when an entry is set to zero, from the Fisher.

    $$s_i = \tfrac12 \theta_i^2 F_{ii},\qquad
      F_{ii} = \frac1N\sum_n \Bigl(\frac{\partial \ell_n}{\partial\theta_i}\Bigr)^2$$

    F is the empirical Fisher matrix (the labels of the data), whose diagonal needs one gradient a
    sample; they are computed a block of samples at a time and never stored together.

    Args:
        model: Any module; it stays as it is and is read in evaluation mode.
        loss: The negative log-likelihood of (outputs, targets), averaged over samples.
        data: Inputs and targets.

    Returns:
        Scores by parameter name, for the argument `criterion` of `select`.
    """
    function("loss", loss)
    network, parameters = _frozen(model)
    inputs, targets = check_data(data)

    def single(values: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return loss(functional_call(network, values, (x[None],)), y[None])

    per_sample = vmap(grad(single), in_dims=(None, 0, 0))
    squares = {name: torch.zeros_like(value) for name, value in parameters.items()}
    for start in range(0, len(targets), _ROWS):
        window = slice(start, start + _ROWS)
        with vectorisable_attention():
            gradients = per_sample(parameters, inputs[window], targets[window])
        for name, rows in gradients.items():
            squares[name] += rows.square().sum(0)
    return {
        name: 0.5 * value.square() * squares[name] / len(targets)
        for name, value in parameters.items()
    }


def _frozen(model: nn.Module) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    network = copy.deepcopy(check_module("model", model)).requires_grad_(False).eval()
    return network, {name: value.detach() for name, value in network.named_parameters()}
