"""The Jacobian of a model's outputs, and the neural tangent kernel it gives."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hyperribbon.core.checks import validate
from hyperribbon.core.devices.modes import plain_arithmetic
from hyperribbon.core.mask import Mask
from hyperribbon.core.parameters import ParameterFilter, ParameterSpace
from hyperribbon.operators.gram import centre_rows, squared_norm
from hyperribbon.operators.gram_tiles import tiled_gram_matrix
from hyperribbon.operators.linear_operator import LinearOperator
from hyperribbon.operators.risk import Chunk, Risk
from hyperribbon.operators.risk.data import Data
from hyperribbon.operators.risk.forward import Forward
from hyperribbon.operators.risk.loss import one_element_each
from hyperribbon.operators.risk.risk import OUTPUTS_ONLY, GradientSums
from hyperribbon.operators.risk_operator import risk_of


class OutputOperator(LinearOperator):
    """A matrix made of the Jacobian of all outputs on all inputs."""

    @validate()
    def __init__(
        self,
        model: nn.Module | Callable[..., Any] | Risk,
        inputs: Data = None,
        *,
        params: ParameterFilter = None,
        mask: Mask | None = None,
        forward: Forward | None = None,
        mode: str | None = "eval",
        memory: float | None = None,
        process_group: Any = None,
    ) -> None:
        loss = None if isinstance(model, Risk) else OUTPUTS_ONLY
        risk = risk_of(model, loss, inputs, params, mask, forward, mode, memory, process_group)
        self._begin(risk)

    @abstractmethod
    def _begin(self, risk: Risk) -> None:
        """Set the Jacobian or the NTK up for the outputs of a risk."""


class Jacobian(OutputOperator):
    """The Jacobian J of all outputs on all inputs, shape (n·C, P).

    Rows are ordered by sample, then by output. `.T` is its transpose.

    Args:
        model: Any module, which is not changed; or a `Risk`, which has data and options.
        inputs: A tensor of inputs, a list of such batches, a Dataset or a DataLoader; targets are
            ignored.
        params: Which parameters are coordinates, as for `Risk`.
        mask: Which entries of them are.
        forward: forward(model, batch) -> outputs or (outputs, targets), for other calls.
        mode: "eval", "train", or None for each layer's own mode; see `Risk`.
        memory: Bytes to stay below.
        process_group: The ranks that hold the samples. Rows are ordered by rank first; every rank
            gets all of them.

    Raises:
        ArgumentError: The model or the inputs do not define a fixed function.
    """

    is_symmetric = False

    def _begin(self, risk: Risk) -> None:
        self.risk, self.processes = risk, risk.processes
        risk.prepare("jvp")
        with risk.processes.together("an evaluation of the model"):
            own = sum(chunk.point.outputs.numel() for chunk in risk.chunks())
        counts = risk.processes.gather(own)
        self._first = sum(counts[: risk.processes.rank])
        LinearOperator.__init__(self, (sum(counts), risk.space.dimension), risk.dtype, risk.device)

    @property
    def space(self) -> ParameterSpace:
        """The coordinates of the Jacobian: which column is which weight."""
        return self.risk.space

    def layers(self) -> dict[str, Jacobian]:
        """Return the Jacobian's columns of each layer, by the layer's name."""
        return {name: Jacobian(self.risk.on(s)) for name, s in self.space.layers().items()}

    @plain_arithmetic()
    def to_dense(self) -> torch.Tensor:
        """Return the dense Jacobian."""
        units = torch.eye(self.shape[0], dtype=self.dtype, device=self.device)
        if self.shape[1] < self.shape[0]:
            return super().to_dense()
        return self._multiply_transposed(units).T

    @plain_arithmetic()
    def diagonal(self) -> torch.Tensor:
        """Return the diagonal entries (i, i) of the Jacobian."""
        return self.to_dense().diagonal()

    def _multiply(self, block: torch.Tensor) -> torch.Tensor:
        product = torch.zeros(self.shape[0], block.shape[1], dtype=self.dtype, device=self.device)
        step = self.risk.columns_at_once()
        with self.processes.together("a product with the Jacobian"):
            for some, target in zip(block.split(step, 1), product.split(step, 1), strict=True):
                v, start = self.space.unflatten(some), self._first
                for chunk in self.risk.chunks("jvp"):
                    rows = chunk.point.jvp(v).flatten(1).T
                    target[start : start + len(rows)] = rows
                    start += len(rows)
        return self.processes.sum(product)

    def _multiply_transposed(self, block: torch.Tensor) -> torch.Tensor:
        start, step = self._first, self.risk.columns_at_once()
        sums = [GradientSums() for _ in range(0, block.shape[1], step)]
        with self.processes.together("a product with the transposed Jacobian"):
            for chunk in self.risk.chunks():
                outputs = chunk.point.outputs
                stop = start + outputs.numel()
                seeds = block[start:stop].T.reshape(-1, *outputs.shape)
                for some, total in zip(seeds.split(step), sums, strict=True):
                    total.add(chunk.point.vjp(some, self.space.names))
                start = stop
            product = self.risk.flatten(sums, block.shape[1])
        return self.processes.sum(product)


class NTK(OutputOperator):
    """The empirical neural tangent kernel Θ = J Jᵀ on given inputs, shape (n·C, n·C).

    Rows are ordered by sample, then by output. `.to_dense()` forms it layer by layer from
    activations and back-propagated output gradients, without J.

    With centre=True it is H Θ H with H = (I − 11ᵀ/n) ⊗ I_C: the Jacobian of every output is taken
    around its mean over the inputs.

    Args:
        model: As for `Jacobian`, like all arguments but `centre`.
        inputs: As for `Jacobian`.
        centre: Whether the mean over the inputs is subtracted.
        params: As for `Jacobian`.
        mask: As for `Jacobian`.
        forward: As for `Jacobian`.
        mode: As for `Jacobian`.
        memory: As for `Jacobian`.
        process_group: As for `Jacobian`.
    """

    @validate()
    def __init__(
        self,
        model: nn.Module | Callable[..., Any] | Risk,
        inputs: Data = None,
        *,
        centre: bool = False,
        params: ParameterFilter = None,
        mask: Mask | None = None,
        forward: Forward | None = None,
        mode: str | None = "eval",
        memory: float | None = None,
        process_group: Any = None,
    ) -> None:
        self.centre = centre
        options: dict[str, Any] = {"params": params, "mask": mask, "forward": forward}
        options |= {"mode": mode, "memory": memory, "process_group": process_group}
        super().__init__(model, inputs, **options)

    def _begin(self, risk: Risk) -> None:
        self._set(Jacobian(risk))

    def _set(self, jacobian: Jacobian) -> None:
        self.jacobian, self.risk = jacobian, jacobian.risk
        self.processes = jacobian.processes
        size = jacobian.shape[0]
        LinearOperator.__init__(self, (size, size), jacobian.dtype, jacobian.device)

    def layers(self) -> dict[str, NTK]:
        """Return each layer's term of the NTK J Jᵀ, by the layer's name; they sum to it."""
        spaces = self.jacobian.space.layers()
        return {
            name: NTK(self.risk.on(space), centre=self.centre) for name, space in spaces.items()
        }

    def in_precision(self, dtype: torch.dtype) -> NTK:
        """Return the NTK of the same weights and inputs in another precision."""
        jacobian = copy.copy(self.jacobian)
        jacobian.risk, jacobian.dtype = self.risk.in_precision(dtype), dtype
        other = copy.copy(self)
        other._set(jacobian)
        return other

    @property
    def has_exact_trace(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the NTK's trace costs a few passes: where samples do not depend on each other."""
        return not self.risk.mixes_samples

    @plain_arithmetic()
    def to_dense(self) -> torch.Tensor:
        """Return the dense tangent kernel J Jᵀ."""
        if self.risk.mixes_samples:
            rows = self._centred(self.jacobian.to_dense())
            return rows @ rows.T
        return self._centred(self._centred(tiled_gram_matrix(self.risk, _identity)).T)

    @plain_arithmetic()
    def diagonal(self) -> torch.Tensor:
        """Return the NTK's diagonal: the squared norms of the rows of J."""
        return self.to_dense().diagonal()

    @plain_arithmetic()
    def trace(self) -> float:
        """Return the NTK's trace ‖J‖²."""
        if self.risk.mixes_samples:
            return float(self.to_dense().diagonal().sum(dtype=torch.float64))
        total = squared_norm(self.risk, _identity)
        if not self.centre:
            return total
        count = self.risk.samples
        units = torch.eye(self.shape[0] // count, dtype=self.dtype, device=self.device)
        sums = self.jacobian._multiply_transposed(units.repeat(count, 1))
        return max(total - float(sums.square().sum(dtype=torch.float64)) / count, 0.0)

    def _multiply(self, block: torch.Tensor) -> torch.Tensor:
        product = self.jacobian._multiply_transposed(self._centred(block))
        return self._centred(self.jacobian._multiply(product))

    def _centred(self, rows: torch.Tensor) -> torch.Tensor:
        return centre_rows(rows, self.risk.samples) if self.centre else rows


def _identity(chunk: Chunk) -> torch.Tensor:
    return one_element_each(torch.ones_like(chunk.point.outputs))
