"""The reference training loop, with explicit seeds and sampling."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from hyperribbon.core import checks
from hyperribbon.core.checks import ArgumentError, validate
from hyperribbon.core.devices.gpus import seed_gpus
from hyperribbon.core.devices.modes import without_autocast_cache
from hyperribbon.core.devices.torch_private import tree_map
from hyperribbon.core.generators import derive_seed, torch_generator
from hyperribbon.core.result import Result
from hyperribbon.operators.risk.batches import batch_size as size_of
from hyperribbon.operators.risk.batches import move, split, tensors
from hyperribbon.operators.risk.data import Data
from hyperribbon.operators.risk.objective import Objective
from hyperribbon.papers.training.optimizers import (
    OptimizerChoice,
    Schedule,
    make_optimizer,
    rate_factor,
)
from hyperribbon.papers.training.sampling import Minibatches, size_of_batches
from hyperribbon.recording.evaluation import Loss, evaluate, in_mode, read
from hyperribbon.recording.measurements import random_state, set_random_state
from hyperribbon.recording.recorder import Recorder

if TYPE_CHECKING:
    import pandas as pd

Augmentation = Callable[[torch.Tensor, torch.Generator], torch.Tensor]
Callback = Callable[[int, nn.Module], bool | None]


@dataclass(frozen=True)
class TrainingResult(Result, plot="plot_history"):
    """The result of a training run.

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

    def to_frame(self) -> pd.DataFrame:
        """Return the training loop's history as a table, one row per epoch."""
        import pandas as pd

        return pd.DataFrame(self.history)


class DivergenceError(RuntimeError):
    """Exception of the training loop: the loss, or a weight, became NaN or infinite.

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
        """Let the training loop's divergence error pass between processes."""
        return (type(self), (self.step, self.epoch, self.lr, self.history))


