"""Files of a recording in progress: records, resume state, and status."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from hyperribbon.core.store import make_folder, stored_path, write_bytes
from hyperribbon.recording.records import Draft
from hyperribbon.recording.trajectory import Trajectory
from hyperribbon.recording.writing.background import Promise, Writer

__all__ = ["RunFiles", "Taken"]


@dataclass(frozen=True)
class Taken:
    """A captured record, to be written.

    Attributes:
        draft: The record.
        state: Serialized state to resume from; None without.
    """

    draft: Draft
    state: bytes | None

    @property
    def arrays_bytes(self) -> int:
        """Size of the record's arrays in bytes."""
        arrays = [*(self.draft.weights or {}).values(), *(self.draft.metrics or {}).values()]
        arrays += [] if self.draft.predictions is None else [self.draft.predictions]
        return sum(int(getattr(array, "nbytes", 8)) for array in arrays)


class RunFiles:
    """Writes a Recorder's files in the background.

    The state of a record is written before the record; older states are removed after it. Records
    written together share one state, that of the last.

    Args:
        folder: The folder of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trajectory = Trajectory.create(folder)
        self._writer: Writer[Taken] | None = None

    def start(self, about: dict[str, Any]) -> None:
        """Reread the folder and start writing records described by `about`."""
        self.trajectory = Trajectory.create(self.folder, about=about)
        stored_path(self.folder, "state/initial.pt")  # old states are removed there, not elsewhere
        self._writer = Writer(self._write)

    def put(self, taken: Taken) -> None:
        """Queue a record for writing."""
        assert self._writer is not None
        self._writer.put(taken, taken.arrays_bytes + len(taken.state or b""))

    def outcomes(self, *, wait: bool) -> list[Promise[Taken]]:
        """Return the results of writes since the last call, optionally after waiting for all."""
        if self._writer is None:
            return []
        if wait:
            self._writer.flush()
        return self._writer.outcomes()

    def close(self) -> None:
        """Write pending records and stop."""
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    @property
    def seconds(self) -> float:
        """CPU time of writing."""
        return 0.0 if self._writer is None else self._writer.seconds

    @property
    def written(self) -> int | None:
        """Last step up to which all records are safely on disk; None before the first.

        Records lost to a full disk are excluded; they are counted and cause a warning.
        """
        return self.trajectory[-1].step if len(self.trajectory) else None

    @property
    def initial_path(self) -> Path:
        """Path of the initial state."""
        return self.folder / "state" / "initial.pt"

    def state_path(self, step: int) -> Path:
        """Path of the state at a record."""
        return self.folder / "state" / f"step-{step}.pt"

    def save_initial(self, state: bytes) -> None:
        """Write the initial state."""
        make_folder(self.initial_path.parent)
        write_bytes(self.initial_path, state)

    def newest_state(self) -> int:
        """Return the step of the newest record that the run can resume from.

        A run killed while writing several may leave the last ones without a state.
        """
        steps = self.trajectory.steps.tolist()
        return next((s for s in reversed(steps) if self.state_path(s).is_file()), steps[-1])

    def _write(self, batch: list[Taken]) -> None:
        """Write records to disk in the writer thread: all, or the first ones that fit.

        If none were kept, a later and smaller batch could fit and would follow a gap.

        Raises:
            OSError: The disk is full; earlier records are on disk.
            SafetensorError: Likewise, raised by safetensors.
        """
        try:
            self._write_together(batch)
        except (OSError, SafetensorError):
            if len(batch) == 1:
                raise
            for taken in batch:
                if self.written is None or taken.draft.step > self.written:
                    self._write_together([taken])

    def _write_together(self, batch: list[Taken]) -> None:
        """Write records to disk with one state, that of the last."""
        last = batch[-1]
        if last.state is not None:
            write_bytes(self.state_path(last.draft.step), last.state)
        self.trajectory.extend([taken.draft for taken in batch])
        if last.state is not None:
            current = self.state_path(last.draft.step)
            for path in current.parent.glob("step-*.pt"):
                if path != current:
                    path.unlink()
