"""The reference training loop: minibatches by index, explicit seeds, nothing hidden."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import Dataset

from hyperribbon.core.boundary import checked, count, flag, optional, own_function
from hyperribbon.core.devices.ambient import casting_anew
from hyperribbon.core.devices.gpus import seed_gpus
from hyperribbon.core.generators import derive_seed, torch_generator
from hyperribbon.recording.evaluation import Loss, Pair, evaluate, in_memory, in_mode
from hyperribbon.recording.measurements import random_state, set_random_state
from hyperribbon.recording.recorder import Recorder
from hyperribbon.training.optimizers import OptimizerChoice, Schedule, make_optimizer, rate_factor
from hyperribbon.training.sampling import epoch_batches, steps_per_epoch

__all__ = ["Augmentation", "DivergenceError", "TrainingResult", "train"]

Augmentation = Callable[[torch.Tensor, torch.Generator], torch.Tensor]
Callback = Callable[[int, nn.Module], bool | None]


@dataclass(frozen=True)
class TrainingResult:
    """What one training run left behind.

    Attributes:
        initial: State dict before the first step.
        final: State dict after the last.
        history: One array per quantity, one entry per epoch: "epoch" (epochs completed), "loss"
            (mean over the epoch's samples, each before its own update), "lr", and with a test set
            "test_loss" and, for class labels, "test_accuracy".
        steps: Updates made.
    """

    initial: dict[str, torch.Tensor]
    final: dict[str, torch.Tensor]
    history: dict[str, np.ndarray] = field(repr=False)
    steps: int

    def table(self) -> pd.DataFrame:
        """Return the history as a table, one row for each epoch."""
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


@checked(
    epochs=count,
    batch_size=optional(count),
    nesterov=flag,
    on_epoch=own_function,
    on_step=own_function,
    augment=own_function,
)
@torch.enable_grad()
def train(
    model: nn.Module,
    loss: Loss,
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
    on_epoch: Callback | None = None,
    on_step: Callback | None = None,
    recorder: Recorder | None = None,
    test: Pair | Dataset | None = None,
) -> TrainingResult:
    """Train a model in place.

    Every random choice follows from `seed`, dropout included, and the global random state is left
    as it was found.

    Raises an ArgumentError when an argument cannot be used.

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
        recorder: Keeps records, and is closed at the end. With the folder of a killed run, training
            goes on from its last record, bit for bit (callbacks may be called again for steps
            after it).
        test: Inputs and targets evaluated after every epoch.

    Returns:
        The weights at the start and at the end, what was noted at every epoch, and the steps taken.

    Raises:
        DivergenceError: The loss became NaN or infinite.

    >>> from hyperribbon.training.models import mlp
    >>> x = torch.linspace(-1, 1, 64).reshape(-1, 1)
    >>> result = train(mlp((1, 16, 1), "tanh"), nn.MSELoss(), (x, x**2), epochs=50, lr=0.1)
    >>> bool(result.history["loss"][-1] < 0.2 * result.history["loss"][0])
    True
    """
    inputs, targets = in_memory(data)
    size = len(inputs) if batch_size is None else batch_size
    trained = [p for p in model.parameters() if p.requires_grad]
    how = {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
    updater = make_optimizer(trained, optimizer, lr=lr, **how)
    rates = [group["lr"] for group in updater.param_groups]
    device = next(model.parameters()).device
    length = steps_per_epoch(len(inputs), size)
    initial = copy_state(model)
    run = _Progress()

    with (
        in_mode(model, training=True),
        _own_randomness(seed),
        casting_anew(),
        recorder or nullcontext(),
    ):
        if recorder is not None:
            total = {"it": f"{epochs * length}it", "ep": f"{epochs}ep"}[recorder.cadence.unit]
            run.step = recorder.attach(
                model, updater, total=total, loss=loss, data=(inputs, targets), progress=run
            )
            if recorder.keeps_state:
                initial = recorder.initial_state()
        for epoch in range(run.step // length, epochs):
            if run.stopped:
                break
            factor = rate_factor(schedule, epoch)
            for group, rate in zip(updater.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            batches = epoch_batches(len(inputs), size, scheme=sampling, seed=seed, epoch=epoch)
            for batch in batches[run.step % length :]:
                samples = inputs[batch]
                if augment is not None:
                    samples = augment(samples, torch_generator(seed, "augment", run.step))
                value = loss(model(samples.to(device)), targets[batch].to(device))
                number = value.item()
                if not isfinite(number):
                    raise DivergenceError(run.step, epoch, rates[0] * factor, run.history())
                updater.zero_grad(set_to_none=True)
                value.backward()
                updater.step()
                run.count(number, len(batch))
                if on_step is not None and on_step(run.step, model) is True:
                    run.stopped = True
                row = {}
                if run.stopped or run.step % length == 0:
                    row = run.close_epoch(epoch + 1, rates[0] * factor)
                    if test is not None:
                        row |= evaluate(model, loss, test, prefix="test_")
                    if on_epoch is not None and on_epoch(epoch + 1, model) is True:
                        run.stopped = True
                if recorder is not None:
                    metrics = {f"epoch_{k}" if k == "loss" else k: v for k, v in row.items()}
                    metrics.pop("epoch", None)
                    recorder.step(number, epoch=run.step / length, metrics=metrics)
                if run.stopped:
                    break
    updater.zero_grad(set_to_none=True)
    return TrainingResult(initial, copy_state(model), run.history(), run.step)


@dataclass
class _Progress:
    """Where a run is: kept by the recorder, so that its history too goes on after a kill."""

    step: int = 0
    total: float = 0.0
    samples: int = 0
    stopped: bool = False
    rows: list[dict[str, float]] = field(default_factory=list)

    def count(self, loss: float, samples: int) -> None:
        self.step += 1
        self.total += loss * samples
        self.samples += samples

    def close_epoch(self, epoch: int, lr: float) -> dict[str, float]:
        self.rows.append({"epoch": epoch, "loss": self.total / self.samples, "lr": lr})
        self.total, self.samples = 0.0, 0
        return self.rows[-1]

    def history(self) -> dict[str, np.ndarray]:
        return as_history(self.rows)

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)


def as_history(rows: list[dict[str, float]]) -> dict[str, np.ndarray]:
    """Return one array a quantity from one dict an epoch."""
    return {name: np.array([row[name] for row in rows]) for name in (rows[0] if rows else ())}


def copy_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return a copy of a model's state dict that later training does not change."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


@contextmanager
def _own_randomness(seed: int) -> Iterator[None]:
    """Give dropout a random stream of its own; the global ones are as before at the end."""
    before = random_state()
    try:
        torch.set_rng_state(torch_generator(seed, "dropout").get_state())
        seed_gpus(derive_seed(seed, "dropout"))
        yield
    finally:
        set_random_state(before)
