"""Compressions, restrictions and rescalings of operators."""

from __future__ import annotations

import torch

from hyperribbon.core.checks import ArgumentError, check_finite, instance, tensor, validate
from hyperribbon.core.devices.modes import plain_arithmetic
from hyperribbon.operators.linear_operator import Cost, LinearOperator

_RESCALED = 3  # vectors that a rescaling takes beside a product
_operator = instance(LinearOperator, "Give an operator, such as hr.Hessian(model, loss, data).")


class Projected(LinearOperator):
    """Algebra of operators: the compression UᵀAU onto the columns of U.

    Args:
        operator: A square operator A (P, P).
        basis: U (P, r), usually with orthonormal columns.
    """

    @validate(operator=_operator, basis=tensor)
    def __init__(self, operator: LinearOperator, basis: torch.Tensor) -> None:
        _check_square(operator)
        if basis.ndim != 2 or basis.shape[0] != operator.shape[0]:
            raise ArgumentError(
                "basis", basis, f"the operator is {operator.shape}", "Give U of shape (P, r)."
            )
        size = basis.shape[1]
        super().__init__((size, size), operator.dtype, operator.device)
        self.operator, self.processes = operator, operator.processes
        self.basis = basis.to(operator.device, operator.dtype)
        self.is_symmetric = operator.is_symmetric

    def _multiply(self, block: torch.Tensor) -> torch.Tensor:
        return self.basis.T @ self.operator._multiply(self.basis @ block)

    def _multiply_transposed(self, block: torch.Tensor) -> torch.Tensor:
        return self.basis.T @ self.operator._multiply_transposed(self.basis @ block)


class Restricted(LinearOperator):
    """Algebra of operators: the principal submatrix A[indices, indices].

    Args:
        operator: A square operator.
        indices: Coordinates that stay, as whole numbers, in any order.
    """

    @validate(operator=_operator, indices=tensor)
    def __init__(self, operator: LinearOperator, indices: torch.Tensor) -> None:
        _check_square(operator)
        size = operator.shape[0]
        indices = torch.as_tensor(indices, device=operator.device)
        if indices.ndim != 1 or indices.dtype not in (torch.int64, torch.int32):
            raise ArgumentError(
                "indices", indices, "expected a vector of integers", "Give mask.nonzero()."
            )
        if len(indices) == 0 or int(indices.min()) < 0 or int(indices.max()) >= size:
            raise ArgumentError(
                "indices", indices, f"indices run from 0 to {size - 1}", "Give some of them."
            )
        super().__init__((len(indices), len(indices)), operator.dtype, operator.device)
        self.operator, self.indices = operator, indices
        self.processes = operator.processes
        self.is_symmetric = operator.is_symmetric

    def _embed(self, block: torch.Tensor) -> torch.Tensor:
        full = block.new_zeros(self.operator.shape[0], block.shape[1])
        return full.index_add_(0, self.indices, block)

    def _multiply(self, block: torch.Tensor) -> torch.Tensor:
        return self.operator._multiply(self._embed(block))[self.indices]

    def _multiply_transposed(self, block: torch.Tensor) -> torch.Tensor:
        return self.operator._multiply_transposed(self._embed(block))[self.indices]

    @plain_arithmetic()
    def diagonal(self) -> torch.Tensor:
        """Return the diagonal of a restricted operator, a principal submatrix."""
        return self.operator.diagonal()[self.indices]


class Rescaled(LinearOperator):
    """Algebra of operators: the matrix D (A + W) D for diagonal D and W.

    Args:
        operator: A symmetric operator A.
        scale: The diagonal of D: (P,), or one number for all.
        shift: The diagonal of W: (P,), or one number for all.
    """

    @validate(operator=_operator, scale=tensor, shift=tensor)
    def __init__(
        self,
        operator: LinearOperator,
        scale: torch.Tensor | float,
        shift: torch.Tensor | float = 0.0,
    ) -> None:
        _check_square(operator)
        super().__init__(operator.shape, operator.dtype, operator.device)
        self.operator, self.processes = operator, operator.processes
        self.scale, self.shift = (
            self._diagonal(name, value) for name, value in (("scale", scale), ("shift", shift))
        )

    def in_precision(self, dtype: torch.dtype) -> Rescaled | None:
        """Return the rescaled operator D (A + W) D in another precision."""
        operator = self.operator.in_precision(dtype)
        if operator is None:
            return None
        return Rescaled(operator, self.scale.flatten(), self.shift.flatten())

    def cost(self) -> Cost | None:
        """Return the cost of the rescaled operator D (A + W) D: that of A, and of the vectors."""
        own = self.operator.cost()
        if own is None:
            return None
        vectors = _RESCALED * self.shape[0]
        precise = 0 if own.beside == 0 else vectors * torch.float64.itemsize
        return Cost(own.bytes + vectors * self.dtype.itemsize, own.flops, own.beside + precise)

    def _diagonal(self, name: str, value: torch.Tensor | float) -> torch.Tensor:
        found = torch.as_tensor(value, dtype=self.dtype, device=self.device)
        if found.ndim > 1 or (found.ndim and len(found) not in (1, self.shape[0])):
            reason = f"the operator has {self.shape[0]} coordinates"
            raise ArgumentError(name, value, reason, "Give one number, or one per coordinate.")
        return check_finite(name, found).reshape(-1, 1)

    def _multiply(self, block: torch.Tensor) -> torch.Tensor:
        scaled = self.scale * block
        return self.scale * (self.operator @ scaled + self.shift * scaled)


def _check_square(operator: LinearOperator) -> None:
    if operator.shape[0] != operator.shape[1]:
        raise ArgumentError("operator", operator, "it is not square", "Give a square operator.")