@validate(
    model=checks.torch_module,
    loss=checks.optional(checks.function),
    epochs=checks.count,
    batch_size=size_of_batches,
    gradient_penalty=checks.zero_or_more,
    recorder=checks.instance(Recorder, "Give hr.Recorder(folder)."),
    on_epoch=checks.function,
    on_step=checks.function,
    augment=checks.function,
)
@torch.enable_grad()
def train(
    model: nn.Module,
    loss: Loss,
    data: Data,
    *,
    epochs: int,
    lr: float,
    batch_size: int | str | None = "auto",
    optimizer: OptimizerChoice = "sgd",
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    gradient_penalty: float = 0.0,
    schedule: Schedule = None,
    sampling: str = "shuffle",
    seed: int = 0,
    augment: Augmentation | None = None,
    on_epoch: Callback | None = None,
    on_step: Callback | None = None,
    recorder: Recorder | None = None,
    test: Data | None = None,
) -> TrainingResult:
    """Train a model in place: the training loop over epochs and mini-batches.

    All randomness, including dropout, is determined by `seed`; the global random state is not
    changed.

    Raises an ArgumentError for invalid arguments.

    Args:
        model: Trained in place, in training mode; its mode is restored afterwards.
        loss: `loss(outputs, targets)`, a mean over samples; None for the model's own loss, where
            its output has `.loss`, as transformers models do.
        data: As `hr.Risk` takes them: (inputs, targets), a Dataset, a DataLoader, a list of
            batches, dict batches. The samples of a loader are read in order and drawn by
            `sampling`; streams and batches that cannot be joined are used unchanged.
        epochs: Number of epochs.
        lr: Learning rate.
        batch_size: Minibatch size; None for the full batch, "auto" for that of a DataLoader or of
            the batches in a list, else 128.
        optimizer: "sgd", "adam", "adamw", or a function of the parameters returning an optimiser.
        momentum: Momentum of "sgd".
        nesterov: Whether to use Nesterov momentum.
        weight_decay: Coefficient of ½‖w‖² (for "adamw": decoupled decay).
        gradient_penalty: γ of the penalty (γ/4)‖∇L‖² added to the loss of every minibatch, Eq.
            (2.28) of [subnetworks]; the recorded losses are without it.
        schedule: {epoch: factor}, the rate multiplied by each factor when its epoch begins; or a
            function of the epoch.
        sampling: "shuffle", "replacement" or "without_replacement"; see `epoch_batches`.
        seed: Seed of minibatches, augmentation and dropout.
        augment: `augment(inputs, generator)` applied to the inputs of every minibatch, which are
            one tensor.
        on_epoch: Called as `on_epoch(epochs_done, model)`; training stops if it returns True.
        on_step: Called as `on_step(updates_done, model)`; training stops if it returns True.
        recorder: Records the run, and is closed at the end. With the folder of a killed run,
            training resumes bit-identically from its last record (callbacks may be called again for
            later steps).
        test: Data evaluated after every epoch.

    Returns:
        The initial and final weights, the history by epoch, and the number of steps.

    Raises:
        DivergenceError: The loss, or a weight, became NaN or infinite.

    >>> from hyperribbon.papers.training.models import mlp
    >>> x = torch.linspace(-1, 1, 64).reshape(-1, 1)
    >>> result = train(mlp((1, 16, 1), "tanh"), nn.MSELoss(), (x, x**2), epochs=50, lr=0.1)
    >>> bool(result.history["loss"][-1] < 0.2 * result.history["loss"][0])
    True
    """
    source, objective = read(model, data), Objective(loss)
    minibatches = Minibatches(source, batch_size, sampling)
    trained = [p for p in model.parameters() if p.requires_grad]
    how = {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
    updater = make_optimizer(trained, optimizer, lr=lr, **how)
    rates = [group["lr"] for group in updater.param_groups]
    device = next(model.parameters()).device
    length = minibatches.length
    test = None if test is None else read(model, test)
    initial = copy_state(model)
    run = _Progress()

    with (
        in_mode(model, training=True),
        _own_randomness(seed),
        without_autocast_cache(),
        recorder or nullcontext(),
    ):
        if recorder is not None:
            total = {"it": f"{epochs * length}it", "ep": f"{epochs}ep"}[recorder.cadence.unit]
            known = list(source.batches()) if source.is_kept else data
            known = known if minibatches.whole is None else minibatches.whole
            if minibatches.size:
                recorder.config.setdefault("batch_size", minibatches.size)
            run.step = recorder.attach(
                model, updater, total=total, loss=loss, data=known, progress=run
            )
            if recorder.keeps_state:
                initial = recorder.initial_state()
        for epoch in range(run.step // length, epochs):
            if run.stopped:
                break
            factor = rate_factor(schedule, epoch)
            for group, rate in zip(updater.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            for batch in minibatches.of_epoch(epoch, seed, run.step % length):
                if augment is not None:
                    generator = torch_generator(seed, "augment", run.step)
                    batch = augment_batch(batch, augment, generator)
                value = objective(model, move(batch, device))
                number = value.item()
                if not isfinite(number):
                    raise DivergenceError(run.step, epoch, rates[0] * factor, run.history())
                if gradient_penalty > 0:
                    slopes = torch.autograd.grad(
                        value, trained, create_graph=True, materialize_grads=True
                    )
                    squares = sum(slope.square().sum() for slope in slopes)
                    value = value + gradient_penalty / 4 * squares
                updater.zero_grad(set_to_none=True)
                value.backward()
                updater.step()
                run.count(number, size_of(batch))
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
    weights = (tensor for group in updater.param_groups for tensor in group["params"])
    if not all(bool(tensor.isfinite().all()) for tensor in weights):  # of the last update
        rate = updater.param_groups[0]["lr"]
        raise DivergenceError(run.step, run.step // length, rate, run.history())
    return TrainingResult(initial, copy_state(model), run.history(), run.step)


@dataclass
class _Progress:
    """Progress of a run, saved by the recorder so that a resumed run keeps its history."""

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


def augment_batch(batch: Any, augment: Callable[..., torch.Tensor], generator: Any) -> Any:
    """Return a batch of the training loop with inputs x replaced by augment(x, generator).

    Raises:
        ArgumentError: The inputs are not a single tensor.
    """
    inputs, targets = split(batch)
    found = tensors(inputs)
    if len(found) != 1:
        reason = f"a batch has {len(found)} input tensors; augment needs exactly one"
        raise ArgumentError("augment", augment, reason, "Augment them in the data set.")
    inputs = tree_map(lambda leaf: augment(leaf, generator) if leaf is found[0] else leaf, inputs)
    if isinstance(batch, Mapping):
        return type(batch)({**batch, **inputs})  # type: ignore[call-arg]
    return inputs if isinstance(batch, torch.Tensor) else (inputs, targets)


def as_history(rows: list[dict[str, float]]) -> dict[str, np.ndarray]:
    """Return the training loop's history: one array per quantity from one dict per epoch."""
    return {name: np.array([row[name] for row in rows]) for name in (rows[0] if rows else ())}


def copy_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return a copy of a model's state dict that the training loop does not change."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


@contextmanager
def _own_randomness(seed: int) -> Iterator[None]:
    """Seed dropout for the training loop and restore the global random states afterwards."""
    before = random_state()
    try:
        torch.set_rng_state(torch_generator(seed, "dropout").get_state())
        seed_gpus(derive_seed(seed, "dropout"))
        yield
    finally:
        set_random_state(before)
