"""Ensembles: train one or several architectures from many seeds."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.func import stack_module_state, vmap

from hyperribbon.core import checks
from hyperribbon.core.checks import ArgumentError, validate
from hyperribbon.core.devices.modes import preserve_random_state, without_autocast_cache
from hyperribbon.core.devices.torch_private import Convolution, Dropout, NormWithStatistics
from hyperribbon.core.generators import torch_generator
from hyperribbon.core.result import Brief
from hyperribbon.core.store import remove_folder
from hyperribbon.operators.risk.batches import move, pick, tensors
from hyperribbon.operators.risk.data import Data, Source
from hyperribbon.operators.risk.objective import Objective, at_weights
from hyperribbon.papers.training.loop import (
    Augmentation,
    DivergenceError,
    TrainingResult,
    as_history,
    augment_batch,
    copy_state,
    train,
)
from hyperribbon.papers.training.optimizers import Schedule, make_optimizer, rate_factor
from hyperribbon.papers.training.sampling import Minibatches, size_of_batches
from hyperribbon.recording.cadence import Cadence
from hyperribbon.recording.capture import describe_model
from hyperribbon.recording.evaluation import Loss, Predictor, evaluate, read
from hyperribbon.recording.recorder import Recorder
from hyperribbon.recording.resume_state import (
    load_parts,
    pack_parts,
    remove_others,
    save_state,
)
from hyperribbon.recording.trajectory import Trajectory

Make = Callable[[int], nn.Module]


@dataclass(frozen=True)
class Member(Brief):
    """One trained member of an ensemble.

    Attributes:
        name: Name of its architecture.
        seed: Seed of its initialization, mini-batches and augmentation.
        result: Initial and final state, history.
        steps: Steps of its snapshots, (T,).
        epochs: Epochs of its snapshots, (T,).
        predictions: Predictions on the probe set, (T, n, …), or None.
        trajectory: Its snapshots on disk, or None.
    """

    name: str
    seed: int
    result: TrainingResult
    steps: np.ndarray
    epochs: np.ndarray
    predictions: np.ndarray | None = field(repr=False)
    trajectory: Trajectory | None = None


@dataclass(frozen=True)
class Ensemble:
    """The members of an ensemble, ordered by architecture, then seed."""

    members: list[Member]

    def __len__(self) -> int:
        """Return the number of members of the ensemble."""
        return len(self.members)

    def __iter__(self) -> Iterator[Member]:
        """Iterate over the ensemble's members."""
        return iter(self.members)

    def __getitem__(self, index: int) -> Member:
        """Return one member of the ensemble."""
        return self.members[index]

    def predictions(self) -> np.ndarray:
        """Return the predictions of every snapshot of the ensemble's members, (M·T, n, …).

        Raises:
            ArgumentError: The ensemble was trained without a probe set.
        """
        stacks = [member.predictions for member in self.members if member.predictions is not None]
        if not stacks:
            reason = "no predictions were kept"
            raise ArgumentError("probe", None, reason, "Train with probe=inputs.")
        return np.concatenate(stacks)


