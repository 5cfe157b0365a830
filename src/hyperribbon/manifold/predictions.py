"""Blockwise access to predictions in an array, a zarr store or a trajectory."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from hyperribbon.core.checks import ArgumentError, check_array, check_readable, is_tensor
from hyperribbon.core.devices.tensors import host_array
from hyperribbon.recording.trajectory import Trajectory


def as_probabilities(predictions: np.ndarray) -> np.ndarray:
    """Return predictions (…, classes) as probabilities, from probabilities, logs or logits.

    >>> as_probabilities(np.log([[0.25, 0.75]]))
    array([[0.25, 0.75]])
    """
    predictions = np.asarray(predictions, dtype=np.float64)
    if (predictions >= 0).all() and np.allclose(predictions.sum(-1), 1, atol=1e-3):
        return predictions / predictions.sum(-1, keepdims=True)
    shifted = np.exp(predictions - predictions.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def open_models(X: Any) -> Any:
    """Return models' predictions opened as a lazy array with `.shape` and slicing.

    Args:
        X: An array, a tensor, a zarr array (or anything else with `.shape` that is sliced into
            arrays), the path of a zarr array, or a `Trajectory` with predictions.

    Raises:
        ArgumentError: The file does not exist or is not a zarr array, or a trajectory's predictions
            are not class probabilities.
    """
    check_readable("X", X)
    if 0 in tuple(getattr(X, "shape", ())):
        raise ArgumentError("X", X, "it is empty", "Give at least one model.")
    if is_tensor(X):
        return host_array(X)
    if isinstance(X, Trajectory):
        if not X.has_probabilities:
            reason = "its predictions are the outputs of a regression, not probabilities"
            remedy = "Use hr.PCA on trajectory.predictions()."
            raise ArgumentError("X", str(X.folder), reason, remedy)
        return _Recorded(X)
    if isinstance(X, str | Path):
        import zarr

        if not Path(X).exists():
            raise ArgumentError("X", str(X), "the file does not exist", "Give a zarr array's path.")
        try:
            return zarr.open_array(str(X), mode="r")
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = f"not a zarr array ({error})"
            raise ArgumentError("X", str(X), reason, "Give a zarr array's path.") from None
    if hasattr(X, "shape") and not isinstance(X, np.ndarray | np.generic):
        return X
    if isinstance(X, np.ndarray) and X.dtype.kind not in "biuf":
        raise ArgumentError("X", X, "expected real numbers", "Give numbers.")
    return X if isinstance(X, np.ndarray) else check_array("X", X)


def take_models(models: Any, chosen: np.ndarray) -> np.ndarray:
    """Return selected models' predictions from an array that may be on disk."""
    if isinstance(models, np.ndarray):
        return models[chosen]
    if len(chosen) == models.shape[0]:
        return np.asarray(models[:])
    return np.concatenate([np.asarray(models[int(i) : int(i) + 1]) for i in chosen])


def model_weights(given: np.ndarray | None, count: int) -> np.ndarray:
    """Return the weight (models,) that each model's predictions have, uniform by default."""
    if given is None:
        return np.ones(count)
    weights = check_array("sample_weight", given)
    if weights.shape != (count,) or (weights < 0).any() or not weights.any():
        reason = f"there are {count} models"
        raise ArgumentError("sample_weight", weights, reason, "Give one weight ≥ 0 per model.")
    return weights


class _Recorded:
    """The predictions of a trajectory as a lazy array."""

    def __init__(self, trajectory: Trajectory) -> None:
        self._trajectory = trajectory
        first = trajectory.predictions(0)
        self.shape, self.dtype = (len(trajectory), *first.shape), first.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, part: slice) -> np.ndarray:
        return self._trajectory.predictions(part)


class Predictions:
    """Blocks of models with a least-recently-used cache.

    Args:
        models: (models, samples, classes), from `open_models`.
        rows: Models per block.
        memory: Cache size in bytes.
    """

    def __init__(self, models: Any, rows: int, memory: float) -> None:
        self.models, self.rows = models, rows
        self._kept: OrderedDict[int, np.ndarray] = OrderedDict()
        self._lock = Lock()
        block = rows * int(np.prod(models.shape[1:])) * np.dtype(models.dtype).itemsize
        self._most = max(2, int(memory // block))

    def __len__(self) -> int:
        """Return the number of blocks of predictions."""
        return -(-self.models.shape[0] // self.rows)

    def part(self, block: int) -> slice:
        """Return the models of a block of predictions."""
        return slice(block * self.rows, min((block + 1) * self.rows, self.models.shape[0]))

    def __getitem__(self, block: int) -> np.ndarray:
        """Return the predictions of a block."""
        with self._lock:
            if block not in self._kept:
                while len(self._kept) >= self._most:
                    self._kept.popitem(last=False)
                self._kept[block] = np.asarray(self.models[self.part(block)])
            self._kept.move_to_end(block)
            return self._kept[block]
