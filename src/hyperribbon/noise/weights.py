"""Covariance of the weights over checkpoints, computed in blocks."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from typing import Annotated as Float

import numpy as np
import torch
from torch import nn

from hyperribbon.core.checks import (
    ArgumentError,
    check_array,
    check_finite,
    check_positive,
    check_shape,
    count,
    instance,
    tensor,
    torch_module,
    validate,
    whole,
)
from hyperribbon.core.devices.modes import plain_arithmetic
from hyperribbon.core.parameters import ParameterFilter, ParameterSpace
from hyperribbon.core.result import Result, frame
from hyperribbon.noise.memory import remove_lines
from hyperribbon.noise.stationarity import Stationarity, autocorrelation_time, stationarity
from hyperribbon.noise.stationary import LeadingCovariance
from hyperribbon.papers.simulation import RunningMoments
from hyperribbon.recording.trajectory import Trajectory

if TYPE_CHECKING:
    import pandas as pd

_LARGEST_DENSE = 4096
_predicted = instance(LeadingCovariance, "Give hr.stationary_covariance(H, C, lr) of operators.")


@dataclass(frozen=True)
class WeightCovariance(Result):
    """Principal modes of weights over time.

    Attributes:
        mean: (P,), mean weights.
        eigenvalues: (k,), variances along the principal modes, descending.
        modes: (P, k), principal modes.
        projections: (n, k), weights minus mean along the modes, in order of time.
        total: Total variance over all weights.
        samples: n, moments read.
        effective_samples: Independent moments that carry as much information, mean over modes.
        stationarity: Test of the mean.
        projected: (b, b), covariance in the basis that was asked for, or None.
        trend: Share of the variance within windows that was steady motion, and removed.
        times: (k,), integrated autocorrelation times along the modes, in moments, as measured.
        projected_times: (b,), those along the basis that was asked for, or None.
        window: Moments of a window, or None.
        sizes: Number of weights by name, in order; empty for those of an array.
        omitted: Why other entries of the recording are not among the weights, by name.
        principal: Whether the modes are principal ones, else directions that were given.
    """

    mean: Float[np.ndarray, "P"]
    eigenvalues: Float[np.ndarray, "k"]
    modes: Float[np.ndarray, "P k"]
    projections: Float[np.ndarray, "n k"]
    total: float
    samples: int
    effective_samples: float
    stationarity: Stationarity
    projected: Float[np.ndarray, "b b"] | None = None
    trend: float = 0.0
    times: Float[np.ndarray, "k"] = field(default_factory=lambda: np.ones(0))
    projected_times: Float[np.ndarray, "b"] | None = None
    window: int | None = None
    sizes: dict[str, int] = field(default_factory=dict, repr=False)
    omitted: dict[str, str] = field(default_factory=dict, repr=False)
    principal: bool = True

    def to_frame(self) -> pd.DataFrame:
        """Return the weights' variance and autocorrelation time, one row per principal mode."""
        times = self.times if len(self.times) else None
        return frame({"variance": self.eigenvalues, "autocorrelation_time": times}, "mode")

    @property
    def width(self) -> int:
        """Number of weights P of the weight covariance."""
        return len(self.mean)

    @validate(model=torch_module)
    def model_at_mean(self, model: nn.Module) -> nn.Module:
        """Return a copy of a model with the mean weights, where curvature is to be measured.

        Its other entries, such as the statistics of batch norm, are those of the model.

        Raises:
            ArgumentError: It has other weights than the trajectory.

        >>> model = nn.Linear(2, 1, bias=False)
        >>> moments = np.arange(24.0).reshape(12, 2)
        >>> weight_covariance(moments).model_at_mean(model).weight.tolist()
        [[11.0, 12.0]]
        """
        copied = copy.deepcopy(model)
        space = ParameterSpace.of_model(copied, params=list(self.sizes) or None)
        check_same_weights("model", space.dimension, space, self)
        tensors = dict(copied.named_parameters())
        with torch.no_grad():
            for name, value in space.unflatten(torch.from_numpy(self.mean)).items():
                tensors[name].copy_(value)
        return copied


