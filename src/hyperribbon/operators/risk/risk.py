"""The empirical risk: a model, a loss and data as one function of a vector of weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

import torch
from torch import nn

from hyperribbon.core.checks import (
    ArgumentError,
    check_choice,
    check_positive,
    check_readable,
    function,
    is_tensor,
    validate,
)
from hyperribbon.core.devices.memory import give_back
from hyperribbon.core.devices.modes import plain_arithmetic, preserve_random_state
from hyperribbon.core.devices.processes import Processes
from hyperribbon.core.devices.torch_private import FlopCounter
from hyperribbon.core.mask import Mask
from hyperribbon.core.parameters import LARGE, ParameterFilter, ParameterSpace
from hyperribbon.operators.derivatives.factors import check_factors
from hyperribbon.operators.derivatives.linearisation import Linearisation, Routes
from hyperribbon.operators.derivatives.verification import random_direction
from hyperribbon.operators.risk.batches import batch_size, bytes_of, cut, split, tensors
from hyperribbon.operators.risk.contract import (
    check_finite_loss,
    check_same_weights,
    check_weights,
    probe_contract,
)
from hyperribbon.operators.risk.data import Data, Source
from hyperribbon.operators.risk.finite_differences import Verification
from hyperribbon.operators.risk.forward import Forward
from hyperribbon.operators.risk.loss import CallableLoss, Loss
from hyperribbon.operators.risk.memory import (
    Footprint,
    Layout,
    Meter,
    allowance,
    measure,
    surely_fits,
)
from hyperribbon.operators.risk.model import BatchEvaluation, ModelFunction, as_model
from hyperribbon.operators.risk.objective import find_own_loss, no_own_loss
from hyperribbon.operators.risk.private_copy import unsharded, unwrapped
from hyperribbon.operators.risk.torch_losses import NLLLoss, recognise


@dataclass
class Chunk:
    """A chunk of the risk: some samples with the model linearised on them.

    Attributes:
        start: Position of the first one in the data.
        point: The model's derivatives on these samples.
        inputs: Their inputs (the whole batch when it is not a pair).
        targets: Their targets.
        amount: What they add to the divisor of a mean.
        structured: Parameters whose per-sample gradients have factors; None before that is known.
        curvature: ∂²ℓ/∂f² as a function of output vectors; None before it is used.
    """

    start: int
    point: Linearisation
    inputs: Any
    targets: Any
    amount: float
    structured: set[str] | None = None
    curvature: Callable[[torch.Tensor], torch.Tensor] | None = None

    @property
    def count(self) -> int:
        """Number of samples in a chunk of the risk."""
        return len(self.point.outputs)


class GradientSums:
    """Gradients (k, *shape) by name, summed over chunks of the samples.

    Attributes:
        named: The sums.
    """

    def __init__(self) -> None:
        self.named: dict[str, torch.Tensor] = {}
        self._is_own = False

    def add(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Add a chunk's gradients to those of the risk."""
        if not self.named:
            self.named = dict(gradients)
            return
        for name, gradient in gradients.items():
            if self._is_own:
                self.named[name] += gradient
            else:  # the first ones may be somebody else's
                self.named[name] = self.named[name] + gradient
        self._is_own = True


@dataclass
class _KeptChunks:
    """Chunks that keep their graphs, for one way to cut the data.

    Attributes:
        cuts: Samples of a chunk, and samples whose graphs are kept.
        chunks: The chunks by their place.
        whole_for: The kinds of derivatives for which all chunks are kept; empty where some are not.
    """

    cuts: tuple[int, int] = (0, 0)
    chunks: dict[int, Chunk] = field(default_factory=dict[int, Chunk])
    whole_for: frozenset[str] = frozenset()


OUTPUTS_ONLY: Any = object()
"""In place of a loss: a risk whose outputs alone are differentiated."""

_BESIDE = 8  # part of the memory for the same risk in another precision, beside it


