"""Outputs, loss and accuracy of a model on data, without changing the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from hyperribbon.core import checks
from hyperribbon.core.checks import ArgumentError, check_choice, check_readable, validate
from hyperribbon.operators.risk.batches import batch_size as size_of
from hyperribbon.operators.risk.batches import concatenate, move, plain, tensors
from hyperribbon.operators.risk.data import Data, Source, is_batch
from hyperribbon.operators.risk.loss import Loss as RiskLoss
from hyperribbon.operators.risk.memory import allowance
from hyperribbon.operators.risk.model import ModelFunction
from hyperribbon.operators.risk.objective import Objective, find_own_loss, no_own_loss
from hyperribbon.operators.risk.torch_losses import CrossEntropyLoss, NLLLoss, recognise

Loss = Callable[[Any, Any], torch.Tensor] | None
KINDS = ("log_probabilities", "outputs")


@contextmanager
def in_mode(model: nn.Module, training: bool | None) -> Iterator[None]:
    """Set training or evaluation mode during a recorder's evaluation (None: leave it unchanged)."""
    modes = [(module, module.training) for module in model.modules()]
    if training is not None:
        model.train(training)
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def read(model: nn.Module, data: Data, *, has_targets: bool = True) -> Source:
    """Return data for the recorder's evaluation in the model's precision, on their device.

    Args:
        model: The model that they are for.
        data: As `hr.Risk` takes them.
        has_targets: Whether a list that ends with a tensor is a batch with targets.
    """
    if isinstance(data, Source):
        return data
    weight = next(model.parameters(), torch.empty(0, device="cpu"))
    check_readable("model", weight)
    batch = data.tensors if isinstance(data, TensorDataset) else data
    found = tensors(plain(batch)) if is_batch(batch, has_targets) else []
    device = found[0].device if found else weight.device
    memory = allowance(weight.device) / 2
    return Source(data, dtype=weight.dtype, device=device, memory=memory, has_targets=has_targets)


def pieces(model: nn.Module, source: Source, size: int) -> Iterator[Any]:
    """Yield batches for a recorder's evaluation, of at most `size` samples, on the device."""
    device = next(model.parameters(), torch.empty(0, device="cpu")).device
    for _, batch in source.chunks(size):
        yield move(batch, device)


def own_loss(model: nn.Module, source: Source) -> tuple[Callable[..., Any], Any]:
    """Return functions for a recorder's evaluation: outputs and targets, and a model's own loss.

    Raises:
        ArgumentError: The model's output has no loss.
    """  # noqa: DOC501 - no_own_loss() returns one
    names = tuple(name for name, _ in model.named_parameters())
    found = find_own_loss(ModelFunction(model, names, mode="eval"), source, None)
    if found is None:
        raise no_own_loss(model)
    return found


def class_axis(outputs: Any, targets: Any, loss: Any = None) -> int | None:
    """Return the class axis of outputs in a recorder's evaluation; None without labels.

    Outputs have one more axis than labels. Where both are possible, torch's losses put the classes
    on the second axis, and other losses on the last.
    """
    labelled = isinstance(targets, torch.Tensor) and not (
        targets.is_floating_point() or targets.is_complex()
    )
    if not labelled or not isinstance(outputs, torch.Tensor) or outputs.ndim != targets.ndim + 1:
        return None
    for axis in (1, -1) if _has_classes_second(loss) else (-1, 1):
        if outputs.movedim(axis, -1).shape[:-1] == targets.shape and outputs.shape[axis] > 1:
            return axis
    return None


def _has_classes_second(loss: Any) -> bool:
    return loss is not None and isinstance(recognise(loss), CrossEntropyLoss | NLLLoss)


