"""A network whose activations are linear, trained in place of the network itself."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from hyperribbon.core.checks import ArgumentError
from hyperribbon.prediction.linear_layers import FoundChain

_NAMES = ("relu", "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "softplus")
_NAMES += ("hardtanh", "hardswish", "tanh", "sigmoid", "softsign", "logsigmoid")
ACTIVATIONS: dict[Any, str] = {
    function: name
    for name in _NAMES
    for owner in (F, torch, torch.Tensor)
    if (function := getattr(owner, name, None)) is not None
}
"""Functions that act on each number by itself, and their names."""


class _Replacing(TorchFunctionMode):
    """Calls κ x in place of an activation φ(x); without κ, finds it, ‖φ(x)‖ / ‖x‖."""

    def __init__(self, gains: list[float] | None) -> None:
        super().__init__()
        self._gains, self._calls = gains, 0
        self.found: list[float] = []
        self.names: list[str] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named: dict[str, Any] = kwargs or {}
        if func not in ACTIVATIONS:
            return func(*args, **named)
        given = args[0] if args else named["input"]
        if self._gains is not None:
            self._calls += 1
            return self._gains[self._calls - 1] * given
        size = float(given.detach().norm())
        output = func(*args, **named)
        self.found.append(float(output.detach().norm()) / size if size else 1.0)
        self.names.append(ACTIVATIONS[func])
        return output


@contextmanager
def beyond_the_models_outputs(loss: Any) -> Iterator[None]:
    """Raise an ArgumentError where a loss is not defined at outputs that a surrogate returns.

    Negative variances are an example, and probabilities above one.
    """  # noqa: DOC501 - other errors pass through
    try:
        yield
    except (ValueError, RuntimeError) as error:
        if isinstance(error, ArgumentError | torch.OutOfMemoryError):
            raise
        cause = str(error).splitlines()[0]
        reason = f"it is not defined for all outputs that the forecast needs ({cause})"
        remedy = "Move what keeps the outputs valid (softplus, sigmoid) from the model to the loss."
        raise ArgumentError("loss", loss, reason, remedy) from error


class LinearSurrogate(nn.Module):
    """A linear surrogate of a model: activations multiply by their gain at the start.

    Args:
        model: Any module; it is not changed.
        run: Evaluates a model on some samples.

    Attributes:
        gains: κ of each activation, in the order of the calls.
        activations: Their names.
    """

    def __init__(self, model: nn.Module, run: Callable[[nn.Module], Any]) -> None:
        super().__init__()
        self.inner = copy.deepcopy(model).eval()
        with torch.enable_grad(), _Replacing(None) as finding:  # a model may differentiate inside
            run(self.inner)
        self.gains, self.activations = finding.found, finding.names

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs of the linear surrogate."""
        with _Replacing(self.gains):
            return self.inner(*args, **kwargs)


class ChainSurrogate(nn.Module):
    """A surrogate: linear layers with biases in series, inputs with a constant column.

    Args:
        chain: The layers.
        gains: κ behind each layer but the last.
    """

    def __init__(self, chain: FoundChain, gains: list[float]) -> None:
        super().__init__()
        self._gains, self._has_biases = [*gains, 1.0], chain.has_biases

        def parameter(values: np.ndarray | None) -> nn.Parameter | None:
            return None if values is None else nn.Parameter(torch.from_numpy(values.copy()))

        self.weights = nn.ParameterList([parameter(weight) for weight in chain.weights])
        for place, bias in enumerate(chain.biases):
            self.register_parameter(f"bias{place}", parameter(bias))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs (n, dL) of the linear surrogate of a network."""
        one = x[:, -1:]
        h = x[:, :-1] if self._has_biases else x
        for place, (weight, gain) in enumerate(zip(self.weights, self._gains, strict=True)):
            h = h @ weight.T
            bias = getattr(self, f"bias{place}")
            if bias is not None:
                h = h + one * bias
            h = gain * h
        return h


def stand_in_data(chain: FoundChain) -> tuple[torch.Tensor, torch.Tensor]:
    """Return few samples for the surrogate with second moments of all: (r, d) and (r, dL).

    A linear network under squared loss has on them the same gradient and Hessian.
    """
    variances, directions = np.linalg.eigh(chain.moments.inputs)
    present = variances > 1e-14 * variances[-1]
    roots, directions = np.sqrt(variances[present]), directions[:, present]
    scale = np.sqrt(len(roots))
    inputs = scale * (directions * roots).T
    targets = scale * (chain.moments.cross @ directions / roots).T
    return torch.from_numpy(inputs), torch.from_numpy(targets)


def squares(curvature: float) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return the surrogate's loss (c/2n)‖f − Y‖²."""
    return lambda f, y: 0.5 * curvature * (f - y).square().sum() / len(f)