@validate(
    loss=checks.optional(checks.function),
    seeds=checks.list_of(checks.seed_number),
    epochs=checks.count,
    batch_size=size_of_batches,
    folder=checks.path,
    augment=checks.function,
    on_member=checks.function,
)
@torch.enable_grad()
def train_ensemble(
    make: Make | Mapping[str, Make],
    loss: Loss,
    data: Data,
    *,
    seeds: Sequence[int],
    epochs: int,
    lr: float,
    batch_size: int | str | None = "auto",
    optimizer: str = "sgd",
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    schedule: Schedule = None,
    sampling: str = "shuffle",
    augment: Augmentation | None = None,
    probe: Data | None = None,
    predictions: str | None = None,
    every: str | Sequence[int] = "1ep",
    folder: str | Path | None = None,
    test: Data | None = None,
    together: bool | None = None,
    on_member: Callable[[str, int], None] | None = None,
) -> Ensemble:
    """Train an ensemble: one or several architectures from every seed.

    Each member equals `hr.train(make(seed), ..., seed=seed)` up to rounding.

    Raises a DivergenceError when a member's loss becomes NaN or infinite.

    Args:
        make: A function of the seed that returns a model, or several by name.
        loss: `loss(outputs, targets)`, a mean over samples; None for the model's own.
        data: As for `hr.train`.
        seeds: One member per seed (of each architecture).
        epochs: Number of epochs.
        lr: Learning rate.
        batch_size: Minibatch size, as for `hr.train`.
        optimizer: "sgd", "adam" or "adamw".
        momentum: Momentum of "sgd".
        nesterov: Whether to use Nesterov momentum.
        weight_decay: Coefficient of ½‖w‖².
        schedule: {epoch: factor} or a function of the epoch; see `hr.train`.
        sampling: "shuffle", "replacement" or "without_replacement".
        augment: `augment(inputs, generator)` applied to every member's minibatch.
        probe: Inputs, or any data, whose predictions are kept at every snapshot.
        predictions: "log_probabilities" or "outputs"; None to decide, as `hr.Recorder` does.
        every: Interval between snapshots, "1ep" or "500it", or the steps themselves; the start and
            the end are always among them.
        folder: Also write each member's snapshots as a Trajectory in folder/name/seed-<seed>. With
            the folder of an ensemble that was interrupted, finished members are read and the
            others resume after their last epoch, bit-identically.
        test: Data evaluated after every epoch.
        together: Whether members train at once with batched operations (`torch.func.vmap`). None:
            when that is possible and faster, which excludes convolutions on a CPU, dropout and
            batch norm.
        on_member: Called as `on_member(name, seed)` after each member.

    Returns:
        The members, by name and seed.

    Raises:
        ArgumentError: An argument cannot be used, or the folder has members that were trained with
            other settings.
    """
    if not seeds or len(set(seeds)) < len(seeds):
        reason = "expected at least one seed, without duplicates"
        raise ArgumentError("seeds", seeds, reason, "Give range(3).")
    makers = dict(make) if isinstance(make, Mapping) else {"model": make}
    for maker in makers.values():
        checks.function("make", maker)
    settings: dict[str, Any] = {
        "epochs": epochs,
        "lr": lr,
        "batch_size": batch_size,
        "optimizer": optimizer,
        "momentum": momentum,
        "nesterov": nesterov,
        "weight_decay": weight_decay,
        "schedule": schedule,
        "sampling": sampling,
        "augment": augment,
    }
    given = (list(some) if isinstance(some, Iterator) else some for some in (data, test, probe))
    data, test, probe = given
    members = []
    for name, maker in makers.items():
        models = [checks.torch_module("make", maker(seed)) for seed in seeds]
        source = read(models[0], data)
        settings["test"] = None if test is None else read(models[0], test)
        minibatches = Minibatches(source, batch_size, sampling)
        moments = _moments(every, epochs, minibatches.length)
        predictor = None if probe is None else Predictor(probe, predictions)
        if predictor is not None:
            predictor.decide(models[0], loss, source)
        places = [None if folder is None else Path(folder) / name / f"seed-{s}" for s in seeds]
        batched = _should_batch(models, minibatches.whole) if together is None else together
        if batched and (minibatches.whole is None or not _can_batch(models[0])):
            reason = f"{name!r} has dropout or batch norm, or the data are not one batch in memory"
            raise ArgumentError("together", together, reason, "Use together=False.")
        plain = {key: _describe(value) for key, value in settings.items() if key != "test"}
        plain |= {"moments": sorted(moments), "together": list(seeds) if batched else False}
        about = describe_model(models[0], predictor) | {"settings": plain}
        pages = [
            _Snapshots(place, moments, minibatches.length, predictor, about) for place in places
        ]
        results: list[TrainingResult | None] = [page.read_result() for page in pages]
        if batched and None in results:
            group = None if folder is None else Path(folder) / name / "resume"
            results = [*_train_together(models, seeds, loss, minibatches, pages, group, **settings)]
        for model, seed, page, result in zip(models, seeds, pages, results, strict=True):
            if result is None:
                page.take(0, model)
                given = {"seed": seed, "on_step": page.take, "recorder": page.recorder()}
                result = train(model, loss, source, **given, **settings)
            members.append(page.finish(name, seed, result))
            if on_member is not None:
                on_member(name, seed)
        if folder is not None:
            remove_folder(Path(folder) / name / "resume")
    return Ensemble(members)