def check_same_weights(
    argument: str, size: int, space: ParameterSpace | None, measured: WeightCovariance | _Rows
) -> None:
    """Raise when weights are not those of a trajectory, and name those that differ.

    Args:
        argument: Its name.
        size: Its number of weights.
        space: Its coordinates, where they have names.
        measured: The weights of the trajectory.

    Raises:
        ArgumentError: The weights differ in number or, where both are known, in name.
    """
    ours, theirs = measured.sizes, {}
    if space is not None:
        theirs = dict(zip(space.names, space.sizes, strict=True))
    if size == measured.width and (not ours or not theirs or list(ours) == list(theirs)):
        return
    reason = f"the trajectory has {measured.width} weights"
    if ours and theirs:
        why = {name: f", {reason}" for name, reason in measured.omitted.items() if reason}
        only = [f"{n} ({k}{why.get(n, '')})" for n, k in theirs.items() if ours.get(n) != k]
        more = [f"{n} ({k})" for n, k in ours.items() if theirs.get(n) != k]
        reason += f"; only here: {', '.join(only)}" if only else ""
        reason += f"; only there: {', '.join(more)}" if more else ""
    raise ArgumentError(argument, f"{size} weights", reason, "Choose the same with params=.")


@dataclass(frozen=True)
class CovarianceComparison(Result, plot="plot_columns"):
    """A measured and a predicted covariance in the leading subspace of the curvature.

    Attributes:
        discrepancy: ‖measured − predicted‖/‖predicted‖ (Frobenius).
        sampling_error: What the discrepancy would be if the prediction were exact, from the number
            of moments and their memory along each direction.
        variance_ratio: Trace of measured over predicted.
        measured: (k, k).
        predicted: (k, k).
    """

    discrepancy: float
    sampling_error: float
    variance_ratio: float
    measured: Float[np.ndarray, "k k"]
    predicted: Float[np.ndarray, "k k"]

    def to_frame(self) -> pd.DataFrame:
        """Return measured and predicted variances of the weights along eigenvectors."""
        own = {"predicted": np.diag(self.predicted), "measured": np.diag(self.measured)}
        return frame(own, "direction")


@validate(k=count, start=whole, window=count)
@plain_arithmetic()
def weight_covariance(
    trajectory: Any,
    *,
    k: int | None = None,
    start: int = 0,
    params: ParameterFilter = None,
    basis: np.ndarray | torch.Tensor | None = None,
    window: int | None = None,
    memory: float = 512 * 2**20,
) -> WeightCovariance:
    """Return the covariance of the weights over a trajectory: its principal modes.

    Weights are the trainable parameters of the model that was recorded, tied ones once, as
    operators count them; see `Trajectory.weight_names` for checkpoints of other programs.

    Exact, and streaming: with fewer weights than moments one pass accumulates the P×P covariance;
    otherwise blocks of checkpoints give the n×n Gram matrix, whose eigenvectors a second pass turns
    into modes, so never more than `memory` bytes of weights are held.

    Args:
        trajectory: A `Trajectory`, a `Recorder`, the folder of one, or an array (n, P).
        k: Modes to return; by default all, at most 50.
        start: First record that counts, after the transient.
        params: A name, a pattern or a predicate that choose among these, or a list of names, which
            may be frozen too; for trajectories.
        basis: (P, b), directions in which the covariance is also wanted.
        window: Measure fluctuations about a straight line through each window of so many moments,
            for weights whose mean still moves; moments beyond the last whole window are left out.
            Fluctuations slower than a tenth of a window are taken off with the line.
        memory: Bytes of weights to hold at once.

    Raises:
        ArgumentError: Fewer than 12 moments, windows of fewer than four, or no parameter of that
            name.

    >>> noise = np.random.default_rng(0).normal(size=(4000, 3))
    >>> drifting = noise + np.linspace(0, 50, 4000)[:, None]
    >>> bool(weight_covariance(drifting).total > 500)
    True
    >>> abs(weight_covariance(drifting, window=100).total - 3) < 0.2
    True
    """
    rows = _Rows(trajectory, start, params, check_positive("memory", memory), window)
    if len(rows) < 12:
        reason = "a covariance needs at least 12"
        raise ArgumentError("trajectory", f"{len(rows)} records", reason, "Record more.")
    mean = rows.mean()
    rank = min(rows.width, rows.freedom)
    count = min(rank, 50) if k is None else min(k, rank)
    dense = rows.width <= min(len(rows), _LARGEST_DENSE)
    values, modes = (_dense_modes if dense else _gram_modes)(rows, mean)
    values, modes = values[:count].copy(), np.ascontiguousarray(modes[:, :count])
    B = None if basis is None else check_array("basis", basis, ndim=2)
    if B is not None:
        reason = f"the trajectory has {rows.width} weights"
        check_shape("basis", B, (rows.width, B.shape[1]), reason)
    projections, seen, squares = [], [], 0.0
    for first, last in rows.ranges():
        deviations = rows.deviations(first, last, mean)
        projections.append(deviations @ modes)
        squares += float(np.sum(deviations**2))
        if B is not None:
            seen.append(deviations @ B)
    along = np.concatenate(projections)
    times = autocorrelation_time(along)
    independent = rows.freedom / times
    return WeightCovariance(
        mean,
        values,
        modes,
        along,
        squares / rows.freedom,
        len(rows),
        float(independent.mean()) if along.shape[1] else float(rows.freedom),
        stationarity(along[:, : min(count, 10)]),
        None if B is None else np.sum([s.T @ s for s in seen], axis=0) / rows.freedom,
        rows.removed / (rows.removed + squares) if rows.removed else 0.0,
        times,
        None if B is None else autocorrelation_time(np.concatenate(seen)),
        window,
        rows.sizes,
        rows.omitted,
    )


