"""Record a training run as it happens: weights, predictions and metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from filelock import FileLock, Timeout
from torch import nn

from hyperribbon.core.boundary import (
    checked,
    flag,
    instance,
    iterable,
    mapping,
    whole,
    zero_or_more,
)
from hyperribbon.core.checks import ArgumentError, as_number
from hyperribbon.core.store import ensure_folder
from hyperribbon.operators.risk.data import Data
from hyperribbon.recording.cadence import Cadence, Overhead, TimeShare
from hyperribbon.recording.contents import Contents, Measure, Weights
from hyperribbon.recording.entries import Entries
from hyperribbon.recording.loggers import LogTarget, make_logger
from hyperribbon.recording.records import Draft
from hyperribbon.recording.resuming import Stateful, load_parts, pack_parts, read_parts
from hyperribbon.recording.taking import Moment, trouble_with
from hyperribbon.recording.trajectory import Trajectory
from hyperribbon.recording.writing.files import Taken
from hyperribbon.recording.writing.forecast import Forecast, count_records, forecast_run
from hyperribbon.recording.writing.status import LOCK, write_status

if TYPE_CHECKING:
    from lightning.pytorch import Callback
    from transformers import TrainerCallback

__all__ = ["Recorder"]


def _scalar(argument: str, value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value  # read only when it is recorded
    return as_number(argument, value)


class Recorder:
    """Records a training run to a folder as a `Trajectory`, from any training loop.

    Recording does not affect training: weights, buffers, gradients, modes and random states are the
    same with and without it. A run killed at any time resumes from its last record:

        recorder = hr.Recorder("run", every="50it", measure="sharpness", loss=loss, data=data)
        start = recorder.attach(model, optimizer)      # 0, or the step of the last record
        for step in range(start, steps):
            ...                                        # one optimiser step
            recorder.step(loss_value, epoch=(step + 1) / steps_per_epoch)
        recorder.close()

    A resumed loop is bit-identical if its mini-batches are determined by the step, as in
    `hr.train`.

    A record is taken when `step` returns True, and written beside the training, several with one
    sync where they have gathered. It is on disk and whole once `written` has reached its step, at
    the latest when `flush`, `finish` or `close` return; a kill costs what was not written by then,
    and the run goes on from before it. With `wait=True`, `step` returns when it is on disk.

    Args:
        folder: Output folder of the trajectory; one folder per run.
        every: Interval between records, "1ep", "0.5ep" or "500it".
        measure: What to measure at every record: "sharpness", "spectrum", functions of the model
            (their names become metrics), `Measurement`s, or a list of these. Built-in measurements
            (given by name) need `loss` and `data`.
        probe: Inputs whose predictions are stored with every record: a tensor, a dict of keyword
            tensors, or any data, whose targets are ignored.
        predictions: "log_probabilities", "outputs", or a function of (model, probe). None: the
            outputs, but log-probabilities where the loss is a cross-entropy or the targets are
            labels, and of several outputs where neither loss nor data are known.
        weights: True for the whole state dict, False for none, a Mask for its entries (stored as
            one vector per parameter), `hr.recording.Projection(1000)` for a random projection, or
            names of parameters or modules: one, a pattern or a list.
        resume: Whether to store the state needed to resume (weights, optimiser, random states; only
            the last is kept). None: yes if all weights are recorded.
        max_overhead: Largest ratio of recording to training time. Built-in measurements are skipped
            when they would exceed it, and if that is not enough, whole records are skipped. Both
            cause a warning and are counted in `overhead`. The first and the last record are always
            made. None: every record is made, and built-in measurements stay within a tenth of the
            training time or two seconds, whichever is more. math.inf: no limit.
        log: Where to log scalars as well: "tensorboard", "mlflow", "wandb", functions of (step,
            scalars), or several of these.
        loss: The loss, for measurements that need it; `hr.train` gives its own.
        data: The data, as `hr.Risk` takes them, for measurements that need them; likewise.
        wait: Whether `step` waits until its record is on disk.
    """

    @checked(wait=flag)
    def __init__(
        self,
        folder: str | Path,
        every: str = "1ep",
        *,
        measure: Measure | Iterable[Measure] = (),
        probe: Data | None = None,
        predictions: str | Callable[[nn.Module, Data], torch.Tensor] | None = None,
        weights: Weights = True,
        resume: bool | None = None,
        max_overhead: float | None = None,
        log: LogTarget | Sequence[LogTarget] = (),
        loss: Any = None,
        data: Any = None,
        wait: bool = False,
    ) -> None:
        self.folder = ensure_folder("folder", Path(folder))
        self.cadence = Cadence.parse(every)
        self._contents = Contents(measure, probe, predictions, weights)
        self._keeps_state = self._contents.are_weights_whole if resume is None else bool(resume)
        self._loss, self._data, self._wait = loss, data, wait
        several = not isinstance(log, str) and not callable(log)
        self._targets: list[Any] = list(iterable("log", log)) if several else [log]
        self._budget = TimeShare(max_overhead)
        self._entries = Entries(self.folder, self._contents, self._budget)
        self._lock = FileLock(self.folder / LOCK)
        self._model: nn.Module | None = None
        self._scalars: dict[str, Any] = {}
        self._about: dict[str, Any] = {}

    @checked(optimizer=instance(Stateful, "Give a torch optimiser."), step=whole)
    def attach(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        step: int | None = None,
        total: str | None = None,
        loss: Any = None,
        data: Any = None,
        **parts: Stateful,
    ) -> int:
        """Start recording, or restore the last recorded state; return the steps taken.

        Args:
            model: The model that trains.
            optimizer: Its optimiser.
            step: Step to which the caller has already restored the run; the recorder then drops
                later records and does not store the state itself.
            total: Length of the run in the unit of `every`, "30ep" or "5000it": used to forecast
                the disk space.
            loss: For measurements, if not given to the recorder.
            data: Likewise.
            **parts: Other objects with `state_dict` and `load_state_dict`, such as a scheduler.

        Returns:
            Steps already taken; 0 for a new run.

        Raises:
            ArgumentError: The folder holds a run that does not match, another recorder uses it, or
                there is not enough disk space.
        """
        try:
            self._lock.acquire(timeout=10)
        except Timeout:
            reason, remedy = "another recorder is writing to it", "Choose another folder."
            raise ArgumentError("folder", str(self.folder), reason, remedy) from None
        try:
            loss = self._loss if loss is None or self._loss is not None else loss
            data = self._data if data is None or self._data is not None else data
            self._budget.start()
            with self._budget.spending():
                self._entries.files.start(self._contents.begin(model, optimizer, loss, data))
            own = {"model": model, "optimizer": optimizer} if optimizer else {"model": model}
            self._entries.parts = own | parts
            return self._begin(model, step, count_records(self.cadence, total))
        except BaseException:
            self.release()
            raise

    def _begin(self, model: nn.Module, step: int | None, records: int | None) -> int:
        entries = self._entries
        self._model, trajectory = model, entries.files.trajectory
        entries.is_resumable = step is None and self._keeps_state
        if step == 0 and len(trajectory):
            reason = f"it holds a run up to step {trajectory[-1].step}, but this run starts at 0"
            remedy = "Choose another folder, or resume that run."
            raise ArgumentError("folder", str(self.folder), reason, remedy)
        if step is not None:
            trajectory.truncate(step)
        fresh = len(trajectory) == 0
        if self._contents.predictor is not None and not fresh:
            self._contents.predictor.resume(trajectory.about.get("predictions"))
        if not fresh and step is None:
            step = entries.files.newest_state()
            entries.put_back(load_parts(entries.files.state_path(step), entries.parts))
            trajectory.truncate(step)
        epoch = None if fresh else trajectory[-1].epoch
        entries.position = (step or 0, epoch)
        entries.number = len(trajectory)
        entries.taken = None if fresh else (trajectory[-1].step, epoch)
        entries.loggers = [make_logger(t, self.folder, step or 0) for t in self._targets]
        if fresh:
            entries.position = (step or 0, None if step else 0.0)
            entries.begin(model, records)
        self._say("running")
        return entries.position[0]

    @checked(loss=_scalar, epoch=zero_or_more, metrics=mapping, step=whole)
    def step(
        self,
        loss: float | torch.Tensor | None = None,
        *,
        epoch: float | None = None,
        metrics: Mapping[str, Any] | None = None,
        step: int | None = None,
    ) -> bool:
        """Report that an optimiser step was taken; make a record if one is due.

        Args:
            loss: The mini-batch loss; stored as "loss".
            epoch: Epochs completed, such as 2.5; needed to record by epochs.
            metrics: Additional numbers or small arrays to store.
            step: Steps taken so far; counted when not given.

        Returns:
            Whether a record was made; it is on disk once `written` has reached its step.

        Raises:
            ArgumentError: Nothing is attached.
        """
        if self._model is None:
            remedy = "Call recorder.attach(model, optimizer) first."
            raise ArgumentError("model", None, "nothing is attached", remedy)
        entries = self._entries
        before = entries.position
        entries.position = (before[0] + 1 if step is None else int(step), epoch)
        if isinstance(loss, torch.Tensor):
            loss = loss.detach()
        self._scalars = {} if loss is None else {"loss": loss}
        self._scalars.update(metrics or {})
        if not self.cadence.passed(before, entries.position):
            return False
        if not self._budget.allows():
            if not entries.skipped:
                entries.warn(
                    f"recording would take more than {self._budget.limit:.0%} of the training "
                    "time; from now on, fewer records are made"
                )
            entries.skipped += 1
            return False
        return self._record()

    def flush(self) -> None:
        """Wait until every record is on disk."""
        cost = self._budget.cost
        with self._budget.spending():
            self._entries.settle()
        self._budget.cost = cost

    def finish(self) -> None:
        """Record the last step if it is not recorded yet, and wait until it is on disk."""
        self.flush()
        recorded = -1 if self.written is None else self.written
        if self._model is not None and recorded < self._entries.position[0]:
            self._record(is_last=True)
            self.flush()

    def close(self) -> None:
        """Record the last step, wait until it is on disk, and release the folder."""
        running = self._model is not None
        self.finish()
        self._end("finished" if running else None)

    def release(self) -> None:
        """Write pending records and release the folder without recording the last step."""
        try:
            self.flush()
        finally:
            self._end("stopped" if self._about else None)

    def _end(self, state: str | None) -> None:
        try:
            for logger in self._entries.loggers:
                logger.close()
            self._entries.files.close()
            if state is not None:
                self._say(state)
        finally:
            self._entries.loggers, self._model, self._about = [], None, {}
            self._budget.stop()
            self._lock.release()

    def __enter__(self) -> Recorder:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close; after an exception, the last step is not recorded."""
        self.close() if kind is None else self.release()

    @property
    def trajectory(self) -> Trajectory:
        """The trajectory, with all records on disk."""
        self.flush()
        return self._entries.files.trajectory

    @property
    def written(self) -> int | None:
        """Last step up to which all records are safely on disk; None before the first.

        Records lost to a full disk are excluded; they are counted and cause a warning.
        """
        return self._entries.files.written

    @property
    def steps(self) -> int:
        """Optimiser steps taken so far."""
        return self._entries.position[0]

    @property
    def overhead(self) -> Overhead:
        """The time cost of recording so far."""
        return self._entries.overhead()

    def forecast(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        total: str | None = None,
    ) -> Forecast:
        """Return the forecast disk space of a run; nothing is written.

        Args:
            model: The model to train.
            optimizer: Its optimiser.
            total: Length of the run in the unit of `every`, "30ep" or "5000it".
        """
        draft = Draft(
            0, weights=self._contents.weights(model), predictions=self._contents.predict(model)
        )
        initial = len(pack_parts({"model": model})) if self._keeps_state else 0
        taken = Taken(draft, bytes(initial) if self._keeps_state else None)
        parts = {} if optimizer is None else {"optimizer": optimizer}
        return forecast_run(self.folder, taken, initial, parts, count_records(self.cadence, total))

    def initial_state(self) -> dict[str, torch.Tensor]:
        """Return the model's initial state dict."""
        return read_parts(self._entries.files.initial_path)["parts"]["model"]

    @property
    def keeps_state(self) -> bool:
        """Whether a killed run can be resumed."""
        return self._entries.is_resumable

    def lightning_callback(self) -> Callback:
        """Return a Lightning callback that records with this recorder."""
        from hyperribbon.recording.callbacks import lightning_callback

        return lightning_callback(self)

    def transformers_callback(self) -> TrainerCallback:
        """Return a transformers TrainerCallback that records with this recorder."""
        from hyperribbon.recording.callbacks import transformers_callback

        return transformers_callback(self)

    def _record(self, *, is_last: bool = False) -> bool:
        """Make a record and queue it for writing; on failure, warn and continue."""
        entries = self._entries
        assert self._model is not None
        moment = Moment(
            self._scalars, entries.position, entries.taken, entries.number, is_last=is_last
        )
        with self._budget.spending():
            entries.settle(wait=False)
            if trouble := trouble_with(self._model, moment):
                entries.settle()
                entries.fail(trouble)
                return False
            failed = entries.failed
            entries.hand_over(entries.take(self._model, moment))
            if self._wait:
                entries.settle()
        self._budget.cost -= self._contents.bounded_seconds
        return entries.failed == failed

    def _say(self, state: str) -> None:
        """Write the status file; disk errors are ignored."""
        self._about = self._about or {
            "begun": datetime.now(UTC).isoformat(timespec="seconds"),
            "every": f"{self.cadence.amount:g}{self.cadence.unit}",
            "measurements": [m.name for m in self._contents.measurements],
            "notes": self._contents.notes(),
        }
        cost = {} if state == "running" else {"overhead": str(self.overhead)}
        with suppress(OSError):
            write_status(self.folder, state, {**self._about, **cost})
