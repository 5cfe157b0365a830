"""Records on their way to disk: capture, writing, and failures."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import nn

from hyperribbon.core.checks import ArgumentError
from hyperribbon.recording.cadence import Overhead, Position, TimeShare
from hyperribbon.recording.contents import Contents
from hyperribbon.recording.loggers import ScalarLogger
from hyperribbon.recording.resuming import Stateful, pack_parts
from hyperribbon.recording.taking import Moment, Taker, trouble_with
from hyperribbon.recording.writing.background import Promise
from hyperribbon.recording.writing.files import RunFiles, Taken
from hyperribbon.recording.writing.forecast import forecast_run

__all__ = ["Entries", "RecordingWarning"]


class RecordingWarning(UserWarning):
    """A record could not be made; training continues and earlier records are intact."""


class Entries:
    """The records of a run, from model to disk, with failure counts.

    Args:
        folder: The folder of the run.
        contents: What a record holds.
        budget: The time budget of recording.

    Attributes:
        files: The run's files.
        loggers: Where scalars are logged.
        parts: Objects whose state a resumed run restores, by name.
        is_resumable: Whether that state is stored with every record.
        position: Step and epoch that the run has reached.
        taken: Step and epoch of the last record.
        number: Records made.
        skipped: Records skipped to stay within the time limit.
        failed: Records that failed.
    """

    def __init__(self, folder: Path, contents: Contents, budget: TimeShare) -> None:
        self.files = RunFiles(folder)
        self.loggers: list[ScalarLogger] = []
        self.parts: dict[str, Stateful] = {}
        self.is_resumable = True
        self.position: Position = (0, None)
        self.taken: Position | None = None
        self.number = self.skipped = self.failed = 0
        self._contents, self._budget = contents, budget
        self._taker = Taker(contents, budget, self.warn)
        self._failing: int | None = None  # step since which nothing could be recorded

    def begin(self, model: nn.Module, records: int | None) -> None:
        """Forecast the disk space and make the first record."""
        initial = pack_parts({"model": model}) if self.is_resumable else b""
        moment = Moment({}, self.position, None, 0, is_first=True)
        if trouble := trouble_with(model, moment):
            raise ArgumentError("model", type(model).__name__, trouble, "Begin with finite ones.")
        with self._budget.spending():
            taken = self.take(model, moment)
            forecast = forecast_run(self.files.folder, taken, len(initial), self.parts, records)
            forecast.check()
            if forecast.is_large:
                self.warn(str(forecast))
            if self.is_resumable:
                self.files.save_initial(initial)
            self.hand_over(taken)
            self.settle(strict=True)

    def take(self, model: nn.Module, moment: Moment) -> Taken:
        """Capture a record in memory."""
        draft = self._taker.take(model, moment)
        return Taken(draft, pack_parts(self.parts, self._notes()) if self.is_resumable else None)

    def hand_over(self, taken: Taken) -> None:
        """Queue a record for writing and log its scalars."""
        self.files.put(taken)
        self.taken = (taken.draft.step, taken.draft.epoch)
        self.number += 1
        for logger in self.loggers:
            logger(taken.draft.step, taken.draft.metrics or {})

    def settle(self, *, wait: bool = True, strict: bool = False) -> None:
        """Process write results; reraise errors other than disk errors."""
        for outcome in self.files.outcomes(wait=wait):
            self._note(outcome, strict)
        self._budget.beside = max(self._budget.beside, self.files.seconds)

    def fail(self, reason: str) -> None:
        """Count a failed record and warn if it is the first in a row."""
        self.failed += 1
        if self._failing is None:
            last = "none" if self.files.written is None else self.files.written
            self.warn(
                f"{reason}. Nothing is recorded until this is fixed; training continues, and all "
                f"records so far are intact (last step: {last})"
            )
            self._failing = self.position[0]

    def warn(self, message: str) -> None:
        """Issue a RecordingWarning."""
        warnings.warn(f"{self.files.folder}: {message}.", RecordingWarning, stacklevel=4)

    def overhead(self) -> Overhead:
        """Return the time cost of recording so far."""
        spent, training = self._budget.spent, self._budget.training_seconds
        fraction = spent / training if training > 0 else 0.0
        counts = self.number, self.skipped, self.failed
        return Overhead(spent, training, fraction, *counts, dict(self._contents.left_out))

    def put_back(self, notes: dict[str, Any]) -> None:
        """Restore the counts and times of an earlier session."""
        self._contents.load_state_dict(notes["measurements"])
        self._contents.left_out = dict(notes.get("left_out", {}))
        self.skipped, self.failed = notes["skipped"], notes["failed"]
        self._budget.start(notes["spent"], notes["training"], notes["cost"])

    def _notes(self) -> dict[str, Any]:
        return {
            "measurements": self._contents.state_dict(),
            "spent": self._budget.spent,
            "training": self._budget.training_seconds,
            "cost": self._budget.cost,
            "skipped": self.skipped,
            "failed": self.failed,
            "left_out": dict(self._contents.left_out),
        }

    def _note(self, outcome: Promise[Taken], strict: bool) -> None:
        error, steps = outcome.error, [taken.draft.step for taken in outcome.items]
        if error is None:
            if self._failing is not None and steps[-1] > self._failing:
                self._failing = None
            return
        if strict or not isinstance(error, OSError | SafetensorError):
            raise error
        written = self.files.written
        lost = [step for step in steps if written is None or step > written]
        self.number -= len(lost)
        self.failed += len(lost) - 1
        self.fail(f"step {steps[0]} could not be written ({error})")