def _weights(argument: str, value: Any) -> Any:
    if not isinstance(value, Mapping) and not is_tensor(value):
        remedy = "Give named tensors, or coordinates (P,)."
        raise ArgumentError(argument, value, "expected a tensor or tensors by name", remedy)
    for entry in value.values() if isinstance(value, Mapping) else (value,):
        check_readable(argument, entry)
    return value


class Risk:
    """L(θ) = Σ_n ℓ(f(x_n; θ), y_n) / amount at the model's present weights.

    Built once and shared: `hr.Hessian(risk)`, `hr.GGN(risk)` and the other operators then have the
    same data, graphs and memory. The weights and buffers are copied, so later training does not
    reach it, and the model, its gradients, mode, hooks and buffers are not touched.

    When it is built, a few real samples show that it is one function: evaluations repeat, samples
    do not depend on each other, the loss adds up over cuts of the data and depends on the weights
    through the outputs alone. When an operator is built, its derivatives are compared with finite
    differences on those samples.

    With a process group the sum runs over the samples of all ranks, in the order of the ranks, and
    every method is collective: every rank calls it.

    Args:
        model: Any module, or a function f(params, x) with its tensors as `params`. With a process
            group the same on every rank, also in DistributedDataParallel or sharded by FSDP2.
        loss: A torch.nn loss or any callable (outputs, targets) that is a mean or a sum over
            samples; it gets the outputs as the model returns them. None for the model's own loss,
            where its output has `.loss`, as transformers models do; else only the outputs matter.
        data: (inputs, targets), a Dataset, a DataLoader, a list of batches, dict batches; inputs
            alone without a loss.
        params: Which parameters are coordinates: a name, a pattern, a list or a predicate.
        mask: Which entries of them are.
        forward: forward(model, batch) -> outputs or (outputs, targets), for other calls.
        mode: "eval" for evaluation mode and "train" for training mode, whatever mode the module is
            in; None to keep each layer's own. In training mode batch norm takes its statistics from
            the batch, so the batches that the data come in are part of the risk: a pair of tensors
            is one batch, a DataLoader or a list has its own, in order (see `composition`). Dropout
            has no fixed function and is refused there.
        memory: Bytes to stay below, for data and graphs that are kept between products. None: half
            of what is free on the device when the risk is built.
        process_group: The ranks that hold the samples, True for all; None for this one alone.

    Attributes:
        mode: "eval", "train" or None, as given.
        memory: Bytes to stay below.

    Raises:
        ArgumentError: The model, the loss or the data do not define a fixed finite function.
    """

    @validate(forward=function)
    @plain_arithmetic()
    @preserve_random_state()
    def __init__(
        self,
        model: nn.Module | Callable[..., Any],
        loss: Callable[..., Any] | Loss | None = None,
        data: Data = None,
        *,
        params: ParameterFilter = None,
        mask: Mask | None = None,
        forward: Forward | None = None,
        mode: str | None = "eval",
        memory: float | None = None,
        process_group: Any = None,
    ) -> None:
        if data is None:
            remedy = "Give (inputs, targets), a Dataset, a DataLoader or a list of batches."
            raise ArgumentError("data", None, "data is required", remedy)
        self.mode = None if mode is None else check_choice("mode", mode, ("eval", "train"))
        self.processes = Processes.of(process_group)
        with self.processes.together("the reading of the arguments"):
            module, params = as_model(model, params)
            module = unwrapped(module, self.processes)
            check_weights(module)
            self.space = ParameterSpace.of_model(module, params, mask)
            is_outputs_only = loss is OUTPUTS_ONLY
            known = loss is not None and not is_outputs_only
            self.loss: Loss | None = recognise(loss) if known else None
            given = None if memory is None else check_positive("memory", memory)
        module = unsharded(module)
        packs = isinstance(self.loss, CallableLoss)
        names = self.space.names
        self.function = ModelFunction(module, names, forward, mode=self.mode, packs=packs)
        self.dtype, self.device = self.function.dtype, self.function.leaves[names[0]].device
        self.memory = allowance(self.device) if given is None else given
        self._routes = Routes()
        self._kinds: set[str] = set()  # of derivatives that were checked
        self._footprints: dict[str, Footprint] = {}
        self._length: int | None = None
        self._flops: float | None = None  # of a sample
        self._is_beside = False
        self._forget()
        with self.processes.together("the reading of the data"):
            self.source = self._read(data, has_targets=known)
            if not known and not is_outputs_only:
                own = find_own_loss(self.function, self.source, forward)
                if own is not None:
                    forward, self.loss = own
                    self.function = self.function.with_forward(forward)
            about = self.function, self.loss, self.source, self._routes
            self._probe = probe_contract(module, *about)
        self._agree()

    def _read(self, data: Data, has_targets: bool) -> Source:
        if isinstance(data, Source):
            return data.within(self.memory / 2)
        return Source(
            data,
            dtype=self.dtype,
            device=self.device,
            memory=self.memory / 2,
            may_be_empty=self.processes.is_parallel,
            has_targets=has_targets,
            is_fixed=self.mode != "eval",
        )

    @property
    def mixes_samples(self) -> bool:
        """Whether a sample's part of the risk depends on the others of its batch."""
        return self._probe.mixes_samples

    @property
    def must_be_whole(self) -> bool:
        """Whether the risk's batches must not be cut: samples depend on each other, or the loss."""
        return self._probe.must_be_whole

    @property
    def bytes_per_sample(self) -> float:
        """Bytes of all tensors that an evaluation of the risk's model makes, per sample."""
        return self._probe.bytes_each

    @property
    def composition(self) -> str:
        """The batches that a risk consists of whose samples depend on each other, in words."""
        if not self.mixes_samples:
            return ""
        sizes = [batch_size(batch) for batch in self.source.batches()]
        if len(sizes) == 1:
            return f"one batch of {sizes[0]:,} samples"
        last = "" if sizes[-1] == sizes[0] else f", the last of {sizes[-1]:,}"
        return f"{len(sizes):,} fixed batches of {sizes[0]:,} samples{last}"

    def prepare(self, kind: str) -> None:
        """Check a kind of a risk's derivatives on a few samples, once.

        Their memory is measured where not all data fit by a wide margin, and when it is asked for.

        Raises an ArgumentError when they differ from finite differences.

        Args:
            kind: "hvp" for second derivatives, "jvp" for J v with Jᵀu, "vjp" for Jᵀu.
        """
        with self.processes.together("the check of the derivatives"):
            self._verify(kind)
            self._layout(is_measured=False)

    def _verify(self, kind: str) -> None:
        """Compare a kind of a risk's derivatives with finite differences, once."""
        if kind in self._kinds:
            return
        if self._probe.batch is not None and kind != "vjp":
            with _translate_errors():
                Verification(self._probe, self.loss, self.source).check(kind, self._take_probe)
        self._probe.linearisation = None
        self._kinds.add(kind)
        self._give_back()

    def _take_probe(self) -> tuple[Linearisation, Any]:
        """Return the derivatives of the risk on the first samples looked at, and targets."""
        found, self._probe.linearisation = self._probe.linearisation, None
        return found or self._linearise(self._probe.function, self._probe.batch)

    def _linearise(
        self, function: ModelFunction, batch: Any, routes: Routes | None = None
    ) -> tuple[Linearisation, Any]:
        """Return the derivatives of the risk's model on a batch, and the targets."""
        evaluation = BatchEvaluation(function, batch)
        return Linearisation(evaluation, routes or self._routes), evaluation.targets

    @validate(weights=_weights)
    def at(self, weights: Mapping[str, torch.Tensor] | torch.Tensor) -> Risk:
        """Return the same risk at other weights: named tensors, or coordinates (P,)."""
        named = self.space.unflatten(weights) if isinstance(weights, torch.Tensor) else weights
        state, tied = self.function.state, self.function.tied
        changed: dict[str, torch.Tensor] = {}
        for given, tensor in named.items():
            name = tied.get(given, given)
            if name not in state or state[name].shape != tensor.shape:
                raise ArgumentError(
                    "weights", given, "the model has no such parameter", "Use state_dict names."
                )
            value = tensor.detach().to(self.device, state[name].dtype)
            if isinstance(weights, torch.Tensor):
                value = self._keep_unselected(name, value)
            first = changed.setdefault(name, value)
            if first is not value and not torch.equal(first, value):
                reason = f"the model ties it to {name!r}, which has other values"
                raise ArgumentError("weights", given, reason, "Give equal values.")
        other = copy.copy(self)
        other.function = self.function.at(changed)
        other._forget()
        return other

    def in_precision(self, dtype: torch.dtype) -> Risk:
        """Return the same risk at the same weights and data, evaluated in another precision.

        It is there for few products beside those of this one: it keeps no graphs and goes through
        the data in small parts.
        """
        other = copy.copy(self)
        other._is_beside = True
        other.function = self.function.in_precision(dtype)
        other.source = self.source.in_precision(dtype)
        other.dtype, other.memory = dtype, self.memory / _BESIDE
        other._kept = _KeptChunks()
        return other

    def on(self, space: ParameterSpace) -> Risk:
        """Return the same risk on some of its coordinates; graphs are shared."""
        other = copy.copy(self)
        other.space = space
        return other

    def weights(self) -> dict[str, torch.Tensor]:
        """Return the parameters that the risk differentiates by."""
        return {name: self.function.state[name].detach() for name in self.space.names}

    def chunks(self, kind: str = "vjp") -> Iterator[Chunk]:
        """Yield the risk's data in chunks; graphs are kept for the next pass as far as they fit.

        Args:
            kind: What the derivatives are used for, see `prepare`.
        """
        if kind not in self._kept.whole_for:
            self._verify(kind)
        if self._kept.whole_for == frozenset(self._kinds):  # none was checked since
            yield from self._kept.chunks.values()
            return
        layout = self._layout(is_measured=False)
        cuts = layout.chunk, layout.kept
        if cuts != self._kept.cuts:
            self._kept = _KeptChunks(cuts)
        kept = self._kept
        samples, amount = 0, 0.0
        for place, (start, batch) in enumerate(self.source.chunks(layout.chunk)):
            chunk = kept.chunks.get(place) or self._chunk(start, batch)
            samples, amount = samples + chunk.count, amount + chunk.amount
            if samples <= layout.kept:
                kept.chunks[place] = chunk
            yield chunk
            del chunk  # its graph goes before the next one is built
        self._own = (samples, amount)
        if self.source.is_kept and samples <= layout.kept:
            kept.whole_for = frozenset(self._kinds)

    @property
    def samples(self) -> int:
        """Number of samples N of the risk (rows of the outputs), of all ranks."""
        return int(self._totals()[0])

    @property
    def amount(self) -> float:
        """The risk's divisor: one for a sum; samples, elements or total weight for a mean."""
        is_sum = self.loss is None or self.loss.reduction == "sum"
        amount = 1.0 if is_sum else self._totals()[1]
        if amount == 0:
            reason = "every label is ignored or has weight zero, so the mean of the loss is 0/0"
            remedy = "Give labels that count, or a loss with reduction='sum'."
            raise ArgumentError("data", "no sample counts", reason, remedy)
        return amount

    @property
    def offset(self) -> int:
        """Number of the risk's samples on the ranks before this one."""
        if not self.processes.is_parallel:
            return 0
        counts = self.processes.gather(self._given())
        return sum(counts[: self.processes.rank])

    @property
    def criterion(self) -> Loss:
        """The loss of the risk, for operators that need one.

        Raises:
            ArgumentError: No loss was given, and the model's output does not have one.
        """  # noqa: DOC501 - no_own_loss() returns one
        if self.loss is None:
            raise no_own_loss(self.function.module)
        return self.loss

    @property
    def is_piecewise_linear(self) -> bool:
        """Whether the risk's model is piecewise linear in every single weight."""
        return self._probe.is_piecewise_linear

    @property
    def ends_in_log_softmax(self) -> bool:
        """Whether the risk's model ends in log_softmax over classes, the second axis."""
        return self._probe.log_softmax == 1

    def take_logits(self) -> None:
        """Take the risk's NLLLoss of log-probabilities as cross-entropy, the same function.

        Log-probabilities are logits of their own, log_softmax(f) = f. The Gauss-Newton matrix is
        zero of NLLLoss, which is linear in them, and that of the logits of cross-entropy.
        """
        if isinstance(self.loss, NLLLoss) and self.ends_in_log_softmax:
            self.loss = self.loss.of_logits()

    def structured(self, chunk: Chunk) -> set[str]:
        """Return the risk's parameters whose per-sample gradients have verified factors."""
        if chunk.structured is None:
            is_apart = not self.mixes_samples
            found = chunk.point.names_with_factors() if is_apart else set[str]()
            chunk.structured = check_factors(chunk.point, found) if is_apart else found
        return chunk.structured & set(self.space.names)

    def probe(self) -> Chunk | None:
        """Return the risk's derivatives on a few samples; None without any."""
        return None if self._probe.batch is None else self._chunk(0, self._probe.batch)

    def evaluate(self, batch: Any) -> tuple[torch.Tensor, Any]:
        """Return the risk's outputs (n, …) and targets of a batch, without a graph."""
        with torch.no_grad():
            return self.function.evaluate(batch)

    def working_bytes(self, kind: str) -> int:
        """Return what a product with the risk takes at its peak: graphs kept and in work."""
        self._verify(kind)
        layout = self._layout()
        is_summed = layout.chunk < self._given()
        twice = self.space.dimension if is_summed else self.space.copied  # of the product
        return layout.total + twice * self.dtype.itemsize

    def bytes_beside(self) -> int:
        """Return what a risk's product takes in float64 beside it; nothing where it is that."""
        if self.dtype == torch.float64:
            return 0
        other = copy.copy(self)
        other._is_beside, other.memory = True, self.memory / _BESIDE
        weights = sum(tensor.numel() for tensor in self.function.state.values())
        vectors = 3 * self.space.dimension + weights
        return other._layout().total + vectors * torch.float64.itemsize

    def check_in(self) -> None:
        """Called between the pieces of a risk's passes; one with a clock raises when time is up."""

    def columns_at_once(self) -> int:
        """Return how many vectors a risk multiplies together within the memory."""
        return self._layout().columns

    def forward_flops(self) -> float:
        """Return the operations of one evaluation of the risk's model on this rank's data."""
        batch = self._probe.batch
        if self._given() == 0 or batch is None:
            return 0.0
        if self._flops is None:
            self._flops = _count_flops(self.function, batch) / batch_size(batch)
        return self._flops * self._given()

    @plain_arithmetic()
    def value(self) -> float:
        """Return the risk L(θ)."""
        with self.processes.together("an evaluation of the loss"):
            total = torch.zeros((), dtype=torch.float64, device=self.device)
            for chunk in self.chunks():
                total += self.criterion.total(chunk.point.outputs, chunk.targets).detach()
        return float(self.processes.sum(total)) / self.amount

    @plain_arithmetic()
    def gradient(self) -> torch.Tensor:
        """Return the risk's gradient ∇L(θ) as coordinates (P,)."""
        sums = GradientSums()
        with self.processes.together("a gradient"):
            for chunk in self.chunks():
                slope = self.criterion.gradient(chunk.point.outputs, chunk.targets)
                sums.add(chunk.point.vjp(slope.unsqueeze(0), self.space.names))
            total = self.flatten([sums], 1)[:, 0]
        return self.processes.sum(total) / self.amount

    def flatten(self, sums: Sequence[GradientSums], columns: int) -> torch.Tensor:
        """Return the risk's summed gradients, used up, as coordinates (P, columns), or zeros."""
        if not sums[0].named:
            shape = (self.space.dimension, columns)
            return torch.zeros(shape, dtype=self.dtype, device=self.device)
        pieces = [self.space.flatten(total.named, batched=True, frees=True) for total in sums]
        self._give_back()
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)

    def _chunk(self, start: int, batch: Any) -> Chunk:
        point, targets = self._linearise(self.function, batch)
        inputs = split(batch)[0]
        if self.loss is None:
            return Chunk(start, point, inputs, targets, float(len(point.outputs)))
        self.loss.check(point.outputs, targets)
        check_finite_loss(self.loss.total(point.outputs, targets), point.outputs)
        return Chunk(start, point, inputs, targets, self.loss.amount(point.outputs, targets))

    def _layout(self, is_measured: bool = True) -> Layout:
        """Return how the risk's data are cut into chunks.

        Args:
            is_measured: Whether the memory of products has to be known, also where all will fit.
        """
        samples, whole = self._given(), self._largest_batch()
        if self._is_beside:
            return self._beside(samples, is_measured)
        kept_data = sum(map(bytes_of, self.source.batches())) if self.source.is_kept else 0
        memory = self.memory - kept_data
        fits = self._surely_fits(memory, samples)
        if fits and not is_measured:
            return Layout(samples, samples)
        return Layout.within(memory, samples, self.footprint(), samples if fits else whole)

    def _beside(self, samples: int, is_measured: bool) -> Layout:
        """Return the risk's cuts for products in float64 that take a part of what others do."""
        whole = self._largest_batch()
        chunk = whole or ceil(samples / _BESIDE)
        if not is_measured and (whole or self._surely_fits(self.memory / 2, chunk)):
            return Layout(chunk, 0)
        layout = Layout.within(self.memory / 2, chunk, self.footprint(), whole)
        return replace(layout, kept=0, total=2 * layout.total)

    def _surely_fits(self, memory: float, samples: int) -> bool:
        """Whether all of a risk's derivatives in use fit by a wide margin."""
        weights = sum(leaf.nbytes for leaf in self._probe.function.leaves.values())
        kinds = max(len(self._kinds - {"vjp"}), 1)
        return surely_fits(memory / kinds, samples * self.bytes_per_sample, weights)

    def _largest_batch(self) -> int:
        """Return the samples of a risk's largest batch that must not be cut; 0 for none."""
        return max(map(batch_size, self.source.batches())) if self.must_be_whole else 0

    def footprint(self) -> Footprint:
        """Return what all kinds of a risk's derivatives in use take together.

        The graph of Jᵀu is a part of what the others keep.
        """
        total = Footprint()
        for kind in sorted(self._kinds - {"vjp"}) or sorted(self._kinds):
            if kind not in self._footprints:
                self._footprints[kind] = self._measure(kind)
                self._give_back()
            total = total.plus(self._footprints[kind])
        return total

    def _measure(self, kind: str) -> Footprint:
        """Measure what a kind of a risk's derivatives takes, on a few samples."""
        probe = self._probe
        if probe.batch is None:
            return Footprint()
        function, count = probe.function, batch_size(probe.weighed)
        direction = random_direction(function.leaves)
        v = {name: tensor.unsqueeze(0) for name, tensor in direction.items()}
        is_reversed = self._routes.jvp != "forward"  # which does not bear being watched

        def product(samples: int, meter: Meter) -> Linearisation:
            point, targets = self._linearise(function, cut(probe.weighed, 0, samples), Routes())
            meter.end_stage()
            if kind == "hvp":
                point.differentiate(point.gradient(self.criterion, targets), v, list(v))
            else:
                u = point.jvp(v) if kind == "jvp" and is_reversed else point.outputs.unsqueeze(0)
                meter.end_stage()
                point.vjp(u, list(v))
            return point

        present = [*function.state.values(), *tensors(probe.weighed)]
        with _translate_errors():
            return measure(product, count, 0 if self.must_be_whole else count // 2, present)

    def _give_back(self) -> None:
        """Give memory back after derivatives of a large risk that are not kept."""
        if self.space.dimension >= LARGE and self.device.type == "cpu":
            give_back()

    def _agree(self) -> None:
        """Check that all ranks hold the same risk: the same model, and some samples."""
        if not self.processes.is_parallel:
            return
        probe, reduction = self._probe, self.loss and self.loss.reduction
        shown = probe.is_piecewise_linear, not probe.mixes_samples, not probe.must_be_whole
        own = self._given(), shown, reduction, probe.log_softmax
        counts, findings, reductions, axes = zip(*self.processes.gather(own), strict=True)
        if max(counts) == 0:
            raise ArgumentError("data", counts, "no rank has any samples", "Give some samples.")
        check_same_weights(self.space.flatten(self.weights()), self.processes)
        linear, apart, additive = (all(column) for column in zip(*findings, strict=True))
        probe.is_piecewise_linear = linear
        probe.mixes_samples, probe.must_be_whole = not apart, not additive
        most = counts.index(max(counts))
        probe.log_softmax = axes[most]
        if self.loss is not None:
            self.loss.reduction = reductions[most]

    def rows_at_once(self, most: int) -> int:
        """Return how many samples the risk may evaluate together."""
        if self.must_be_whole:
            return max(most, self._given())
        each = max(self.bytes_per_sample, 1.0)  # all its tensors, which are not there at once
        return max(1, min(most, int(self.memory / 2 / each)))

    def _given(self) -> int:
        """Number of the risk's samples on this rank, read from the data."""
        if self._length is None:
            self._length = sum(batch_size(batch) for batch in self.source.batches())
        return self._length

    def _totals(self) -> tuple[float, float]:
        """Return samples and amount of a risk over all ranks."""
        if self._counted is None:
            with self.processes.together("the counting of the samples"):
                if self._own is None:
                    for _ in self.chunks():
                        pass
                own = torch.tensor(self._own or (0, 0.0), dtype=torch.float64, device="cpu")
            samples, amount = self.processes.sum(own).tolist()
            self._counted = (samples, amount)
        return self._counted

    def _forget(self) -> None:
        self._kept = _KeptChunks()
        self._own: tuple[int, float] | None = None
        self._counted: tuple[float, float] | None = None

    def _keep_unselected(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        selection = self.space.selections[self.space.names.index(name)]
        if selection is None:
            return tensor
        full = self.function.state[name].detach().clone()
        full.view(-1)[selection] = tensor.reshape(-1)[selection]
        return full


def _count_flops(function: ModelFunction, batch: Any) -> float:
    """Return the operations of a risk's evaluation; two per weight where not countable."""
    try:
        with FlopCounter() as counter, torch.enable_grad():
            function.evaluate(batch)
        return counter.flops
    except Exception:  # an estimate must not stop an answer
        return 2.0 * batch_size(batch) * sum(leaf.numel() for leaf in function.leaves.values())


@contextmanager
def _translate_errors() -> Generator[None]:
    """Explain torch's error about an operation of a risk that has no derivative.

    Raises:
        ArgumentError: There is one.
    """
    try:
        yield
    except (RuntimeError, NotImplementedError) as error:
        reason = "one of its operations lacks a derivative that the operator needs"
        remedy = (
            "Replace that operation by others, omit the parameters before it with params=, or "
            "use hr.GGN where it is the model's second derivative that is missing."
        )
        value = str(error).splitlines()[0][:200]
        raise ArgumentError("model or loss", value, reason, remedy) from error
