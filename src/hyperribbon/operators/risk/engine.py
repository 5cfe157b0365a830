"""How one model is differentiated: routes that were found right, what they take, what it keeps.

One engine serves a risk at all weights and for all of its operators. It probes the model on a few
real samples once, and every kind of derivative before it is used for the first time.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.generators import torch_generator
from hyperribbon.operators.derivatives.choosing import Choices
from hyperribbon.operators.derivatives.factors import right_factors
from hyperribbon.operators.derivatives.linearisation import Linearisation
from hyperribbon.operators.derivatives.piecewise_linear import is_piecewise_linear
from hyperribbon.operators.derivatives.random_direction import some_direction
from hyperribbon.operators.risk.batches import bytes_of, joined, split, tensors
from hyperribbon.operators.risk.chunks import BatchEvaluation
from hyperribbon.operators.risk.data import Source, batch_size, cut
from hyperribbon.operators.risk.function import ModelFunction
from hyperribbon.operators.risk.losses import CallableLoss, Loss
from hyperribbon.operators.risk.memory import Footprint, MadeBytes, Meter, measured, surely_fits
from hyperribbon.operators.risk.own_loss import OwnLoss
from hyperribbon.operators.risk.probing.contract import (
    check_draws,
    check_fixed,
    check_one_batch,
    mixes_samples,
    probe_loss,
    probe_model,
)
from hyperribbon.operators.risk.probing.verifying import Verification, one_row

__all__ = ["Engine"]

_PROBE = 2  # samples on which derivatives are tried out
_WEIGHED = 4  # samples on which the memory of products is measured
_LOOKED_AT = 16  # samples that are evaluated together, and apart from the first one
_LARGE = 2**20  # bytes of a sample's evaluation from which there are fewer of all three
_FEWER_PROBED, _FEWER_WEIGHED = 1, 2
_ROWS = 256  # samples evaluated together for their outputs
_JUDGED = 2**28  # bytes of outputs on which a loss is judged


class Engine:
    """Linearises a model on batches, by routes that were compared with slower ones.

    Args:
        model: The user's model, which the loss must not reach.
        function: The model in private.
        loss: The loss, or None.
        source: The data.

    Attributes:
        probe: The samples on which derivatives are tried out; None without any.
        mixes: Whether samples depend on each other.
        must_be_whole: Whether the data must not be cut: because of that, or because of the loss.
        is_piecewise_linear: Whether the model is a chain of piecewise linear layers.
        data_bytes: Memory of data that are kept.
        kinds: The kinds of derivatives that are in use.

    Raises:
        ArgumentError: Model, loss and data do not define a fixed finite function.
    """

    def __init__(
        self, model: nn.Module, function: ModelFunction, loss: Loss | None, source: Source
    ) -> None:
        self._function, self._loss, self._source = function, loss, source
        self._choices = Choices()
        self._footprints: dict[str, Footprint] = {}
        self.mixes = self.must_be_whole = False
        self._largest: int | None = None
        self._is_smooth = self._has_kinks = False
        self.is_piecewise_linear = True
        self.data_bytes = sum(map(bytes_of, source.batches())) if source.is_kept else 0
        self._made = 0.0
        self.kinds: set[str] = set()
        self._probed: tuple[Linearisation, BatchEvaluation] | None = None
        several = source.some(_LOOKED_AT)
        self.probe = None if several is None else cut(several, 0, _PROBE)
        if self.probe is None:
            return
        evaluation = first = BatchEvaluation(function, self.probe)
        with MadeBytes() as count:
            self.is_piecewise_linear = self._trace(evaluation, source)
        if evaluation.plain is None:
            self.probe = several = next(source.batches())
            evaluation = BatchEvaluation(function, self.probe)
        elif count.made > _LARGE * batch_size(self.probe):
            evaluation = self._on_fewer(several) or evaluation
        plain = evaluation.plain
        made, has_own_rules, self._has_kinks = probe_model(
            function, self.probe, self._evaluated(evaluation), plain
        )
        with torch.no_grad():
            check_draws(function, several)
        if isinstance(loss, CallableLoss):
            loss.packing = function.packing
        self._made = made / batch_size(self.probe)
        self._is_smooth = not (plain is None or count.jumps or has_own_rules)
        is_large = plain is not None and (evaluation is not first or self._made > _LARGE)
        self._weighed = several if plain is None else cut(several, 0, _WEIGHED)
        if is_large and first.plain is not None:
            self._weighed, several = cut(several, 0, _FEWER_WEIGHED), cut(several, 0, _PROBE)
            outputs, targets = first.plain, first.targets
        else:
            with torch.no_grad():
                outputs, targets = function.plainly(several)
        if not isinstance(loss, OwnLoss):
            self.mixes = self.mixes or mixes_samples(function, several, outputs, plain)
        if self.mixes and not source.has_fixed_batches:
            check_one_batch(function.module, source.is_one_batch)
        if self.mixes:
            with torch.no_grad():
                outputs, targets = function.plainly(next(source.batches()))
        if isinstance(loss, CallableLoss):
            outputs, targets = self._probe_callable(loss, outputs, targets, source)
        if loss is not None:
            probe_loss(loss, outputs, targets, model)
        is_whole = loss is not None and loss.reduction == "whole"
        if is_whole and not (source.is_one_batch or source.has_fixed_batches):
            raise _not_additive(loss)
        self.must_be_whole = self.mixes or is_whole
        if self.must_be_whole:
            # Their derivatives are those of whole batches: a few samples would show others.
            self.probe = self._weighed = next(source.batches())
            self._probed = None
        elif source.has_fixed_batches and source.is_kept:
            source.join()
        self.is_piecewise_linear = self.is_piecewise_linear and not self.mixes

    def linearise(
        self, function: ModelFunction, batch: Any, choices: Choices | None = None
    ) -> tuple[Linearisation, Any, Any]:
        """Return the derivatives of a model on a batch, the batch's inputs and targets."""
        evaluation = BatchEvaluation(function, batch)
        point = Linearisation(evaluation, choices or self._choices)
        return point, split(batch)[0], evaluation.targets

    def prepare(self, kind: str) -> None:
        """Check a kind of derivatives on the probe, once.

        Raises:
            ArgumentError: They differ from finite differences.
        """  # noqa: DOC501 - _underivable() returns one
        if kind in self.kinds:
            return
        probed, self._probed = self._probed, None
        if self.probe is not None and kind != "vjp":
            try:
                self._verify(kind, probed)
            except (RuntimeError, NotImplementedError) as error:
                raise _underivable(error) from error
        self.kinds.add(kind)

    def _verify(self, kind: str, probed: tuple[Linearisation, BatchEvaluation] | None) -> None:
        """Compare derivatives along a direction, on the probe, with finite differences."""
        about = self._function, self._loss, self.probe, self._more_samples
        check = Verification(*about, self._is_smooth, self._has_kinks).check
        if probed is not None:
            check(kind, probed[0], probed[1].targets)
        else:
            point, _, targets = self.linearise(self._function, self.probe)
            check(kind, point, targets)

    def _more_samples(self) -> Any:
        """Return as many samples as are quickly differentiated in double precision."""
        if self.must_be_whole:
            return self.probe
        return self._source.some(max(_WEIGHED, min(_ROWS, int(_JUDGED / (8 * self._made + 1)))))

    def surely_fits(self, memory: float, samples: int) -> bool:
        """Whether all derivatives that are in use fit by a wide margin, without being measured."""
        weights = sum(leaf.nbytes for leaf in self._function.leaves.values())
        kinds = max(len(self.kinds - {"vjp"}), 1)
        return surely_fits(memory / kinds, samples * self._made, weights)

    def footprint(self) -> Footprint:
        """Return what all kinds of derivatives that are in use take together.

        The graph of Jᵀu is a part of what the others keep.
        """
        total = Footprint()
        for kind in sorted(self.kinds - {"vjp"}) or sorted(self.kinds):
            if kind not in self._footprints:
                self._footprints[kind] = self._measured(kind)
            total = total.plus(self._footprints[kind])
        return total

    def _measured(self, kind: str) -> Footprint:
        """Return what a kind of derivatives takes, measured on a few samples."""
        if self.probe is None:
            return Footprint()
        block = one_row(some_direction(self._function.leaves))
        is_reversed = self._choices.chosen("jvp") != "forward"  # which does not bear being watched

        def product(samples: int, meter: Meter) -> Linearisation:
            batch = cut(self._weighed, 0, samples)
            point, _, targets = self.linearise(self._function, batch, Choices())
            meter.end_stage()
            if kind == "hvp":
                assert self._loss is not None
                point.differentiate(point.gradient(self._loss, targets), block, list(block))
            else:
                u = point.outputs.unsqueeze(0)
                if kind == "jvp" and is_reversed:
                    u = point.jvp(block)
                meter.end_stage()
                point.vjp(u, list(block))
            return point

        count = batch_size(self._weighed)
        present = [*self._function.state.values(), *tensors(self._weighed)]
        fewer = 0 if self.must_be_whole else count // 2
        try:
            return measured(product, count, fewer, present)
        except (RuntimeError, NotImplementedError) as error:
            raise _underivable(error) from error

    def structured(self, point: Linearisation) -> set[str]:
        """Return the parameters whose factors give the gradients of single samples."""
        return set() if self.mixes else right_factors(point, point.structured())

    def findings(self) -> tuple[Any, ...]:
        """Return what the ranks must agree on."""
        if self.probe is None:
            return ()
        return self.is_piecewise_linear, self.mixes, self.must_be_whole

    def join(self, findings: Sequence[tuple[Any, ...]]) -> None:
        """Take over what all ranks have found."""
        linear, mixing, whole = zip(*(found for found in findings if found), strict=True)
        self.is_piecewise_linear = all(linear)
        self.mixes, self.must_be_whole = any(mixing), any(whole)

    def _evaluated(self, evaluation: BatchEvaluation) -> Callable[[], torch.Tensor]:
        """Return a function that evaluates the probe, for the first check of derivatives too."""

        def outputs() -> torch.Tensor:
            point = Linearisation(evaluation, self._choices)
            self._probed = point, evaluation
            return point.graph

        return outputs

    def _trace(self, evaluation: BatchEvaluation, source: Source) -> bool:
        """Return whether the model is piecewise linear, from an evaluation on some samples.

        A model that needs all samples at once (a graph whose nodes are the samples) mixes them.
        """  # noqa: DOC501 - an ArgumentError of the model passes through
        try:
            return is_piecewise_linear(evaluation.plain_outputs, self._function.leaves)
        except ArgumentError:
            raise
        except Exception:
            if not source.is_one_batch:
                raise
            self.mixes = True
            return False

    def _on_fewer(self, several: Any) -> BatchEvaluation | None:
        """Try derivatives out on fewer samples, unless the model does not bear so few."""
        batch = cut(several, 0, _FEWER_PROBED)
        evaluation = BatchEvaluation(self._function, batch)
        try:
            if len(evaluation.plain_outputs()) != batch_size(batch):
                return None
        except (RuntimeError, ValueError, IndexError):
            return None
        self.probe = batch
        return evaluation

    def _probe_callable(
        self, loss: CallableLoss, outputs: torch.Tensor, targets: Any, source: Source
    ) -> tuple[torch.Tensor, Any]:
        """Check that a function is a fixed one, and find out on real data whether it adds up.

        Returns:
            Outputs and targets that it takes: the given ones, or all where it takes no fewer.
        """  # noqa: DOC501 - an ArgumentError of the loss passes through
        real = self._real_outputs(source)
        try:
            check_fixed(loss, outputs, targets)
        except ArgumentError:
            raise
        except Exception:  # pairs of samples are its classes, say, and it takes all or none
            if len(outputs) == len(real[0]):
                raise
            outputs, targets = real
            check_fixed(loss, outputs, targets)
        before = loss.value(outputs, targets)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of cuts into single samples
            loss.judge(*real, torch_generator(0, "judge"))
        check_fixed(loss, outputs, targets, before)
        return outputs, targets

    @property
    def largest_batch(self) -> int:
        """Samples of the largest batch that must not be cut; 0 where all may be."""
        if not self.must_be_whole:
            return 0
        if self._largest is None:
            self._largest = max(map(batch_size, self._source.batches()))
        return self._largest

    def _real_outputs(self, source: Source) -> tuple[torch.Tensor, Any]:
        """Return outputs and targets of all the data, or of many samples where that is too much."""
        pieces: list[tuple[torch.Tensor, Any]] = []
        used = 0
        for _, batch in source.chunks(2**62 if self.mixes else _ROWS):
            with torch.no_grad():
                outputs, targets = self._function.plainly(batch)
            pieces.append((outputs, targets))
            used += outputs.nbytes
            if used > _JUDGED:
                with torch.no_grad():
                    pieces = [self._function.plainly(source.some(_ROWS))]
                break
        return max(joined(pieces), key=lambda piece: len(piece[0]))


def _not_additive(loss: Any) -> ArgumentError:
    reason = (
        "it is neither the mean nor the sum of its samples' losses, so it does not add up over "
        "batches"
    )
    remedy = (
        "Return the sum over samples, use a torch.nn loss, give all the data as one batch, or use "
        "mode='train', which keeps the batches that the data come in."
    )
    return ArgumentError("loss", loss, reason, remedy)


def _underivable(error: Exception) -> ArgumentError:
    reason = "an operation in one of them has no derivative that this needs"
    remedy = (
        "Replace that operation by others, leave the parameters before it out with params=, or use "
        "hr.GGN where it is the model's second derivative that is missing."
    )
    return ArgumentError("model or loss", str(error).splitlines()[0][:200], reason, remedy)
