"""Record a training run as it happens: weights, predictions and metrics."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from torch import nn

from hyperribbon.core import checks
from hyperribbon.core.checks import ArgumentError, as_number, validate
from hyperribbon.core.store import ensure_folder, git_commit
from hyperribbon.operators.risk.data import Data
from hyperribbon.recording.cadence import Cadence, Overhead, Position, TimeShare
from hyperribbon.recording.capture import Capture, Measure, Weights, describe_optimizer
from hyperribbon.recording.disk_space import Forecast, count_records, forecast_run
from hyperribbon.recording.loggers import LogTarget, ScalarLogger, make_logger
from hyperribbon.recording.records import Draft
from hyperribbon.recording.resume_state import (
    Stateful,
    find_state,
    load_parts,
    pack_parts,
    read_parts,
    save_state,
)
from hyperribbon.recording.status import LOCK, write_status
from hyperribbon.recording.trajectory import Trajectory
from hyperribbon.recording.writer import PendingRecord, RecordWriter

if TYPE_CHECKING:
    from lightning.pytorch import Callback
    from transformers import TrainerCallback


class RecordingWarning(UserWarning):
    """A record could not be made; training continues and earlier records are intact."""


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
        measure: What to measure at every record: "sharpness", "spectrum", "gradient", functions of
            the model (their names become metrics), `Measurement`s, or a list of these. Built-in
            measurements (given by name) need `loss` and `data`.
        probe: Inputs whose predictions are stored with every record: a tensor, a dict of keyword
            tensors, or any data, whose targets are ignored.
        predictions: "log_probabilities", "outputs", or a function of (model, probe). None: the
            outputs, but log-probabilities where the loss is a cross-entropy or the targets are
            labels, and of several outputs where neither loss nor data are known.
        weights: True for the whole state dict, False for none, a Mask for its entries (stored as
            one vector per parameter), `hr.recording.Projection(1000)` for a random projection, or
            names of parameters or modules: one, a pattern or a list.
        resume: True stores the state needed to resume (weights, optimiser, random states; only the
            last is kept), and goes on from one that is there. False does neither: a folder with
            records is refused unless `attach` gets the step. None: as True if all weights are
            recorded; else a warning at the start says that the run cannot be resumed.
        max_overhead: Largest ratio of recording to training time. Built-in measurements are skipped
            when they would exceed it, and if that is not enough, whole records are skipped. Both
            cause a warning and are counted in `overhead`. The first and the last record are always
            made. None: every record is made, and recording with built-in measurements stays within
            a tenth of the training time or a tenth of a second, whichever is more: they are made
            on fewer samples or skipped, from the first record on. math.inf: no limit.
        log: Where to log scalars as well: "tensorboard", "mlflow", "wandb", functions of (step,
            scalars), or several of these.
        loss: The loss, for measurements that need it; `hr.train` gives its own.
        data: The data, as `hr.Risk` takes them, for measurements that need them; likewise.
        wait: Whether `step` waits until its record is on disk.
        config: Settings of the run, numbers or text by name, for the explorer's table. Optimiser,
            learning rate and the git commit are added.

    Attributes:
        config: Likewise.
    """

    @validate(resume=checks.optional(checks.flag), config=checks.mapping)
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
        config: Mapping[str, float | str] | None = None,
    ) -> None:
        self.folder = ensure_folder("folder", Path(folder))
        self.cadence = Cadence.parse(every)
        self._budget = TimeShare(max_overhead)
        contents = measure, probe, predictions, weights
        self._capture = Capture(*contents, self._budget, self._warn)
        self._resume = resume
        self._keeps_state = weights is True if resume is None else resume
        self._loss, self._data, self._wait = loss, data, wait
        self.config = {checks.text("config", name): value for name, value in (config or {}).items()}
        for name, value in self.config.items():
            if not isinstance(value, int | float | str):
                reason, remedy = "expected a number or a str", "Convert it."
                raise ArgumentError(f"config[{name!r}]", value, reason, remedy)
        several = not isinstance(log, str) and not callable(log)
        self._targets: list[Any] = list(checks.iterable("log", log)) if several else [log]
        self._lock = FileLock(self.folder / LOCK)
        self._writer = RecordWriter(self.folder)
        self._loggers: list[ScalarLogger] = []
        self._model: nn.Module | None = None
        self._parts: dict[str, Stateful] = {}  # what a resumed run restores
        self._is_resumable, self._is_restored = True, False
        self._position: Position = (0, None)
        self._last: Position | None = None  # of the last record
        self._number = self._skipped = self._failed = 0  # of records
        self._failing: int | None = None  # step since which nothing could be recorded
        self._scalars: dict[str, Any] = {}
        self._about: dict[str, Any] = {}

    @validate(optimizer=checks.instance(Stateful, "Give a torch optimiser."), step=checks.whole)
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
                about = self._capture.begin(model, optimizer, loss, data)
                found = describe_optimizer(optimizer) | {"commit": git_commit()} | self.config
                about["config"] = {name: value for name, value in found.items() if value != ""}
                self._writer.start(about)
            own = {"model": model, "optimizer": optimizer} if optimizer else {"model": model}
            self._parts = own | parts
            return self._begin(model, step, count_records(self.cadence, total))
        except BaseException:
            self.release()
            raise

    def _begin(self, model: nn.Module, step: int | None, records: int | None) -> int:
        self._model, self._scalars, trajectory = model, {}, self._writer.trajectory
        self._capture.records = records
        self._is_resumable = step is None and self._keeps_state
        self._is_restored = step is not None  # by the caller, who resumes the run
        if step == 0 and len(trajectory):
            reason = f"it holds a run up to step {trajectory[-1].step}, but this run starts at 0"
            remedy = "Choose another folder, or resume that run."
            raise ArgumentError("folder", str(self.folder), reason, remedy)
        fresh = not len(trajectory) or (step is not None and trajectory[0].step > step)
        if self._capture.predictor is not None and not fresh:
            self._capture.predictor.resume(trajectory.about.get("predictions"))
        if not fresh and step is None:
            if self._resume is False:
                reason = (
                    f"it holds a run up to step {trajectory[-1].step}, and resume=False was given"
                )
                remedy = "Choose another folder, omit resume=False, or call attach(step=...)."
                raise ArgumentError("folder", str(self.folder), reason, remedy)
            step = self._writer.newest_state()
            self._restore_notes(load_parts(self.folder, f"step-{step}", self._parts))
        if len(trajectory):
            self._write_status("running")  # before its records change
        if step is not None:
            trajectory.truncate(step)
        epoch = None if fresh else trajectory[-1].epoch
        self._position = (step or 0, epoch)
        self._number = len(trajectory)
        self._last = None if fresh else (trajectory[-1].step, epoch)
        self._loggers = [make_logger(t, self.folder, step or 0) for t in self._targets]
        if fresh:
            self._position = (step or 0, None if step else 0.0)
            self._record_first(model, records)
        self._write_status("running")
        return self._position[0]

    def _record_first(self, model: nn.Module, records: int | None) -> None:
        """Let the recorder forecast disk space and make the first record; every failure raises."""
        if problem := self._find_problem(model):
            raise ArgumentError(
                "model", type(model).__name__, problem, "Start from finite weights."
            )
        initial = self._pack_initial(model)
        with self._budget.spending():
            record = self._take(model)
            forecast = forecast_run(self.folder, record, len(initial), self._parts, records)
            forecast.check()
            if forecast.is_large:
                self._warn(str(forecast))
            if self._is_resumable:
                save_state(self.folder, "initial", initial)
            self._queue(record)
            self._collect(strict=True)
        self._budget.cost -= self._capture.bounded_seconds

    def _pack_initial(self, model: nn.Module) -> bytes:
        """Return the initial state the recorder keeps; warn where a run cannot be resumed.

        Raises:
            ArgumentError: The state cannot be stored, and resume=True was given.
        """
        problem = "not all weights are recorded"
        if self._is_resumable:
            try:
                pack_parts(self._parts, self._notes())
                return pack_parts({"model": model})
            except ArgumentError as error:
                if self._resume:
                    raise
                problem = f"the state of {error.argument} cannot be stored ({error.reason})"
                self._is_resumable = False
        if self._resume is None and not self._is_restored:
            self._warn(
                f"this run cannot be resumed after an interruption, because {problem}. Pass "
                "resume=True to store the state that it needs, or resume=False if that is fine"
            )
        return b""

    @validate(loss=_scalar, epoch=checks.zero_or_more, metrics=checks.mapping, step=checks.whole)
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
        before = self._position
        self._position = (before[0] + 1 if step is None else int(step), epoch)
        if isinstance(loss, torch.Tensor):
            loss = loss.detach()
        self._scalars = {} if loss is None else {"loss": loss}
        self._scalars.update(metrics or {})
        if not self.cadence.passed(before, self._position):
            return False
        if not self._budget.allows():
            if not self._skipped:
                self._warn(
                    f"recording would take more than {self._budget.limit:.0%} of the training "
                    "time; from now on, fewer records are made"
                )
            self._skipped += 1
            return False
        return self._record()

    def flush(self) -> None:
        """Wait until every record of the recorder is on disk."""
        cost = self._budget.cost
        with self._budget.spending():
            self._collect()
        self._budget.cost = cost

    def finish(self) -> None:
        """Record the last step if it is not recorded yet, and wait until it is on disk."""
        self.flush()
        recorded = -1 if self.written is None else self.written
        if self._model is not None and recorded < self._position[0]:
            self._record(is_last=True)
            self.flush()

    def close(self) -> None:
        """Record the last step, wait until it is on disk, and release the folder."""
        running = self._model is not None
        self.finish()
        self._end("finished" if running else None)

    def release(self) -> None:
        """Let the recorder write what is pending and release the folder, without a last record."""
        try:
            self.flush()
        finally:
            self._end("stopped" if self._about else None)

    def _end(self, state: str | None) -> None:
        try:
            for logger in self._loggers:
                logger.close()
            self._writer.close()
            if state is not None:
                with suppress(OSError):
                    self._writer.trajectory.finish()
                self._write_status(state)
        finally:
            self._loggers, self._model, self._about = [], None, {}
            self._budget.stop()
            self._lock.release()

    def __enter__(self) -> Recorder:
        """Enter a block with the recorder."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the recorder; after an exception the last step is not recorded."""
        self.close() if kind is None else self.release()

    @property
    def trajectory(self) -> Trajectory:
        """The recorder's trajectory, with all records on disk."""
        self.flush()
        return self._writer.trajectory

    @property
    def written(self) -> int | None:
        """Last step up to which all of the recorder's records are on disk; None before the first.

        Records lost to a full disk are excluded; they are counted and cause a warning.
        """
        return self._writer.written

    @property
    def steps(self) -> int:
        """Optimiser steps that the recorder has counted."""
        return self._position[0]

    @property
    def overhead(self) -> Overhead:
        """The time overhead of the recorder so far."""
        spent, training = self._budget.spent, self._budget.training_seconds
        fraction = spent / training if training > 0 else 0.0
        counts = self._number, self._skipped, self._failed
        return Overhead(spent, training, fraction, *counts, dict(self._capture.left_out))

    def forecast(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        total: str | None = None,
    ) -> Forecast:
        """Return what disk space a recorder would need for a run; nothing is written.

        Args:
            model: The model to train.
            optimizer: Its optimiser.
            total: Length of the run in the unit of `every`, "30ep" or "5000it".
        """
        draft = Draft(
            0, weights=self._capture.weights(model), predictions=self._capture.predict(model)
        )
        initial = len(pack_parts({"model": model})) if self._keeps_state else 0
        record = PendingRecord(draft, bytes(initial) if self._keeps_state else None)
        parts = {} if optimizer is None else {"optimizer": optimizer}
        return forecast_run(self.folder, record, initial, parts, count_records(self.cadence, total))

    def initial_state(self) -> dict[str, torch.Tensor]:
        """Return the initial state dict that the recorder has stored."""
        path = find_state(self.folder, "initial")
        if path is None:
            reason = "the initial state was not stored"
            raise ArgumentError("folder", str(self.folder), reason, "Record with resume=True.")
        return read_parts(path)["parts"]["model"]

    @property
    def keeps_state(self) -> bool:
        """Whether the recorder keeps what resumes a killed run."""
        return self._is_resumable

    def lightning_callback(self) -> Callback:
        """Return a Lightning callback that records with this recorder."""
        from hyperribbon.recording.callbacks import lightning_callback

        return lightning_callback(self)

    def transformers_callback(self) -> TrainerCallback:
        """Return a transformers TrainerCallback that records with this recorder."""
        from hyperribbon.recording.callbacks import transformers_callback

        return transformers_callback(self)

    def _record(self, *, is_last: bool = False) -> bool:
        """Let the recorder make and queue a record; on failure, warn and continue."""
        assert self._model is not None
        with self._budget.spending():
            self._collect(wait=False)
            if problem := self._find_problem(self._model):
                self._collect()
                self._fail(problem)
                return False
            failed = self._failed
            self._queue(self._take(self._model, is_last=is_last))
            if self._wait:
                self._collect()
        self._budget.cost -= self._capture.bounded_seconds
        return self._failed == failed

    def _find_problem(self, model: nn.Module) -> str:
        """Return why a record that the recorder took would be invalid, or an empty string."""
        step, loss = self._position[0], as_number("loss", self._scalars.get("loss", 0.0))
        if not isfinite(loss):
            return f"the loss is {loss} at step {step}"
        if not all(_is_finite(p.detach()) for p in model.parameters()):
            return f"some weights are NaN or infinite at step {step}"
        return ""

    def _take(self, model: nn.Module, *, is_last: bool = False) -> PendingRecord:
        """Let the recorder capture a record in memory, with the state to resume from."""
        when = self._position, self._last, self._number
        draft = self._capture.take(model, self._scalars, *when, is_last=is_last)
        state = pack_parts(self._parts, self._notes()) if self._is_resumable else None
        return PendingRecord(draft, state)

    def _queue(self, record: PendingRecord) -> None:
        """Let the recorder queue a record for writing and log its scalars."""
        draft = record.draft
        self._writer.put(record)
        self._last = (draft.step, draft.epoch)
        self._number += 1
        for logger in self._loggers:
            logger(draft.step, draft.metrics or {})

    def _collect(self, *, wait: bool = True, strict: bool = False) -> None:
        """Process the recorder's write results; reraise errors other than disk errors."""
        for records, error in self._writer.results(wait=wait):
            steps = [record.draft.step for record in records]
            if error is None:
                if self._failing is not None and steps[-1] > self._failing:
                    self._failing = None
                continue
            if strict or not isinstance(error, OSError | SafetensorError):
                raise error
            lost = [step for step in steps if self.written is None or step > self.written]
            self._number -= len(lost)
            self._failed += len(lost) - 1
            self._fail(f"step {steps[0]} could not be written ({error})")
        self._budget.beside = max(self._budget.beside, self._writer.seconds)

    def _fail(self, reason: str) -> None:
        """Count a failed record of the recorder; warn if it is the first in a row."""
        self._failed += 1
        if self._failing is None:
            last = "none" if self.written is None else self.written
            self._warn(
                f"{reason}. Nothing is recorded until this is fixed; training continues, and all "
                f"records so far are intact (last step: {last})"
            )
            self._failing = self._position[0]

    def _warn(self, message: str) -> None:
        warnings.warn(f"{self.folder}: {message}.", RecordingWarning, stacklevel=4)

    def _notes(self) -> dict[str, Any]:
        """Return the recorder's counts and times that a resumed run restores."""
        return {
            "measurements": self._capture.state_dict(),
            "spent": self._budget.spent,
            "training": self._budget.training_seconds,
            "cost": self._budget.cost,
            "skipped": self._skipped,
            "failed": self._failed,
            "left_out": dict(self._capture.left_out),
        }

    def _restore_notes(self, notes: dict[str, Any]) -> None:
        self._capture.load_state_dict(notes["measurements"])
        self._capture.left_out = dict(notes.get("left_out", {}))
        self._skipped, self._failed = notes["skipped"], notes["failed"]
        self._budget.start(notes["spent"], notes["training"], notes["cost"])

    def _write_status(self, state: str) -> None:
        """Let the recorder write its status file; disk errors are ignored."""
        self._about = self._about or {
            "begun": datetime.now(UTC).isoformat(timespec="seconds"),
            "every": f"{self.cadence.amount:g}{self.cadence.unit}",
            "measurements": [m.name for m in self._capture.measurements],
        }
        self._about["notes"] = self._capture.notes()  # they may become known during the run
        cost = {} if state == "running" else {"overhead": str(self.overhead)}
        with suppress(OSError):
            write_status(self.folder, state, {**self._about, **cost})


def _is_finite(tensor: torch.Tensor) -> bool:
    """Return for the recorder whether all entries of a tensor are finite, in one pass."""
    if not tensor.numel() or tensor.is_complex():
        return bool(tensor.isfinite().all())
    return all(bool(end.isfinite()) for end in torch.aminmax(tensor))
