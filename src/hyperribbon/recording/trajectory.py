"""A recorded training run: weights, predictions and metrics by step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hyperribbon.core import checks
from hyperribbon.core.checks import ArgumentError, check_readable, validate
from hyperribbon.core.result import Result
from hyperribbon.core.store.atomic import ensure_folder, file_digest
from hyperribbon.core.store.record_log import RecordLog, damage_error
from hyperribbon.core.store.trajectory_files import (
    HEADER,
    begin_change,
    begin_records,
    finish_trajectory,
    lock_files,
    open_records,
    read_about,
    write_about,
)
from hyperribbon.recording.records import (
    Draft,
    Record,
    StoredWeights,
    arrays_of,
    as_record,
    as_table,
    check_numbers,
    check_tensors,
    rows_of,
    stored_content,
)

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from matplotlib.axes import Axes

    from hyperribbon.core.parameters import ParameterFilter

_CHECKPOINT_SUFFIXES = (".safetensors", ".pt", ".pth", ".ckpt", ".bin")
_MODEL_FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")


AUXILIARY = (".limit", ".error", ".samples", ".residual", ".products")
"""Endings of recorded metrics that are about another one and have no figure of their own."""


class Trajectory(Result):
    """A recorded training run on disk, ordered by step.

    Weights are stored as safetensors files; predictions and metrics in blocks of many records with
    checksums. A record counts only once it is completely on disk, so a run killed at any time keeps
    all earlier records and no partial one. Damage raises an error; `hyperribbon check FOLDER` finds
    and repairs it.

    Open one with `Trajectory.open`, create one with `Trajectory.create`, or read any folder of
    checkpoints with `Trajectory.from_checkpoints`.

    Attributes:
        about: Metadata written by a Recorder: names of the trainable "parameters" among the
            weights, why others are "omitted", and what "predictions" are.
    """

    def __init__(self, folder: Path, records: list[Record], log: RecordLog | None) -> None:
        self.folder = folder
        self.about: dict[str, Any] = {} if log is None else read_about(folder)
        self._entries: StoredWeights | None = None
        self._records = records
        self._log = log
        self._is_clean = False
        self._shapes: dict[str, tuple[int, ...]] = {}

    @classmethod
    @validate(folder=checks.path, about=checks.mapping)
    def create(
        cls, folder: str | Path, *, resume: bool = True, about: Mapping[str, Any] | None = None
    ) -> Trajectory:
        """Create a trajectory in a folder, or open the existing one for appending.

        Args:
            folder: Output folder; created if missing.
            resume: Append to an existing trajectory; False raises if there is one.
            about: Metadata; ignored for a trajectory that already has records.

        Returns:
            The trajectory, to append to.

        Raises:
            ArgumentError: A trajectory exists and `resume` is False.
        """
        folder = ensure_folder("folder", Path(folder))
        if not (folder / HEADER).exists():
            begin_records(folder)
        elif not resume:
            remedy = "Choose another folder or pass resume=True."
            raise ArgumentError("folder", str(folder), "it already contains a trajectory", remedy)
        found = cls.open(folder)
        if about and not len(found):
            with lock_files(folder):
                write_about(folder, dict(about))
            found.about = read_about(folder)
        return found

    @classmethod
    @validate(folder=checks.path)
    def open(cls, folder: str | Path) -> Trajectory:
        """Open a recorded trajectory from its folder.

        Returns:
            The trajectory, with every record read.

        Raises:
            ArgumentError: There is no trajectory, a record is missing or damaged, a file refers to
                a path outside the folder, or a newer version of hyperribbon wrote it.
        """  # noqa: DOC501 - damage_error() returns an ArgumentError
        folder = Path(folder)
        if not (folder / HEADER).is_file():
            remedy = "Give a Recorder's folder, or use Trajectory.from_checkpoints for checkpoints."
            raise ArgumentError("folder", str(folder), "it does not contain a trajectory", remedy)
        log = open_records(folder)
        records: list[Record] = []
        for index in range(len(log)):
            record = as_record(folder, index, log.content(index))
            if records and record.step <= records[-1].step:
                raise damage_error(
                    folder, f"record {index} has an earlier step than the one before"
                )
            records.append(record)
        return cls(folder, records, log)

    @classmethod
    @validate(folder=checks.path)
    def from_checkpoints(cls, folder: str | Path) -> Trajectory:
        """Read a trajectory from a folder of checkpoints named by step, step-500.safetensors.

        Takes .safetensors, .pt, .pth, .ckpt and .bin files, as Lightning names them
        (epoch=1-step=500.ckpt), and folders such as the checkpoint-500 of transformers' Trainer,
        with the model in one file or in shards. The step is the number after "step" in a name, or
        else the last number in it; if two have the same step, the later name is used.

        Returns:
            A read-only trajectory; weights are loaded on access.
        """
        found = _find_checkpoints(Path(folder))
        records = [Record(i, step, None, found[step], False, ()) for i, step in enumerate(found)]
        return cls(Path(folder), records, None)

    def __len__(self) -> int:
        """Return the number of complete records of the trajectory."""
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        """Iterate over the records of the trajectory."""
        return iter(self._records)

    def __getitem__(self, index: int) -> Record:
        """Return one record of the trajectory; negative indices count from the end."""
        return self._records[index]

    @property
    def steps(self) -> np.ndarray:
        """Optimiser steps of the trajectory's records, (T,)."""
        return np.array([record.step for record in self._records], dtype=np.int64)

    @property
    def epochs(self) -> np.ndarray:
        """Epochs of the trajectory's records, (T,); NaN where unknown."""
        return np.array([np.nan if r.epoch is None else r.epoch for r in self._records])

    @property
    def seconds(self) -> np.ndarray:
        """Training time at the trajectory's records, without recording, (T,); NaN where unknown."""
        return np.array([np.nan if r.seconds is None else r.seconds for r in self._records])

    @validate(
        step=checks.whole,
        epoch=checks.zero_or_more,
        weights=check_tensors,
        predictions=check_numbers,
        metrics=checks.mapping,
    )
    def append(
        self,
        step: int,
        *,
        epoch: float | None = None,
        weights: Mapping[str, torch.Tensor] | None = None,
        predictions: torch.Tensor | np.ndarray | None = None,
        metrics: Mapping[str, float | np.ndarray | torch.Tensor] | None = None,
    ) -> Record:
        """Append a record to the trajectory; when this returns, it is safely on disk.

        Args:
            step: Optimiser steps taken; larger than the last record's.
            epoch: Epochs completed.
            weights: Named tensors, such as a state dict.
            predictions: One array, the same shape every time.
            metrics: Numbers or small arrays by name; a name keeps its shape.

        Returns:
            The new record.
        """
        self.extend([Draft(step, epoch, weights, predictions, metrics)])
        return self._records[-1]

    def extend(self, drafts: Sequence[Draft]) -> None:
        """Append several records to a trajectory with a single sync.

        Args:
            drafts: Arguments of `append` for each record, ordered by step.
        """
        shapes = dict(self._shapes)
        try:
            last = self._records[-1].step if self._records else None
            before = [last, *(int(draft.step) for draft in drafts)][: len(drafts)]
            rows = [self._check_rows(*pair) for pair in zip(drafts, before, strict=True)]
            with lock_files(self.folder):
                log = self._writable_log()
                pairs = zip(drafts, rows, strict=True)
                contents = [
                    (stored_content(self.folder, draft, row), arrays_of(row))
                    for draft, row in pairs
                ]
                try:
                    log.extend(contents)
                finally:  # records appended before an error count
                    for index in range(len(self._records), len(log)):
                        self._records.append(as_record(self.folder, index, log.content(index)))
        except BaseException:
            self._shapes = shapes
            raise

    def _check_rows(self, draft: Draft, last: int | None) -> dict[str, np.ndarray]:
        """Return values as arrays after checking that the trajectory's step increases."""
        if last is not None and draft.step <= last:
            remedy = "Steps must increase; use truncate to go back."
            raise ArgumentError("step", draft.step, f"the last record has step {last}", remedy)
        for what in ("weights", "metrics"):
            for name, entry in (getattr(draft, what) or {}).items():
                check_readable(f"{what}[{checks.text(what, name)!r}]", entry)
        rows = rows_of(draft)
        for name, row in rows.items():
            self._check_shape(name, row)
        self._shapes |= {name: row.shape for name, row in rows.items()}
        return rows

    @validate(step=checks.number)
    def truncate(self, step: int) -> None:
        """Delete a trajectory's records after a step, to resume from there."""
        count = sum(record.step <= step for record in self._records)
        if count == len(self._records):
            return
        with lock_files(self.folder):
            self._writable_log().truncate(count)
            for record in self._records[count:]:
                if record.weights is not None:
                    record.weights.unlink(missing_ok=True)
            del self._records[count:]
        self._shapes = {}

    def finish(self, about: Mapping[str, Any] | None = None) -> None:
        """Write the trajectory's manifest, by which `hyperribbon check` verifies every byte.

        Appending to the trajectory removes it; finish again afterwards.

        Args:
            about: Metadata to add.
        """
        with lock_files(self.folder):
            log = self._writable_log()
            if about:
                self.about |= about
                write_about(self.folder, self.about)
            finish_trajectory(self.folder, log)
            self._is_clean = False

    @validate()
    def weights(self, index: int) -> dict[str, torch.Tensor]:
        """Return the weights of a trajectory's record."""
        from hyperribbon.core.states import load_state

        index = self._check_index(index)
        path = self._records[index].weights
        if path is None:
            reason = "this record has no weights"
            raise ArgumentError("index", index, reason, "Record with weights=True.")
        digest = self._log.content(self._records[index].index).get("digest") if self._log else None
        if digest is not None and path.is_file() and file_digest(path) != digest:
            raise damage_error(self.folder, f"{path.relative_to(self.folder)} has a wrong checksum")
        return load_state(path)

    @validate()
    def weight_vector(self, index: int, params: ParameterFilter = None) -> torch.Tensor:
        """Return a trajectory's weights at a record as one flat vector."""
        import torch

        state = self.weights(index)
        return torch.cat([state[name].reshape(-1) for name in self.weight_names(params)])

    @validate()
    def weight_names(self, params: ParameterFilter = None) -> list[str]:
        """Return the names of a trajectory's entries that are weights, in order.

        These are the trainable parameters of the recorded model, tied ones counted once, as in the
        operators. If the recording does not list them (older recordings, checkpoints of other
        programs), entries that look like buffers or copies are omitted with a warning.

        Args:
            params: A name, a pattern, or a predicate on (name, tensor), which choose among these;
                or a list of names, which may be of any entry, frozen parameters included.
        """
        if self._entries is None:
            there = [record.index for record in self._records if record.weights is not None] or [0]
            content = self._log.content(there[-1]) if self._log else {}
            first, last = self.weights(there[0]), self.weights(there[-1])
            self._entries = StoredWeights.of(self.folder, {**content, **self.about}, first, last)
        return self._entries.choose(params)

    @property
    def has_probabilities(self) -> bool:
        """Whether a trajectory's predictions are class probabilities or other outputs."""
        return self.about.get("predictions") != "outputs"

    @validate(allow_nan=True)
    def predictions(self, index: int | slice = slice(None)) -> np.ndarray:
        """Return the trajectory's predictions of one record, or (T, ...) of several."""
        if not isinstance(index, slice):
            index = self._check_index(index)
        rows = [r.index for r in np.atleast_1d(np.array(self._records, dtype=object)[index])]
        missing = [row for row in rows if not self._records[row].has_predictions]
        if missing or not rows:
            reason = f"records {missing[:5]} have no predictions"
            raise ArgumentError("index", index, reason, "Give the Recorder a probe set.")
        assert self._log is not None
        values = self._log.rows(rows, "predictions")
        return values[0] if isinstance(index, int) else values

    @validate(allow_nan=True, name=checks.text)
    def metric(self, name: str) -> np.ndarray:
        """Return a metric along the trajectory, (T,) or (T, ...); NaN where not measured."""
        present = [record.index for record in self._records if name in record.metrics]
        if not present:
            known = sorted(self.metric_names())
            reason = "no record has this metric"
            raise ArgumentError("name", name, reason, f"Available: {', '.join(known)}.")
        assert self._log is not None
        stored = self._log.rows(present, f"metrics/{name}")
        values = np.full((len(self), *stored.shape[1:]), np.nan)
        values[present] = stored
        return values

    def metrics(self) -> pd.DataFrame:
        """Return step, epoch and every metric of the trajectory as a table; NaN where missing.

        A vector-valued metric, such as eigenvalues, has one column for each of its first 50
        entries: "hessian.eigenvalues.1", "hessian.eigenvalues.2", ….
        """
        metrics = {name: self.metric(name) for name in self.metric_names()}
        return as_table({"step": self.steps, "epoch": self.epochs}, metrics)

    def metric_names(self) -> list[str]:
        """Return the names of a trajectory's metrics, in order of first appearance."""
        return list(dict.fromkeys(name for record in self._records for name in record.metrics))

    def to_frame(self) -> pd.DataFrame:
        """Return the trajectory as `metrics` does, one row per record."""
        return self.metrics()

    @validate(name=checks.text)
    def plot(self, name: str | None = None, ax: Axes | None = None) -> Axes:  # type: ignore[override]
        """Draw a metric along the trajectory, with its limit if recorded; return the axes.

        `trajectory.plot("sharpness")` draws the sharpness and the largest curvature at which the
        optimiser's step is stable (2/η without momentum), for the learning rate at each record.

        Args:
            name: The metric; the loss by default, or the first one recorded.
            ax: Axes to draw into; None for those of a new figure.

        Returns:
            The axes.
        """
        import hyperribbon  # plots is a higher layer, reached by its public name

        names = self.metric_names()
        chosen = name or ("loss" if "loss" in names or not names else names[0])
        return hyperribbon.plots.draw_metric(self, chosen, ax)

    def _headline(self) -> str:
        if not len(self):
            return f"{self.folder}: no records"
        steps = f"steps {self.steps[0]} to {self.steps[-1]}"
        names = self.metric_names()
        some = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
        return f"{self.folder}: {len(self)} records, {steps}; metrics {some or 'none'}"

    def _check_index(self, index: int) -> int:
        whole = isinstance(index, int | np.integer)
        if not whole or not -len(self) <= index < len(self):
            reason = f"the trajectory has {len(self)} records"
            raise ArgumentError("index", index, reason, "Give the index of one of them.")
        return int(index)

    def _writable_log(self) -> RecordLog:
        """Return a trajectory's record log for writing, without leftovers of killed writers."""
        if self._log is None:
            reason = "a folder of checkpoints is read-only"
            remedy = "Create a trajectory with Trajectory.create."
            raise ArgumentError("folder", str(self.folder), reason, remedy)
        if self._is_clean:
            return self._log
        now = open_records(self.folder)
        if [now.content(i)["step"] for i in range(len(now))] != self.steps.tolist():
            reason = "another process has changed its records meanwhile"
            remedy = "Open it again; one process at a time may write."
            raise ArgumentError("folder", str(self.folder), reason, remedy)
        begin_change(self.folder, now)
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
            remedy = "Use the same shape throughout a trajectory."
            raise ArgumentError(name.removeprefix("metrics/"), row, reason, remedy)


def _find_checkpoints(folder: Path) -> dict[int, Path]:
    """Return the checkpoint of every step of a trajectory, in order.

    The step is the number after "step" in a name, or else the last number in it; if two have the
    same step, the later name is used.

    Raises:
        ArgumentError: There is none.
    """
    found: dict[int, Path] = {}
    for file in sorted(folder.iterdir()) if folder.is_dir() else []:
        numbers = re.findall(r"step\D?(\d+)", file.name) or re.findall(r"\d+", file.stem)
        if file.is_dir():
            inside = [file / name for name in _MODEL_FILES if (file / name).is_file()]
            file = inside[0] if inside else file
        is_model = file.suffix in _CHECKPOINT_SUFFIXES or file.name.endswith(".index.json")
        if is_model and file.is_file() and numbers:
            found[int(numbers[-1])] = file
    if not found:
        reason = "it contains no checkpoint with a step in its name"
        remedy = "Name the files like step-500.safetensors or step-500.pt."
        raise ArgumentError("folder", str(folder), reason, remedy)
    return dict(sorted(found.items()))
