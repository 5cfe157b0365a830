"""Products with any matrix-like object, counted and checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf, isfinite
from time import monotonic
from typing import Annotated as Float
from typing import Any

import numpy as np
import torch

from hyperribbon.core.checks import ArgumentError, check_readable
from hyperribbon.core.devices.processes import ALONE, Processes
from hyperribbon.core.devices.tensors import tensor_of

_TINY = 1e-30  # squares that are nearly too small for float32
_CHUNK = 8192  # squares that are summed in the vectors' own precision

ShouldStop = Callable[[], "bool | None"]
"""Returns whether to stop; an exception that it raises passes through the solver."""


class StoppedError(Exception):
    """`should_stop` returned True before the solver had anything to return."""


class Products:
    """A square operator seen only through its shape and `@`.

    Takes our operators, curvlinops operators, scipy operators and sparse matrices, and explicit
    arrays and tensors. Vectors go in as tensors (P,) or blocks (P, b) of `dtype` on `device`,
    whatever the operator itself works in.

    An operator of several processes that has `multiply_rows` lets solvers keep vectors in parts:
    each rank has the rows `rows` of every vector, and inner products are summed over the ranks.
    In a single process, a part is the whole vector.

    Args:
        op: The operator.
        should_stop: Called now and before each product; with several ranks, one stops all.

    Attributes:
        size: P.
        dtype: Precision of the vectors: the operator's own, at least float32.
        device: Where the vectors live.
        matvecs: Products spent so far; a block of b columns counts as b.
        processes: The ranks that call everything here together.
        rows: The rows of vectors that this rank keeps.
        length: Their number.
        takes_arrays: Whether the operator multiplies numpy arrays.
        is_parted: Whether each rank keeps its own rows of vectors.

    Raises:
        ArgumentError: It has no shape or no product, is not square, or is complex.
        StoppedError: `should_stop` returns True.
    """

    def __init__(self, op: object, should_stop: ShouldStop | None = None) -> None:
        shape = getattr(op, "shape", None)
        if shape is None or not hasattr(type(op), "__matmul__"):
            raise ArgumentError(
                "op", op, "it has no .shape or no @", "Give an operator, a matrix or a tensor."
            )
        if len(shape) != 2 or shape[0] != shape[1] or shape[0] == 0:
            remedy = "A rectangular J has JᵀJ (hr.GGN, hr.Fisher) and JJᵀ (hr.NTK) instead."
            raise ArgumentError("op", tuple(shape), "its shape is not square", remedy)
        if getattr(op, "is_meta", False):
            check_readable("op", op)
        self.op: Any = op
        self.size = int(shape[0])
        self.matvecs = 0
        given = getattr(op, "dtype", None)
        self.takes_arrays = not isinstance(op, torch.Tensor) and not isinstance(given, torch.dtype)
        self._input_dtype = _float_dtype(given)
        self.dtype = torch.promote_types(self._input_dtype, torch.float32)
        device = getattr(op, "device", "cpu")
        self.device = torch.device("cpu") if self.takes_arrays else torch.device(device)
        processes = getattr(op, "processes", ALONE)
        self.processes = processes if isinstance(processes, Processes) else ALONE
        self.is_parted = self.processes.is_parallel and hasattr(op, "multiply_rows")
        self.rows = self.processes.rows(self.size) if self.is_parted else slice(0, self.size)
        self.length = self.rows.stop - self.rows.start
        self.should_stop = should_stop
        self._stop_if_asked()

    @property
    def asymmetry_limit(self) -> float:
        """How far rounding of products may raise |xᵀAy − yᵀAx|, relative to ‖A‖."""
        return asymmetry_limit(self._input_dtype)

    @property
    def is_explicit(self) -> bool:
        """Whether products are with a matrix that is written out already."""
        return isinstance(self.op, np.ndarray | torch.Tensor)

    def __call__(self, block: torch.Tensor) -> torch.Tensor:
        """Return the product A @ block for a vector (P,) or a block (P, b).

        Raises:
            ArgumentError: The product holds NaN or infinity.
        """
        self._stop_if_asked()
        self.matvecs += 1 if block.ndim == 1 else block.shape[1]
        product = self._multiply(block.to(self._input_dtype)).detach().to(self.dtype)
        if product.numel() and not all(map(isfinite, torch.stack(product.aminmax()).tolist())):
            raise self.not_finite()
        return product

    def images(self, parts: torch.Tensor) -> Float[torch.Tensor, "b part"]:
        """Return this rank's parts (b, ·) of products A v, from those of the vectors v, as rows.

        They may be changed: what the operator may keep itself is copied.
        """
        if not self.is_parted:
            images = self(parts[0]).unsqueeze(0) if len(parts) == 1 else self(parts.T).T
            return images if getattr(self.op, "products_are_new", False) else images.clone()
        self._stop_if_asked()
        self.matvecs += len(parts)
        block = parts.T.to(self._input_dtype)
        return self.op.multiply_rows(block).detach().to(self.dtype).T

    def random_part(self, generator: torch.Generator) -> Float[torch.Tensor, "1 part"]:
        """Return this rank's part (1, ·) of a random vector for products, one for all ranks."""
        row = torch.randn(1, self.size, generator=generator, dtype=self.dtype, device="cpu")
        return self.part(row).to(self.device)

    def part(self, rows: torch.Tensor) -> Float[torch.Tensor, "b part"]:
        """Return this rank's part (b, ·) of whole vectors (b, P), as products take them."""
        return rows[:, self.rows]

    def whole(self, parts: torch.Tensor) -> Float[torch.Tensor, "b P"]:
        """Return whole vectors (b, P) of a product from the ranks' parts."""
        if not self.is_parted:
            return parts
        return self.processes.gather_rows(parts.T.contiguous(), self.size).T

    def summed(self, inner: torch.Tensor) -> torch.Tensor:
        """Return inner products of whole vectors, from those of the parts."""
        return self.processes.sum(inner) if self.is_parted else inner

    def norms(self, parts: torch.Tensor) -> Float[torch.Tensor, "b"]:
        """Return the norms (b,) of vectors of products, summed in float64."""
        whole = parts.shape[1] // _CHUNK * _CHUNK
        chunks, rest = parts[:, :whole].unflatten(1, (-1, _CHUNK)), parts[:, whole:]
        squares = torch.linalg.vector_norm(chunks, dim=2).double().square().sum(1)
        squares += torch.linalg.vector_norm(rest, dim=1).double().square()
        if not bool(((squares > _TINY) & (squares < 1 / _TINY)).all()):  # squares in float64 too
            squares = torch.zeros_like(squares)
            for piece in parts.split(_CHUNK * _CHUNK, dim=1):
                squares += piece.double().square().sum(1)
        return self.summed(squares.cpu()).sqrt()

    def eigh(
        self, matrix: torch.Tensor
    ) -> tuple[Float[torch.Tensor, "m"], Float[torch.Tensor, "m m"]]:
        """Return the small matrix's eigenpairs, made from products, the same on all ranks."""
        values, vectors = torch.linalg.eigh(matrix)
        values, vectors = self.processes.agree(values, vectors)
        return values, vectors

    def is_late(self, deadline: float) -> bool:
        """Whether the deadline of the products has passed on some rank."""
        return deadline < inf and bool(self.processes.largest(float(monotonic() >= deadline)))

    def _stop_if_asked(self) -> None:
        if self.should_stop is not None and self.processes.largest(float(bool(self.should_stop()))):
            raise StoppedError("should_stop returned True before there was anything to return")

    def not_finite(self) -> ArgumentError:
        """Return the error for a product that is not finite."""
        reason = "its product with a finite vector holds NaN or infinity"
        remedy = "Check that the loss, the weights and the data are finite."
        return ArgumentError("op", type(self.op).__name__, reason, remedy)

    def dense(self) -> Float[torch.Tensor, "P P"]:
        """Return the matrix in float64 from products with the identity, or as written out.

        Raises:
            ArgumentError: The matrix is not symmetric, or holds NaN.
        """  # noqa: DOC501 - asymmetry_error() returns one
        if self.is_explicit:
            matrix = tensor_of(self.op).to(self.device, torch.float64)
        else:
            matrix = torch.empty(self.size, self.size, dtype=torch.float64, device=self.device)
            for some, columns in self.columns():
                matrix[:, some] = columns
        if not bool(torch.isfinite(matrix).all()):
            raise ArgumentError(
                "op", matrix, "it holds NaN or infinity", "Check where it comes from."
            )
        scale = float(matrix.abs().max())
        gap = float((matrix - matrix.T).abs().max())
        if gap > self.asymmetry_limit * scale:
            raise asymmetry_error(self.op, gap / scale)
        return (matrix + matrix.T) / 2

    def columns(self, count: int = 64) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield the columns of the matrix from products, so many at once, with their places."""
        for start in range(0, self.size, count):
            some = slice(start, min(start + count, self.size))
            unit = torch.zeros(self.size, some.stop - start, dtype=self.dtype, device=self.device)
            unit[some].fill_diagonal_(1)
            yield some, self(unit)

    def _multiply(self, block: torch.Tensor) -> torch.Tensor:
        if self.takes_arrays:
            return torch.from_numpy(np.array(self.op @ block.numpy()))
        return (self.op if not self.is_explicit else self.op.to(self._input_dtype)) @ block


def asymmetry_limit(dtype: torch.dtype) -> float:
    """Return how far rounding of a product may raise |xᵀAy − yᵀAx|, relative to ‖A‖."""
    known = {torch.float64: 1e-7, torch.float32: 2e-3}
    return known.get(dtype, 20 * torch.finfo(dtype).eps)


def asymmetry_error(op: Any, gap: float) -> ArgumentError:
    """Return the error for an operator whose products are not symmetric."""
    reason = f"it is not symmetric: xᵀAy and yᵀAx differ by {gap:.1e} of its norm"
    remedy = (
        "Give a symmetric operator; symmetrise a matrix with (A + A.T) / 2. A model whose output "
        "is random also looks like this, and so does one whose derivatives are lost in rounding: "
        "use double precision. A model that computes some layers in single precision whatever its "
        "weights are, as Llama and T5 do, is consistent in single precision: use model.float()."
    )
    return ArgumentError("op", type(op).__name__, reason, remedy)


def _float_dtype(given: Any) -> torch.dtype:
    """Return the precision of an operator's products; whole numbers count as float64."""
    if given is None:
        return torch.float64
    if isinstance(given, torch.dtype):
        dtype = given
    else:
        dtype = torch.from_numpy(np.empty(0, dtype=given)).dtype
    if dtype.is_complex:
        raise ArgumentError("op", dtype, "it is complex", "Only real operators are supported.")
    return dtype if dtype.is_floating_point else torch.float64
