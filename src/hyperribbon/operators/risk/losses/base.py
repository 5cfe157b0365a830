"""What every loss gives: its sum over samples, with gradient, curvature and root in the outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from hyperribbon.core.checks import ArgumentError
from hyperribbon.operators.derivatives.graphs import graph_leaves, graph_nodes

__all__ = ["Loss", "no_root", "one_element_each", "wide", "zero_rows"]


class Loss(ABC):
    """A loss Σ_n ℓ(f_n, y_n)/amount of outputs f (n, …).

    Outputs in half precision are worked on in single precision; what has the shape of the outputs
    comes back in their precision.

    Attributes:
        reduction: "mean", or "sum" for which the amount is one.
        is_convex: Whether the loss is known to be convex in the outputs.
        is_curved: Whether its second derivative is not zero throughout.
    """

    reduction: str = "mean"
    is_convex: bool = True
    is_curved: bool = True

    def __repr__(self) -> str:
        return type(self).__name__

    @abstractmethod
    def total(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return Σ_n ℓ(f_n, y_n), differentiable in the outputs."""

    @abstractmethod
    def amount(self, outputs: torch.Tensor, targets: Any) -> float:
        """Return what this batch adds to the divisor of a mean."""

    def check(self, outputs: torch.Tensor, targets: Any) -> None:  # noqa: B027
        """Raise when the targets do not fit the outputs."""

    def check_factored(self, matrix: str) -> None:  # noqa: B027
        """Raise when the loss is not known as a function of the outputs, which a matrix needs."""

    def gradient(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return ∂ℓ/∂f, shaped like the outputs."""
        with torch.enable_grad():
            leaf = wide(outputs.detach()).requires_grad_()
            total = self.total(leaf, targets)
            slope = torch.autograd.grad(total, leaf, materialize_grads=True)[0]
        return slope.to(outputs.dtype)

    def curvature(self, outputs: torch.Tensor, targets: Any, block: torch.Tensor) -> torch.Tensor:
        """Return ∂²ℓ/∂f² u for a block u (k, n, …).

        Raises:
            ArgumentError: An operation in the loss has no second derivative in torch.
        """  # noqa: DOC501 - torch's own RuntimeError passes through
        if not self.is_curved:
            return torch.zeros_like(block)
        with torch.enable_grad():
            leaf = wide(outputs.detach()).requires_grad_()
            (slope,) = torch.autograd.grad(
                self.total(leaf, targets), leaf, create_graph=True, materialize_grads=True
            )
            if not slope.requires_grad:
                return torch.zeros_like(block)
            try:
                how = {"retain_graph": True, "materialize_grads": True}
                vectors = block.to(leaf.dtype)
                rows = [torch.autograd.grad(slope, leaf, u, **how)[0] for u in vectors]
            except RuntimeError as error:
                if "is not implemented" not in str(error):
                    raise
                reason = f"an operation in it cannot be differentiated twice: {error}"
                remedy = "Write that operation with others, or give the torch.nn loss itself."
                raise ArgumentError("loss", self, reason, remedy) from None
        return torch.stack(rows).to(block.dtype)

    def curving(self, outputs: torch.Tensor, targets: Any) -> Callable[..., torch.Tensor]:
        """Return `curvature` as a function of the block alone, for many blocks."""
        return partial(self.curvature, outputs, targets)

    def root(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return rows R (D, n, …) with Σ_j R_j R_jᵀ = ∂²ℓ_n/∂f_n² for every sample n.

        D is the number of a sample's outputs.

        Raises:
            ArgumentError: The loss is not convex in the outputs.
        """  # noqa: DOC501 - no_root() returns one
        if not self.is_curved:
            return zero_rows(outputs)
        count, size, dtype = len(outputs), outputs[0].numel(), outputs.dtype
        outputs = wide(outputs)
        units = torch.eye(size, dtype=outputs.dtype, device=outputs.device)
        units = units.reshape(size, 1, *outputs.shape[1:]).expand(size, *outputs.shape)
        curved = self.curvature(outputs, targets, units).reshape(size, count, size).transpose(0, 1)
        values, vectors = torch.linalg.eigh((curved + curved.mT) / 2)
        largest = values.abs().amax(1, keepdim=True)
        rounding = size * torch.finfo(values.dtype).eps * 10
        if bool((values < -rounding * largest).any()):
            raise no_root(self)
        rows = (vectors * values.clamp(min=0).sqrt().unsqueeze(1)).permute(2, 0, 1)
        return rows.reshape(size, *outputs.shape).to(dtype)

    def reaches(
        self, outputs: torch.Tensor, targets: Any, parameters: Mapping[str, torch.Tensor]
    ) -> list[str]:
        """Return the names of the tensors on which the loss depends beside the outputs.

        A penalty on the weights inside the loss is found this way: a risk that differentiates
        through the outputs alone would miss it. The graph of the loss at detached outputs is
        followed to its leaves; tensors that require no gradient, and so are in no graph, are found
        when they are used.

        Args:
            outputs: Of some samples.
            targets: Of these.
            parameters: The model's own tensors, by name.
        """
        frozen = {id(tensor) for tensor in parameters.values() if not tensor.requires_grad}
        with torch.enable_grad(), _Watching(frozen) as watching:
            total = self.total(outputs.detach().requires_grad_(), targets)
        found = {id(leaf) for leaf in graph_leaves(graph_nodes(total))} | watching.used
        return [name for name, tensor in parameters.items() if id(tensor) in found]


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in single precision when it has less."""
    return tensor.float() if tensor.dtype.itemsize < torch.float32.itemsize else tensor


def one_element_each(values: torch.Tensor) -> torch.Tensor:
    """Return rows (D, n, …) of which row j holds entry j of each sample's D values, else zero."""
    flat = values.reshape(len(values), -1)
    return torch.diag_embed(flat).transpose(0, 1).reshape(flat.shape[1], *values.shape)


def zero_rows(outputs: torch.Tensor) -> torch.Tensor:
    """Return the root (D, n, …) of a loss without curvature, which takes the memory of one row."""
    return torch.zeros_like(outputs).expand(outputs[0].numel(), *outputs.shape)


def no_root(loss: Loss) -> ArgumentError:
    """Return the error of a loss whose curvature has negative eigenvalues."""
    reason = "it is not convex in the outputs, so its Gauss-Newton matrix has no real root"
    remedy = "Use products (method='lanczos') instead of the Gram matrix."
    return ArgumentError("loss", loss, reason, remedy)


class _Watching(TorchFunctionMode):
    """Notes which of some tensors torch functions are called with."""

    def __init__(self, wanted: set[int]) -> None:
        super().__init__()
        self._wanted = wanted
        self.used: set[int] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named: dict[str, Any] = kwargs or {}
        for argument in (*args, *named.values()):
            parts = argument if isinstance(argument, list | tuple) else (argument,)
            self.used |= {id(part) for part in parts} & self._wanted
        return func(*args, **named)
