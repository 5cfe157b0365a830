"""What a model, a loss and data must promise to be one function, probed on a few real samples."""

from __future__ import annotations

import random
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import nn

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.devices.modes import preserve_random_state
from hyperribbon.core.devices.processes import Processes
from hyperribbon.core.devices.torch_private import BatchNorm, Dropout, InstanceNorm
from hyperribbon.core.generators import torch_generator
from hyperribbon.operators.derivatives.graphs import (
    Nodes,
    graph_nodes,
    operation_names,
)
from hyperribbon.operators.derivatives.linearisation import Linearisation, Routes
from hyperribbon.operators.derivatives.piecewise_linear import is_piecewise_linear
from hyperribbon.operators.risk.batches import batch_size, concatenate, cut
from hyperribbon.operators.risk.data import Source
from hyperribbon.operators.risk.loss import CallableLoss, Loss
from hyperribbon.operators.risk.memory import Meter
from hyperribbon.operators.risk.model import BatchEvaluation, ModelFunction
from hyperribbon.operators.risk.objective import OwnLoss

_FEW = 2  # samples on which derivatives are checked
_WEIGHED = 4  # samples on which the memory of products is measured
_SEVERAL = 16  # samples that are evaluated together, and apart from the first one
_LARGE = 2**20  # bytes per sample of an evaluation from which fewer are taken of all three
_ROWS = 256  # samples evaluated together for their outputs
_JUDGED = 2**28  # bytes of outputs on which a loss is judged
_NUMBERS = 64  # numbers of a tensor or a list that are compared
_DRAWS = 16  # evaluations of a model that draws random numbers


@dataclass
class Probe:
    """A few real samples, and what the model and the loss have shown on them.

    Attributes:
        function: The model in private, at the weights at which it was probed.
        batch: The samples on which derivatives are checked; None without any.
        weighed: The samples on which the memory of products is measured.
        linearisation: The model linearised on `batch`, and the targets, for the first check.
        bytes_each: Bytes of all tensors that an evaluation makes, per sample.
        is_piecewise_linear: Whether the model is piecewise linear in every single weight.
        mixes_samples: Whether a sample's outputs depend on the others of its batch.
        must_be_whole: Whether batches must not be cut: because of that, or because of the loss.
        log_softmax: The axis of the outputs along which the model ends in log_softmax, or None.
    """

    function: ModelFunction
    batch: Any = None
    weighed: Any = None
    linearisation: tuple[Linearisation, Any] | None = None
    bytes_each: float = 0.0
    is_piecewise_linear: bool = True
    mixes_samples: bool = False
    must_be_whole: bool = False
    log_softmax: int | None = None

    def more_samples(self, source: Source) -> Any:
        """Return more samples for the contract's probe, quickly differentiated in float64."""
        if self.must_be_whole:
            return self.batch
        return source.some(max(_WEIGHED, min(_ROWS, int(_JUDGED / (8 * self.bytes_each + 1)))))


