"""Training that goes on with copies of the model and the optimiser."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, Subset

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.devices.gpus import seed_gpus
from hyperribbon.core.generators import derive_seed, torch_generator
from hyperribbon.core.parameters import ParameterSpace
from hyperribbon.noise.stationary import read_rule
from hyperribbon.noise.weight_records import StepBuffer
from hyperribbon.operators import Risk
from hyperribbon.operators.risk.batches import batch_size
from hyperribbon.operators.risk.objective import Objective
from hyperribbon.recording import Trajectory
from hyperribbon.recording.measurements import random_state, set_random_state
from hyperribbon.recording.resume_state import load_parts, pack_parts, save_state
from hyperribbon.theory.fluctuations.one_layer import batch_factor

_SAVES = 10  # of the progress, over all steps
_SHOWN = 0.2  # seconds between signs of progress, if not many steps pass in them


class Continuation:
    """A training that goes on with copies of the model and the optimiser."""

    def __init__(
        self, model: nn.Module, loss: Any, data: Any, optimizer: torch.optim.Optimizer, seed: int
    ) -> None:
        if not isinstance(data, DataLoader) and not (isinstance(data, list) and len(data) > 1):
            reason = "fluctuations come from mini-batches"
            raise ArgumentError("data", data, reason, "Give the DataLoader you train with.")
        if isinstance(data, DataLoader) and _is_one_batch(data):
            reason = "an epoch is one batch, and fluctuations come from mini-batches"
            raise ArgumentError("data", data, reason, "Use a smaller batch_size.")
        if isinstance(optimizer, torch.optim.LBFGS):
            reason = "its step evaluates the loss itself, on one batch, several times"
            raise ArgumentError("optimizer", "LBFGS", reason, "Use SGD or Adam.")
        self._model, self._optimizer = copy.deepcopy((model, optimizer))
        self._training = self._model.training
        self._loss, self._data, self._seed = loss, data, seed
        self.training_seconds = self.recording_seconds = 0.0
        self._losses: list[float] = []
        self._device = next(self._model.parameters()).device
        first = data.batch_size if isinstance(data, DataLoader) else None
        self.batch_size = first or batch_size(next(iter(self._epoch(0))))

    def risk(self, samples: int | None, mode: str | None, space: ParameterSpace) -> Risk:
        """Return the objective at the continued training's present weights, on a few batches."""
        data, most = self._data, np.inf if samples is None else samples
        if isinstance(data, DataLoader) and not isinstance(data.dataset, IterableDataset):
            total = len(cast("Any", data.dataset))  # each sample once, whatever the sampler does
            drawn = torch_generator(self._seed, "samples")
            places = (
                torch.randperm(total, generator=drawn, device="cpu")[: int(min(most, total))]
                .sort()
                .values
            )
            chosen = Subset(data.dataset, places.tolist())
            options: Any = {"collate_fn": data.collate_fn, "generator": drawn}
            reader: Any = DataLoader(chosen, self.batch_size, **options)
        else:
            reader = self._epoch(0)
        batches, seen = [], 0
        for batch in reader:
            batches.append(_to(batch, self._device))
            seen += batch_size(batch)
            if seen >= most:
                break
        self._model.train(self._training)
        return Risk(self._model, self._loss, batches, params=list(space.names), mode=mode)

    def _epoch(self, epoch: int) -> Iterator[Any]:
        """Yield the batches of a continued epoch in the loader's own order."""
        before = random_state()
        sampler = getattr(self._data, "sampler", None)
        owners = (self._data, sampler, getattr(self._data, "batch_sampler", None))
        drawing = [g for g in (getattr(o, "generator", None) for o in owners) if g is not None]
        states = [generator.get_state() for generator in drawing]
        try:
            order = torch_generator(self._seed, "epoch", epoch).get_state()
            torch.set_rng_state(order)
            for generator in drawing:
                generator.set_state(order)
            batches = iter(self._data)
            first = next(batches, None)  # the sampler draws its order with the first batch
        finally:
            set_random_state(before)
        try:
            if first is not None:
                yield _to(first, self._device)
            for batch in batches:
                yield _to(batch, self._device)
        finally:
            for generator, state in zip(drawing, states, strict=True):
                generator.set_state(state)

    def train(
        self,
        parts: dict[str, ParameterSpace],
        records: dict[str, Any],
        steps: int,
        folder: Path | None,
    ) -> None:
        """Continue training and hand the weights of every layer to its record.

        Raises:
            ArgumentError: The loss diverges, or the folder is of another run.
        """
        from hyperribbon.core.progress import Console, progress_bar

        objective, names = Objective(self._loss), {p: list(s.names) for p, s in parts.items()}
        tensors = dict(self._model.named_parameters())
        buffer = StepBuffer({p: [tensors[n] for n in own] for p, own in names.items()}, steps)
        values: list[torch.Tensor] = []
        stored: dict[str, Any] = {"model": self._model, "optimizer": self._optimizer}
        stored |= {f"record {name}": record for name, record in records.items()}
        settings = {"seed": self._seed, "layers": names}
        step, before = 0, random_state()
        began = shown = time.perf_counter()
        mode = self._model.training
        try:
            torch.set_rng_state(torch_generator(self._seed, "dropout").get_state())
            seed_gpus(derive_seed(self._seed, "dropout"))
            if folder is not None and any(folder.glob("state/progress-*")):
                notes = load_parts(folder, "progress", stored)
                if notes["settings"] != settings:
                    reason = "it holds the progress of other settings"
                    raise ArgumentError("folder", str(folder), reason, "Choose another folder.")
                step = notes["step"]
                self._losses = list(notes["losses"])
            self._model.train()
            with progress_bar(Console(stderr=True)) as progress, torch.enable_grad():
                task = progress.add_task("training", total=steps, completed=step)
                for batch in self._from(step, steps):
                    self._optimizer.zero_grad()
                    value = objective(self._model, batch)
                    value.backward()
                    self._optimizer.step()
                    step += 1
                    clock = time.perf_counter()
                    values.append(value.detach().reshape(()))
                    saves = folder is not None and step % max(steps // _SAVES, 1) == 0
                    if buffer.add() or saves or step == steps or clock > shown + _SHOWN:
                        self._keep_losses(values, step)
                        buffer.empty(records)
                        progress.advance(task, len(values))
                        values, shown = [], clock
                    if folder is not None and saves and step < steps:
                        notes = {"settings": settings, "step": step, "losses": self._losses}
                        old = list(folder.glob("state/progress-*"))
                        new = save_state(folder, "progress", pack_parts(stored, notes))
                        for earlier in old:
                            if earlier != new:
                                earlier.unlink()
                    self.recording_seconds += time.perf_counter() - clock
        finally:
            set_random_state(before)
            self._model.train(mode)
        self.training_seconds = time.perf_counter() - began - self.recording_seconds

    def _keep_losses(self, values: list[torch.Tensor], step: int) -> None:
        """Keep the losses of a continued training's last steps.

        Raises:
            ArgumentError: One of them is not finite.
        """
        new = torch.stack(values).double().tolist()
        self._losses += new
        for count, loss in enumerate(new, step - len(new) + 1):
            if not np.isfinite(loss):
                reason = f"the loss is {loss:g} after {count} steps"
                raise ArgumentError("optimizer", "lr", reason, "Use a smaller rate.")

    def _from(self, step: int, steps: int) -> Iterator[Any]:
        """Yield the batches of the continuation's remaining steps, epoch by epoch."""
        passed = epoch = 0
        while passed < steps:
            seen = passed
            for batch in self._epoch(epoch):
                passed += 1
                if passed > steps:
                    return
                if passed > step:
                    yield batch
            if passed == seen:
                raise ArgumentError("data", self._data, "it has no batches", "Give some.")
            epoch += 1

    def read(
        self, trajectory: Trajectory, parts: dict[str, ParameterSpace], records: dict[str, Any]
    ) -> float:
        """Read recorded weights in place of a continuation of training; return steps between."""
        for index in range(len(trajectory)):
            state = trajectory.weights(index)
            for name, part in parts.items():
                records[name].add(part.flatten(state).to(self._device)[None])
        recorded = [float(s) for s in trajectory.steps]
        return (recorded[-1] - recorded[0]) / max(len(recorded) - 1, 1)

    def move_to(self, means: dict[str, np.ndarray], parts: dict[str, ParameterSpace]) -> None:
        """Put mean weights into the copy whose training is continued."""
        tensors = dict(self._model.named_parameters())
        with torch.no_grad():
            for name, part in parts.items():
                for n, value in part.unflatten(torch.from_numpy(means[name])).items():
                    tensors[n].copy_(value.to(tensors[n]))

    def losses(self) -> tuple[float, float, float]:
        """Return the continuation's loss over its first and its last tenth, and an error."""
        if len(self._losses) < 2:
            return float("nan"), float("nan"), float("nan")
        tenth = max(len(self._losses) // 10, 2)
        first, last = np.array(self._losses[:tenth]), np.array(self._losses[-tenth:])
        error = np.sqrt((first.var(ddof=1) + last.var(ddof=1)) / tenth)
        return float(first.mean()), float(last.mean()), float(error)

    def batch_factor(self) -> float:
        """Return the variance of a continued mini-batch's mean over that of a sample."""
        sampler = getattr(self._data, "sampler", None)
        replacement = bool(getattr(sampler, "replacement", False))
        total = len(cast("Any", cast("DataLoader[Any]", self._data).dataset))
        return batch_factor(total, min(self.batch_size, total), replacement)

    def by_name(self, factors: np.ndarray) -> dict[str, np.ndarray]:
        """Return the continued optimiser's preconditioner by weight tensor."""
        names = {id(p): n for n, p in self._model.named_parameters()}
        owned = [p for group in self._optimizer.param_groups for p in group["params"]]
        ends = np.cumsum([p.numel() for p in owned])[:-1]
        pieces = zip(owned, np.split(factors, ends), strict=True)
        return {names[id(p)]: piece for p, piece in pieces if id(p) in names}

    def rule(self) -> dict[str, Any]:
        """Return the continued optimiser as arguments of `stationary_state`.

        Raises:
            ArgumentError: The theory does not hold for this order of batches, or this optimiser.
        """
        sampler = getattr(self._data, "sampler", None)
        if not isinstance(sampler, RandomSampler):
            reason = "batches come in a fixed or an unknown order, and the theory is of random ones"
            raise ArgumentError("data", sampler, reason, "Use shuffle=True.")
        batches = None if sampler.replacement else len(cast("DataLoader[Any]", self._data))
        kind = "independent" if sampler.replacement else "shuffled"
        return read_rule(self._optimizer, kind, batches)


def _is_one_batch(data: DataLoader[Any]) -> bool:
    """Return whether every batch of continued training is the whole data set."""
    if isinstance(data.dataset, IterableDataset) or getattr(data.sampler, "replacement", False):
        return False
    return len(data) == 1


def _to(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {name: _to(value, device) for name, value in batch.items()}
    if isinstance(batch, tuple | list):
        return tuple(_to(value, device) for value in batch)
    return batch