@validate(predicted=_predicted, start=whole)
def compare_covariance(
    trajectory: Any, predicted: LeadingCovariance, *, start: int = 0, **options: Any
) -> CovarianceComparison:
    """Compare the measured weight covariance with that predicted from curvature and noise.

    Args:
        trajectory: As for `weight_covariance`, of the same weights as the operators behind
            `predicted`.
        predicted: From `stationary_covariance` of operators.
        start: First record that counts.
        **options: Passed to `weight_covariance`.

    Returns:
        Both covariances (k, k) in the leading subspace of the curvature.
    """
    rows = _Rows(trajectory, start, options.get("params"), 2**29, None)
    check_same_weights("predicted", len(predicted.basis), predicted.space, rows)
    found = weight_covariance(trajectory, start=start, basis=predicted.basis, **options)
    assert found.projected is not None
    M = predicted.matrix
    norm = float(np.linalg.norm(M))
    # Var of a sample covariance's entry: (M_ii M_jj + M_ij²)/n_ij, summed over all entries, with
    # the independent moments n_ij of a product of two series whose memories multiply.
    assert found.projected_times is not None
    memory = (found.projected_times - 1) / (found.projected_times + 1)
    both = np.multiply.outer(memory, memory)
    entries = np.multiply.outer(np.diag(M), np.diag(M)) + M**2
    sampling = np.sqrt(np.sum(entries * (1 + both) / (1 - both)) / found.samples) / norm
    return CovarianceComparison(
        discrepancy=float(np.linalg.norm(found.projected - M)) / norm,
        sampling_error=float(sampling),
        variance_ratio=float(np.trace(found.projected) / np.trace(M)),
        measured=found.projected,
        predicted=M,
    )


