"""The empirical risk: a model, a loss and data as one function of a vector of weights."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from hyperribbon.core.checks import ArgumentError, check_positive
from hyperribbon.core.mask import Mask
from hyperribbon.core.parameters import ParameterFilter, ParameterSpace
from hyperribbon.core.processes import Processes
from hyperribbon.operators.derivatives.chain import trace_chain
from hyperribbon.operators.derivatives.chain_derivatives import ChainLinearisation
from hyperribbon.operators.derivatives.linearisation import (
    AutogradLinearisation,
    Block,
    Linearisation,
)
from hyperribbon.operators.derivatives.purity import evaluation
from hyperribbon.operators.derivatives.sums import GradientSums
from hyperribbon.operators.risk.calling import Caller, Forward
from hyperribbon.operators.risk.contract import (
    check_batch_norm,
    check_finite_loss,
    check_repeatable,
    check_same_weights,
)
from hyperribbon.operators.risk.data import Data, Order, Source, batch_size, cut
from hyperribbon.operators.risk.losses import Loss
from hyperribbon.operators.risk.memory import MEMORY, Budget
from hyperribbon.operators.risk.recognition import recognise
from hyperribbon.operators.risk.unsharding import unsharded, unwrapped

__all__ = ["Chunk", "Risk"]

_PROBE = 16  # samples of the first batch on which the model is tried out


@dataclass
class Chunk:
    """Some samples with the model linearised on them.

    Attributes:
        start: Samples of the chunks before; the first one's position where the order is the data's.
        point: The model's derivatives on these samples.
        inputs: Their inputs (the whole batch when it is not a pair).
        targets: Their targets.
        amount: What they add to the divisor of a mean.
    """

    start: int
    point: Linearisation
    inputs: Any
    targets: Any
    amount: float

    @property
    def count(self) -> int:
        """Number of samples."""
        return len(self.point.outputs)


class Risk:
    """L(θ) = Σ_n ℓ(f(x_n; θ), y_n) / amount at the model's present weights.

    The weights and buffers are copied, so later training does not reach the operator, and the
    model, its gradients, mode, hooks and buffers are not touched.

    With a process group the sum runs over the samples of all ranks, in the order of the ranks, and
    every method is collective: every rank calls it.

    Args:
        model: Any module; with a process group the same on every rank, also in
            DistributedDataParallel or sharded by FSDP2.
        loss: A loss (see `recognition.recognise`), or None when only the outputs matter.
        data: Pair of tensors, Dataset, DataLoader; inputs alone without a loss.
        params: Which parameters are coordinates (see `ParameterSpace.of_model`).
        mask: Which entries of them are.
        forward: How the model is called on a batch, when not model(inputs).
        memory: Bytes to stay below, for data and graphs that are kept between products.
        process_group: The ranks that hold the samples, True for all; None for this one alone.
        any_order: Whether `chunks` may reorder the samples where products gain by that.

    Raises:
        ArgumentError: The model, the loss or the data do not define a fixed finite function.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Any,
        data: Data,
        *,
        params: ParameterFilter = None,
        mask: Mask | None = None,
        forward: Forward | None = None,
        memory: float | None = None,
        process_group: Any = None,
        any_order: bool = False,
    ) -> None:
        self.processes = Processes.of(process_group)
        with self.processes.together("the reading of the arguments"):
            if not isinstance(model, nn.Module):
                raise ArgumentError("model", model, "it is not a torch.nn.Module", "Give a module.")
            model = unwrapped(model, self.processes)
            self.space = ParameterSpace.of_model(model, params, mask)
            self.memory = check_positive("memory", MEMORY if memory is None else memory)
            self.loss: Loss | None = None if loss is None else recognise(loss)
        theirs = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
        model = unsharded(model)
        self._caller = Caller(model, forward)
        self._state = {
            f"model.{name}": tensor.detach().clone() if id(tensor) in theirs else tensor.detach()
            for name, tensor in (*model.named_parameters(), *model.named_buffers())
        }
        first = self._state[f"model.{self.space.names[0]}"]
        self.dtype, self.device = first.dtype, first.device
        self._may_be_chain = True
        self._length: int | None = None
        self._forget()
        with self.processes.together("the reading of the data"):
            self.source = Source(
                data,
                dtype=self.dtype,
                device=self.device,
                memory=self.memory / 2,
                may_be_empty=self.processes.is_parallel,
            )
            check_batch_norm(model)
            self._order: Order | None = None
            self._try_out(model)
            if any_order and self._may_be_chain:
                self._order = self.source.by_rarity(self._budget.chunk())
        self._agree()

    def at(self, weights: Mapping[str, torch.Tensor] | torch.Tensor) -> Risk:
        """Return the same risk at other weights: named tensors, or coordinates (P,)."""
        named = self.space.unflatten(weights) if isinstance(weights, torch.Tensor) else weights
        other = copy.copy(self)
        other._state = dict(self._state)
        for name, tensor in named.items():
            key = f"model.{name}"
            if key not in other._state or other._state[key].shape != tensor.shape:
                raise ArgumentError(
                    "weights", name, "the model has no such parameter", "Use state_dict names."
                )
            tensor = tensor.detach().to(self.device, self._state[key].dtype).clone()
            if isinstance(weights, torch.Tensor):
                tensor = self._keep_unselected(name, tensor)
            other._state[key] = tensor
        other._forget()
        return other

    def on(self, space: ParameterSpace) -> Risk:
        """Return the same risk with other coordinates, at the same weights."""
        other = copy.copy(self)
        other.space = space
        other._forget()
        return other

    def weights(self) -> dict[str, torch.Tensor]:
        """Return the parameters that hold the coordinates."""
        return {name: self._state[f"model.{name}"] for name in self.space.names}

    def evaluate(self, weights: Block, batch: Any) -> tuple[torch.Tensor, Any]:
        """Return outputs (n, …) and targets of a batch at given parameters."""
        outputs, targets = self._holding(weights, batch)
        if not isinstance(outputs, torch.Tensor):
            raise ArgumentError(
                "model",
                type(outputs).__name__,
                "its output is not a tensor",
                "Pick the tensor with forward=lambda model, batch: model(batch[0]).logits.",
            )
        if outputs.ndim == 0 or len(outputs) == 0:
            raise ArgumentError(
                "model", outputs, "its output has no sample axis", "Return shape (n, …)."
            )
        return outputs, targets

    def _holding(self, weights: Block, argument: Any) -> Any:
        """Call the model on a batch, or a function, while it holds given parameters."""
        state = self._state | {f"model.{name}": tensor for name, tensor in weights.items()}
        buffers = {key: state[key].clone() for key in self._caller.buffer_keys}
        return functional_call(self._caller, state | buffers, (argument,))

    def chunks(self) -> Iterator[Chunk]:
        """Yield the data in chunks; graphs are kept for the next pass when they fit."""
        if self._kept is not None:
            yield from self._kept
            return
        keep: list[Chunk] | None = [] if self._fits() else None
        samples, amount = 0, 0.0
        for start, batch in self.source.chunks(self._budget.chunk(), self._order):
            chunk = self._chunk(start, batch)
            samples, amount = samples + chunk.count, amount + chunk.amount
            if keep is not None:
                keep.append(chunk)
            yield chunk
        self._own = (samples, amount)
        self._kept = keep

    @property
    def samples(self) -> int:
        """Number of samples N (rows of the outputs), of all ranks."""
        return int(self._totals()[0])

    @property
    def amount(self) -> float:
        """The divisor: one for a sum; samples, elements or total weight for a mean."""
        is_sum = self.loss is None or self.loss.reduction == "sum"
        return 1.0 if is_sum else self._totals()[1]

    @property
    def offset(self) -> int:
        """Samples of the ranks before this one."""
        if not self.processes.is_parallel:
            return 0
        counts = self.processes.gather(self._given())
        return sum(counts[: self.processes.rank])

    @property
    def criterion(self) -> Loss:
        """The loss, for operators that have one."""
        assert self.loss is not None
        return self.loss

    @property
    def is_piecewise_linear(self) -> bool:
        """Whether the model is a chain of linear and piecewise linear layers."""
        return self._piecewise_linear

    def working_bytes(self) -> int:
        """Return an estimate of the memory of a product: what is kept and what is worked on."""
        return self._budget.working_bytes(self._given(), self.space.dimension, self._fits())

    def columns_at_once(self) -> int:
        """Return how many vectors may be multiplied together within the memory."""
        return self._budget.columns()

    def forward_flops(self) -> float:
        """Return the operations of one evaluation of the model on all the data of this rank."""
        if self._given() == 0:
            return 0.0
        batch = next(self.source.batches())
        count = min(_PROBE, batch_size(batch))
        counter = FlopCounterMode(display=False)
        with torch.no_grad(), counter:
            self.evaluate(self.weights(), cut(batch, 0, count))
        return counter.get_total_flops() * self._given() / count

    def value(self) -> float:
        """Return L(θ)."""
        with self.processes.together("an evaluation of the loss"):
            total = torch.zeros((), dtype=torch.float64, device=self.device)
            for chunk in self.chunks():
                total += self.criterion.total(chunk.point.outputs, chunk.targets)
        return float(self.processes.sum(total)) / self.amount

    def gradient(self) -> torch.Tensor:
        """Return ∇L(θ) as coordinates (P,)."""
        sums = GradientSums()
        with self.processes.together("a gradient"):
            for chunk in self.chunks():
                slope = self.criterion.gradient(chunk.point.outputs, chunk.targets)
                chunk.point.pull(slope.unsqueeze(0), sums)
            total = self.flatten([sums], 1)[:, 0]
        return self.processes.sum(total) / self.amount

    def flatten(self, sums: Sequence[GradientSums], columns: int) -> torch.Tensor:
        """Return summed gradients as coordinates (P, columns); zeros without any samples."""
        found = [total.named() for total in sums]
        if not all(found):
            shape = (self.space.dimension, columns)
            return torch.zeros(shape, dtype=self.dtype, device=self.device)
        pieces = [self.space.flatten(named, batched=True) for named in found]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)

    def _chunk(self, start: int, batch: Any) -> Chunk:
        count = batch_size(batch)
        leaves = {name: w.detach().requires_grad_() for name, w in self.weights().items()}
        found: list[Any] = []

        def forward(weights: Block, samples: slice) -> torch.Tensor:
            whole = samples == slice(0, count)
            some = batch if whole else cut(batch, samples.start, samples.stop)
            outputs, targets = self.evaluate(weights, some)
            found.append(targets)
            return outputs

        point: Linearisation | None = None
        if self._may_be_chain:
            features = None if self._order is None else self._order.features
            point = trace_chain(lambda: forward(leaves, slice(0, count)), leaves, features)
            self._may_be_chain = point is not None
        if point is None:
            point = AutogradLinearisation(forward, leaves, count, partial(self._holding, leaves))
        targets, outputs = found[0], point.outputs
        inputs = batch[0] if isinstance(batch, tuple) and len(batch) == 2 else batch
        if self.loss is None:
            return Chunk(start, point, inputs, targets, float(len(outputs)))
        self.loss.check(outputs, targets)
        check_finite_loss(self.loss.total(outputs, targets), outputs)
        return Chunk(start, point, inputs, targets, self.loss.amount(outputs, targets))

    def _try_out(self, model: nn.Module) -> None:
        """Check the model on a few samples; learn its kind and the bytes a sample takes."""
        self._piecewise_linear, self._budget = True, Budget(self.memory)
        batch = next(self.source.batches(), None)
        if batch is None or batch_size(batch) == 0:
            return
        batch = cut(batch, 0, min(_PROBE, batch_size(batch)))

        def evaluate() -> torch.Tensor:
            with evaluation():
                return self.evaluate(self.weights(), batch)[0].detach()

        check_repeatable(model, evaluate)
        chunk = self._chunk(0, batch)
        point = chunk.point
        sample_bytes = max(1.0, point.nbytes / chunk.count)
        self._piecewise_linear, direction_bytes = False, sample_bytes / 2
        if isinstance(point, ChainLinearisation):
            self._piecewise_linear = point.is_piecewise_linear
            direction_bytes = point.direction_bytes / chunk.count
        self._budget = Budget(self.memory, sample_bytes, direction_bytes)

    def _agree(self) -> None:
        """Check that all ranks have the same model and some samples; find out its kind together."""
        if not self.processes.is_parallel:
            return
        own = (self._given(), self._piecewise_linear, self.loss and self.loss.reduction)
        counts, linear, reductions = zip(*self.processes.gather(own), strict=True)
        if max(counts) == 0:
            raise ArgumentError("data", counts, "no rank has any samples", "Give some samples.")
        check_same_weights(self.space.flatten(self.weights()), self.processes)
        self._piecewise_linear = all(linear)
        if self.loss is not None:
            self.loss.reduction = reductions[counts.index(max(counts))]

    def _fits(self) -> bool:
        """Whether the derivatives of all samples may be kept."""
        return self.source.is_kept and self._budget.keeps(self._given())

    def _given(self) -> int:
        """Number of samples of this rank, read from the data."""
        if self._length is None:
            self._length = sum(batch_size(batch) for batch in self.source.batches())
        return self._length

    def _totals(self) -> tuple[float, float]:
        """Return samples and amount of all ranks."""
        if self._counted is None:
            with self.processes.together("the counting of the samples"):
                if self._own is None:
                    for _ in self.chunks():
                        pass
                own = torch.tensor(self._own, dtype=torch.float64)
            samples, amount = self.processes.sum(own).tolist()
            self._counted = (samples, amount)
        return self._counted

    def _forget(self) -> None:
        self._kept: list[Chunk] | None = None
        self._own: tuple[int, float] | None = None
        self._counted: tuple[float, float] | None = None

    def _keep_unselected(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        selection = self.space.selections[self.space.names.index(name)]
        if selection is None:
            return tensor
        full = self._state[f"model.{name}"].clone()
        full.view(-1)[selection] = tensor.reshape(-1)[selection]
        return full
