"""A training run as a sequence of records: weights, predictions and metrics by step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.states import INDEX_SUFFIX, load_state, save_state
from hyperribbon.core.store.atomic import ensure_folder, read_json, write_json

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Record", "Trajectory"]

_FORMAT = {"format": "hyperribbon trajectory", "version": 1}
_METRIC_CHUNK = 256
_CHECKPOINT_SUFFIXES = (".safetensors", ".pt", ".pth", ".ckpt", ".bin")
_MODEL_FILES = ("model.safetensors", f"model.safetensors{INDEX_SUFFIX}", "pytorch_model.bin")


@dataclass(frozen=True)
class Record:
    """One moment of a run.

    Attributes:
        index: Position in the trajectory.
        step: Optimiser steps taken.
        epoch: Passes over the data taken, or None when unknown.
        weights: File with the weights, or None.
        has_predictions: Whether predictions were stored.
        metrics: Names of the metrics stored.
    """

    index: int
    step: int
    epoch: float | None
    weights: Path | None
    has_predictions: bool
    metrics: tuple[str, ...]


class Trajectory:
    """Records of a run on disk, in order of their step.

    Weights are safetensors files, predictions and metrics zarr arrays with one row a record. A
    record counts only when its last file is in place, so a run killed at any moment leaves the
    records before that moment and nothing half-written.

    Open with `Trajectory.open`, begin with `Trajectory.create`, or read a folder of checkpoints of
    any origin with `Trajectory.from_checkpoints`.
    """

    def __init__(self, folder: Path, records: list[Record], *, writable: bool) -> None:
        self.folder = folder
        self._records = records
        self._writable = writable
        self._arrays: dict[str, Any] = {}

    @classmethod
    def create(cls, folder: str | Path, *, resume: bool = True) -> Trajectory:
        """Begin a trajectory in a folder, or go on with the one that is there.

        Args:
            folder: Where the files go; made if absent.
            resume: Go on with an existing trajectory; False raises if there is one.
        """
        folder = ensure_folder("folder", Path(folder))
        header = folder / "trajectory.json"
        if header.exists():
            if not resume:
                raise ArgumentError(
                    "folder",
                    str(folder),
                    "it already holds a trajectory",
                    "Choose another folder or pass resume=True.",
                )
            return cls.open(folder)
        for name in ("records", "weights"):
            (folder / name).mkdir(exist_ok=True)
        write_json(header, _FORMAT)
        return cls(folder, [], writable=True)

    @classmethod
    def open(cls, folder: str | Path) -> Trajectory:
        """Open an existing trajectory."""
        folder = Path(folder)
        if not (folder / "trajectory.json").is_file():
            raise ArgumentError(
                "folder",
                str(folder),
                "it holds no trajectory",
                "Give a Recorder's folder, or use Trajectory.from_checkpoints for checkpoints.",
            )
        records = []
        for index, path in enumerate(sorted((folder / "records").glob("*.json"))):
            content = read_json(path)
            weights = content["weights"]
            records.append(
                Record(
                    index,
                    content["step"],
                    content["epoch"],
                    None if weights is None else folder / weights,
                    content["has_predictions"],
                    tuple(content["metrics"]),
                )
            )
        return cls(folder, records, writable=True)

    @classmethod
    def from_checkpoints(cls, folder: str | Path) -> Trajectory:
        """Read a folder of checkpoints whose names carry the step, such as step-500.safetensors.

        Takes .safetensors, .pt, .pth, .ckpt and .bin files, as Lightning names them
        (epoch=1-step=500.ckpt), and folders such as the checkpoint-500 of transformers' Trainer,
        with the model in one file or in shards. The step is the number after "step" in a name, or
        else the last number in it; of two with the same step the later name counts.
        """
        folder = Path(folder)
        found: dict[int, Path] = {}
        for path in sorted(folder.iterdir()) if folder.is_dir() else []:
            numbers = re.findall(r"step\D?(\d+)", path.name) or re.findall(r"\d+", path.stem)
            if path.is_dir():
                inside = [path / name for name in _MODEL_FILES if (path / name).is_file()]
                path = inside[0] if inside else path
            is_model = path.suffix in _CHECKPOINT_SUFFIXES or path.name.endswith(INDEX_SUFFIX)
            if is_model and path.is_file() and numbers:
                found[int(numbers[-1])] = path
        if not found:
            raise ArgumentError(
                "folder",
                str(folder),
                "it holds no checkpoint whose name carries a step",
                "Name the files like step-500.safetensors or step-500.pt.",
            )
        records = [
            Record(i, step, None, path, False, ())
            for i, (step, path) in enumerate(sorted(found.items()))
        ]
        return cls(folder, records, writable=False)

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

    def append(
        self,
        step: int,
        *,
        epoch: float | None = None,
        weights: Mapping[str, torch.Tensor] | None = None,
        predictions: torch.Tensor | np.ndarray | None = None,
        metrics: Mapping[str, float | np.ndarray | torch.Tensor] | None = None,
    ) -> Record:
        """Add a record; when this returns it is on disk and whole.

        Args:
            step: Optimiser steps taken; larger than the last record's.
            epoch: Passes over the data taken.
            weights: Named tensors, such as a state dict.
            predictions: One array, the same shape every time.
            metrics: Numbers or small arrays by name; a name keeps its shape.
        """
        if not self._writable:
            raise ArgumentError(
                "folder",
                str(self.folder),
                "it is a folder of checkpoints, open for reading",
                "Begin a new one with Trajectory.create.",
            )
        if self._records and step <= self._records[-1].step:
            raise ArgumentError(
                "step",
                step,
                f"the last record is of step {self._records[-1].step}",
                "Steps must grow; use truncate to go back.",
            )
        index = len(self._records)
        name = f"{index:06d}"
        weights_file = None
        if weights is not None:
            weights_file = f"weights/{name}.safetensors"
            save_state(self.folder / weights_file, weights)
        if predictions is not None:
            self._write_row("predictions", index, predictions, chunk=1)
        for metric, value in (metrics or {}).items():
            self._write_row(f"metrics/{metric}", index, value, chunk=_METRIC_CHUNK)
        content = {
            "step": int(step),
            "epoch": None if epoch is None else float(epoch),
            "weights": weights_file,
            "has_predictions": predictions is not None,
            "metrics": list(metrics or {}),
        }
        write_json(self.folder / "records" / f"{name}.json", content)
        record = Record(
            index,
            content["step"],
            content["epoch"],
            None if weights_file is None else self.folder / weights_file,
            content["has_predictions"],
            tuple(content["metrics"]),
        )
        self._records.append(record)
        return record

    def truncate(self, step: int) -> None:
        """Forget the records after a step, to go on from there."""
        while self._records and self._records[-1].step > step:
            record = self._records.pop()
            (self.folder / "records" / f"{record.index:06d}.json").unlink()
            if record.weights is not None:
                record.weights.unlink()

    def weights(self, index: int) -> dict[str, torch.Tensor]:
        """Return the stored weights of a record."""
        path = self._records[index].weights
        if path is None:
            raise ArgumentError(
                "index", index, "this record has no weights", "Record with weights=True."
            )
        return load_state(path)

    def weight_vector(self, index: int) -> torch.Tensor:
        """Return the floating-point weights of a record as one vector."""
        state = self.weights(index)
        return torch.cat([t.reshape(-1) for t in state.values() if t.is_floating_point()])

    def predictions(self, index: int | slice = slice(None)) -> np.ndarray:
        """Return stored predictions: of one record, or (T, ...) of several."""
        rows = [r.index for r in np.atleast_1d(np.array(self._records, dtype=object)[index])]
        missing = [row for row in rows if not self._records[row].has_predictions]
        if missing or not rows:
            raise ArgumentError(
                "index",
                index,
                f"records {missing[:5]} have no predictions",
                "Give the Recorder a probe set.",
            )
        array = self._array("predictions")
        return array[rows[0]] if isinstance(index, int) else array.oindex[rows]

    def metric(self, name: str) -> np.ndarray:
        """Return a metric over all records, (T,) or (T, ...); NaN where it was not measured."""
        present = [name in record.metrics for record in self._records]
        if not any(present):
            known = sorted({metric for record in self._records for metric in record.metrics})
            raise ArgumentError(
                "name", name, "no record has this metric", f"There are: {', '.join(known)}."
            )
        stored = self._array(f"metrics/{name}")[: len(self)]
        values = np.full((len(self), *stored.shape[1:]), np.nan)
        values[: len(stored)] = stored
        values[~np.array(present)] = np.nan
        return values

    def metrics(self) -> pd.DataFrame:
        """Return step, epoch and every scalar metric as a table."""
        import pandas as pd

        names = dict.fromkeys(metric for record in self._records for metric in record.metrics)
        columns: dict[str, np.ndarray] = {"step": self.steps, "epoch": self.epochs}
        for name in names:
            values = self.metric(name)
            if values.ndim == 1:
                columns[name] = values
        return pd.DataFrame(columns)

    def _array(self, name: str) -> Any:
        import zarr

        if name not in self._arrays:
            self._arrays[name] = zarr.open_array(str(self.folder / f"{name}.zarr"), mode="r+")
        return self._arrays[name]

    def _write_row(self, name: str, index: int, value: Any, chunk: int) -> None:
        import zarr

        is_metric = name != "predictions"
        if isinstance(value, torch.Tensor):
            value = value.detach().cpu().numpy()
        row = np.asarray(value, dtype=np.float64 if is_metric else None)
        path = self.folder / f"{name}.zarr"
        if not (path / "zarr.json").exists():
            path.parent.mkdir(exist_ok=True)
            self._arrays[name] = zarr.create_array(
                str(path),
                shape=(index + 1, *row.shape),
                chunks=(chunk, *(max(size, 1) for size in row.shape)),
                dtype=row.dtype,
                fill_value=np.nan if np.issubdtype(row.dtype, np.floating) else 0,
            )
        array = self._array(name)
        if array.shape[1:] != row.shape:
            raise ArgumentError(
                name,
                row,
                f"earlier records have shape {array.shape[1:]}",
                "Keep the shape the same over a trajectory.",
            )
        if array.shape[0] < index + 1:
            # Grown in steps, so that the array's header is not rewritten for every record.
            array.resize((max(index + 1, 2 * array.shape[0]), *row.shape))
        array[index] = row
