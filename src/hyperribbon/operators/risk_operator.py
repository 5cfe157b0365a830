"""Symmetric matrices on a model's parameters that are sums over the samples of a risk."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, TypeVar

import torch
from torch import nn

from hyperribbon.core.checks import ArgumentError, validate
from hyperribbon.core.devices.modes import plain_arithmetic
from hyperribbon.core.mask import Mask
from hyperribbon.core.parameters import ParameterFilter, ParameterSpace
from hyperribbon.operators.derivatives.linearisation import Block
from hyperribbon.operators.gram import squared_columns, squared_norm
from hyperribbon.operators.linear_operator import Cost, LinearOperator
from hyperribbon.operators.risk import Chunk, Risk
from hyperribbon.operators.risk.data import Data
from hyperribbon.operators.risk.forward import Forward
from hyperribbon.operators.risk.objective import no_own_loss
from hyperribbon.operators.risk.risk import GradientSums

Self = TypeVar("Self", bound="RiskOperator")


class RiskOperator(LinearOperator):
    """A symmetric matrix on the parameters that is a sum over the samples of a risk.

    Subclasses give the unscaled product of one chunk of samples and the scale. With several
    processes each sums over its own samples, and the sums are added up.
    """

    _forwards = 4.0
    """Operations of a product, in forward passes."""
    _kind = "jvp"
    """Derivatives that a product needs, see `Risk.prepare`."""

    _needs_loss = False
    """Whether the matrix is that of a loss."""

    products_are_new = True
    """Whether a product has memory of its own, which whoever asked for it may change."""

    seconds: float | None = None
    """How long the last product with one vector took; None before the first. Plans use it."""

    @validate()
    def __init__(
        self,
        model: nn.Module | Callable[..., Any] | Risk,
        loss: Callable[..., Any] | None = None,
        data: Data = None,
        *,
        params: ParameterFilter = None,
        mask: Mask | None = None,
        forward: Forward | None = None,
        mode: str | None = "eval",
        memory: float | None = None,
        process_group: Any = None,
    ) -> None:
        risk = risk_of(model, loss, data, params, mask, forward, mode, memory, process_group)
        size = risk.space.dimension
        if self._needs_loss and risk.loss is None:
            raise no_own_loss(risk.function.module)
        if self._kind != "hvp" and risk.loss is not None:
            risk.loss.check_factored(type(self).__name__)
        risk.prepare(self._kind)
        super().__init__((size, size), risk.dtype, risk.device)
        self.risk, self.processes = risk, risk.processes

    @property
    def space(self) -> ParameterSpace:
        """The coordinates of a risk's operator: which entry is which weight."""
        return self.risk.space

    @validate()
    def at(self: Self, weights: Mapping[str, torch.Tensor] | torch.Tensor) -> Self:
        """Return the risk's operator at other weights: named tensors, or coordinates (P,)."""
        return self._with(self.risk.at(weights))

    def in_precision(self, dtype: torch.dtype) -> RiskOperator | None:
        """Return a risk operator, same weights and data, with products in another precision."""
        return self._with(self.risk.in_precision(dtype))

    def cost(self) -> Cost:
        """Return the memory and operations of one product with a risk's operator."""
        flops = self._forwards * self.risk.forward_flops()
        return Cost(self.risk.working_bytes(self._kind), flops, self.risk.bytes_beside())

    def layers(self: Self) -> dict[str, Self]:
        """Return a risk's diagonal blocks: one operator per layer, by the layer's name."""
        return {name: self._with(self.risk.on(s)) for name, s in self.space.layers().items()}

    @plain_arithmetic()
    def diagonal(self) -> torch.Tensor:
        """Return the diagonal of a risk's operator, exactly; cheap where `has_exact_trace`."""
        if not self._has_rows:
            return super().diagonal()
        return squared_columns(self.risk, self._rows) * self._scale()

    @plain_arithmetic()
    def trace(self) -> float:
        """Return the trace of a risk's operator, exactly; cheap where `has_exact_trace`."""
        if not self._has_rows:
            return super().trace()
        return squared_norm(self.risk, self._rows) * self._scale()

    def _with(self: Self, risk: Risk) -> Self:
        other = copy.copy(self)
        RiskOperator.__init__(other, risk)
        other.seconds = None
        return other

    def _multiply(self, block: torch.Tensor) -> torch.Tensor:
        begun = perf_counter()
        product = self._multiply_together(block)
        if block.shape[1] == 1 and self.device.type == "cpu":  # others return before it is there
            self.seconds = perf_counter() - begun
        return product

    def _multiply_together(self, block: torch.Tensor) -> torch.Tensor:
        if self.processes.size == 1:
            product = self._multiply_own(block)
        else:
            with self.processes.together(f"a product with the {type(self).__name__}"):
                product = self._multiply_own(block)
            product = self.processes.sum(product)
        return self._complete(product.mul_(self._scale()), block, slice(0, len(block)))

    def multiply_rows(self, part: torch.Tensor) -> torch.Tensor:
        """Return this rank's rows of a risk operator's A @ block, from its rows of the block.

        Which rows a rank has is `processes.rows(P)`. Neither the block nor the product is kept
        whole, so that solvers can keep many vectors in parts. Every rank calls it.
        """
        size = self.shape[0]
        block = self.processes.gather_rows(part, size)
        task = f"a product with the {type(self).__name__}"
        with self.processes.together(task), plain_arithmetic():
            product = self._multiply_own(block)
        product = self.processes.sum_rows(product).mul_(self._scale())
        return self._complete(product, block, self.processes.rows(size))

    def _complete(self, product: torch.Tensor, block: torch.Tensor, rows: slice) -> torch.Tensor:
        """Return rows of a risk operator's product, with what is not a sum over samples."""
        return product

    def _multiply_own(self, block: torch.Tensor) -> torch.Tensor:
        """Return the risk operator's unscaled product over this rank's samples.

        Raises:
            ArgumentError: A finite vector has a product that is NaN.
        """
        product = self._sum_products(block)
        # One pass of the sum; all entries are looked at where it is NaN.
        if bool(product.sum().isnan()) and bool(product.isnan().any() & block.isfinite().all()):
            reason = (
                "some of its derivatives are NaN: an operation has an infinite slope on some of "
                "the samples, such as a square root or a norm at zero"
            )
            remedy = "Keep its argument away from zero, as sqrt(x + 1e-12) does."
            raise ArgumentError("model", type(self).__name__, reason, remedy)
        return product

    def _sum_products(self, block: torch.Tensor) -> torch.Tensor:
        """Return a risk operator's products summed over chunks, as many columns at once as fit."""
        columns = block.shape[1]
        at_once = 1 if columns == 1 else self.risk.columns_at_once()
        if columns > at_once:
            parts = block.tensor_split(-(-columns // at_once), dim=1)
            return torch.cat([self._sum_products(part) for part in parts], dim=1)
        v, sums = self.space.unflatten(block), GradientSums()
        for chunk in self.risk.chunks(self._kind):
            sums.add(self._product(chunk, v))
            del chunk  # else its graph is there while the next one is built
        return self.risk.flatten([sums], columns)

    @abstractmethod
    def _product(self, chunk: Chunk, v: Block) -> Block:
        """Return a risk operator's unscaled product of some samples, by name with k rows."""

    @property
    def _has_rows(self) -> bool:
        """Whether a risk's operator has its diagonal and trace from `_rows`."""
        return self.has_exact_trace

    def _rows(self, chunk: Chunk) -> torch.Tensor:
        """Return R (m, n, …): a risk operator's exact trace is that of Σ_n J_nᵀ R_nᵀ R_n J_n."""
        raise NotImplementedError

    @abstractmethod
    def _scale(self) -> float:
        """Return the factor of a risk operator's sum over samples."""


def risk_of(
    model: Any,
    loss: Any,
    data: Data,
    params: ParameterFilter,
    mask: Mask | None,
    forward: Forward | None,
    mode: str | None,
    memory: float | None,
    process_group: Any,
) -> Risk:
    """Return the risk that an operator's arguments name: a given one, or a new one.

    Args:
        model: A `Risk`, or the model of a new one.
        loss: The loss of a new one, like all further arguments.
        data: As for `Risk`.
        params: As for `Risk`.
        mask: As for `Risk`.
        forward: As for `Risk`.
        mode: As for `Risk`.
        memory: As for `Risk`.
        process_group: As for `Risk`.

    Raises:
        ArgumentError: There is a Risk and something beside it.
    """
    options: dict[str, Any] = {"params": params, "mask": mask, "forward": forward}
    options |= {"memory": memory, "process_group": process_group}
    if not isinstance(model, Risk):
        return Risk(model, loss, data, mode=mode, **options)
    if mode == "train" or any(v is not None for v in (loss, data, *options.values())):
        remedy = "Give them to hr.Risk(model, loss, data, …), and only that to the operator."
        raise ArgumentError("model", "a Risk", "it has its loss, data and options already", remedy)
    return model
