"""A training run as a sequence of records: weights, predictions and metrics by step."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hyperribbon.core.boundary import (
    flag,
    mapping,
    number,
    path,
    text,
    translated,
    whole,
    zero_or_more,
)
from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.store.atomic import ensure_folder, file_digest
from hyperribbon.core.store.blocks import BlockLog
from hyperribbon.core.store.checkpoints import find_checkpoints
from hyperribbon.core.store.format1 import FirstFormat
from hyperribbon.core.store.frames import damaged
from hyperribbon.core.store.trajectory_files import (
    HEADER,
    Records,
    begin_records,
    clean,
    exclusively,
    migrate,
    open_records,
)
from hyperribbon.recording.records import (
    Draft,
    Record,
    arrays_of,
    as_record,
    rows_of,
    stored_content,
)

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from matplotlib.figure import Figure

__all__ = ["Trajectory"]

_MOST_COLUMNS = 50  # of a table, for one metric


class Trajectory:
    """Records of a run on disk, in order of their step.

    Weights are safetensors files; predictions and metrics lie in blocks of many records, each with
    its index and checksums. A record counts only when all of it is on disk, so a run killed at any
    moment leaves the records before that moment and nothing half-written. Damage is said, never
    read over; `hyperribbon check FOLDER` finds and mends it. Trajectories of format 1 are read as
    they are, and become format 2 with the first record that is added.

    Open with `Trajectory.open`, begin with `Trajectory.create`, or read a folder of checkpoints of
    any origin with `Trajectory.from_checkpoints`.
    """

    def __init__(self, folder: Path, records: list[Record], log: Records | None) -> None:
        self.folder = folder
        self._records = records
        self._log = log
        self._is_clean = False
        self._shapes: dict[str, tuple[int, ...]] = {}

    @classmethod
    @translated(folder=path, resume=flag)
    def create(cls, folder: str | Path, *, resume: bool = True) -> Trajectory:
        """Begin a trajectory in a folder, or go on with the one that is there.

        Args:
            folder: Where the files go; made if absent.
            resume: Go on with an existing trajectory; False raises if there is one.

        Returns:
            The trajectory, to append to.

        Raises:
            ArgumentError: There is one already, and `resume` is False.
        """
        folder = ensure_folder("folder", Path(folder))
        if (folder / HEADER).exists():
            if not resume:
                remedy = "Choose another folder or pass resume=True."
                raise ArgumentError("folder", str(folder), "it already holds a trajectory", remedy)
            return cls.open(folder)
        return cls(folder, [], begin_records(folder))

    @classmethod
    @translated(folder=path)
    def open(cls, folder: str | Path) -> Trajectory:
        """Open an existing trajectory.

        Returns:
            The trajectory, with every record read.

        Raises:
            ArgumentError: There is none, a record is missing or damaged, a file names another
                outside the folder, or a newer hyperribbon wrote it.
        """  # noqa: DOC501 - damaged() returns an ArgumentError
        folder = Path(folder)
        if not (folder / HEADER).is_file():
            remedy = "Give a Recorder's folder, or use Trajectory.from_checkpoints for checkpoints."
            raise ArgumentError("folder", str(folder), "it holds no trajectory", remedy)
        log = open_records(folder)
        records: list[Record] = []
        for index in range(len(log)):
            record = as_record(folder, index, log.content(index))
            if records and record.step <= records[-1].step:
                raise damaged(folder, f"record {index} is of an earlier step than the one before")
            records.append(record)
        return cls(folder, records, log)

    @classmethod
    @translated(folder=path)
    def from_checkpoints(cls, folder: str | Path) -> Trajectory:
        """Read a folder of checkpoints whose names carry the step, such as step-500.safetensors.

        Takes .safetensors, .pt, .pth, .ckpt and .bin files, as Lightning names them
        (epoch=1-step=500.ckpt), and folders such as the checkpoint-500 of transformers' Trainer,
        with the model in one file or in shards. The step is the number after "step" in a name, or
        else the last number in it; of two with the same step the later name counts.

        Returns:
            A trajectory to read; its weights are loaded when they are asked for.
        """
        found = find_checkpoints(Path(folder))
        records = [Record(i, step, None, found[step], False, ()) for i, step in enumerate(found)]
        return cls(Path(folder), records, None)

    def __len__(self) -> int:
        """Return the number of complete records."""
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        """Iterate over the records."""
        return iter(self._records)

    def __getitem__(self, index: int) -> Record:
        """Return one record; negative indices count from the end."""
        return self._records[index]

    @property
    def steps(self) -> np.ndarray:
        """Optimiser steps of the records, (T,)."""
        return np.array([record.step for record in self._records], dtype=np.int64)

    @property
    def epochs(self) -> np.ndarray:
        """Epochs of the records, (T,); NaN where unknown."""
        return np.array([np.nan if r.epoch is None else r.epoch for r in self._records])

    @translated(step=whole, epoch=zero_or_more, metrics=mapping)
    def append(
        self,
        step: int,
        *,
        epoch: float | None = None,
        weights: Mapping[str, torch.Tensor] | None = None,
        predictions: torch.Tensor | np.ndarray | None = None,
        metrics: Mapping[str, float | np.ndarray | torch.Tensor] | None = None,
        buffers: Collection[str] | None = None,
    ) -> Record:
        """Add a record; when this returns it is on disk and whole.

        Args:
            step: Optimiser steps taken; larger than the last record's.
            epoch: Passes over the data taken.
            weights: Named tensors, such as a state dict.
            predictions: One array, the same shape every time.
            metrics: Numbers or small arrays by name; a name keeps its shape.
            buffers: Which of the weights are no parameters, such as running statistics.

        Returns:
            The new record.
        """
        self.extend([Draft(step, epoch, weights, predictions, metrics, buffers)])
        return self._records[-1]

    def extend(self, drafts: Sequence[Draft]) -> None:
        """Add records with one sync for all but their weights; then they are on disk and whole.

        Args:
            drafts: What `append` takes of each, in order of their steps.
        """
        shapes = dict(self._shapes)
        try:
            last = self._records[-1].step if self._records else None
            before = [last, *(int(draft.step) for draft in drafts)][: len(drafts)]
            rows = [self._checked_rows(*pair) for pair in zip(drafts, before, strict=True)]
            with exclusively(self.folder):
                log = self._writable_log()
                pairs = zip(drafts, rows, strict=True)
                contents = [
                    (stored_content(self.folder, draft, row), arrays_of(row))
                    for draft, row in pairs
                ]
                try:
                    log.extend(contents)
                finally:  # what was added before an error counts
                    for index in range(len(self._records), len(log)):
                        self._records.append(as_record(self.folder, index, log.content(index)))
        except BaseException:
            self._shapes = shapes
            raise

    def _checked_rows(self, draft: Draft, last: int | None) -> dict[str, np.ndarray]:
        """Return the numbers of a record as arrays, if it can follow a step."""
        if last is not None and draft.step <= last:
            remedy = "Steps must grow; use truncate to go back."
            raise ArgumentError("step", draft.step, f"the last record is of step {last}", remedy)
        rows = rows_of(draft)
        for name, row in rows.items():
            self._check_shape(name, row)
        self._shapes |= {name: row.shape for name, row in rows.items()}
        return rows

    @translated(step=number)
    def truncate(self, step: int) -> None:
        """Forget the records after a step, to go on from there."""
        count = sum(record.step <= step for record in self._records)
        if count == len(self._records):
            return
        with exclusively(self.folder):
            self._writable_log().truncate(count)
            for record in self._records[count:]:
                if record.weights is not None:
                    record.weights.unlink(missing_ok=True)
            del self._records[count:]
        self._shapes = {}

    @translated()
    def weights(self, index: int) -> dict[str, torch.Tensor]:
        """Return the stored weights of a record."""
        from hyperribbon.core.states import load_state

        path = self._records[index].weights
        if path is None:
            reason = "this record has no weights"
            raise ArgumentError("index", index, reason, "Record with weights=True.")
        digest = self._log.content(self._records[index].index).get("digest") if self._log else None
        if digest is not None and path.is_file() and file_digest(path) != digest:
            raise damaged(self.folder, f"{path.relative_to(self.folder)} has a wrong checksum")
        return load_state(path)

    def weight_vector(self, index: int) -> torch.Tensor:
        """Return the floating-point weights of a record as one vector."""
        import torch

        state = self.weights(index)
        return torch.cat([t.reshape(-1) for t in state.values() if t.is_floating_point()])

    @translated()
    def predictions(self, index: int | slice = slice(None)) -> np.ndarray:
        """Return stored predictions: of one record, or (T, ...) of several."""
        rows = [r.index for r in np.atleast_1d(np.array(self._records, dtype=object)[index])]
        missing = [row for row in rows if not self._records[row].has_predictions]
        if missing or not rows:
            reason = f"records {missing[:5]} have no predictions"
            raise ArgumentError("index", index, reason, "Give the Recorder a probe set.")
        assert self._log is not None
        values = self._log.rows(rows, "predictions")
        return values[0] if isinstance(index, int) else values

    @translated(name=text)
    def metric(self, name: str) -> np.ndarray:
        """Return a metric over all records, (T,) or (T, ...); NaN where it was not measured."""
        present = [record.index for record in self._records if name in record.metrics]
        if not present:
            known = sorted(self.metric_names())
            reason = "no record has this metric"
            raise ArgumentError("name", name, reason, f"There are: {', '.join(known)}.")
        assert self._log is not None
        stored = self._log.rows(present, f"metrics/{name}")
        values = np.full((len(self), *stored.shape[1:]), np.nan)
        values[present] = stored
        return values

    def metrics(self) -> pd.DataFrame:
        """Return step, epoch and every metric as a table; NaN where one was not measured.

        A metric that is a row of numbers, such as eigenvalues, has a column for each of the first
        50: "hessian.eigenvalues.1", "hessian.eigenvalues.2", ….
        """
        import pandas as pd

        columns: dict[str, np.ndarray] = {"step": self.steps, "epoch": self.epochs}
        for name in self.metric_names():
            values = self.metric(name)
            if values.ndim == 1:
                columns[name] = values
            elif values.ndim == 2:
                columns |= {f"{name}.{i + 1}": c for i, c in enumerate(values.T[:_MOST_COLUMNS])}
        return pd.DataFrame(columns)

    def metric_names(self) -> list[str]:
        """Return the names of all metrics, in the order in which they came."""
        return list(dict.fromkeys(name for record in self._records for name in record.metrics))

    @translated(name=text)
    def plot(self, name: str = "loss") -> Figure:
        """Return a figure of a metric over training, with its limit where one was recorded.

        `trajectory.plot("sharpness")` draws the sharpness beside the largest curvature at which the
        optimiser's step is stable, 2/η without momentum, at every record: a rate that changes
        gives a limit that changes.
        """
        import hyperribbon  # figures are made above this room: by the public name

        return hyperribbon.plots.draw_metric(self, name)

    def _writable_log(self) -> BlockLog:
        """Return the records to change, of format 2 and free of what killed writers left."""
        if self._log is None:
            reason = "it is a folder of checkpoints, open for reading"
            remedy = "Begin a new one with Trajectory.create."
            raise ArgumentError("folder", str(self.folder), reason, remedy)
        if self._is_clean and isinstance(self._log, BlockLog):
            return self._log
        if isinstance(now := open_records(self.folder), FirstFormat):
            now = migrate(self.folder, now)
        if [now.content(i)["step"] for i in range(len(now))] != self.steps.tolist():
            reason = "another process has changed its records meanwhile"
            remedy = "Open it again; one process at a time may write."
            raise ArgumentError("folder", str(self.folder), reason, remedy)
        clean(self.folder, now)
        self._log, self._is_clean = now, True
        return now

    def _check_shape(self, name: str, row: np.ndarray) -> None:
        if name not in self._shapes:
            kept = name.removeprefix("metrics/")
            for record in reversed(self._records):
                if record.has_predictions if name == "predictions" else kept in record.metrics:
                    assert self._log is not None
                    self._shapes[name] = self._log.rows([record.index], name)[0].shape
                    break
        if self._shapes.get(name, row.shape) != row.shape:
            reason = f"earlier records have shape {self._shapes[name]}"
            remedy = "Keep the shape the same over a trajectory."
            raise ArgumentError(name.removeprefix("metrics/"), row, reason, remedy)
