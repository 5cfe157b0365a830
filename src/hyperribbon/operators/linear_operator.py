"""The linear operator every curvature matrix is: shape, dtype, device and products."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from numbers import Real
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hyperribbon.core.checks import ArgumentError, check_readable
from hyperribbon.core.devices.modes import plain_arithmetic
from hyperribbon.core.devices.processes import ALONE, Processes
from hyperribbon.core.devices.tensors import host_array

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator as ScipyOperator

_COLUMNS = 64  # columns of the identity multiplied at once when a matrix is written out


@dataclass(frozen=True)
class Cost:
    """Memory and operations of one product of an operator with one vector.

    Attributes:
        bytes: Working memory at its peak, with what is kept between products.
        flops: Floating-point operations.
        beside: Memory of the same product in a higher precision while the other's is kept; 0 where
            there is none.
    """

    bytes: int
    flops: float
    beside: int = 0


class LinearOperator(ABC):
    """Base class of operators: a real matrix that is known by its products.

    Subclasses give `_multiply` on blocks (columns, k), and `_multiply_transposed` when they are not
    symmetric.

    Args:
        shape: Rows and columns.
        dtype: Precision of the products.
        device: Where vectors live.

    Attributes:
        processes: The ranks that multiply together. Vectors are the same on all of them.
    """

    is_symmetric = True
    has_exact_trace: bool = False
    processes: Processes = ALONE

    def __init__(
        self, shape: tuple[int, int], dtype: torch.dtype, device: torch.device | str
    ) -> None:
        self.shape = (int(shape[0]), int(shape[1]))
        self.dtype = dtype
        self.device = torch.device(device)

    @abstractmethod
    def _multiply(self, block: torch.Tensor) -> torch.Tensor:
        """Return A @ block of any linear operator for a block of shape (columns, k)."""

    def _multiply_transposed(self, block: torch.Tensor) -> torch.Tensor:
        """Return Aᵀ @ block of any linear operator for a block of shape (rows, k)."""
        return self._multiply(block)

    def __matmul__(self, other: torch.Tensor) -> torch.Tensor:
        """Return a linear operator's product with a vector (columns,) or a block (columns, k).

        An operator of 16 bits takes float32 too, which is what its eigenvectors are given in: the
        product has the operator's precision and the vector's type.
        """
        if self.processes.size > 1:
            with self.processes.together("the check of a vector", same=other):
                block = self._check_vector(other)
        else:
            block = self._check_vector(other)
        with plain_arithmetic():
            if block.shape[1] == 0:
                return self._multiply(block.new_zeros(self.shape[1], 1))[:, :0].to(other.dtype)
            product = self._multiply(block).to(other.dtype)
        return product.squeeze(1) if other.ndim == 1 else product

    @property
    def T(self) -> LinearOperator:
        """The transpose of any linear operator; a symmetric one is its own."""
        return self if self.is_symmetric else Transposed(self)

    @plain_arithmetic()
    def to_dense(self) -> torch.Tensor:
        """Return a linear operator's dense matrix, from products with blocks of the identity."""
        columns: list[torch.Tensor] = []
        for start in range(0, self.shape[1], _COLUMNS):
            columns.append(self._multiply(self._unit_block(start)))
        dense = torch.cat(columns, dim=1)
        return (dense + dense.T) / 2 if self.is_symmetric else dense

    def to_scipy(self) -> ScipyOperator:
        """Return a linear operator as scipy's, on numpy arrays, with the same products."""
        from scipy.sparse.linalg import LinearOperator as ScipyOperator

        def forward(array: np.ndarray) -> np.ndarray:
            return host_array(self @ self._from_numpy(array))

        def adjoint(array: np.ndarray) -> np.ndarray:
            return host_array(self.T @ self._from_numpy(array))

        def flat(product: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
            return lambda array: product(array.reshape(-1))

        products: dict[str, Any] = {
            "matvec": flat(forward),
            "rmatvec": flat(adjoint),
            "matmat": forward,
            "rmatmat": adjoint,
        }
        dtype = host_array(torch.empty(0, dtype=self.dtype, device="cpu")).dtype
        return ScipyOperator(shape=self.shape, dtype=dtype, **products)

    @plain_arithmetic()
    def diagonal(self) -> torch.Tensor:
        """Return the exact diagonal of a linear operator, from its products.

        Without further structure this costs one product per column.
        """
        pieces: list[torch.Tensor] = []
        for start in range(0, self.shape[1], _COLUMNS):
            unit = self._unit_block(start)
            pieces.append((self._multiply(unit) * unit).sum(0))
        return torch.cat(pieces)

    @plain_arithmetic()
    def trace(self) -> float:
        """Return a linear operator's exact trace; see `has_exact_trace` for whether it is cheap."""
        return float(self.diagonal().sum(dtype=torch.float64))

    def cost(self) -> Cost | None:
        """Return the cost of a linear operator's product, or None when it is not known."""
        return None

    def in_precision(self, dtype: torch.dtype) -> LinearOperator | None:
        """Return any linear operator in another precision; None where there is none."""
        return None

    def __add__(self, other: LinearOperator) -> LinearOperator:
        """Return the sum of two linear operators."""
        return Sum((self, other)) if isinstance(other, LinearOperator) else NotImplemented

    def __mul__(self, factor: float) -> LinearOperator:
        """Return any linear operator times a number."""
        return Scaled(self, factor) if isinstance(factor, Real) else NotImplemented

    __rmul__ = __mul__

    def __neg__(self) -> LinearOperator:
        """Return minus the linear operator."""
        return self * -1.0

    def __sub__(self, other: LinearOperator) -> LinearOperator:
        """Return the difference of two linear operators."""
        return self + (-other) if isinstance(other, LinearOperator) else NotImplemented

    def __truediv__(self, factor: float) -> LinearOperator:
        """Return any linear operator divided by a number."""
        return self * (1.0 / factor)

    def __repr__(self) -> str:
        """Show any linear operator's kind, shape and precision."""
        return (
            f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype}, device={self.device})"
        )

    def _check_vector(self, other: Any) -> torch.Tensor:
        """Check what a linear operator multiplies: return a vector or vectors as a block."""
        size, dtype, device = self.shape[1], self.dtype, self.device
        if not isinstance(other, torch.Tensor):
            raise ArgumentError(
                "vector", other, "it is not a torch tensor", "Use .to_scipy() for numpy arrays."
            )
        if other.layout is not torch.strided or other.is_quantized:
            check_readable("vector", other)
        if other.ndim not in (1, 2) or other.shape[0] != size:
            remedy = f"Give a tensor of shape ({size},) or ({size}, k)."
            raise ArgumentError("vector", other, f"the operator has {size} columns", remedy)
        widened = torch.finfo(dtype).bits == 16 and other.dtype == torch.float32
        if not (other.dtype == dtype or widened) or other.device != device:
            remedy = "Convert it with .to(operator.device, operator.dtype)."
            raise ArgumentError(
                "vector", other, f"the operator works in {dtype} on {device}", remedy
            )
        block = other.detach().to(dtype)
        return block.unsqueeze(1) if block.ndim == 1 else block

    def _unit_block(self, start: int) -> torch.Tensor:
        width = min(_COLUMNS, self.shape[1] - start)
        block = torch.zeros(self.shape[1], width, dtype=self.dtype, device=self.device)
        block[start : start + width].fill_diagonal_(1)
        return block

    def _from_numpy(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device, self.dtype)


