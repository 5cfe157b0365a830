"""One record of a trajectory: as it is given, and as plain values and arrays on disk."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hyperribbon.core.devices.tensors import host_array
from hyperribbon.core.store.atomic import file_digest, make_folder, stored_path
from hyperribbon.core.store.frames import damaged

if TYPE_CHECKING:
    import torch

__all__ = ["Draft", "Record", "arrays_of", "as_record", "rows_of", "stored_content"]


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
        buffers: Names among the weights that are a model's buffers; None where that is not known.
    """

    index: int
    step: int
    epoch: float | None
    weights: Path | None
    has_predictions: bool
    metrics: tuple[str, ...]
    buffers: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Draft:
    """A record to be added; the arguments of `Trajectory.append`."""

    step: int
    epoch: float | None = None
    weights: Mapping[str, torch.Tensor] | None = None
    predictions: torch.Tensor | np.ndarray | None = None
    metrics: Mapping[str, float | np.ndarray | torch.Tensor] | None = None
    buffers: Collection[str] | None = None


def rows_of(draft: Draft) -> dict[str, np.ndarray]:
    """Return the metrics and predictions of a record as arrays, by the names they are stored by."""
    metrics = draft.metrics or {}
    rows = {f"metrics/{name}": _as_row(value, float) for name, value in metrics.items()}
    if draft.predictions is not None:
        rows["predictions"] = _as_row(draft.predictions)
    return rows


def stored_content(folder: Path, draft: Draft, rows: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Store the weights of a record, and return its plain values."""
    file = digest = None
    if draft.weights is not None:
        file = f"weights/{int(draft.step):09d}.safetensors"
        path = stored_path(folder, file)
        make_folder(path.parent)
        from hyperribbon.core.states import save_state

        save_state(path, draft.weights)
        digest = file_digest(path)
    content = {
        "step": int(draft.step),
        "epoch": None if draft.epoch is None else float(draft.epoch),
        "weights": file,
        "digest": digest,
        "metrics": list(draft.metrics or {}),
    }
    if draft.buffers is not None and draft.weights is not None:
        known = set(draft.buffers)
        content["buffers"] = [name for name in draft.weights if name in known]
    single = {n: row for n, row in rows.items() if n != "predictions" and row.ndim == 0}
    numbers = {name.removeprefix("metrics/"): float(row) for name, row in single.items()}
    return {**content, "numbers": numbers}


def arrays_of(rows: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the rows that are no single numbers: those stand in the record's line."""
    return {name: row for name, row in rows.items() if name == "predictions" or row.ndim > 0}


def _as_row(value: Any, dtype: type | None = None) -> np.ndarray:
    return np.asarray(host_array(value), dtype=dtype)


def as_record(folder: Path, index: int, content: Mapping[str, Any]) -> Record:
    """Return a stored record, if all that it says can be."""
    try:
        weights, epoch = content["weights"], content["epoch"]
        record = Record(
            index,
            content["step"],
            epoch,
            None if weights is None else stored_path(folder, weights),
            content["predictions"],
            tuple(content["metrics"]),
            None if content.get("buffers") is None else tuple(map(str, content["buffers"])),
        )
    except (KeyError, TypeError) as error:
        raise damaged(folder, f"record {index} cannot be read ({error!r})") from None
    is_step = type(record.step) is int and abs(record.step) < 2**63
    are_names = isinstance(content["metrics"], list) and all(
        isinstance(name, str) for name in record.metrics
    )
    if not is_step or not are_names or not isinstance(epoch, float | int | None):
        raise damaged(folder, f"record {index} cannot be read")
    return record