def probe_contract(
    model: nn.Module, function: ModelFunction, loss: Loss | None, source: Source, routes: Routes
) -> Probe:
    """Check the contract on a few real samples: model, loss and data are one fixed finite function.

    Evaluations must repeat, samples must not depend on each other unless they are one batch or
    stay in theirs, and the loss must add up over cuts of the data and depend on the weights
    through the outputs alone.

    Args:
        model: The user's model, whose weights the loss must not touch.
        function: The model in private.
        loss: The loss, or None.
        source: The data.
        routes: Ways to derivatives that are found to work.

    Returns:
        The samples, and what was found.

    Raises:
        ArgumentError: One of these does not hold.
    """
    found, several = Probe(function), source.some(_SEVERAL)
    if several is None:
        return found
    found.batch = cut(several, 0, _FEW)
    first, made = _evaluate_first(found, source)
    plain = None if first is None else first[0]
    is_large = plain is not None and made > _LARGE * batch_size(found.batch)
    if plain is None:
        found.batch = several = next(source.batches())
    elif is_large:
        several = found.batch
        plain = _evaluate_one(found, plain)
    _check_graph(found, plain, routes)
    found.weighed = several if plain is None else cut(several, 0, _WEIGHED)
    with torch.no_grad():
        check_draws(function, several)
        outputs, targets = first if first and is_large else function.evaluate(several)
        if not isinstance(loss, OwnLoss) and not found.mixes_samples:
            found.mixes_samples = mixes_samples(function, several, outputs, plain)
        if found.mixes_samples:
            if not source.has_fixed_batches:
                check_one_batch(function.module, source.is_one_batch)
            found.is_piecewise_linear = False
            outputs, targets = function.evaluate(next(source.batches()))
    if isinstance(loss, CallableLoss):
        loss.packing = function.packing
        outputs, targets = _check_callable(loss, outputs, targets, found, source)
    if loss is not None:
        _check_loss(loss, outputs, targets, model)
    is_whole = loss is not None and loss.reduction == "whole"
    if is_whole and not (source.is_one_batch or source.has_fixed_batches):
        reason = (
            "it is neither the mean nor the sum of its samples' losses, so it does not add up over "
            "batches"
        )
        remedy = (
            "Return the sum over samples, use a torch.nn loss, give all the data as one batch, or "
            "use mode='train', which keeps the batches that the data come in."
        )
        raise ArgumentError("loss", loss, reason, remedy)
    found.must_be_whole = found.mixes_samples or is_whole
    if found.must_be_whole:
        # Their derivatives are those of whole batches: a few samples would show others.
        found.batch = found.weighed = next(source.batches())
        found.linearisation = None
    elif source.has_fixed_batches and source.is_kept:
        source.join()
    return found


def _evaluate_first(found: Probe, source: Source) -> tuple[tuple[torch.Tensor, Any] | None, int]:
    """Return the contract's first outputs and targets by the model, and the bytes these have made.

    No outputs are returned of a model that needs all samples at once (a graph whose nodes are the
    samples), which mixes them.
    """  # noqa: DOC501 - an ArgumentError of the model passes through
    results: list[tuple[torch.Tensor, Any]] = []

    def evaluate() -> torch.Tensor:
        results.append(found.function.evaluate(found.batch))
        return results[0][0]

    meter = Meter()
    try:
        with meter, torch.inference_mode(False):
            found.is_piecewise_linear = is_piecewise_linear(evaluate, found.function.leaves)
    except ArgumentError:
        raise
    except Exception:
        if not source.is_one_batch:
            raise
        found.mixes_samples = True
        return None, meter.made
    return results[0], meter.made


def _evaluate_one(found: Probe, plain: torch.Tensor) -> torch.Tensor:
    """Return outputs to probe the contract with, of a single sample where a model takes so few."""
    one = cut(found.batch, 0, 1)
    with suppress(RuntimeError, ValueError, IndexError), torch.no_grad():
        outputs = found.function.evaluate(one)[0]
        if len(outputs) == 1:
            found.batch, plain = one, outputs
    return plain


def tolerance(dtype: torch.dtype) -> float:
    """Return how far rounding lets the evaluations of the contract's probes differ."""
    return min(1e3 * torch.finfo(dtype).eps, 0.05)


