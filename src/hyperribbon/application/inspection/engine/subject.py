"""What is inspected: a model in a mode, its loss, its data, and operators on them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from hyperribbon.application.inspection.copies import (
    TRAINED,
    as_source,
    copy_in_mode,
    has_dropout,
    layers_with_statistics,
)
from hyperribbon.application.inspection.engine.clock import Clock, DeclinedError, InterruptibleRisk
from hyperribbon.core.checks import ArgumentError, check_choice
from hyperribbon.core.devices.modes import preserve_random_state
from hyperribbon.core.devices.processes import ALONE, Processes
from hyperribbon.core.parameters import ParameterFilter
from hyperribbon.operators import (
    GGN,
    Fisher,
    GradientCovariance,
    Hessian,
    unsharded,
    unwrapped,
)
from hyperribbon.operators.risk.batches import clone, tensors
from hyperribbon.operators.risk.data import Source
from hyperribbon.operators.risk.forward import Forward
from hyperribbon.operators.risk.objective import Objective

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


class GaussNewtonRows(GGN):
    """The Gauss-Newton matrix for its trace and diagonal: nothing is prepared for products."""

    _kind = "vjp"


class GradientRows(GradientCovariance):
    """The gradients of single samples for their squares, likewise: their mean is not subtracted."""

    _kind = "vjp"


class Subject:
    """The subject of an inspection: model, loss and data; the user's model is not touched.

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
            raise ArgumentError("model", model, "expected a torch.nn.Module", "Give a module.")
        if mode is not None and mode is not TRAINED:
            check_choice("mode", mode, ("eval", "train"))
        if data is None:
            remedy = "Give (inputs, targets), a Dataset, a DataLoader or a list of batches."
            raise ArgumentError("data", None, "data is required", remedy)
        self.processes = processes
        self.model = unsharded(unwrapped(model, processes))
        if processes.is_parallel:
            self.model = copy_in_mode(self.model, None, processes.broadcast)
        self.is_normalised = bool(layers_with_statistics(self.model))
        self.mode = "eval" if mode == TRAINED and not self.is_normalised else mode
        self.loss, self.params, self.forward, self.memory = loss, params, forward, memory
        options = {"is_fixed": self.mode != "eval", "batch_size": batch_size, "memory": memory}
        options["has_targets"] = loss is not None
        self.source = self.given = as_source(self.model, data, **options)
        self.total = self.source.total
        self._check_same_samples()
        self.clock = Clock()
        self._known: InterruptibleRisk | None = None  # the same model on other samples

    def with_samples(self, number: int, seed: int) -> Subject:
        """Return the subject of the inspection on fewer samples."""
        return self._on(self.source.few(number, seed))

    def of_given(self, number: int, seed: int) -> Subject:
        """Return the same subject on so many of all samples that were given, with any of these."""
        return self._on(self.given.few(number, seed))

    def groups(self, number: int, seed: int) -> Iterator[Subject]:
        """Yield the same subject on disjoint groups of its samples, with a share of the memory.

        There are none where the loss is not a mean over samples, so that groups have another.
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
        other = self._on(chosen.fixed(size))
        other.mode, other._known = TRAINED, None
        return other

    def _on(self, source: Source, share: float = 1.0) -> Subject:
        other = copy.copy(self)
        for name in _OF_SAMPLES:
            other.__dict__.pop(name, None)
        other.source = source
        other.memory = None if self.memory is None else share * self.memory
        other._known = self.__dict__.get("risk", self._known)
        return other

    def release(self) -> None:
        """Free the subject's graphs and vectors; what needs them makes them anew."""
        for name in ("vector", "gradient"):
            self.__dict__.pop(name, None)
        if "risk" in self.__dict__:
            self.risk.release()

    def know(self, other: Subject) -> None:
        """Take over what was found of the subject's model on other samples."""
        self._known = other.risk

    def plain_loss(self) -> float:
        """Return the subject's loss of the first batch, by model and loss as they are called.

        What these raise passes through.
        """
        model, objective = copy_in_mode(self.model, self.mode), Objective(self.loss, self.forward)
        with torch.enable_grad(), preserve_random_state():
            return float(objective(model, clone(next(self.source.batches()))).detach())

    def layer_label(self, name: str) -> str:
        """Return the subject's layer with its kind: "0 (Linear)"."""
        kind = type(self.model.get_submodule(name)).__name__
        return f"{name} ({kind})" if name else kind

    @cached_property
    def risk(self) -> InterruptibleRisk:
        """The subject's mean loss on the data, whose graphs all operators share."""
        memory = None if self.memory is None else _GRAPHS * self.memory
        risk = None if self._known is None else self._known.with_data(self.source, memory)
        if risk is None:
            share = self.source.share(self.processes.rank, self.processes.size)
            model, mode = self.model, self.mode
            if mode == TRAINED:
                model, mode = copy_in_mode(model, TRAINED), None
            options = {"params": self.params, "forward": self.forward, "memory": memory}
            group = {"mode": mode, "process_group": self.processes}
            risk = InterruptibleRisk(model, self.loss, share, **options, **group)
            _ = risk.criterion  # raises where there is none
            risk.take_logits()
        risk.clock = self.clock
        number, every = self.source.total, self.given.total
        risk.portion = number / every if number and every else 1.0
        return risk

    @cached_property
    def hessian(self) -> Hessian:
        """The Hessian of the subject's mean loss."""
        return Hessian(self.risk)

    @cached_property
    def ggn(self) -> GGN:
        """The Gauss-Newton matrix of the subject."""
        return self._operator(GGN, "the Gauss-Newton matrix")

    @cached_property
    def gauss_newton_rows(self) -> GaussNewtonRows:
        """The Gauss-Newton matrix of the subject, for its trace."""
        return self._operator(GaussNewtonRows, "the Gauss-Newton matrix")

    @cached_property
    def gradient_rows(self) -> GradientRows:
        """The gradients of the subject's single samples, for their squares."""
        return self._operator(GradientRows, _NOISE, centered=False)

    @property
    def has_equal_samples(self) -> bool:
        """Whether the subject's samples count alike: no class weights, no labels ignored."""
        risk, first = self.risk, self.risk.probe()
        if risk.must_be_whole:
            return False
        if risk.criterion.reduction == "sum" or first is None:
            return True
        each = first.amount / first.count
        return abs(each * risk.samples - risk.amount) <= 1e-9 * risk.amount

    @cached_property
    def covariance(self) -> GradientCovariance:
        """The covariance of the subject's single-sample gradients."""
        return self._operator(GradientCovariance, _NOISE)

    def fisher(self, likelihood: str) -> Fisher:
        """Return the exact Fisher information of the subject's outputs."""
        return self._operator(Fisher, "the Fisher information", likelihood=likelihood)

    @property
    def samples(self) -> int:
        """Number of samples of the subject."""
        return self.risk.samples

    @property
    def dimension(self) -> int:
        """Number of the subject's coordinates P."""
        return self.risk.space.dimension

    @cached_property
    def vector(self) -> torch.Tensor:
        """The subject's weights as coordinates (P,)."""
        return self.risk.space.flatten(self.risk.weights())

    @cached_property
    def gradient(self) -> torch.Tensor:
        """The gradient of the subject's loss (P,)."""
        return self.risk.gradient()

    @property
    def manner(self) -> str:
        """The mode of the subject's layers, and the batches where these matter, in words; or ""."""
        drops = any(map(has_dropout, self.model.modules()))
        mode = "training mode"
        if self.mode == "eval":
            mode = "evaluation mode" if self.is_normalised or drops else ""
        elif self.mode is None:
            mode = "each layer in the mode it was given in"
        elif self.mode == TRAINED and drops:
            mode += ", dropout off"
        risk = self.__dict__.get("risk")
        return ", ".join(filter(None, (mode, "" if risk is None else risk.composition)))

    def where(self, samples: int | None = None) -> str:
        """Return which of the subject's samples numbers refer to; all if it is left out."""
        used = self.samples if samples is None else samples
        total = "a stream" if self.total is None else f"{self.total:,}"
        some = f"{used:,} samples drawn from {total}"
        if self.total is not None and used >= self.total:
            some = f"all {used:,} samples"
        return ", ".join(filter(None, (some, self.manner)))

    def _operator(self, kind: Callable[..., Any], name: str, **options: Any) -> Any:
        """Return an operator on the subject's risk.

        Raises:
            DeclinedError: It is not defined for this loss or model.
        """
        try:
            self.risk.criterion.check_factored(name)
            return kind(self.risk, **options)
        except ArgumentError as error:
            raise DeclinedError(error.argument, error.value, error.reason, error.remedy) from error

    def _check_same_samples(self) -> None:
        """Raise when the processes hold different data of the subject, by the first sample."""
        if not self.processes.is_parallel:
            return
        first = self.source.take(np.arange(1)).batches() if self.total else ()
        sums = [float(leaf.double().sum()) for batch in first for leaf in tensors(batch)]
        found = self.processes.gather((self.total, sums))
        if any(other != found[0] for other in found):
            reason = "the processes have made different data"
            remedy = "Draw them with a fixed seed, so that every process makes the same."
            raise ArgumentError("data", f"{self.total} samples", reason, remedy)
