"""Records of a trajectory, in memory and as stored on disk."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hyperribbon.core.checks import ArgumentError, is_tensor
from hyperribbon.core.devices.tensors import host_array
from hyperribbon.core.store.atomic import file_digest, make_folder, stored_path
from hyperribbon.core.store.record_log import damage_error

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from hyperribbon.core.parameters import ParameterFilter

_MOST_COLUMNS = 50  # of a table, for one metric


@dataclass(frozen=True)
class Record:
    """One record of a trajectory: step, epoch, weights, metrics.

    Attributes:
        index: Position in the trajectory.
        step: Optimiser steps taken.
        epoch: Epochs completed, or None if unknown.
        weights: File with the weights, or None.
        has_predictions: Whether predictions were stored.
        metrics: Names of the metrics stored.
        seconds: Training time so far, without that of recording, or None if unknown.
    """

    index: int
    step: int
    epoch: float | None
    weights: Path | None
    has_predictions: bool
    metrics: tuple[str, ...]
    seconds: float | None = None


@dataclass(frozen=True)
class Draft:
    """A record to be added; the arguments of `Trajectory.append`, and the training time."""

    step: int
    epoch: float | None = None
    weights: Mapping[str, torch.Tensor] | None = None
    predictions: torch.Tensor | np.ndarray | None = None
    metrics: Mapping[str, float | np.ndarray | torch.Tensor] | None = None
    seconds: float | None = None


def rows_of(draft: Draft) -> dict[str, np.ndarray]:
    """Return the metrics and predictions of records as arrays by stored name."""
    metrics = draft.metrics or {}
    rows = {f"metrics/{name}": _as_row(value, float) for name, value in metrics.items()}
    if draft.predictions is not None:
        rows["predictions"] = _as_row(draft.predictions)
    return rows


def stored_content(folder: Path, draft: Draft, rows: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Store the weights of a record and return its JSON values."""
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
        "seconds": draft.seconds,
        "weights": file,
        "digest": digest,
        "metrics": list(draft.metrics or {}),
    }
    single = {n: row for n, row in rows.items() if n != "predictions" and row.ndim == 0}
    numbers = {name.removeprefix("metrics/"): float(row) for name, row in single.items()}
    return {**content, "numbers": numbers}


def arrays_of(rows: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a record's non-scalar arrays; scalars are stored in its line."""
    return {name: row for name, row in rows.items() if name == "predictions" or row.ndim > 0}


def _as_row(value: Any, dtype: type | None = None) -> np.ndarray:
    return np.asarray(host_array(value), dtype=dtype)


def as_record(folder: Path, index: int, content: Mapping[str, Any]) -> Record:
    """Return a stored record of a trajectory, validated."""
    try:
        weights, epoch, seconds = content["weights"], content["epoch"], content.get("seconds")
        record = Record(
            index,
            content["step"],
            epoch,
            None if weights is None else stored_path(folder, weights),
            content["predictions"],
            tuple(content["metrics"]),
            seconds,
        )
    except (KeyError, TypeError) as error:
        raise damage_error(folder, f"record {index} cannot be read ({error!r})") from None
    is_step = type(record.step) is int and abs(record.step) < 2**63
    are_names = isinstance(content["metrics"], list) and all(
        isinstance(name, str) for name in record.metrics
    )
    are_times = all(isinstance(time, float | int | None) for time in (epoch, seconds))
    if not is_step or not are_names or not are_times:
        raise damage_error(folder, f"record {index} cannot be read")
    return record


def as_table(columns: dict[str, np.ndarray], metrics: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """Return columns and metrics of records as a table; a vector gets one column per entry."""
    import pandas as pd

    for name, values in metrics.items():
        if values.ndim == 1:
            columns[name] = values
        elif values.ndim == 2:
            columns |= {f"{name}.{i + 1}": c for i, c in enumerate(values.T[:_MOST_COLUMNS])}
    return pd.DataFrame(columns)


@dataclass(frozen=True)
class StoredWeights:
    """The stored entries of a record that are weights.

    Attributes:
        entries: Stored entries by name, as tensors without data.
        omitted: Those that are not weights, with the reason.
    """

    entries: Mapping[str, torch.Tensor]
    omitted: Mapping[str, str]

    @classmethod
    def of(
        cls,
        folder: Path,
        about: Mapping[str, Any],
        first: Mapping[str, torch.Tensor],
        last: Mapping[str, torch.Tensor],
    ) -> StoredWeights:
        """Return the weights of a recording: the named ones, or else those inferred.

        Args:
            folder: Where it is, for the warning.
            about: Its metadata.
            first: The first weights.
            last: The last ones.
        """
        from hyperribbon.core.parameters import omitted_of_state

        if "parameters" in about:
            reasons, names = about.get("omitted", {}), set(about["parameters"])
            omitted = {name: str(reasons.get(name, "")) for name in last if name not in names}
        else:
            omitted, buffers = omitted_of_state(last, first), about.get("buffers")
            omitted |= dict.fromkeys(buffers if isinstance(buffers, list) else (), "buffer")
            said = [f"{name} ({why})" for name, why in omitted.items() if "floating" not in why]
            if said:
                warnings.warn(
                    f"{folder}: the recording does not list its trainable parameters. Not counted "
                    f"as weights: {', '.join(said)}. Choose others with params=.",
                    stacklevel=5,
                )
        return cls({name: tensor.to("meta") for name, tensor in last.items()}, omitted)

    def choose(self, params: ParameterFilter) -> list[str]:
        """Return the names of the stored weights of a record that match a filter.

        Raises:
            ArgumentError: No weight matches.
        """
        from hyperribbon.core.parameters import choose_names, listing

        weights = {name: t for name, t in self.entries.items() if name not in self.omitted}
        chosen = choose_names(params, self.entries, weights)
        if not chosen:
            reason, remedy = "no recorded weight has that name", f"Available: {listing(weights)}."
            raise ArgumentError("params", params, reason, remedy)
        return chosen


def check_tensors(argument: str, value: Any) -> Mapping[str, torch.Tensor]:
    """Check by name the tensors that records hold."""
    if not isinstance(value, Mapping) or not all(map(is_tensor, value.values())):
        remedy = "Give model.state_dict()."
        raise ArgumentError(argument, value, "expected tensors by name", remedy)
    return value


def check_numbers(argument: str, value: Any) -> Any:
    """Check an array or tensor of real numbers in a record."""
    try:
        real = host_array(value).dtype.kind in "biuf"
    except ValueError:
        real = False
    if not real:
        raise ArgumentError(argument, value, "expected an array of numbers", "Give an array.")
    return value