def _check_graph(found: Probe, plain: torch.Tensor | None, routes: Routes) -> None:
    """Probe that the forward pass is a fixed function, as the contract demands.

    Args:
        found: The probe, which keeps the linearisation and what it is made of.
        plain: The outputs, evaluated before.
        routes: Ways to derivatives.

    Raises:
        ArgumentError: Evaluations differ, the outputs do not have one row per sample, the forward
            pass writes to its weights, or it reaches the user's own ones.
    """  # noqa: DOC501 - _random_error() returns one
    function, batch = found.function, found.batch
    with preserve_random_state(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        evaluation = BatchEvaluation(function, batch)
        with Meter() as meter:
            point = Linearisation(evaluation, routes)
        if plain is None:
            with torch.no_grad():
                plain = function.evaluate(batch)[0]
    outputs = point.graph
    last, nodes = outputs.grad_fn, graph_nodes(outputs)
    if last is not None and last.name() == "LogSoftmaxBackward0":
        axis = getattr(last, "_saved_dim", 0)  # of an unsigned type
        found.log_softmax = (axis if axis < 2**63 else axis - 2**64) % outputs.ndim
    check_checkpoints(nodes, [str(warning.message) for warning in caught])
    if not _equal(outputs, plain, tolerance(outputs.dtype) ** 0.5):
        raise _random_error(function.module)
    if len(outputs) != batch_size(batch):
        reason = f"its output has {len(outputs)} rows for {batch_size(batch)} samples"
        remedy = (
            "Return one row per sample, along the first axis (batch_first=True in recurrent "
            "layers), or rearrange with forward=."
        )
        raise ArgumentError("model", tuple(outputs.shape), reason, remedy)
    written = function.has_changed()
    if written:
        reason = "its forward pass changes these weights in place, so it is not a fixed function"
        remedy = "Remove the change (for nn.Embedding: max_norm=None) or do it before."
        raise ArgumentError("model", ", ".join(written[:5]), reason, remedy)
    outside = function.reaches_outside(nodes)
    if outside:
        raise ArgumentError(
            "model",
            ", ".join(sorted(set(outside))[:5]),
            "its forward pass reaches these weights around the module, through a function that has "
            "captured the module, so they cannot be moved",
            "Reach weights through self, and in forward=lambda model, batch: … through the model "
            "that it is given.",
        )
    found.linearisation, found.bytes_each = (point, evaluation.targets), meter.made / len(outputs)


def check_checkpoints(nodes: Nodes, said: Sequence[str]) -> None:
    """Raise when checkpointed activations break the contract: weights hide from autograd."""
    hidden = any("None of the inputs have requires_grad=True" in message for message in said)
    if hidden or "CheckpointFunctionBackward" in operation_names(nodes):
        raise ArgumentError(
            "model",
            "torch.utils.checkpoint(…, use_reentrant=True)",
            "such checkpoints can be differentiated by backward() only, once",
            "Use checkpoint(…, use_reentrant=False).",
        )


def check_draws(function: ModelFunction, batch: Any) -> None:
    """Raise when random numbers in a model break the contract that its outputs are fixed.

    Some models draw numbers that they do not use in evaluation mode. Those that do may still agree
    twice by chance, so a model that draws is evaluated more often. Where it agrees with itself,
    each evaluation gives back the random state from now on.

    Args:
        function: The model in private.
        batch: Some samples.

    Raises:
        ArgumentError: Two evaluations differ.
    """  # noqa: DOC501 - _random_error() returns one
    before = _random_states()
    first = function.evaluate(batch)[0]
    if _random_states() == before:
        return
    for _ in range(_DRAWS):
        if not _equal(first, function.evaluate(batch)[0], tolerance(first.dtype)):
            raise _random_error(function.module)
    function.draws = True


def mixes_samples(
    function: ModelFunction,
    batch: Any,
    together: torch.Tensor,
    first: torch.Tensor | None = None,
) -> bool:
    """Probe the contract: whether a sample's outputs depend on the others of its batch.

    The first ones are evaluated without the rest, and all but the very first without it. Two
    samples that depend only on each other show in the second evaluation.

    Args:
        function: The model in private.
        batch: A few samples.
        together: Their outputs.
        first: Outputs of the first ones, evaluated without the rest before.

    Returns:
        True when they do.
    """  # noqa: DOC501 - an ArgumentError of the model passes through
    if _batch_norms(function.module):
        return True
    count = batch_size(batch)
    if count < 2:
        return False
    parts = [(0, 1), (1, count)]
    if first is not None and len(first) < count:
        if not _equal(together[: len(first)], first, tolerance(together.dtype)):
            return True
        del parts[0]
    with torch.no_grad():
        for start, stop in parts:
            try:
                apart = function.evaluate(cut(batch, start, stop))[0]
            except ArgumentError:
                raise
            except (RuntimeError, ValueError, IndexError):
                return True
            own = together[start:stop]
            if apart.shape != own.shape or not _equal(own, apart, tolerance(own.dtype)):
                return True
    return False


def check_one_batch(model: nn.Module, is_one_batch: bool) -> None:
    """Check the contract: raise when samples depend on each other across more than one batch."""
    if is_one_batch:
        return
    norms = _batch_norms(model)
    if norms:
        raise ArgumentError(
            "model",
            ", ".join(norms),
            "batch norm without running statistics makes a sample's output depend on its batch, so "
            "the loss would change with the way the data are cut",
            "Give all the data as one batch, use mode='train', which keeps the batches that the "
            "data come in, or train with track_running_stats=True.",
        )
    reason = (
        "a sample's output depends on the other samples of its batch, so the loss would change "
        "with the way the data are cut"
    )
    remedy = (
        "Give all the data as one batch (a pair of tensors), use mode='train', which keeps the "
        "batches that the data come in, or remove what mixes samples."
    )
    raise ArgumentError("model", type(model).__name__, reason, remedy)


def _check_callable(
    loss: CallableLoss, outputs: torch.Tensor, targets: Any, found: Probe, source: Source
) -> tuple[torch.Tensor, Any]:
    """Probe a loss function's contract: is it fixed, and is it a sum over samples?

    Returns:
        Outputs and targets that it takes: the given ones, or all where it takes no fewer.
    """  # noqa: DOC501 - an ArgumentError of the loss passes through
    real = _outputs_of_many(found, source)
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


def _outputs_of_many(found: Probe, source: Source) -> tuple[torch.Tensor, Any]:
    """Return outputs and targets of many samples, to probe the loss's contract."""
    pieces: list[tuple[torch.Tensor, Any]] = []
    used = 0
    with torch.no_grad():
        for _, batch in source.chunks(2**62 if found.mixes_samples else _ROWS):
            pieces.append(found.function.evaluate(batch))
            used += pieces[-1][0].nbytes
            if used > _JUDGED:
                pieces = [found.function.evaluate(source.some(_ROWS))]
                break
    return max(concatenate(pieces), key=lambda piece: len(piece[0]))


def check_fixed(
    loss: CallableLoss, outputs: torch.Tensor, targets: Any, expected: float | None = None
) -> None:
    """Raise when a loss function breaks the contract: no fixed value, or changed by calls.

    Args:
        loss: The loss.
        outputs: Of some samples.
        targets: Of these.
        expected: An earlier value to compare with.

    Raises:
        ArgumentError: Two values differ, a random number is drawn, or a number that the function
            keeps (a step counter) changes.
    """
    outputs = outputs.detach()
    first = loss.value(outputs, targets)
    state, kept = _random_states(), kept_numbers(loss.function)
    second = loss.value(outputs, targets)
    eps = torch.finfo(outputs.dtype).eps
    cause = ""
    if _random_states() != state:
        cause = "it draws random numbers"
    for other in (first, second if expected is None else expected):
        if isfinite(second) and not abs(other - second) <= 8 * eps * abs(second):
            cause = f"two values on the same outputs and targets differ ({other:.9g}, {second:.9g})"
    if not cause and not kept.items() <= kept_numbers(loss.function).items():  # logs may grow
        cause = "a number that it keeps, such as a step counter, changes with every call"
    if cause:
        reason = f"it is not a fixed function of outputs and targets: {cause}"
        remedy = (
            "Draw random numbers once and pass them in the targets, and fix counters at the value "
            "that you want to measure."
        )
        raise ArgumentError("loss", loss, reason, remedy)


def kept_numbers(thing: Any, place: str = "", depth: int = 4) -> dict[str, Any]:
    """Return the numbers that an object keeps, which must not change under the contract."""
    if isinstance(thing, bool | int | float):
        return {place: thing}
    if isinstance(thing, torch.Tensor):
        return {place: thing._version if thing.numel() > _NUMBERS else thing.reshape(-1).tolist()}
    if depth == 0 or isinstance(thing, str | bytes | type):
        return {}
    if isinstance(thing, Mapping):
        parts: dict[Any, Any] = dict(thing)
    elif isinstance(thing, list | tuple):
        parts = dict(enumerate(thing[:_NUMBERS]))
    else:
        names = ("__self__", "func", "args", "keywords", "__defaults__")
        parts = {**getattr(thing, "__dict__", {}), **{n: getattr(thing, n, None) for n in names}}
        with suppress(ValueError):  # of a cell that is empty yet
            cells = getattr(thing, "__closure__", None) or ()
            parts |= {i: cell.cell_contents for i, cell in enumerate(cells)}
    found: dict[str, Any] = {}
    for key, part in parts.items():
        found |= kept_numbers(part, f"{place}.{key}", depth - 1)
    return found


def _random_states() -> tuple[Any, ...]:
    state: Any = np.random.get_state()
    return torch.get_rng_state().numpy().tobytes(), state[1].tobytes(), state[2], random.getstate()


def _check_loss(loss: Loss, outputs: torch.Tensor, targets: Any, model: nn.Module) -> None:
    """Probe the contract of a loss on a few samples: targets, finite values, what it depends on.

    Args:
        loss: The loss.
        outputs: Outputs of the samples.
        targets: Their targets.
        model: The user's model, whose weights the loss must not touch.

    Raises:
        ArgumentError: The targets do not fit, the loss is not finite or depends on the weights
            other than through the outputs.
    """
    outputs = outputs.detach()
    loss.check(outputs, targets)
    check_finite_loss(loss.total(outputs, targets), outputs)
    reached = loss.reaches(outputs, targets, dict(model.named_parameters()))
    if reached:
        reason = "it depends on these weights directly (a penalty), not only through the outputs"
        remedy = (
            "Give the loss without the penalty: the Hessian of λ‖θ‖² is 2λ times the identity, "
            "which adds 2λ to every eigenvalue."
        )
        raise ArgumentError("loss", ", ".join(reached[:5]), reason, remedy)


def check_weights(model: nn.Module) -> None:
    """Raise when a model's weights break the contract: none yet, or complex ones."""
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            reason = "this parameter has no values yet (a lazy module)"
            remedy = "Call the model once on a batch, so that it gets them."
            raise ArgumentError("model", name, reason, remedy)
        if parameter.is_complex():
            reason = f"this parameter is complex ({parameter.dtype})"
            remedy = (
                "Only real weights are supported: write it as torch.view_as_complex of a real one."
            )
            raise ArgumentError("model", name, reason, remedy)


def check_finite_loss(value: torch.Tensor, outputs: torch.Tensor) -> None:
    """Raise when the loss of a batch breaks the contract: it is NaN or infinite."""
    if bool(torch.isfinite(value)):
        return
    bad = int((~torch.isfinite(outputs)).sum())
    cause = (
        f"{bad} of the model's outputs are not finite"
        if bad
        else "the model's outputs are finite, so the loss itself is undefined there"
    )
    raise ArgumentError(
        "loss", float(value), f"the loss is not a finite number: {cause}", "Check weights and data."
    )


def check_same_weights(weights: torch.Tensor, processes: Processes) -> None:
    """Raise when ranks break the contract by other weights (P,); every rank calls it."""
    vector = weights.double()
    own = len(vector), float(vector.sum()), float(vector.abs().sum()), str(weights.dtype)
    sizes, sums, scales, dtypes = zip(*processes.gather(own), strict=True)
    if len(set(dtypes)) > 1:  # collectives would abort the process
        reason = "the ranks have models of different precision"
        raise ArgumentError("model", ", ".join(dtypes), reason, "Use one dtype on all ranks.")
    if len(set(sizes)) > 1 or max(sums) - min(sums) > 1e-9 * max(scales):
        reason = "the ranks have different models"
        remedy = "Load the same weights on every rank, or wrap it in DistributedDataParallel."
        raise ArgumentError("model", f"parameters {sizes} with sums {sums}", reason, remedy)


def _random_error(model: nn.Module) -> ArgumentError:
    noisy = [
        name or "model"
        for name, module in model.named_modules()
        if module.training and (isinstance(module, Dropout) or _has_dropout(module))
    ]
    cause = f"dropout in training mode: {', '.join(noisy)}" if noisy else "its forward is random"
    reason = f"two evaluations on the same batch differ ({cause})"
    remedy = "Use mode='eval', or remove the randomness from its forward."
    return ArgumentError("model", type(model).__name__, reason, remedy)


def _batch_norms(model: nn.Module) -> list[str]:
    """Return the batch norms that break the contract: they normalise by the batch."""
    return [
        name or "model"
        for name, module in model.named_modules()
        if isinstance(module, BatchNorm)
        and not isinstance(module, InstanceNorm)
        and (module.training or module.running_mean is None)
    ]


def _has_dropout(module: nn.Module) -> bool:
    rate = getattr(module, "dropout", None)
    return isinstance(rate, float) and rate > 0


def _equal(first: torch.Tensor, second: torch.Tensor, relative: float) -> bool:
    if first.shape != second.shape:
        return False
    first, second = first.detach(), second.detach()
    finite = torch.where(torch.isfinite(first), first, 0.0)
    scale = float(torch.linalg.vector_norm(finite, torch.inf)) if first.numel() else 0.0
    return torch.allclose(first, second, rtol=relative, atol=relative * scale, equal_nan=True)