class Transposed(LinearOperator):
    """The transpose of a rectangular operator."""

    is_symmetric = False

    def __init__(self, operator: LinearOperator) -> None:
        super().__init__((operator.shape[1], operator.shape[0]), operator.dtype, operator.device)
        self.operator, self.processes = operator, operator.processes

    @property
    def T(self) -> LinearOperator:
        """The linear operator that was transposed."""
        return self.operator

    def _multiply(self, block: torch.Tensor) -> torch.Tensor:
        return self.operator._multiply_transposed(block)

    def _multiply_transposed(self, block: torch.Tensor) -> torch.Tensor:
        return self.operator._multiply(block)


class Sum(LinearOperator):
    """The sum of linear operators, A + B + ….

    Args:
        terms: Operators of one shape, precision and device.
    """

    def __init__(self, terms: Sequence[LinearOperator]) -> None:
        first = terms[0]
        for term in terms[1:]:
            if (term.shape, term.dtype, term.device) != (first.shape, first.dtype, first.device):
                raise ArgumentError(
                    "terms", term, f"it does not match {first}", "Add operators on the same space."
                )
        super().__init__(first.shape, first.dtype, first.device)
        self.terms, self.processes = tuple(terms), first.processes
        self.is_symmetric = all(term.is_symmetric for term in terms)
        self.has_exact_trace = all(term.has_exact_trace for term in terms)

    def _multiply(self, block: torch.Tensor) -> torch.Tensor:
        return reduce(add, (term._multiply(block) for term in self.terms))

    def _multiply_transposed(self, block: torch.Tensor) -> torch.Tensor:
        return reduce(add, (term._multiply_transposed(block) for term in self.terms))

    def diagonal(self) -> torch.Tensor:
        """Return the diagonal of a sum of linear operators."""
        return torch.stack([term.diagonal() for term in self.terms]).sum(0)

    def trace(self) -> float:
        """Return the trace of a sum of linear operators."""
        return sum(term.trace() for term in self.terms)

    def cost(self) -> Cost | None:
        """Return the cost of a sum of linear operators: that of its terms together."""
        costs = [term.cost() for term in self.terms]
        known = [cost for cost in costs if cost is not None]
        if len(known) < len(costs):
            return None
        return Cost(
            sum(c.bytes for c in known),
            sum(c.flops for c in known),
            max(c.beside for c in known),
        )

    def in_precision(self, dtype: torch.dtype) -> LinearOperator | None:
        """Return a sum of linear operators in another precision."""
        terms = [term.in_precision(dtype) for term in self.terms]
        known = [term for term in terms if term is not None]
        return Sum(known) if len(known) == len(terms) else None


class Scaled(LinearOperator):
    """A linear operator times a number, s·A."""

    def __init__(self, operator: LinearOperator, factor: Any) -> None:
        super().__init__(operator.shape, operator.dtype, operator.device)
        self.operator, self.factor = operator, float(factor)
        self.processes = operator.processes
        self.is_symmetric = operator.is_symmetric
        self.has_exact_trace = operator.has_exact_trace

    def _multiply(self, block: torch.Tensor) -> torch.Tensor:
        return self.factor * self.operator._multiply(block)

    def _multiply_transposed(self, block: torch.Tensor) -> torch.Tensor:
        return self.factor * self.operator._multiply_transposed(block)

    def diagonal(self) -> torch.Tensor:
        """Return the diagonal of a scaled linear operator s·A."""
        return self.factor * self.operator.diagonal()

    def trace(self) -> float:
        """Return the trace of a scaled linear operator s·A."""
        return self.factor * self.operator.trace()

    def cost(self) -> Cost | None:
        """Return the cost of a scaled linear operator: that of A."""
        return self.operator.cost()

    def in_precision(self, dtype: torch.dtype) -> LinearOperator | None:
        """Return a scaled linear operator s·A in another precision."""
        operator = self.operator.in_precision(dtype)
        return None if operator is None else Scaled(operator, self.factor)
