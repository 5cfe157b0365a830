"""What a model, a loss and data must promise to be one function, probed on a few real samples."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import nn

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.devices.ambient import preserved_random_state
from hyperribbon.core.devices.processes import Processes
from hyperribbon.core.devices.torch_inside import BatchNorm, Dropout, InstanceNorm
from hyperribbon.operators.derivatives.graphs import (
    Nodes,
    graph_nodes,
    has_kinks,
    has_own_rules,
    operation_names,
)
from hyperribbon.operators.risk.data import batch_size, cut
from hyperribbon.operators.risk.function import ModelFunction
from hyperribbon.operators.risk.losses import CallableLoss, Loss
from hyperribbon.operators.risk.memory import MadeBytes

__all__ = [
    "check_draws",
    "check_finite_loss",
    "check_fixed",
    "check_one_batch",
    "check_same_weights",
    "check_weights",
    "mixes_samples",
    "probe_loss",
    "probe_model",
    "tolerance",
]


_FEW = 64  # numbers of a tensor or a list that are compared
_DRAWS = 16  # evaluations of a model that draws random numbers


def tolerance(dtype: torch.dtype) -> float:
    """Return how far two evaluations of the same thing may differ by rounding, relatively."""
    return min(1e3 * torch.finfo(dtype).eps, 0.05)


def probe_model(
    function: ModelFunction,
    batch: Any,
    evaluate: Callable[[], torch.Tensor],
    first: torch.Tensor | None = None,
) -> tuple[int, bool, bool]:
    """Return what an evaluation makes and what it is made of, after checks.

    Args:
        function: The model in private.
        batch: A few samples.
        evaluate: Returns their outputs with a graph.
        first: Their outputs, evaluated before.

    Returns:
        The bytes of all tensors that are made; whether an operation's derivative is neither
        torch's nor ours; whether one is known to have kinks.

    Raises:
        ArgumentError: Evaluations differ, the outputs have no row a sample, the forward pass
            writes to its weights, or it reaches the user's own ones.
    """  # noqa: DOC501 - _random_error() returns one
    count = MadeBytes(watches_jumps=False)
    with preserved_random_state(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with count:
            outputs = evaluate()
        if first is None:
            with torch.no_grad():
                first = function.plainly(batch)[0]
    nodes = graph_nodes(outputs)
    check_checkpoints(nodes, [str(warning.message) for warning in said])
    if not _equal(outputs, first, tolerance(outputs.dtype) ** 0.5):
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
    return count.made, has_own_rules(nodes), has_kinks(nodes)


def check_checkpoints(nodes: Nodes, said: Sequence[str]) -> None:
    """Raise when activations are checkpointed in the way that hides weights from autograd."""
    hidden = any("None of the inputs have requires_grad=True" in message for message in said)
    if hidden or "CheckpointFunctionBackward" in operation_names(nodes):
        raise ArgumentError(
            "model",
            "torch.utils.checkpoint(…, use_reentrant=True)",
            "such checkpoints can be differentiated by backward() only, once",
            "Use checkpoint(…, use_reentrant=False).",
        )


def check_draws(function: ModelFunction, batch: Any) -> None:
    """Raise when random numbers that a model draws change its outputs.

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
    first = function.plainly(batch)[0]
    if _random_states() == before:
        return
    for _ in range(_DRAWS):
        if not _equal(first, function.plainly(batch)[0], tolerance(first.dtype)):
            raise _random_error(function.module)
    function.draws = True


def mixes_samples(
    function: ModelFunction,
    batch: Any,
    together: torch.Tensor,
    first: torch.Tensor | None = None,
) -> bool:
    """Whether a sample's outputs depend on the others of its batch.

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
                apart = function.plainly(cut(batch, start, stop))[0]
            except ArgumentError:
                raise
            except (RuntimeError, ValueError, IndexError):
                return True
            own = together[start:stop]
            if apart.shape != own.shape or not _equal(own, apart, tolerance(own.dtype)):
                return True
    return False


def check_one_batch(model: nn.Module, is_one_batch: bool) -> None:
    """Raise when samples depend on each other and the data are more than one batch."""
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


def check_fixed(
    loss: CallableLoss, outputs: torch.Tensor, targets: Any, expected: float | None = None
) -> None:
    """Raise when a loss given as a function has no fixed value, or changes by being called.

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
    """Return the numbers that a function or object keeps in attributes, buffers and closures."""
    if isinstance(thing, bool | int | float):
        return {place: thing}
    if isinstance(thing, torch.Tensor):
        return {place: thing._version if thing.numel() > _FEW else thing.reshape(-1).tolist()}
    if depth == 0 or isinstance(thing, str | bytes | type):
        return {}
    if isinstance(thing, Mapping):
        parts: dict[Any, Any] = dict(thing)
    elif isinstance(thing, list | tuple):
        parts = dict(enumerate(thing[:_FEW]))
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


def probe_loss(loss: Loss, outputs: torch.Tensor, targets: Any, model: nn.Module) -> None:
    """Check a loss on a few samples: its targets, that it is finite, and what it depends on.

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
    """Raise when a model has no weights yet, or complex ones."""
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
    """Raise when the loss of a batch is NaN or infinite, and say whether the outputs are."""
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
    """Raise when ranks have other weights (P,) than the others; every rank calls it."""
    vector = weights.double()
    own = len(vector), float(vector.sum()), float(vector.abs().sum())
    sizes, sums, scales = zip(*processes.gather(own), strict=True)
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
    """Return the batch norms that normalise by the batch."""
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
