"""The files of a run while it is recorded: records, the state to go on from, the run's status."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError

from hyperribbon.core.store import make_folder, stored_path, write_bytes
from hyperribbon.recording.records import Draft
from hyperribbon.recording.trajectory import Trajectory
from hyperribbon.recording.writing.background import Promise, Writer

__all__ = ["RunFiles", "Taken"]


@dataclass(frozen=True)
class Taken:
    """A moment of the run in memory, to be written.

    Attributes:
        draft: The record.
        state: What the run needs to go on from there, as its file has it; None without.
    """

    draft: Draft
    state: bytes | None

    @property
    def arrays_bytes(self) -> int:
        """Bytes of the record's arrays."""
        arrays = [*(self.draft.weights or {}).values(), *(self.draft.metrics or {}).values()]
        arrays += [] if self.draft.predictions is None else [self.draft.predictions]
        return sum(int(getattr(array, "nbytes", 8)) for array in arrays)


class RunFiles:
    """What a Recorder writes in its folder, beside the training.

    The state of a record is on disk before the record, and older states go after it. Records that
    are written together have one state, the last one's.

    Args:
        folder: The folder of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trajectory = Trajectory.create(folder)
        self._writer: Writer[Taken] | None = None

    def start(self) -> None:
        """Read the folder anew and begin to write."""
        self.trajectory = Trajectory.create(self.folder)
        stored_path(self.folder, "state/initial.pt")  # old states are removed there, not elsewhere
        self._writer = Writer(self._write)

    def put(self, taken: Taken) -> None:
        """Have a moment written."""
        assert self._writer is not None
        self._writer.put(taken, taken.arrays_bytes + len(taken.state or b""))

    def outcomes(self, *, wait: bool) -> list[Promise[Taken]]:
        """Return what became of moments since the last call, after waiting for all where asked."""
        if self._writer is None:
            return []
        if wait:
            self._writer.flush()
        return self._writer.outcomes()

    def close(self) -> None:
        """Write what is left, and end."""
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    @property
    def seconds(self) -> float:
        """Processor time of the writing."""
        return 0.0 if self._writer is None else self._writer.seconds

    @property
    def written(self) -> int | None:
        """Step up to which all records are on disk and whole; None before the first.

        Records that a full disk refused are not among them: they are warned of and counted.
        """
        return self.trajectory[-1].step if len(self.trajectory) else None

    @property
    def initial_path(self) -> Path:
        """The state in which the run began."""
        return self.folder / "state" / "initial.pt"

    def state_path(self, step: int) -> Path:
        """The state at a record."""
        return self.folder / "state" / f"step-{step}.pt"

    def save_initial(self, state: bytes) -> None:
        """Write the state in which the run begins."""
        make_folder(self.initial_path.parent)
        write_bytes(self.initial_path, state)

    def newest_state(self) -> int:
        """Return the step of the newest record that the run can go on from.

        A kill while several were written can leave the last ones without a state.
        """
        steps = self.trajectory.steps.tolist()
        return next((s for s in reversed(steps) if self.state_path(s).is_file()), steps[-1])

    def _write(self, batch: list[Taken]) -> None:
        """Put records on disk, in the thread of the writer: all of them, or the first that fit.

        Were none of them kept, fewer that come later could find room, and would follow a gap.

        Raises:
            OSError: A record found no room; those before it are on disk.
            SafetensorError: Likewise, where safetensors says so.
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
        """Put records on disk with one state, that of the last."""
        last = batch[-1]
        if last.state is not None:
            write_bytes(self.state_path(last.draft.step), last.state)
        self.trajectory.extend([taken.draft for taken in batch])
        if last.state is not None:
            current = self.state_path(last.draft.step)
            for path in current.parent.glob("step-*.pt"):
                if path != current:
                    path.unlink()
