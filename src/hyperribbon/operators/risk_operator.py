"""Symmetric matrices on a model's parameters that are sums over the samples of a risk."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, TypeVar

import torch

from hyperribbon.core.boundary import checked
from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.devices.ambient import plain_arithmetic, plainly
from hyperribbon.core.parameters import ParameterSpace
from hyperribbon.operators.base import Cost, LinearOperator
from hyperribbon.operators.derivatives.sums import Directions, GradientSums
from hyperribbon.operators.derivatives.workspace import Workspaces
from hyperribbon.operators.gram import squared_columns, squared_norm
from hyperribbon.operators.risk import Chunk, Risk
from hyperribbon.operators.risk.data import Data

__all__ = ["RiskOperator", "risk_of"]

Self = TypeVar("Self", bound="RiskOperator")


class RiskOperator(LinearOperator):
    """A symmetric matrix on the parameters that is a sum over the samples of a risk.

    Subclasses give the unscaled product of one chunk of samples and the scale. With several
    processes each sums over its own samples, and the sums are added up.
    """

    _forwards = 4.0
    """Operations of a product, in forward passes."""
    _kind = "push"
    """Derivatives that a product needs, see `Risk.prepare`."""

    def __init__(self, risk: Risk) -> None:
        size = risk.space.dimension
        if self._kind != "curve" and risk.loss is not None:
            risk.loss.check_factored(type(self).__name__)
        risk.prepare(self._kind)
        super().__init__((size, size), risk.dtype, risk.device)
        self.risk, self.processes = risk, risk.processes
        self._workspaces = Workspaces(risk.memory / 4)

    @property
    def space(self) -> ParameterSpace:
        """The coordinates: which entry is which weight."""
        return self.risk.space

    @checked()
    def at(self: Self, weights: Mapping[str, torch.Tensor] | torch.Tensor) -> Self:
        """Return the same operator at other weights: named tensors, or coordinates (P,)."""
        return self._with(self.risk.at(weights))

    def in_precision(self, dtype: torch.dtype) -> RiskOperator | None:
        """Return the same matrix, of the same weights and data, with products in a precision."""
        other = self._with(self.risk.in_precision(dtype))
        other._workspaces = Workspaces(other.risk.memory)
        return other

    def cost(self) -> Cost:
        """Return the memory and operations of one product."""
        flops = self._forwards * self.risk.forward_flops()
        return Cost(self.risk.working_bytes(self._kind), flops, self.risk.bytes_beside())

    def layers(self: Self) -> dict[str, Self]:
        """Return the diagonal blocks: one operator a layer, by the layer's name."""
        return {name: self._with(self.risk.on(s)) for name, s in self.space.layers().items()}

    @plainly
    def diagonal(self) -> torch.Tensor:
        """Return the diagonal, exactly; `has_exact_trace` tells whether it is cheap."""
        if not self._has_rows:
            return super().diagonal()
        return squared_columns(self.risk, self._rows) * self._scale()

    @plainly
    def trace(self) -> float:
        """Return the trace, exactly; `has_exact_trace` tells whether it is cheap."""
        if not self._has_rows:
            return super().trace()
        return squared_norm(self.risk, self._rows) * self._scale()

    def _with(self: Self, risk: Risk) -> Self:
        other = copy.copy(self)
        RiskOperator.__init__(other, risk)
        other._workspaces = self._workspaces
        return other

    def _multiply(self, block: torch.Tensor) -> torch.Tensor:
        with self.processes.together(f"a product with the {type(self).__name__}"):
            product = self._multiply_own(block)
        product = self.processes.sum(product).mul_(self._scale())
        return self._completed(product, block, slice(0, len(block)))

    def multiply_rows(self, part: torch.Tensor) -> torch.Tensor:
        """Return this rank's rows of A @ block, from this rank's rows (·, k) of the block.

        Which rows a rank has is `processes.rows(P)`. Neither the block nor the product is kept
        whole, so that solvers can keep many vectors in parts. Every rank calls it.
        """
        size = self.shape[0]
        block = self.processes.gather_rows(part, size)
        with self.processes.together(f"a product with the {type(self).__name__}"):
            product = self._multiply_own(block)
        product = self.processes.sum_rows(product).mul_(self._scale())
        return self._completed(product, block, self.processes.rows(size))

    def _completed(self, product: torch.Tensor, block: torch.Tensor, rows: slice) -> torch.Tensor:
        """Return the rows of a product with what is not a sum over samples added."""
        return product

    def _multiply_own(self, block: torch.Tensor) -> torch.Tensor:
        """Return the unscaled product of this rank's samples."""
        columns = block.shape[1]
        parts = 1 if columns == 1 else -(-columns // self.risk.columns_at_once())
        with plain_arithmetic():
            pieces = [self._multiply_some(piece) for piece in block.tensor_split(parts, dim=1)]
        product = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)
        self._check_numbers(product, block)
        return product

    def _check_numbers(self, product: torch.Tensor, block: torch.Tensor) -> None:
        """Raise where finite vectors have products that are no numbers."""
        if not bool(product.sum().isnan()):  # one pass; that of all entries is for what it finds
            return
        if bool(product.isnan().any()) and bool(block.isfinite().all()):
            reason = (
                "its derivatives are no numbers (NaN) on some of the samples: an operation there "
                "has an infinite slope, such as a square root or a norm at zero"
            )
            remedy = "Keep its argument away from zero, as sqrt(x + 1e-12) does."
            raise ArgumentError("model", type(self).__name__, reason, remedy)

    def _multiply_some(self, block: torch.Tensor) -> torch.Tensor:
        with self._workspaces.borrowed() as workspace:
            directions = Directions(self.space.unflatten(block), workspace)
            sums = GradientSums(workspace)
            for chunk in self.risk.chunks(self._kind):
                self._add_product(chunk, directions, sums)
                del chunk  # else its graph is there while the next one is built
            return self.risk.flatten([sums], block.shape[1])

    @abstractmethod
    def _add_product(self, chunk: Chunk, directions: Directions, sums: GradientSums) -> None:
        """Add the unscaled product of some samples."""

    @property
    def _has_rows(self) -> bool:
        """Whether diagonal and trace follow from `_rows`."""
        return self.has_exact_trace

    def _rows(self, chunk: Chunk) -> torch.Tensor:
        """Return R (m, n, …): where the trace is exact, it is that of Σ_n J_nᵀ R_nᵀ R_n J_n."""
        raise NotImplementedError

    @abstractmethod
    def _scale(self) -> float:
        """Return the factor of the sum over samples."""


def risk_of(model: Any, loss: Any, data: Data, **options: Any) -> Risk:
    """Return the risk that the arguments of an operator name: a given one, or a new one.

    Args:
        model: A `Risk`, or the model of a new one.
        loss: The loss of a new one.
        data: The data of a new one.
        options: Further keywords of `Risk`.

    Raises:
        ArgumentError: There is a Risk and something beside it.
    """
    if not isinstance(model, Risk):
        return Risk(model, loss, data, **options)
    given = {name: value for name, value in options.items() if value is not None}
    if given.pop("mode", "eval") != "eval" or given or data is not None or loss is not None:
        remedy = "Give them to hr.Risk(model, loss, data, …), and only that to the operator."
        raise ArgumentError("model", "a Risk", "it has its loss, data and options already", remedy)
    return model
