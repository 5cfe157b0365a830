"""A run written down while it happens: weights, predictions and metrics, safe against kills."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from torch import nn

from hyperribbon.core.boundary import checked, flag, instance, mapping, whole, zero_or_more
from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.store import ensure_folder
from hyperribbon.core.trajectory import Draft, Trajectory
from hyperribbon.training.cadence import Budget, Cadence, Overhead, Position
from hyperribbon.training.contents import Contents, Measure, Weights
from hyperribbon.training.evaluation import Probe
from hyperribbon.training.loggers import LogTarget, ScalarLogger, make_logger
from hyperribbon.training.recording.background import Outcome
from hyperribbon.training.recording.files import RunFiles, Taken
from hyperribbon.training.recording.forecast import Forecast, count_records, forecast_run
from hyperribbon.training.recording.status import LOCK
from hyperribbon.training.recording.taking import Moment, Taker, trouble_with
from hyperribbon.training.resuming import Stateful, load_parts, pack_parts, read_parts

if TYPE_CHECKING:
    from lightning.pytorch import Callback
    from transformers import TrainerCallback

__all__ = ["Recorder", "RecordingWarning"]


class RecordingWarning(UserWarning):
    """A moment was not recorded; training goes on and earlier records are whole."""


class Recorder:
    """Writes a training run into a folder as a `Trajectory`, from any loop.

    Recording changes nothing in the training: weights, buffers, gradients, modes and random states
    are the same with it and without. A run killed at any moment goes on from its last record:

        recorder = hr.Recorder("run", every="50it", measure="sharpness", loss=loss, data=data)
        start = recorder.attach(model, optimizer)      # 0, or the step of the last record
        for step in range(start, steps):
            ...                                        # one optimiser step
            recorder.step(loss_value, epoch=(step + 1) / steps_per_epoch)
        recorder.close()

    A loop goes on bit for bit if its minibatches follow from the step, as those of `hr.train` do.

    A record is taken when `step` returns True, and written beside the training, several with one
    sync where they have gathered. It is on disk and whole once `written` has reached its step, at
    the latest when `flush`, `finish` or `close` return; a kill costs what was not written by then,
    and the run goes on from before it. With `wait=True`, `step` returns when it is on disk.

    Args:
        folder: Where the trajectory goes; one folder a run.
        every: Interval between records, "1ep", "0.5ep" or "500it".
        measure: What to measure at every record: "sharpness", "spectrum", functions of the model
            (their names become metrics), `Measurement`s, or a list of these. Those with names of
            the package need `loss` and `data`.
        probe: Inputs whose predictions are stored with every record: a tensor, or a dict of
            keyword tensors.
        predictions: "log_probabilities", "outputs", or a function of (model, probe).
        weights: True for the whole state dict, False for none, a Mask for its entries (stored as
            one vector a parameter), `hr.training.Projection(1000)` for a random projection, or
            names of parameters or modules: one, a pattern or a list.
        resume: Whether to store what a killed run needs to go on (weights, optimiser, random
            states; the last one is kept). None: yes where all weights are recorded.
        max_overhead: Largest ratio of recording to training time. Measurements with names of the
            package are left out of records that would exceed it, and where that is not enough
            moments are passed over. Both are said in a warning and counted in `overhead`. The first
            and the last record are always made. None: every moment is recorded, and measurements
            with names of the package keep recording within a tenth of the training time, or two
            seconds where that is more. math.inf: no bound.
        log: Where scalars go besides: "tensorboard", "mlflow", "wandb", functions of (step,
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
        probe: Probe | None = None,
        predictions: str | Callable[[nn.Module, Probe], torch.Tensor] = "log_probabilities",
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
        self._targets = [log] if isinstance(log, str) or callable(log) else list(log)
        self._loggers: list[ScalarLogger] = []
        self._budget = Budget(max_overhead)
        self._lock = FileLock(self.folder / LOCK)
        self._parts: dict[str, Stateful] = {}
        self._model: nn.Module | None = None
        self._resumable = True
        self._position: Position = (0, None)
        self._taken: Position | None = None
        self._records = 0
        self._scalars: dict[str, Any] = {}
        self._skipped = self._failed = 0
        self._failing: int | None = None  # step since which nothing could be recorded
        self._about: dict[str, Any] = {}
        self._files = RunFiles(self.folder)
        self._taker = Taker(self._contents, self._budget, self._warn)

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
        """Begin, or put back the state of the last record and go on; return the steps taken.

        Args:
            model: The model that trains.
            optimizer: Its optimiser.
            step: Given when the caller has itself put a run back to this step; the recorder then
                drops later records and stores no state of its own.
            total: Length of the run in the unit of `every`, "30ep" or "5000it": the disk space is
                then forecast for all of it.
            loss: For measurements, where the recorder was given none.
            data: Likewise.
            **parts: Whatever else has `state_dict` and `load_state_dict`, such as a scheduler.

        Raises:
            ArgumentError: The folder holds a run that does not fit, another recorder uses it, or
                the disk has no room for the records.
        """
        try:
            self._lock.acquire(timeout=10)
        except Timeout:
            raise ArgumentError(
                "folder",
                str(self.folder),
                "another recorder writes there",
                "Choose another folder.",
            ) from None
        try:
            loss = self._loss if loss is None or self._loss is not None else loss
            data = self._data if data is None or self._data is not None else data
            self._budget.start()
            with self._budget.spending():
                self._contents.begin(model, optimizer, loss, data)
            return self._begin(model, optimizer, step, count_records(self.cadence, total), parts)
        except BaseException:
            self.release()
            raise

    def _begin(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        step: int | None,
        records: int | None,
        parts: dict[str, Stateful],
    ) -> int:
        self._files.start()
        self._model, trajectory = model, self._files.trajectory
        self._parts = {"model": model, **({"optimizer": optimizer} if optimizer else {}), **parts}
        self._resumable = step is None and self._keeps_state
        if step == 0 and len(trajectory):
            raise ArgumentError(
                "folder",
                str(self.folder),
                f"it holds a run up to step {trajectory[-1].step}, and this one begins at 0",
                "Choose another folder, or resume that run.",
            )
        if step is not None:
            trajectory.truncate(step)
        fresh = len(trajectory) == 0
        if not fresh and step is None:
            step = self._files.newest_state()
            self._put_back(load_parts(self._files.state_path(step), self._parts))
            trajectory.truncate(step)
        epoch = None if fresh else trajectory[-1].epoch
        self._position = (step or 0, epoch)
        self._records = len(trajectory)
        self._taken = None if fresh else (trajectory[-1].step, epoch)
        self._loggers = [make_logger(t, self.folder, step or 0) for t in self._targets]
        if fresh:
            self._position = (step or 0, None if step else 0.0)
            self._begin_records(model, records)
        self._say("running")
        return self._position[0]

    def _begin_records(self, model: nn.Module, records: int | None) -> None:
        """Forecast the disk space, and make the first record."""
        initial = pack_parts({"model": model}) if self._resumable else b""
        moment = Moment({}, self._position, None, 0, is_first=True)
        if trouble := trouble_with(model, moment):
            raise ArgumentError("model", type(model).__name__, trouble, "Begin with finite ones.")
        with self._budget.spending():
            taken = self._take(moment)
            forecast = forecast_run(self.folder, taken, len(initial), self._parts, records)
            forecast.check()
            if forecast.is_large:
                self._warn(str(forecast))
            if self._resumable:
                self._files.save_initial(initial)
            self._hand_over(taken)
            self._settle(strict=True)

    @checked(epoch=zero_or_more, metrics=mapping, step=whole)
    def step(
        self,
        loss: float | torch.Tensor | None = None,
        *,
        epoch: float | None = None,
        metrics: Mapping[str, Any] | None = None,
        step: int | None = None,
    ) -> bool:
        """Note that one optimiser step was taken; record if it is time.

        Args:
            loss: The minibatch's loss; stored as "loss".
            epoch: Passes over the data so far, such as 2.5; needed to record by epochs.
            metrics: More numbers or small arrays to store.
            step: Steps taken so far; counted when not given.

        Returns:
            Whether a record was taken; it is on disk once `written` has reached its step.
        """
        if self._model is None:
            raise ArgumentError(
                "model",
                None,
                "nothing is attached",
                "Call recorder.attach(model, optimizer) first.",
            )
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
                    "time; from here on it is done less often"
                )
            self._skipped += 1
            return False
        return self._record()

    def flush(self) -> None:
        """Wait until every record that was taken is on disk."""
        cost = self._budget.cost
        with self._budget.spending():
            self._settle()
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
        """Write the records that were taken, and release the folder without recording more."""
        try:
            self.flush()
        finally:
            self._end("stopped" if self._about else None)

    def _end(self, state: str | None) -> None:
        try:
            for logger in self._loggers:
                logger.close()
            self._files.close()
            if state is not None:
                self._say(state)
        finally:
            self._loggers, self._model, self._about = [], None, {}
            self._budget.stop()
            self._lock.release()

    def __enter__(self) -> Recorder:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close; after an exception without recording the last step."""
        self.close() if kind is None else self.release()

    @property
    def trajectory(self) -> Trajectory:
        """The records, all that were taken on disk."""
        self.flush()
        return self._files.trajectory

    @property
    def written(self) -> int | None:
        """Step up to which all records are on disk and whole; None before the first."""
        return self._files.written

    @property
    def steps(self) -> int:
        """Optimiser steps taken so far."""
        return self._position[0]

    @property
    def overhead(self) -> Overhead:
        """What recording has cost so far."""
        spent, training = self._budget.spent, self._budget.training_seconds
        fraction = spent / training if training > 0 else 0.0
        counts = self._records, self._skipped, self._failed
        return Overhead(spent, training, fraction, *counts, dict(self._contents.left_out))

    def forecast(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        total: str | None = None,
    ) -> Forecast:
        """Return the disk space that a run would take; nothing is written.

        Args:
            model: The model that is to train.
            optimizer: Its optimiser.
            total: Length of the run in the unit of `every`, "30ep" or "5000it".
        """
        draft = Draft(
            0, weights=self._contents.weights(model), predictions=self._contents.predict(model)
        )
        initial = len(pack_parts({"model": model})) if self._keeps_state else 0
        taken = Taken(draft, bytes(initial) if self._keeps_state else None)
        parts = {} if optimizer is None else {"optimizer": optimizer}
        records = count_records(self.cadence, total)
        return forecast_run(self.folder, taken, initial, parts, records)

    def initial_state(self) -> dict[str, torch.Tensor]:
        """Return the model's state dict at the beginning of the run."""
        return read_parts(self._files.initial_path)["parts"]["model"]

    @property
    def keeps_state(self) -> bool:
        """Whether a killed run can go on from its records."""
        return self._resumable

    def lightning_callback(self) -> Callback:
        """Return a Lightning callback that records with this recorder."""
        from hyperribbon.training.callbacks import lightning_callback

        return lightning_callback(self)

    def transformers_callback(self) -> TrainerCallback:
        """Return a transformers TrainerCallback that records with this recorder."""
        from hyperribbon.training.callbacks import transformers_callback

        return transformers_callback(self)

    def _record(self, *, is_first: bool = False, is_last: bool = False) -> bool:
        """Take a record and have it written; say so and go on if that is impossible."""
        assert self._model is not None
        moment = Moment(
            self._scalars, self._position, self._taken, self._records, is_first, is_last
        )
        with self._budget.spending():
            self._settle(wait=False)
            if trouble := trouble_with(self._model, moment):
                self._settle()
                self._fail(trouble)
                return False
            failed = self._failed
            self._hand_over(self._take(moment))
            if self._wait:
                self._settle()
        self._budget.cost -= self._contents.bounded_seconds
        return self._failed == failed

    def _take(self, moment: Moment) -> Taken:
        assert self._model is not None
        draft = self._taker.take(self._model, moment)
        return Taken(draft, pack_parts(self._parts, self._notes()) if self._resumable else None)

    def _hand_over(self, taken: Taken) -> None:
        self._files.put(taken)
        self._taken = (taken.draft.step, taken.draft.epoch)
        self._records += 1
        for logger in self._loggers:
            logger(taken.draft.step, taken.draft.metrics or {})

    def _settle(self, *, wait: bool = True, strict: bool = False) -> None:
        """Take note of what was written; raise what is no trouble of the disk."""
        for outcome in self._files.outcomes(wait=wait):
            self._note(outcome, strict)
        self._budget.beside = max(self._budget.beside, self._files.seconds)

    def _note(self, outcome: Outcome[Taken], strict: bool) -> None:
        error, steps = outcome.error, [taken.draft.step for taken in outcome.items]
        if error is None:
            if self._failing is not None and steps[-1] > self._failing:
                self._failing = None
            return
        if strict or not isinstance(error, OSError | SafetensorError):
            raise error
        lost = [step for step in steps if self.written is None or step > self.written]
        self._records -= len(lost)
        self._failed += len(lost) - 1
        self._fail(f"step {steps[0]} could not be written ({error})")

    def _say(self, state: str) -> None:
        """Write what the run is for who looks at its folder; a full disk is no reason to stop."""
        self._about = self._about or {
            "begun": datetime.now(UTC).isoformat(timespec="seconds"),
            "every": f"{self.cadence.amount:g}{self.cadence.unit}",
            "measurements": [m.name for m in self._contents.measurements],
            "notes": self._contents.notes(),
        }
        cost = {} if state == "running" else {"overhead": str(self.overhead)}
        self._files.say(state, {**self._about, **cost})

    def _notes(self) -> dict[str, Any]:
        return {
            "measurements": self._contents.state_dict(),
            "spent": self._budget.spent,
            "training": self._budget.training_seconds,
            "cost": self._budget.cost,
            "skipped": self._skipped,
            "failed": self._failed,
            "left_out": dict(self._contents.left_out),
        }

    def _put_back(self, notes: dict[str, Any]) -> None:
        self._contents.load_state_dict(notes["measurements"])
        self._contents.left_out = dict(notes.get("left_out", {}))
        self._skipped, self._failed = notes["skipped"], notes["failed"]
        self._budget.start(notes["spent"], notes["training"], notes["cost"])

    def _fail(self, reason: str) -> None:
        self._failed += 1
        if self._failing is None:
            last = "none" if self.written is None else self.written
            self._warn(
                f"{reason}. Nothing is recorded until this is mended; training goes on, and all "
                f"records so far are whole (last step: {last})"
            )
            self._failing = self._position[0]

    def _warn(self, message: str) -> None:
        warnings.warn(f"{self.folder}: {message}.", RecordingWarning, stacklevel=4)