def count_right(
    outputs: torch.Tensor, targets: torch.Tensor, axis: int, loss: RiskLoss | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return for a recorder's evaluation the correct labels and all labels per sample, (n,) each.

    Args:
        outputs: Scores of classes.
        targets: Labels.
        axis: The class axis.
        loss: The loss, which may ignore a label; −100 is ignored where it is None.

    Returns:
        The number of correct labels, and of labels that are not ignored.

    Raises:
        ArgumentError: A label is of no class.
    """
    told = (targets != (RiskLoss if loss is None else loss).ignore_index).reshape(len(targets), -1)
    classes, labels = outputs.shape[axis], targets.reshape(told.shape)[told]
    if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        reason = f"its labels are from {int(labels.min())} to {int(labels.max())}"
        remedy = f"The outputs have {classes} classes: give labels from 0 to {classes - 1}."
        raise ArgumentError("data", "targets", reason, remedy)
    right = (outputs.argmax(axis) == targets).reshape(told.shape) & told
    return right.sum(1), told.sum(1)


@validate(model=checks.torch_module, batch_size=checks.count)
@torch.no_grad()
def predict(
    model: nn.Module, probe: Data, *, log_probabilities: bool = True, batch_size: int = 2000
) -> torch.Tensor:
    """Return a model's outputs on a probe set: a recorder's evaluation.

    Args:
        model: Called as `hr.Risk` calls it; for an output with `.logits`, these are used.
        probe: Inputs, or any data; targets are ignored.
        log_probabilities: Take the log-softmax over the last axis.
        batch_size: Samples at a time.

    Raises:
        ArgumentError: Log-probabilities of a single output.
    """
    source, objective = read(model, probe, has_targets=False), Objective()
    with in_mode(model, training=False):
        outputs = [objective.outputs(model, b)[0] for b in pieces(model, source, batch_size)]
    found = torch.cat(outputs).cpu()
    if not log_probabilities:
        return found
    if found.ndim < 2 or found.shape[-1] == 1:
        reason = "the model has one output, and the softmax of one number is 1"
        raise ArgumentError("log_probabilities", True, reason, "Give log_probabilities=False.")
    return found.log_softmax(-1)


@validate(
    model=checks.torch_module,
    loss=checks.optional(checks.function),
    batch_size=checks.count,
    prefix=checks.text,
)
@torch.no_grad()
def evaluate(
    model: nn.Module, loss: Loss, data: Data, *, batch_size: int = 2000, prefix: str = ""
) -> dict[str, float]:
    """Return the mean loss, and for class labels the accuracy: a recorder's evaluation.

    Args:
        model: Not modified.
        loss: `loss(outputs, targets)`, a mean over samples; None for the model's own.
        data: As `hr.Risk` takes them. With token labels, every token counts, except labels equal to
            −100 or the loss's `ignore_index`.
        batch_size: Samples per forward pass; does not affect the mean.
        prefix: Put before the names "loss" and "accuracy".
    """
    source, objective = read(model, data), Objective(loss)
    own = own_loss(model, source) if loss is None else None
    call, criterion = own or (objective.outputs, recognise(loss))
    total = amount = 0.0
    labels: list[tuple[torch.Tensor, torch.Tensor] | None] = []
    with in_mode(model, training=False):
        batches = pieces(model, source, batch_size)
        parts = ((size_of(batch), call(model, batch)) for batch in batches)
        for share, (outputs, targets) in parts if loss is None else _join(list(parts)):
            if loss is None:
                total += criterion.total(outputs, targets).item()
                amount += criterion.amount(outputs, targets)
            else:
                scale = 1.0 if criterion.reduction == "sum" else share
                total += scale * objective.value(outputs, targets).item()
                amount += scale
            axis = class_axis(outputs, targets, criterion)
            labels.append(None if axis is None else count_right(outputs, targets, axis, criterion))
    value = total if criterion.reduction == "sum" else total / amount if amount else float("nan")
    result = {f"{prefix}loss": value}
    if all(labels):
        right, told = (sum(int(row.sum()) for row in rows) for rows in zip(*labels, strict=True))
        result[f"{prefix}accuracy"] = right / told if told else float("nan")
    return result


def _join(parts: list[tuple[int, Any]]) -> list[tuple[float, Any]]:
    """Join outputs and targets of a recorder's evaluation, each with its share of samples."""
    called = [part for _, part in parts]
    if all(leaf.ndim for leaf in tensors(called)) and len(whole := concatenate(called)) == 1:
        return [(1.0, whole[0])]
    samples = sum(size for size, _ in parts)
    return [(size / samples, part) for size, part in parts]


class Predictor:
    """Computes the recorded predictions on a probe set.

    Args:
        probe: Inputs, or any data; targets are ignored.
        kind: "log_probabilities", "outputs", a function of (model, probe), or None to decide from
            the loss and the targets: log-probabilities of classes, else the outputs.

    Attributes:
        kind: Kind of predictions, once decided: "log_probabilities", "scores" (outputs that
            are scores of classes) or "outputs"; None for those of a function.
    """

    def __init__(self, probe: Data, kind: str | Callable[..., Any] | None) -> None:
        if kind is not None and not callable(kind):
            check_choice("predictions", kind, KINDS)
        self._probe, self._given = probe, kind
        self._axis = -1
        self._source: Source | None = None
        self.kind: str | None = None

    @torch.no_grad()
    def decide(self, model: nn.Module, loss: Loss = None, data: Data = None) -> None:
        """Choose what kind of predictions a recorder's evaluation keeps, from loss and data.

        Without either, multiple outputs are treated as class scores.

        Raises:
            ArgumentError: Log-probabilities of a single output.
        """
        if callable(self._given):
            return
        known = loss is not None or data is not None
        axis = 1 if _has_classes_second(loss) else None if known else -1
        if axis is None and data is not None and not isinstance(data, Iterator):
            axis = class_axis(*self._call(model, read(model, data)), loss)
        outputs = self._call(model, self._read(model))[0]
        self._axis = -1 if axis is None else axis
        if outputs.ndim < 2 or outputs.shape[self._axis] == 1:
            if self._given == "log_probabilities":
                reason = "the model has one output, and the softmax of one number is 1"
                raise ArgumentError("predictions", self._given, reason, 'Give "outputs".')
            self.kind = "outputs"
        elif self._given == "log_probabilities" or (self._given is None and axis is not None):
            self.kind = "log_probabilities"
        else:
            self.kind = "scores" if known and axis is not None else "outputs"

    def resume(self, kind: str | None) -> None:
        """Restore the kind of predictions in a recorder's evaluation of an earlier session.

        Raises:
            ArgumentError: A different kind was requested.
        """
        if kind is None:
            return
        same = {"scores": "outputs"}.get(kind, kind)
        if self._given is not None and self._given != same:
            reason = f"the run in this folder was recorded with {same!r}"
            raise ArgumentError("predictions", self._given, reason, "Omit it.")
        self.kind = kind

    def __call__(self, model: nn.Module) -> torch.Tensor:
        """Return a model's predictions on the probe: a recorder's evaluation."""
        if callable(self._given):
            return self._given(model, self._probe)
        if self.kind is None:
            self.decide(model)
        outputs = predict(model, self._read(model), log_probabilities=False)
        if self.kind != "log_probabilities":
            return outputs
        return outputs.movedim(self._axis, -1).log_softmax(-1)

    def _read(self, model: nn.Module) -> Source:
        if self._source is None:
            try:
                self._source = read(model, self._probe, has_targets=False)
                for part in tensors(self._source.some(1)):
                    check_readable("data", part)
            except ArgumentError as error:
                error.rename("probe")
                raise
        return self._source

    def _call(self, model: nn.Module, source: Source) -> tuple[Any, Any]:
        """Evaluate two samples for a recorder: outputs and targets, in evaluation mode."""
        device = next(model.parameters(), torch.empty(0, device="cpu")).device
        with in_mode(model, training=False):
            return Objective().outputs(model, move(source.some(2), device))
