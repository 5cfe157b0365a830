"""What is inspected: a model in a mode, its loss, its data, and operators on them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from hyperribbon.core.checks import ArgumentError, check_choice
from hyperribbon.core.devices.ambient import preserved_random_state
from hyperribbon.core.devices.processes import ALONE, Processes
from hyperribbon.core.devices.torch_inside import Dropout
from hyperribbon.core.parameters import ParameterFilter
from hyperribbon.inspection.engine.clock import (
    Clock,
    DeclinedError,
    TimedCovariance,
    TimedFisher,
    TimedGGN,
    TimedGradientRows,
    TimedHessian,
    TimedRisk,
    TimedRows,
)
from hyperribbon.operators import unsharded, unwrapped
from hyperribbon.operators.risk.batches import copied, tensors
from hyperribbon.operators.risk.calling import Forward
from hyperribbon.operators.risk.data import Source
from hyperribbon.operators.risk.memory import allowance
from hyperribbon.operators.risk.objective import Objective
from hyperribbon.operators.risk.private import private_copy

__all__ = ["TRAINED", "Subject", "measured_copy", "source_of"]

T = TypeVar("T", TimedHessian, TimedGGN, TimedCovariance, TimedFisher, TimedRows, TimedGradientRows)
TRAINED = "as one trains"
"""A mode: normalisation by the batch as in training, all else as in evaluation (dropout off)."""
_GRAPHS = 0.25
"""Share of the memory for data and graphs that operators keep."""
_ASIDE = 0.5
"""Share of the memory for the same model on other samples, beside the rest."""
_BATCH = 512
"""Samples of the batch that a model is trained on, at most, where its size is not known."""
_NOISE = "the covariance of single-sample gradients"
_OF_SAMPLES = ("risk", "vector", "gradient")
_OF_SAMPLES += ("hessian", "ggn", "gauss_newton_rows", "covariance", "gradient_rows")
"""What is kept of a subject and belongs to its samples."""


class Subject:
    """A model, a loss and data as one thing to measure; the user's own model is not touched.

    Args:
        model: Any module; operators have a copy of their own.
        loss: A loss as operators take it, or None for the model's own.
        data: As operators take it.
        params: Which parameters are coordinates.
        forward: How the model is called on a batch, as for `Risk`.
        mode: "eval", "train" or None, as for `Risk`; or `TRAINED`, which is evaluation mode for a
            model without normalisation layers that keep statistics.
        batch_size: Samples per batch in other modes than evaluation mode; as the data come in when
            it is None.
        memory: Bytes to stay below; a quarter is for the data and graphs that operators share, the
            rest for what they work with and for solvers.
        processes: The ranks that measure together; each is given the same and takes its share of
            the samples. Rank 0's weights count.

    Attributes:
        source: The samples.
        total: How many were given; None for a stream.
        is_normalised: Whether the model has layers that normalise by the batch in training mode.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Any,
        data: Any,
        *,
        params: ParameterFilter = None,
        forward: Forward | None = None,
        mode: str | None = "eval",
        batch_size: int | None = None,
        memory: float | None = None,
        processes: Processes = ALONE,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ArgumentError("model", model, "it is not a torch.nn.Module", "Give a module.")
        if mode not in (None, TRAINED):
            check_choice("mode", mode, ("eval", "train"))
        if data is None:
            remedy = "Give (inputs, targets), a Dataset, a DataLoader or a list of batches."
            raise ArgumentError("data", None, "data is required", remedy)
        self.processes = processes
        self.model = unsharded(unwrapped(model, processes))
        if processes.is_parallel:
            self.model = measured_copy(self.model, None, processes.broadcast)
        self.is_normalised = bool(_with_statistics(self.model))
        self.mode = "eval" if mode == TRAINED and not self.is_normalised else mode
        self.loss, self.params, self.forward, self.memory = loss, params, forward, memory
        options = {"is_fixed": self.mode != "eval", "batch_size": batch_size, "memory": memory}
        options["has_targets"] = loss is not None
        self.source = self.given = source_of(self.model, data, **options)
        self.total = self.source.total
        self._check_same_samples()
        self.clock = Clock()
        self._known: TimedRisk | None = None  # the same model on other samples

    def with_samples(self, number: int, seed: int, share: float = 1.0) -> Subject:
        """Return the same subject on fewer samples, with a share of the memory."""
        return self._on(self.source.few(number, seed), share)

    def of_given(self, number: int, seed: int) -> Subject:
        """Return the same subject on so many of all samples that were given, with any of these."""
        return self._on(self.given.few(number, seed), 1.0)

    def groups(self, number: int, seed: int) -> Iterator[Subject]:
        """Yield the same subject on disjoint groups of its samples, with a share of the memory.

        There are none where the loss is no mean over samples, so that groups have another.
        """
        if self.risk.criterion.reduction != "whole":
            for source in self.source.groups(number, seed):
                yield self._on(source, _ASIDE)

    def as_trained(self, batch_size: int | None, seed: int) -> Subject:
        """Return the subject in the mode in which one trains; itself where that is its own.

        Args:
            batch_size: Samples in a mini-batch of the training; one batch when it is not known.
            seed: Seed of the samples, where they are not those of this subject.
        """
        if self.mode != "eval" or not self.is_normalised:
            return self
        size = batch_size or min(self.samples, _BATCH)
        number = max(self.samples // size, 1) * size
        chosen = self.source if number == self.samples else self.given.few(number, seed)
        other = self._on(chosen.fixed(size), 1.0)
        other.mode, other._known = TRAINED, None
        return other

    def _on(self, source: Source, share: float) -> Subject:
        other = copy.copy(self)
        for name in _OF_SAMPLES:
            other.__dict__.pop(name, None)
        other.source = source
        other.memory = None if self.memory is None else share * self.memory
        other._known = self.__dict__.get("risk", self._known)
        return other

    def release(self) -> None:
        """Give the memory of graphs and vectors back; what needs them makes them anew."""
        for name in ("vector", "gradient"):
            self.__dict__.pop(name, None)
        if "risk" in self.__dict__:
            self.risk.release()

    def know(self, other: Subject) -> None:
        """Take over what was found of the model on other samples."""
        self._known = other.risk

    def plain_loss(self) -> float:
        """Return the loss of the first batch by the model and the loss alone, as they are called.

        What these raise passes through.
        """
        model, objective = measured_copy(self.model, self.mode), Objective(self.loss, self.forward)
        with torch.enable_grad(), preserved_random_state():
            return float(objective(model, copied(next(self.source.batches()))).detach())

    def layer_label(self, name: str) -> str:
        """Return a layer's name with its kind: "0 (Linear)"."""
        kind = type(self.model.get_submodule(name)).__name__
        return f"{name} ({kind})" if name else kind

    @cached_property
    def risk(self) -> TimedRisk:
        """The mean loss on the data, whose graphs all operators share."""
        memory = None if self.memory is None else _GRAPHS * self.memory
        risk = None if self._known is None else self._known.with_data(self.source, memory)
        if risk is None:
            share = self.source.share(self.processes.rank, self.processes.size)
            model, mode = self.model, self.mode
            if mode == TRAINED:
                model, mode = measured_copy(model, TRAINED), None
            options = {"params": self.params, "forward": self.forward, "memory": memory}
            group = {"mode": mode, "process_group": self.processes}
            risk = TimedRisk(model, self.loss, share, **options, **group)
            _ = risk.criterion  # raises where there is none
        risk.clock = self.clock
        return risk

    @cached_property
    def hessian(self) -> TimedHessian:
        """The Hessian of the mean loss."""
        hessian = TimedHessian(self.risk)
        hessian.clock = self.clock
        return hessian

    @cached_property
    def ggn(self) -> TimedGGN:
        """The Gauss-Newton matrix."""
        return self._timed(TimedGGN, "the Gauss-Newton matrix")

    @cached_property
    def gauss_newton_rows(self) -> TimedRows:
        """The Gauss-Newton matrix, for its trace."""
        return self._timed(TimedRows, "the Gauss-Newton matrix")

    @cached_property
    def gradient_rows(self) -> TimedGradientRows:
        """The gradients of single samples, for their squares."""
        return self._timed(TimedGradientRows, _NOISE, centered=False)

    @property
    def has_equal_samples(self) -> bool:
        """Whether every sample counts alike in the mean: no class weights, no labels ignored."""
        risk, first = self.risk, self.risk.probe()
        if risk.must_be_whole:
            return False
        if risk.criterion.reduction == "sum" or first is None:
            return True
        each = first.amount / first.count
        return abs(each * risk.samples - risk.amount) <= 1e-9 * risk.amount

    @cached_property
    def covariance(self) -> TimedCovariance:
        """The covariance of single-sample gradients."""
        return self._timed(TimedCovariance, _NOISE)

    def fisher(self, likelihood: str) -> TimedFisher:
        """Return the exact Fisher information of the outputs."""
        return self._timed(TimedFisher, "the Fisher information", likelihood=likelihood)

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

    @property
    def manner(self) -> str:
        """The mode of the layers, and the batches where these matter, in words; or ""."""
        drops = any(map(_drops, self.model.modules()))
        told = "training mode"
        if self.mode == "eval":
            told = "evaluation mode" if self.is_normalised or drops else ""
        elif self.mode is None:
            told = "each layer in the mode it was given in"
        elif self.mode == TRAINED and drops:
            told += ", dropout off"
        risk = self.__dict__.get("risk")
        return ", ".join(filter(None, (told, "" if risk is None else risk.composition)))

    def where(self, samples: int | None = None) -> str:
        """Return which samples numbers refer to; all of its own when their number is left out."""
        used = self.samples if samples is None else samples
        total = "a stream" if self.total is None else f"{self.total:,}"
        some = f"{used:,} samples drawn from {total}"
        if self.total is not None and used >= self.total:
            some = f"all {used:,} samples"
        return ", ".join(filter(None, (some, self.manner)))

    def _timed(self, kind: Callable[..., T], name: str, **options: Any) -> T:
        """Return an operator with the clock.

        Raises:
            DeclinedError: It is not defined for this loss or model.
        """
        try:
            self.risk.criterion.check_factored(name)
            operator = kind(self.risk, **options)
        except ArgumentError as error:
            raise DeclinedError(error.argument, error.value, error.reason, error.remedy) from error
        operator.clock = self.clock
        return operator

    def _check_same_samples(self) -> None:
        """Raise when the processes have made different data, as far as the first sample shows."""
        if not self.processes.is_parallel:
            return
        first = self.source.take(np.arange(1)).batches() if self.total else ()
        sums = [float(leaf.double().sum()) for batch in first for leaf in tensors(batch)]
        found = self.processes.gather((self.total, sums))
        if any(other != found[0] for other in found):
            reason = "the processes have made different data"
            remedy = "Draw them with a fixed seed, so that every process makes the same."
            raise ArgumentError("data", f"{self.total} samples", reason, remedy)


def source_of(
    model: nn.Module, data: Any, *, memory: float | None = None, **options: Any
) -> Source:
    """Return data as batches in the precision and place of a model; a `Source` as it is.

    Args:
        model: Any module.
        data: The samples.
        memory: Bytes of which a half may be kept of the data; None for as many as `Risk` takes.
        **options: As for `Source`.

    Raises:
        ArgumentError: The model has no parameters.
    """
    if isinstance(data, Source):
        return data
    first = next(model.parameters(), None)
    if first is None:
        raise ArgumentError("model", model, "it has no parameters", "Give a model with weights.")
    room = allowance(first.device) if memory is None else memory
    return Source(data, dtype=first.dtype, device=first.device, memory=room / 2, **options)


def measured_copy(
    model: nn.Module,
    mode: str | None = "eval",
    change: Callable[[torch.Tensor], torch.Tensor] = torch.clone,
) -> nn.Module:
    """Return a copy of a model in a mode.

    Args:
        model: Any module; one with parts in TorchScript is good for evaluations only.
        mode: "eval", "train", `TRAINED`, or None for each layer's own.
        change: Makes the tensors of the copy from those of the model.
    """

    def taken(tensor: torch.Tensor) -> torch.Tensor:
        value = change(tensor.detach())
        is_weight = isinstance(tensor, nn.Parameter)
        return nn.Parameter(value, requires_grad=tensor.requires_grad) if is_weight else value

    try:
        twin = private_copy(model, taken)
    except ArgumentError:
        twin = copy.deepcopy(model)
    if mode is not None:
        twin.train(mode == "train")
    for part in _with_statistics(twin) if mode == TRAINED else ():
        part.training = True
    return twin


def _with_statistics(model: nn.Module) -> list[nn.Module]:
    """Return the layers that normalise by running statistics in evaluation mode alone."""
    parts = model.modules()
    return [p for p in parts if isinstance(getattr(p, "running_mean", None), torch.Tensor)]


def _drops(part: nn.Module) -> bool:
    """Whether a layer has dropout in training mode."""
    rate = part.p if isinstance(part, Dropout) else getattr(part, "dropout", None)
    return isinstance(rate, float) and rate > 0