@without_autocast_cache()
def _train_together(
    models: Sequence[nn.Module],
    seeds: Sequence[int],
    loss: Loss,
    minibatches: Minibatches,
    pages: Sequence[_Snapshots],
    folder: Path | None,
    *,
    epochs: int,
    lr: float,
    batch_size: object,
    schedule: Schedule,
    sampling: object,
    augment: Augmentation | None,
    test: Source | None,
    **settings: Any,
) -> list[TrainingResult]:
    """Train an ensemble of one architecture together, parameters stacked along a leading axis.

    The state after the last epoch is kept in `folder`, if given, and resumed from.

    Returns:
        The result of each model.
    """
    initial = [copy_state(model) for model in models]
    parameters, buffers = stack_module_state(list(models))
    skeleton = copy.deepcopy(models[0]).to("meta").train()
    member_loss = at_weights(skeleton, Objective(loss))
    device = next(iter(parameters.values())).device

    losses_of = vmap(member_loss)
    updater = make_optimizer([p for p in parameters.values() if p.requires_grad], lr=lr, **settings)

    def unstack() -> None:
        with torch.no_grad():
            for number, model in enumerate(models):
                for name, parameter in model.named_parameters():
                    parameter.copy_(parameters[name][number])

    for page, model in zip(pages, models, strict=True):
        page.take(0, model)
    progress = _GroupProgress(parameters, [[] for _ in models])
    histories, parts = progress.histories, {"optimizer": updater, "progress": progress}
    begin = 0 if folder is None else _load_epoch(folder, parts)
    step = begin * minibatches.length
    for epoch in range(begin, epochs):
        rate = lr * rate_factor(schedule, epoch)
        for group in updater.param_groups:
            group["lr"] = rate
        orders = [minibatches.indices(epoch, seed) for seed in seeds]
        totals = np.zeros(len(models))
        samples_seen = 0
        for batches in zip(*orders, strict=True):
            index = torch.stack(batches)
            batch = pick(minibatches.whole, index)
            if augment is not None:
                generators = [torch_generator(seed, "augment", step) for seed in seeds]
                batch = augment_batch(batch, partial(_augment_each, augment), generators)
            losses = losses_of({**parameters, **buffers}, move(batch, device))
            values = losses.tolist()
            for seed, value, rows in zip(seeds, values, histories, strict=True):
                if not isfinite(value):
                    error = DivergenceError(step, epoch, rate, as_history(rows))
                    error.add_note(f"It is the member of seed {seed}.")
                    raise error
            updater.zero_grad(set_to_none=True)
            losses.sum().backward()
            updater.step()
            step += 1
            totals += index.shape[1] * np.array(values)
            samples_seen += index.shape[1]
            if pages[0].is_due(step):
                unstack()
                for page, model in zip(pages, models, strict=True):
                    page.take(step, model)
        unstack()
        for rows, total, model in zip(histories, totals, models, strict=True):
            row = {"epoch": epoch + 1, "loss": total / samples_seen, "lr": rate}
            if test is not None:
                row |= evaluate(model, loss, test, prefix="test_")
            rows.append(row)
        if folder is not None:
            remove_others(save_state(folder, f"epoch-{epoch + 1}", pack_parts(parts)), "epoch")
    unstack()
    finished = zip(initial, models, histories, strict=True)
    return [TrainingResult(i, copy_state(m), as_history(h), step) for i, m, h in finished]


def _augment_each(
    augment: Augmentation, inputs: torch.Tensor, generators: Sequence[torch.Generator]
) -> torch.Tensor:
    """Return an ensemble's augmented inputs (members, n, …), each with its own generator."""
    return torch.stack([augment(*pair) for pair in zip(inputs, generators, strict=True)])


@dataclass
class _GroupProgress:
    """Stacked parameters and histories of models that train together, as a part to resume."""

    parameters: dict[str, torch.Tensor]
    histories: list[list[dict[str, float]]]

    def state_dict(self) -> dict[str, Any]:
        return {"parameters": self.parameters, "histories": self.histories}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            for name, values in state["parameters"].items():
                self.parameters[name].copy_(values)
        self.histories[:] = state["histories"]


def _load_epoch(folder: Path, parts: Mapping[str, Any]) -> int:
    """Restore the newest state of an ensemble's training; return the number of epochs done."""
    names = (path.name for path in folder.glob("state/epoch-*.safetensors"))
    newest = max((int(name.split("-")[1]) for name in names), default=0)
    if newest:
        with preserve_random_state():
            load_parts(folder, f"epoch-{newest}", parts)
    return newest


