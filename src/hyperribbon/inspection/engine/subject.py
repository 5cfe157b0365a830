"""What is inspected: a model in evaluation mode, its loss, its data, and operators on them."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.devices.processes import ALONE, Processes
from hyperribbon.core.parameters import ParameterFilter
from hyperribbon.inspection.engine.clock import (
    Clock,
    TimedCovariance,
    TimedFisher,
    TimedGGN,
    TimedGradientRows,
    TimedHessian,
    TimedRisk,
    TimedRows,
)
from hyperribbon.inspection.engine.samples import (
    check_same_samples,
    count_samples,
    few_samples,
    gathered,
    groups_of_samples,
    share_of_samples,
)
from hyperribbon.operators import unsharded, unwrapped
from hyperribbon.operators.risk.batches import split
from hyperribbon.operators.risk.calling import Forward
from hyperribbon.operators.risk.data import Source

__all__ = ["Subject"]

T = TypeVar("T", TimedHessian, TimedGGN, TimedCovariance, TimedFisher, TimedRows, TimedGradientRows)
_GRAPHS = 0.25
"""Share of the memory for data and graphs that operators keep."""
_ASIDE = 0.5
"""Share of the memory for the same model on other samples, beside the rest."""
_OF_SAMPLES = ("risk", "vector", "gradient")
_OF_SAMPLES += ("hessian", "ggn", "gauss_newton_rows", "covariance", "gradient_rows")
"""What is kept of a subject and belongs to its samples."""


class Subject:
    """A model, a loss and data as one thing to measure; the person's own model is not touched.

    The model is copied and the copy is in evaluation mode: batch norm uses its running averages and
    dropout is off.

    Args:
        model: Any module.
        loss: A loss as operators take it.
        data: As operators take it, or a dict of tensors with labels, as transformers' models do.
        params: Which parameters are coordinates.
        forward: How the model is called on a batch, when neither model(inputs) nor
            model(**batch).logits.
        memory: Bytes to stay below; a quarter is for the data and graphs that operators share, the
            rest for what they work with and for solvers.
        processes: The ranks that measure together; each is given the same and takes its share of
            the samples. Rank 0's weights count.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Any,
        data: Any,
        *,
        params: ParameterFilter = None,
        forward: Forward | None = None,
        memory: float | None = None,
        processes: Processes = ALONE,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ArgumentError("model", model, "it is not a torch.nn.Module", "Give a module.")
        self.processes = processes
        self.model = evaluation_copy(unsharded(unwrapped(model, processes)))
        for tensor in (*self.model.parameters(), *self.model.buffers()):
            tensor.data = processes.broadcast(tensor.data)
        self.loss, self.params, self.memory = loss, params, memory
        self.forward = call_model if forward is None else forward
        data = gathered(data)
        self.total = count_samples(data)
        check_same_samples(data, processes)
        self.data = self.given = data
        self.clock = Clock()
        self._known: TimedRisk | None = None  # the same model on other samples

    def with_samples(self, number: int, seed: int, share: float = 1.0) -> Subject:
        """Return the same subject on fewer samples, with a share of the memory."""
        return self._on(few_samples(self.data, number, seed), share)

    def of_given(self, number: int, seed: int) -> Subject:
        """Return the same subject on so many of all samples that were given, with any of these."""
        return self._on(few_samples(self.given, number, seed), 1.0)

    def groups(self, number: int, seed: int) -> Iterator[Subject]:
        """Yield the same subject on disjoint groups of its samples, with a share of the memory."""
        for data in groups_of_samples(self.data, number, seed):
            yield self._on(data, _ASIDE)

    def _on(self, data: Any, share: float) -> Subject:
        other = copy.copy(self)
        for name in _OF_SAMPLES:
            other.__dict__.pop(name, None)
        other.data = data
        other.memory = None if self.memory is None else share * self.memory
        other._known = self.__dict__.get("risk", self._known)
        return other

    def release(self, is_idle: bool) -> None:
        """Give memory back that products use again; what needs it takes it anew.

        Args:
            is_idle: Whether graphs and vectors go too.
        """
        for name in set(_OF_SAMPLES) & set(self.__dict__):
            if is_idle and name in ("vector", "gradient"):
                del self.__dict__[name]
            elif is_idle or name not in ("risk", "vector", "gradient"):
                self.__dict__[name].release()

    def know(self, other: Subject) -> None:
        """Take over what was found of the model on other samples."""
        self._known = other.risk

    def plain_loss(self) -> float | None:
        """Return the loss of the first batch by the model and the loss alone, if it is finite.

        It needs one evaluation and no derivatives.
        """
        first = next(self.model.parameters(), torch.empty(0, device="cpu"))
        try:
            source = Source(self.data, dtype=first.dtype, device=first.device, memory=2**28)
            with torch.no_grad():
                value = float(self.loss(*self.forward(self.model, next(source.batches()))))
        except Exception:  # whatever the model or the loss raises
            return None
        return value if np.isfinite(value) else None

    def layer_label(self, name: str) -> str:
        """Return a layer's name with its kind: "0 (Linear)"."""
        kind = type(self.model.get_submodule(name)).__name__
        return f"{name} ({kind})" if name else kind

    @cached_property
    def risk(self) -> TimedRisk:
        """The mean loss on the data, whose graphs all operators share."""
        memory = None if self.memory is None else _GRAPHS * self.memory
        risk = None if self._known is None else self._known.with_data(self.data, memory)
        if risk is None:
            share = share_of_samples(self.data, self.processes.rank, self.processes.size)
            options = {"params": self.params, "forward": self.forward, "memory": memory}
            group = self.processes
            risk = TimedRisk(self.model, self.loss, share, process_group=group, **options)
        risk.clock = self.clock
        return risk

    @cached_property
    def hessian(self) -> TimedHessian:
        """The Hessian of the mean loss."""
        return self._timed(TimedHessian(self.risk))

    @cached_property
    def ggn(self) -> TimedGGN:
        """The Gauss-Newton matrix."""
        return self._timed(TimedGGN(self.risk))

    @cached_property
    def gauss_newton_rows(self) -> TimedRows:
        """The Gauss-Newton matrix, for its trace."""
        return self._timed(TimedRows(self.risk))

    @cached_property
    def gradient_rows(self) -> TimedGradientRows:
        """The gradients of single samples, for their squares."""
        return self._timed(TimedGradientRows(self.risk, centered=False))

    @property
    def has_equal_samples(self) -> bool:
        """Whether every sample counts alike in the mean: no class weights, no labels ignored."""
        risk, first = self.risk, self.risk.probe()
        if risk.criterion.reduction == "sum" or first is None:
            return True
        each = first.amount / first.count
        return abs(each * risk.samples - risk.amount) <= 1e-9 * risk.amount

    @cached_property
    def covariance(self) -> TimedCovariance:
        """The covariance of single-sample gradients."""
        return self._timed(TimedCovariance(self.risk))

    def fisher(self, likelihood: str) -> TimedFisher:
        """Return the exact Fisher information of the outputs."""
        return self._timed(TimedFisher(self.risk, likelihood=likelihood))

    @property
    def samples(self) -> int:
        """Number of samples used."""
        return self.risk.samples

    @property
    def dimension(self) -> int:
        """Number of coordinates P."""
        return self.risk.space.dimension

    @cached_property
    def vector(self) -> torch.Tensor:
        """The weights as coordinates (P,)."""
        return self.risk.space.flatten(self.risk.weights())

    @cached_property
    def gradient(self) -> torch.Tensor:
        """The gradient of the loss (P,)."""
        return self.risk.gradient()

    def where(self, samples: int | None = None) -> str:
        """Return which samples numbers refer to; all of its own when their number is left out."""
        used = self.samples if samples is None else samples
        if self.total is not None and used >= self.total:
            return f"all {used:,} samples"
        total = "a stream" if self.total is None else f"{self.total:,}"
        return f"{used:,} samples drawn from {total}"

    def _timed(self, operator: T) -> T:
        operator.clock = self.clock
        return operator