class _Rows:
    """Weights at successive moments, as blocks (m, P) of at most `memory`/2 bytes."""

    def __init__(
        self, source: Any, start: int, params: Any, memory: float, window: int | None
    ) -> None:
        source = getattr(source, "trajectory", source)
        if isinstance(source, str) or hasattr(source, "__fspath__"):
            source = Trajectory.open(source)
        self._start, self._params = start, params
        self.sizes: dict[str, int] = {}
        self.omitted: dict[str, str] = {}
        if isinstance(source, Trajectory):
            self._source: Any = source
            self._stop = len(source)
            self.omitted = source.about.get("omitted", {})
        else:
            array = tensor("trajectory", source).double().cpu().numpy()
            if array.ndim != 2:
                reason = "expected an array (n, P)"
                raise ArgumentError("trajectory", array, reason, "Give one row per record.")
            if params is not None:
                reason = "the columns of an array have no names"
                raise ArgumentError("params", params, reason, "Omit it.")
            self._source = check_finite("trajectory", array)
            self._stop = len(array)
        self._window = window
        if window is not None:
            if window < 4:
                reason = "a straight line takes two moments"
                raise ArgumentError("window", window, reason, "Use at least 4.")
            self._stop -= len(self) % window
        self.width = len(self._row(start)) if len(self) > 0 else 0
        self._block = max(1, int(memory / 2 / 8 / max(self.width, 1)))
        if window is not None:
            self._block = max(1, self._block // window) * window
        self.removed = 0.0
        self._whole: np.ndarray | None = None  # all rows, where one block holds them

    def __len__(self) -> int:
        return max(0, self._stop - self._start)

    @property
    def freedom(self) -> int:
        """Moments of the weights less the fitted parameters: one mean, or two per window."""
        return len(self) - (1 if self._window is None else 2 * (len(self) // self._window))

    def ranges(self) -> list[tuple[int, int]]:
        """Return the first and one past the last row of every block of a trajectory's weights."""
        return [
            (first, min(first + self._block, self._stop))
            for first in range(self._start, self._stop, self._block)
        ]

    def mean(self) -> np.ndarray:
        """Return the mean weights over all rows, and note the motion that windows will remove."""
        total = np.zeros(self.width)
        for first, last in self.ranges():
            block = self._rows(first, last)
            total += block.sum(axis=0)
            if self._window is not None:
                _, slopes, line = remove_lines(block, self._window)
                self.removed += float(np.sum(slopes**2) * np.sum(line**2))
        return total / len(self)

    def deviations(self, first: int, last: int, mean: np.ndarray) -> np.ndarray:
        """Return the weights of rows [first, last) less their mean, or their window's line."""
        block = self._rows(first, last)
        if self._window is None:
            return block - mean
        centered, slopes, line = remove_lines(block, self._window)
        return (centered - slopes[:, None, :] * line[:, None]).reshape(block.shape)

    def _rows(self, first: int, last: int) -> np.ndarray:
        if isinstance(self._source, np.ndarray):
            return self._source[first:last]
        if self._whole is None:
            block = np.stack([self._row(index) for index in range(first, last)])
            if len(block) < len(self):
                return block
            self._whole = block
        return self._whole

    def _row(self, index: int) -> np.ndarray:
        if isinstance(self._source, np.ndarray):
            return self._source[index]
        state = self._source.weights(index)
        chosen = {name: state[name] for name in self._source.weight_names(self._params)}
        self.sizes = {name: tensor.numel() for name, tensor in chosen.items()}
        return torch.cat([tensor.double().reshape(-1) for tensor in chosen.values()]).numpy()


def _dense_modes(rows: _Rows, mean: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    moments = RunningMoments(rows.width)
    for first, last in rows.ranges():
        moments.add(rows.deviations(first, last, mean))
    scale = len(rows) / rows.freedom
    values, vectors = np.linalg.eigh(scale * moments.covariance(about_zero=True))
    return np.maximum(values[::-1], 0.0), vectors[:, ::-1]


def _gram_modes(rows: _Rows, mean: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    n, ranges = len(rows), rows.ranges()
    start = ranges[0][0]
    gram = np.empty((n, n))
    for position, (a, b) in enumerate(ranges):
        left = rows.deviations(a, b, mean)
        for c, d in ranges[position:]:
            right = left if c == a else rows.deviations(c, d, mean)
            product = left @ right.T
            gram[a - start : b - start, c - start : d - start] = product
            gram[c - start : d - start, a - start : b - start] = product.T
    values, vectors = np.linalg.eigh(gram / rows.freedom)
    values, vectors = np.maximum(values[::-1], 0.0), vectors[:, ::-1]
    keep = values > 1e-14 * max(values[0], 1e-300)
    values, vectors = values[keep], vectors[:, keep]
    modes = np.zeros((rows.width, len(values)))
    for a, b in ranges:
        modes += rows.deviations(a, b, mean).T @ vectors[a - start : b - start]
    return values, modes / np.sqrt(values * rows.freedom)