class _Snapshots:
    """Predictions of one member at chosen steps, in memory and in a Trajectory."""

    def __init__(
        self,
        folder: Path | None,
        moments: set[int],
        length: int,
        predictor: Predictor | None,
        about: dict[str, Any],
    ) -> None:
        self.moments, self.length, self.predictor = moments, length, predictor
        self.steps: list[int] = []
        self.predictions: list[np.ndarray] = []
        self.trajectory = None
        if folder is None:
            return
        self.trajectory = Trajectory.create(folder, about=about)
        stored = self.trajectory.about.get("settings")
        if stored != about["settings"]:
            changed = [k for k, v in about["settings"].items() if (stored or {}).get(k) != v]
            reason = f"it holds a member that was trained with other settings: {changed}"
            raise ArgumentError("folder", str(folder), reason, "Choose another folder.")
        self.steps = self.trajectory.steps.tolist()
        if predictor is not None and self.steps:
            self.predictions = list(self.trajectory.predictions())

    def is_due(self, step: int) -> bool:
        return step in self.moments

    def take(self, step: int, model: nn.Module) -> None:
        if not self.is_due(step) or step in self.steps:  # a resumed run repeats some steps
            return
        predictions = None if self.predictor is None else self.predictor(model).numpy()
        self.steps.append(step)
        if predictions is not None:
            self.predictions.append(predictions)
        if self.trajectory is not None:
            self.trajectory.append(
                step, epoch=step / self.length, weights=model.state_dict(), predictions=predictions
            )

    def recorder(self) -> Recorder | None:
        """Return what keeps an ensemble's state after the last epoch, to resume from."""
        if self.trajectory is None:
            return None
        return Recorder(self.trajectory.folder / "resume", "1ep", weights=False, resume=True)

    def read_result(self) -> TrainingResult | None:
        """Return the result of an ensemble's member that was finished earlier."""
        if self.trajectory is None or "history" not in self.trajectory.about:
            return None
        history = {n: np.array(v) for n, v in self.trajectory.about["history"].items()}
        states = self.trajectory.weights(0), self.trajectory.weights(-1)
        return TrainingResult(*states, history, self.steps[-1])

    def finish(self, name: str, seed: int, result: TrainingResult) -> Member:
        """Complete the trajectory of an ensemble's member and return the member."""
        if self.trajectory is not None:
            if not (self.trajectory.folder / "manifest.json").is_file():
                history = {n: values.tolist() for n, values in result.history.items()}
                self.trajectory.finish({"history": history})
            remove_folder(self.trajectory.folder / "resume")
        steps = np.array(self.steps)
        predictions = np.stack(self.predictions) if self.predictions else None
        epochs = steps / self.length
        return Member(name, seed, result, steps, epochs, predictions, self.trajectory)


def _moments(every: str | Sequence[int], epochs: int, length: int) -> set[int]:
    """Return the snapshot steps of an ensemble, including the start and the end."""
    last = epochs * length
    if isinstance(every, str):
        cadence = Cadence.parse(every)
        places = [(step, step / length) for step in range(last + 1)]
        steps = {now[0] for before, now in pairwise(places) if cadence.passed(before, now)}
    else:
        steps = set(checks.list_of(checks.whole)("every", every))
        if max(steps, default=0) > last:
            raise ArgumentError("every", every, f"steps run from 0 to {last}", "Omit the others.")
    return steps | {0, last}


def _describe(setting: Any) -> Any:
    """Return an ensemble's setting as a plain value: a function as its name."""
    if setting is None or isinstance(setting, bool | int | float | str):
        return setting
    return getattr(setting, "__qualname__", str(setting))


def _can_batch(model: nn.Module) -> bool:
    kinds = (Dropout, NormWithStatistics)
    return not any(isinstance(module, kinds) for module in model.modules())


def _should_batch(models: Sequence[nn.Module], data: Any) -> bool:
    """Whether to train an ensemble's members together: on pairs of tensors, if that is faster.

    On a CPU, a batched convolution becomes a grouped one, which is slower than separate ones.

    Returns:
        True if they do.
    """
    if not isinstance(data, tuple) or len(data) != 2 or len(tensors(data)) != 2:
        return False
    on_cpu = next(models[0].parameters()).device.type == "cpu"
    convolves = any(isinstance(m, Convolution) for m in models[0].modules())
    return len(models) > 1 and _can_batch(models[0]) and not (on_cpu and convolves)