def evaluation_copy(model: nn.Module) -> nn.Module:
    """Return a copy in evaluation mode; what trains a Lightning module is left out of it."""
    attached = [
        getattr(module, name, None)
        for module in model.modules()
        for name in ("_trainer", "_fabric")
        if name in vars(module)
    ]
    memo: dict[int, Any] = {id(thing): None for thing in attached if thing is not None}
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, torch.Tensor) and not value.is_leaf:  # weight_norm leaves them
                memo[id(value)] = value.detach().clone()
    copied = copy.deepcopy(model, memo).eval()
    for own, other in zip(model.parameters(), copied.parameters(), strict=True):
        other.requires_grad_(own.requires_grad)  # copies of TorchScript forget it
    return copied


def call_model(model: nn.Module, batch: Any) -> tuple[torch.Tensor, Any]:
    """Return outputs and targets of a batch, split as operators do: the last entry, or labels.

    Of several outputs `logits` are taken, else the first tensor, as recurrent layers return their
    outputs before their state. Scores of tokens (n, T, C) for labels (n, T) come with the class
    axis second, as torch's losses want it.
    """
    inputs, targets = split(batch)
    if isinstance(inputs, Mapping):
        outputs = model(**inputs)
    else:
        outputs = model(*inputs) if isinstance(inputs, tuple) else model(inputs)
    outputs = _main_output(outputs)
    if (
        isinstance(outputs, torch.Tensor)
        and isinstance(targets, torch.Tensor)
        and outputs.ndim == targets.ndim + 1 == 3
        and not targets.is_floating_point()
        and outputs.shape[:2] == targets.shape
    ):
        outputs = outputs.transpose(1, 2)
    return outputs, targets


def _main_output(outputs: Any) -> Any:
    """Return the tensor that is meant by several outputs; what holds none is returned as it is."""
    if isinstance(outputs, torch.Tensor):
        return outputs
    if getattr(outputs, "logits", None) is not None:
        return outputs.logits
    if isinstance(outputs, Mapping):
        if "logits" in outputs:
            return outputs["logits"]
        outputs = tuple(outputs.values())
    if isinstance(outputs, tuple | list):
        found = (_main_output(entry) for entry in outputs)
        return next((entry for entry in found if isinstance(entry, torch.Tensor)), outputs)
    return outputs
