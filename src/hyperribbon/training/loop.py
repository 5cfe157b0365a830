"""The reference training loop: minibatches by index, explicit seeds, nothing hidden."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import Dataset, default_collate

from hyperribbon.core.checks import ArgumentError, check_positive_int
from hyperribbon.core.generators import derive_seed, torch_generator
from hyperribbon.training.optimizers import OptimizerChoice, Schedule, make_optimizer, rate_factor
from hyperribbon.training.sampling import epoch_batches

__all__ = ["DivergenceError", "TrainingResult", "evaluate", "train"]

Pair = tuple[torch.Tensor, torch.Tensor]
Augmentation = Callable[[torch.Tensor, torch.Generator], torch.Tensor]


@dataclass(frozen=True)
class TrainingResult:
    """What one training run left behind.

    Attributes:
        initial: State dict before the first step.
        final: State dict after the last.
        history: One array a quantity, one entry an epoch: "epoch" (epochs completed), "loss" (mean
            over the epoch's samples, each before its own update), "lr", and with a test set
            "test_loss" and, for class labels, "test_accuracy".
        steps: Updates made.
    """

    initial: dict[str, torch.Tensor]
    final: dict[str, torch.Tensor]
    history: dict[str, np.ndarray] = field(repr=False)
    steps: int

    def table(self) -> pd.DataFrame:
        """Return the history as a table, one row an epoch."""
        return pd.DataFrame(self.history)


class DivergenceError(RuntimeError):
    """The loss became NaN or infinite.

    Attributes:
        step: Updates made before it; the model holds the weights after them.
        history: As in `TrainingResult`, up to the last full epoch.
    """

    def __init__(self, step: int, epoch: int, lr: float, history: dict[str, np.ndarray]) -> None:
        self.step, self.epoch, self.lr, self.history = step, epoch, lr, history
        super().__init__(
            f"the loss is NaN or infinite after {step} updates (epoch {epoch}, lr {lr:g}). "
            "The model holds the weights of the last update and every record made so far is kept. "
            "Lower lr, or look for NaN in the data."
        )

    def __reduce__(self) -> tuple[type, tuple[int, int, float, dict[str, np.ndarray]]]:
        """Survive the trip back from a worker process."""
        return (type(self), (self.step, self.epoch, self.lr, self.history))


def train(
    model: nn.Module,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    data: Pair | Dataset,
    *,
    epochs: int,
    lr: float,
    batch_size: int | None = 128,
    optimizer: OptimizerChoice = "sgd",
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    schedule: Schedule = None,
    sampling: str = "shuffle",
    seed: int = 0,
    augment: Augmentation | None = None,
    on_epoch: Callable[[int, nn.Module], bool | None] | None = None,
    on_step: Callable[[int, nn.Module], bool | None] | None = None,
    recorder: None = None,
    test: Pair | None = None,
) -> TrainingResult:
    """Train a model in place.

    Every random choice follows from `seed`, dropout included, and the global random state is left
    as it was found.

    Args:
        model: Trained in place, in training mode; its mode is restored afterwards.
        loss: `loss(outputs, targets)`, a mean over samples.
        data: Inputs and targets, or a Dataset that fits in memory.
        epochs: Passes over the data.
        lr: Learning rate.
        batch_size: Minibatch size; None for the full batch.
        optimizer: "sgd", "adam", "adamw", or a function of the parameters returning an optimiser.
        momentum: Momentum of "sgd".
        nesterov: Nesterov's form of it.
        weight_decay: Coefficient of ½‖w‖² (for "adamw": decoupled decay).
        schedule: {epoch: factor}, the rate multiplied by each factor when its epoch begins; or a
            function of the epoch.
        sampling: "shuffle", "replacement" or "without_replacement"; see `epoch_batches`.
        seed: Seed of minibatches, augmentation and dropout.
        augment: `augment(inputs, generator)` applied to every minibatch.
        on_epoch: Called as `on_epoch(epochs_done, model)`; training stops if it returns True.
        on_step: Called as `on_step(updates_done, model)`; training stops if it returns True.
        recorder: Keeps records, and lets a killed run go on where it was.
        test: Inputs and targets evaluated after every epoch.

    Raises:
        ArgumentError: An argument cannot be used.
        DivergenceError: The loss became NaN or infinite.

    >>> from hyperribbon.training.models import mlp
    >>> x = torch.linspace(-1, 1, 64).reshape(-1, 1)
    >>> result = train(mlp((1, 16, 1), "tanh"), nn.MSELoss(), (x, x**2), epochs=50, lr=0.1)
    >>> bool(result.history["loss"][-1] < 0.2 * result.history["loss"][0])
    True
    """
    inputs, targets = in_memory(data)
    size = len(inputs) if batch_size is None else check_positive_int("batch_size", batch_size)
    check_positive_int("epochs", epochs)
    updater = make_optimizer(
        [p for p in model.parameters() if p.requires_grad],
        optimizer,
        lr=lr,
        momentum=momentum,
        nesterov=nesterov,
        weight_decay=weight_decay,
    )
    rates = [group["lr"] for group in updater.param_groups]
    device = next(model.parameters()).device
    initial = copy_state(model)
    rows: list[dict[str, float]] = []
    step, stop = 0, False

    with _own_mode_and_randomness(model, derive_seed(seed, "dropout")):
        for epoch in range(epochs):
            factor = rate_factor(schedule, epoch)
            for group, rate in zip(updater.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            total = count = 0.0
            for batch in epoch_batches(len(inputs), size, scheme=sampling, seed=seed, epoch=epoch):
                samples = inputs[batch]
                if augment is not None:
                    samples = augment(samples, torch_generator(seed, "augment", step))
                value = loss(model(samples.to(device)), targets[batch].to(device))
                number = value.item()
                if not isfinite(number):
                    raise DivergenceError(step, epoch, rates[0] * factor, as_history(rows))
                updater.zero_grad(set_to_none=True)
                value.backward()
                updater.step()
                step += 1
                total += number * len(batch)
                count += len(batch)
                if on_step is not None and on_step(step, model) is True:
                    stop = True
                    break
            row = {"epoch": epoch + 1, "loss": total / count, "lr": rates[0] * factor}
            if test is not None:
                row |= evaluate(model, loss, test, prefix="test_")
            rows.append(row)
            if stop or (on_epoch is not None and on_epoch(epoch + 1, model) is True):
                break
    updater.zero_grad(set_to_none=True)
    return TrainingResult(initial, copy_state(model), as_history(rows), step)


@torch.no_grad()
def evaluate(
    model: nn.Module,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    data: Pair | Dataset,
    *,
    batch_size: int = 2000,
    prefix: str = "",
) -> dict[str, float]:
    """Return the mean loss, and for class labels the accuracy, in evaluation mode.

    Args:
        model: Left as it was found.
        loss: `loss(outputs, targets)`, a mean over samples.
        data: Inputs and targets.
        batch_size: Samples at a time; samples are weighted, not batches.
        prefix: Put before the names "loss" and "accuracy".
    """
    inputs, targets = in_memory(data)
    device = next(model.parameters()).device
    labels = not targets.is_floating_point() and targets.ndim == 1
    total, correct = 0.0, 0
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        for some, wanted in zip(inputs.split(batch_size), targets.split(batch_size), strict=True):
            outputs, wanted = model(some.to(device)), wanted.to(device)
            total += loss(outputs, wanted).item() * len(some)
            if labels:
                correct += int((outputs.argmax(-1) == wanted).sum())
    finally:
        for module, mode in modes:
            module.training = mode
    result = {f"{prefix}loss": total / len(inputs)}
    if labels:
        result[f"{prefix}accuracy"] = correct / len(inputs)
    return result


def in_memory(data: Pair | Dataset) -> Pair:
    """Return inputs and targets as two tensors.

    Raises:
        ArgumentError: They are not, or they differ in length, or they are empty.
    """
    if isinstance(data, Dataset):
        data = default_collate([data[i] for i in range(len(data))])  # type: ignore[arg-type]
    try:
        inputs, targets = data  # type: ignore[misc]
        lengths = len(inputs), len(targets)
    except (TypeError, ValueError):
        raise ArgumentError(
            "data", data, "it is not a pair (inputs, targets)", "Give two tensors or a Dataset."
        ) from None
    if lengths[0] != lengths[1] or lengths[0] == 0:
        raise ArgumentError(
            "data",
            lengths,
            "inputs and targets must be equally many, at least one",
            "Check how they were made.",
        )
    return inputs, targets


def copy_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return a copy of a model's state dict that later training does not change."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def as_history(rows: list[dict[str, float]]) -> dict[str, np.ndarray]:
    """Return one array a quantity from one dict an epoch."""
    return {name: np.array([row[name] for row in rows]) for name in (rows[0] if rows else ())}


@contextmanager
def _own_mode_and_randomness(model: nn.Module, seed: int):
    """Training mode and a random state of its own; both as before at the end."""
    modes = [(module, module.training) for module in model.modules()]
    devices = [p.device for p in model.parameters() if p.device.type == "cuda"][:1]
    model.train()
    try:
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            yield
    finally:
        for module, mode in modes:
            module.training = mode
