"""A run written down while it happens: weights, predictions and metrics, safe against kills."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from torch import nn

from hyperribbon.core.boundary import checked, instance, mapping, whole, zero_or_more
from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.mask import Mask
from hyperribbon.core.store import ensure_folder, make_folder, stored_path
from hyperribbon.core.trajectory import Trajectory
from hyperribbon.training.cadence import Budget, Cadence, Overhead
from hyperribbon.training.contents import Contents
from hyperribbon.training.evaluation import Probe
from hyperribbon.training.loggers import LogTarget, ScalarLogger, make_logger
from hyperribbon.training.measurements import Measurement, check_name
from hyperribbon.training.resuming import Stateful, load_parts, read_parts, save_parts

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

        recorder = hr.Recorder("run", every="1ep", probe=images, measure=[sharpness])
        start = recorder.attach(model, optimizer)      # 0, or the step of the last record
        for step in range(start, steps):
            ...                                        # one optimiser step
            recorder.step(loss, epoch=(step + 1) / steps_per_epoch)
        recorder.close()

    A loop goes on bit for bit if its minibatches follow from the step, as those of `hr.train` do.

    Args:
        folder: Where the trajectory goes; one folder a run.
        every: Interval between records, "1ep", "0.5ep" or "500it".
        measure: Functions of the model (their names become metrics) or `Measurement`s.
        probe: Inputs whose predictions are stored with every record: a tensor, or a dict of
            keyword tensors.
        predictions: "log_probabilities", "outputs", or a function of (model, probe).
        weights: True for the whole state dict, False for none, a Mask for its entries (stored as
            one vector a parameter), or parameter names: a pattern or a list.
        max_overhead: Largest ratio of recording to training time; moments are passed over to keep
            it, which is said in a warning and in `overhead`. The first and the last record are
            always made, and a record that suddenly takes more than twice as long as the one
            before can exceed the bound until training has caught up.
        log: Where scalars go besides: "tensorboard", "mlflow", "wandb", functions of (step,
            scalars), or several of these.
    """

    @checked()
    def __init__(
        self,
        folder: str | Path,
        every: str = "1ep",
        *,
        measure: Iterable[Callable[..., Any] | Measurement] = (),
        probe: Probe | None = None,
        predictions: str | Callable[[nn.Module, Probe], torch.Tensor] = "log_probabilities",
        weights: bool | Mask | str | Sequence[str] = True,
        max_overhead: float | None = None,
        log: LogTarget | Sequence[LogTarget] = (),
    ) -> None:
        self.folder = ensure_folder("folder", Path(folder))
        self.cadence = Cadence.parse(every)
        self._contents = Contents(measure, probe, predictions, weights)
        self._targets = [log] if isinstance(log, str) or callable(log) else list(log)
        self._loggers: list[ScalarLogger] = []
        self._budget = Budget(max_overhead)
        self._lock = FileLock(self.folder / ".lock")
        self._parts: dict[str, Stateful] = {}
        self._model: nn.Module | None = None
        self._resumable = True
        self._position: tuple[int, float | None] = (0, None)
        self._scalars: dict[str, Any] = {}
        self._skipped = self._failed = 0
        self._failing = False
        self.trajectory = Trajectory.create(self.folder)

    @checked(optimizer=instance(Stateful, "Give a torch optimiser."), step=whole)
    def attach(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        step: int | None = None,
        **parts: Stateful,
    ) -> int:
        """Begin, or put back the state of the last record and go on; return the steps taken.

        Args:
            model: The model that trains.
            optimizer: Its optimiser.
            step: Given when the caller has itself put a run back to this step; the recorder then
                drops later records and stores no state of its own.
            **parts: Whatever else has `state_dict` and `load_state_dict`, such as a scheduler.

        Raises:
            ArgumentError: The folder holds a run that does not fit, or another recorder uses it.
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
            return self._begin(model, optimizer, step, parts)
        except BaseException:
            self.release()
            raise

    def _begin(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        step: int | None,
        parts: dict[str, Stateful],
    ) -> int:
        self.trajectory = Trajectory.create(self.folder)
        self._model = model
        self._parts = {"model": model, **({"optimizer": optimizer} if optimizer else {}), **parts}
        self._resumable = step is None
        stored_path(self.folder, "state/initial.pt")  # old states are removed there, not elsewhere
        if step == 0 and len(self.trajectory):
            raise ArgumentError(
                "folder",
                str(self.folder),
                f"it holds a run up to step {self.trajectory[-1].step}, and this one begins at 0",
                "Choose another folder, or resume that run.",
            )
        if step is not None:
            self.trajectory.truncate(step)
        fresh = len(self.trajectory) == 0
        self._budget.start()
        if not fresh and step is None:
            step = self.trajectory[-1].step
            self._put_back(load_parts(self._state_path(step), self._parts))
        epoch = None if fresh else self.trajectory[-1].epoch
        self._position = (step or 0, epoch)
        self._loggers = [make_logger(t, self.folder, step or 0) for t in self._targets]
        if fresh:
            if self._resumable:
                make_folder(self._initial_path.parent)
                save_parts(self._initial_path, {"model": model})
            self._position = (step or 0, None if step else 0.0)
            self._write(strict=True)
        return self._position[0]

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
            Whether a record was made.
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
        return self._write()

    def finish(self) -> None:
        """Record the last step if it is not recorded yet."""
        recorded = self.trajectory[-1].step if len(self.trajectory) else -1
        if self._model is not None and recorded < self._position[0]:
            self._write()

    def close(self) -> None:
        """Record the last step and release the folder."""
        self.finish()
        self.release()

    def release(self) -> None:
        """Release the folder without recording anything more."""
        for logger in self._loggers:
            logger.close()
        self._loggers = []
        self._model = None
        self._budget.stop()
        self._lock.release()

    def __enter__(self) -> Recorder:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close; after an exception without recording the last step."""
        self.close() if kind is None else self.release()

    @property
    def steps(self) -> int:
        """Optimiser steps taken so far."""
        return self._position[0]

    @property
    def overhead(self) -> Overhead:
        """What recording has cost so far."""
        spent, training = self._budget.spent, self._budget.training_seconds
        fraction = spent / training if training > 0 else 0.0
        records = len(self.trajectory)
        return Overhead(spent, training, fraction, records, self._skipped, self._failed)

    def initial_state(self) -> dict[str, torch.Tensor]:
        """Return the model's state dict at the beginning of the run."""
        return read_parts(self._initial_path)["parts"]["model"]

    def lightning_callback(self) -> Callback:
        """Return a Lightning callback that records with this recorder."""
        from hyperribbon.training.callbacks import lightning_callback

        return lightning_callback(self)

    def transformers_callback(self) -> TrainerCallback:
        """Return a transformers TrainerCallback that records with this recorder."""
        from hyperribbon.training.callbacks import transformers_callback

        return transformers_callback(self)

    @property
    def _initial_path(self) -> Path:
        return self.folder / "state" / "initial.pt"

    def _state_path(self, step: int | str) -> Path:
        return self.folder / "state" / f"step-{step}.pt"

    def _write(self, *, strict: bool = False) -> bool:
        """Make a record; say so and go on if that is impossible (raise if strict)."""
        assert self._model is not None
        with self._budget.spending():
            step, epoch = self._position
            try:
                metrics = self._metrics(strict)
                if metrics is None:
                    return False
                predictions = self._contents.predict(self._model)
                if self._resumable:
                    save_parts(self._state_path(step), self._parts, self._notes())
                self.trajectory.append(
                    step,
                    epoch=epoch,
                    weights=self._contents.weights(self._model),
                    buffers=dict(self._model.named_buffers()),
                    predictions=predictions,
                    metrics=metrics,
                )
                self._drop_old_states(step)
            except (OSError, SafetensorError) as error:
                if strict:
                    raise
                self._fail(f"step {step} could not be written ({error})")
                return False
        self._failing = False
        for logger in self._loggers:
            logger(step, metrics)
        return True

    def _metrics(self, strict: bool) -> dict[str, Any] | None:
        assert self._model is not None
        step = self._position[0]
        metrics = {check_name("metrics", name): value for name, value in self._scalars.items()}
        if not isfinite(loss := float(metrics.get("loss", 0.0))):
            return self._fail(f"the loss is {loss} at step {step}")
        if not all(bool(p.isfinite().all()) for p in self._model.parameters()):
            return self._fail(f"some weights are NaN or infinite at step {step}")

        def on_failure(name: str, error: Exception) -> None:
            if strict:
                raise error
            self._warn(f"measurement {name!r} failed at step {step}: {error!r}")

        return metrics | self._contents.measure(self._model, len(self.trajectory), on_failure)

    def _notes(self) -> dict[str, Any]:
        return {
            "measurements": self._contents.state_dict(),
            "spent": self._budget.spent,
            "training": self._budget.training_seconds,
            "cost": self._budget.cost,
            "skipped": self._skipped,
            "failed": self._failed,
        }

    def _put_back(self, notes: dict[str, Any]) -> None:
        self._contents.load_state_dict(notes["measurements"])
        self._skipped, self._failed = notes["skipped"], notes["failed"]
        self._budget.start(notes["spent"], notes["training"], notes["cost"])

    def _drop_old_states(self, step: int) -> None:
        current = self._state_path(step)
        for path in current.parent.glob("step-*.pt"):
            if path != current:
                path.unlink()

    def _fail(self, reason: str) -> None:
        self._failed += 1
        if not self._failing:
            last = self.trajectory[-1].step if len(self.trajectory) else "none"
            self._warn(
                f"{reason}. Nothing is recorded until this is mended; training goes on, and all "
                f"records so far are whole (last step: {last})"
            )
        self._failing = True

    def _warn(self, message: str) -> None:
        warnings.warn(f"{self.folder}: {message}.", RecordingWarning, stacklevel=4)
