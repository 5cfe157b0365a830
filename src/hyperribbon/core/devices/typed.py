"""torch's calls whose own types are incomplete, with complete ones; nothing else happens here."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# This is the one place where torch's untyped names are read; who imports from here is checked.
from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
import torch.distributed
from torch import Tensor, nn
from torch.autograd import forward_ad

__all__ = [
    "applied",
    "block_diagonal",
    "collectives",
    "distinct",
    "dual",
    "forked_random_state",
    "from_numpy",
    "linalg",
    "listed",
    "named_modules",
    "norm",
    "split",
    "tangent",
    "unflattened",
    "weighted_sum",
]


class _QR(NamedTuple):
    Q: Tensor
    R: Tensor


class _Linalg(Protocol):
    """What is used of `torch.linalg`, whose functions have no signatures."""

    def vector_norm(
        self,
        x: Tensor,
        ord: float = 2,
        dim: int | tuple[int, ...] | None = None,
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
    ) -> Tensor: ...
    def matrix_norm(self, A: Tensor) -> Tensor: ...
    def eigh(self, A: Tensor) -> tuple[Tensor, Tensor]: ...
    def svdvals(self, A: Tensor) -> Tensor: ...
    def qr(self, A: Tensor) -> _QR: ...
    def cholesky(self, A: Tensor) -> Tensor: ...
    def cholesky_ex(self, A: Tensor) -> tuple[Tensor, Tensor]: ...
    def solve_triangular(self, A: Tensor, B: Tensor, *, upper: bool) -> Tensor: ...


class _Collectives(Protocol):
    """What is used of `torch.distributed`; results are written into what is given."""

    def all_reduce(self, tensor: Tensor, *, op: Any = ..., group: Any = None) -> Any: ...
    def all_gather(self, tensors: list[Tensor], tensor: Tensor, *, group: Any = None) -> Any: ...
    def reduce_scatter(self, output: Tensor, parts: list[Tensor], *, group: Any = None) -> Any: ...
    def all_gather_object(self, found: list[Any], thing: Any, *, group: Any = None) -> None: ...


linalg = cast(_Linalg, torch.linalg)
collectives = cast(_Collectives, torch.distributed)


def forked_random_state(devices: Sequence[int]) -> AbstractContextManager[Any]:
    """Return a block after which torch's random states are as they were before."""
    return torch.random.fork_rng(devices=devices)


def split(tensor: Tensor, size: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Return `tensor.split(size, dim)`."""
    return tensor.split(size, dim)


def listed(tensor: Tensor) -> list[float]:
    """Return `tensor.tolist()` of one row."""
    return tensor.tolist()


def norm(tensor: Tensor, order: float = 2.0) -> float:
    """Return `tensor.norm(order)` as a number."""
    return float(tensor.norm() if order == 2.0 else tensor.norm(order))


def weighted_sum(weights: Tensor, tensor: Tensor) -> Tensor:
    """Return `torch.tensordot(weights, tensor, 1)`."""
    return torch.tensordot(weights.to(tensor.dtype), tensor, 1)


def distinct(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Return `tensor.unique(return_inverse=True)`: the values, and where each entry is in them."""
    return tensor.unique(return_inverse=True)


def unflattened(tensor: Tensor, dim: int, sizes: tuple[int, ...]) -> Tensor:
    """Return `tensor.unflatten(dim, sizes)`."""
    return tensor.unflatten(dim, sizes)


def dual(tensor: Tensor, along: Tensor) -> Tensor:
    """Return `torch.autograd.forward_ad.make_dual(tensor, along)`."""
    return forward_ad.make_dual(tensor, along)


def tangent(tensor: Tensor) -> Tensor | None:
    """Return what `torch.autograd.forward_ad.unpack_dual` finds beside a tensor."""
    return forward_ad.unpack_dual(tensor).tangent


def applied(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """Return `function.apply(*arguments)`."""
    return function.apply(*arguments)


def named_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return what `model.named_modules()` yields."""
    return list(model.named_modules())


def from_numpy(array: np.ndarray) -> Tensor:
    """Return `torch.from_numpy(array)`, which shares the array's memory."""
    return torch.from_numpy(array)


def block_diagonal(*blocks: Tensor) -> Tensor:
    """Return `torch.block_diag(*blocks)`."""
    return cast(Any, torch.block_diag)(*blocks)
