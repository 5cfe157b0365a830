"""Bhattacharyya distances between many probabilistic models, in tiles."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated as Float
from typing import Any, Literal, overload

import numpy as np

from hyperribbon.core.checks import (
    ArgumentError,
    check_array,
    check_choice,
    check_positive,
    check_positive_int,
    check_shape,
    flag,
    is_tensor,
    positive,
    validate,
)
from hyperribbon.core.devices.tensors import host_array
from hyperribbon.core.generators import numpy_generator
from hyperribbon.manifold.tiles import PRECISIONS, sum_logs, usual_workers

_PARTS = 8  # parts of a subset, for its standard error


def _three_axes(argument: str, value: Any) -> np.ndarray:
    return check_array(argument, value, ndim=3)


@dataclass(frozen=True)
class DistanceReport:
    """How a distance matrix was computed.

    Attributes:
        samples: Samples in the predictions.
        used: Samples averaged over.
        zeros: Probabilities that were exactly zero in those samples.
        floored: Probabilities that were raised to the floor.
        underflows: Affinities too small for the precision, taken from log-probabilities instead.
        stderr: Root mean square over pairs of the standard error that the subset causes; 0 when
            all samples were used.
    """

    samples: int
    used: int
    zeros: int
    floored: int
    underflows: int
    stderr: float


@overload
def bhattacharyya(
    P: Any,
    Q: Any = None,
    *,
    log: bool = False,
    floor: float | None = None,
    subset: int | None = None,
    seed: int = 0,
    precision: Literal["single", "double"] = "single",
    threads: int | None = None,
    report: Literal[False] = False,
) -> np.ndarray: ...
@overload
def bhattacharyya(
    P: Any,
    Q: Any = None,
    *,
    log: bool = False,
    floor: float | None = None,
    subset: int | None = None,
    seed: int = 0,
    precision: Literal["single", "double"] = "single",
    threads: int | None = None,
    report: Literal[True],
) -> tuple[np.ndarray, DistanceReport]: ...
@validate()
def bhattacharyya(
    P: Any,
    Q: Any = None,
    *,
    log: bool = False,
    floor: float | None = None,
    subset: int | None = None,
    seed: int = 0,
    precision: Literal["single", "double"] = "single",
    threads: int | None = None,
    report: bool = False,
) -> Any:
    """Return the mean Bhattacharyya distance between all pairs of models.

        D(u, v) = −(1/n) Σ_s log Σ_c √(p_u(c|s) p_v(c|s)).

    Affinities Σ_c √(p p) of many samples are multiplied before one logarithm is taken; a group
    whose product comes near underflow is halved, and an affinity that is itself too small gets its
    logarithm from log-probabilities. Products run in the requested precision, the sum over samples
    in float64.

    Args:
        P: (models, samples, classes), probabilities; array or tensor.
        Q: Other models on the same samples; None for P itself (the result is then symmetric with a
            zero diagonal).
        log: Whether P and Q hold log-probabilities; nothing underflows then.
        floor: Rule for tiny probabilities: None leaves them as they are, so that a zero that two
            models share only with each other's mass is an error; a number raises every probability
            to it and normalises again.
        subset: Use this many samples, drawn without replacement; None for all.
        seed: For the draw of the subset.
        precision: "single" (error about 1e-7) or "double".
        threads: Tiles computed at once; None for as many as torch, or numpy without it, uses.
        report: Whether to return a `DistanceReport` too.

    Returns:
        (models of P, models of Q) in float64; with `report`, also the report.

    Raises:
        ArgumentError: Shapes do not match, values are not probabilities, or two models have
            disjoint support on some sample (infinite distance).

    >>> P = np.array([[[0.5, 0.5]], [[0.9, 0.1]]])
    >>> bhattacharyya(P, precision="double").round(4)
    array([[0.    , 0.1116],
           [0.1116, 0.    ]])
    """
    check_choice("precision", precision, tuple(PRECISIONS))
    left = _models("P", P)
    right = None if Q is None else _models("Q", Q)
    if right is not None and right.shape[1:] != left.shape[1:]:
        raise ArgumentError(
            "Q", right, f"P has samples and classes {left.shape[1:]}", "Use the same samples."
        )
    total = left.shape[1]
    parts: list[Any] = [slice(None)]
    if subset is not None:
        check_positive_int("subset", subset, maximum=total)
        chosen = numpy_generator(seed, "subset").permutation(total)[:subset]
        parts = np.array_split(chosen, min(_PARTS, subset))
    workers = usual_workers() if threads is None else check_positive_int("threads", threads)
    sums, sizes = [], []
    zeros = floored = underflows = 0
    for part in parts:
        both = []
        for name, models in (("P", left), ("Q", right)):
            if models is not None:
                ready, empty, raised = _apply_rule(name, models[:, part], log, floor, workers)
                both.append(ready)
                zeros, floored = zeros + empty, floored + raised
        distances, tiny = sum_logs(both[0], both[-1], log, precision, workers)
        sums.append(distances)
        sizes.append(both[0].shape[1])
        underflows += tiny
    used = sum(sizes)
    result = np.sum(sums, axis=0) / used
    if not np.isfinite(result).all():
        reason = (
            f"{int((~np.isfinite(result)).sum())} pairs of models share no class on some sample, "
            "so their distance is infinite"
        )
        remedy = "Pass log-probabilities with log=True, or a floor such as floor=1e-12."
        raise ArgumentError("P", left, reason, remedy)
    if not report:
        return result
    stderr = 0.0
    if len(parts) > 1:
        means = np.stack([part / size for part, size in zip(sums, sizes, strict=True)])
        spread = (means.var(axis=0, ddof=1) / len(parts)).mean()
        stderr = float(np.sqrt(spread * (1 - used / total)))
    return result, DistanceReport(total, used, zeros, floored, underflows, stderr)


def _models(name: str, given: Any) -> np.ndarray:
    if is_tensor(given):
        given = host_array(given)
    array = given if isinstance(given, np.ndarray) else check_array(name, given, empty=True)
    if array.dtype.kind not in "biuf":
        raise ArgumentError(name, array, "expected real numbers", "Give probabilities.")
    if array.ndim != 3 or 0 in array.shape:
        reason = "models are rows of predictions"
        raise ArgumentError(name, array, reason, "Give (models, samples, classes).")
    return array if array.dtype in (np.float32, np.float64) else array.astype(float)


def _apply_rule(
    name: str, models: np.ndarray, log: bool, floor: float | None, workers: int
) -> tuple[np.ndarray, int, int]:
    """Check probabilities for a distance, and apply the floor; count zeros."""
    with ThreadPoolExecutor(workers) as pool:
        parts = np.array_split(models, min(workers, len(models)))
        checked = list(pool.map(lambda part: _check_rows(part, log), parts))
    if not all(proper for proper, _ in checked):
        remedy = "Apply softmax first, or log_softmax and log=True."
        raise ArgumentError(name, models, "its rows are not probabilities that sum to one", remedy)
    zeros = sum(empty for _, empty in checked)
    if floor is None:
        return models, zeros, 0
    floor = check_positive("floor", floor)
    low = models < (np.log(floor) if log else floor)
    raised = np.where(low, np.log(floor) if log else floor, models)
    if log:
        return raised - np.log(np.exp(raised).sum(axis=2, keepdims=True)), zeros, int(low.sum())
    return raised / raised.sum(axis=2, keepdims=True), zeros, int(low.sum())


def _check_rows(models: np.ndarray, log: bool) -> tuple[bool, int]:
    """Return whether all rows are probabilities that distances can use, and how many are zero."""
    classes = np.ones(models.shape[2], dtype=models.dtype)
    lowest = models.min()
    if log:
        with np.errstate(over="ignore"):
            mass = np.exp(models) @ classes
    else:
        mass = models @ classes
    nothing = -np.inf if log else 0
    zeros = int((models == nothing).sum()) if lowest == nothing else 0
    return bool(np.abs(mass - 1).max() < 1e-3 and (log or lowest >= 0)), zeros


@validate(P=_three_axes, Q=_three_axes, log=flag, floor=positive)
def symmetric_kl(
    P: Any, Q: Any = None, *, log: bool = False, floor: float | None = None
) -> Float[np.ndarray, "P Q"]:
    """Return distances: the mean symmetrised Kullback–Leibler divergence of all pairs of models.

        D(u, v) = (1/n) Σ_s Σ_c (p_u − p_v)(log p_u − log p_v).

    Args:
        P: (models, samples, classes), probabilities.
        Q: Other models on the same samples; None for P itself.
        log: Whether P and Q hold log-probabilities.
        floor: Smallest probability; smaller ones are raised to it. None refuses zeros.

    Returns:
        (models of P, models of Q).

    Raises:
        ArgumentError: Shapes do not match, or a probability is zero: the divergence is infinite.

    >>> symmetric_kl(np.array([[[0.5, 0.5]], [[0.9, 0.1]]])).round(4)
    array([[0.    , 0.8789],
           [0.8789, 0.    ]])
    """
    parts = []
    for name, models in (("P", P), ("Q", P if Q is None else Q)):
        check_shape(name, models, (len(models), *P.shape[1:]), "P has those samples and classes")
        with np.errstate(divide="ignore"):
            logs = models if log else np.log(np.maximum(models, floor or 0.0, dtype=float))
        if not np.isfinite(logs).all():
            reason = "some probabilities are zero, so the divergence is infinite"
            raise ArgumentError(name, models, reason, "Give floor=1e-12, say.")
        parts.append((np.exp(logs).reshape(len(models), -1), logs.reshape(len(models), -1)))
    (p, log_p), (q, log_q) = parts
    own = (p * log_p).sum(axis=1)[:, None] + (q * log_q).sum(axis=1)
    found = np.maximum(own - p @ log_q.T - (q @ log_p.T).T, 0) / P.shape[1]
    if Q is None:
        np.fill_diagonal(found, 0.0)
    return found


@validate(P=_three_axes, Q=_three_axes)
def gaussian_distances(P: Any, Q: Any = None) -> Float[np.ndarray, "P Q"]:
    """Return the mean Bhattacharyya distance between Gaussians of unit variance.

        D(u, v) = (1/8n) Σ_s ‖f_u(s) − f_v(s)‖².

    Args:
        P: (models, samples, outputs), means: the outputs of regressions.
        Q: Other models on the same samples; None for P itself.

    Returns:
        (models of P, models of Q).
    """
    Q = P if Q is None else Q
    check_shape("Q", Q, (len(Q), *P.shape[1:]), "P has those samples and outputs")
    first, second = (np.reshape(part, (len(part), -1)) for part in (P, Q))
    squares = np.square(first).sum(axis=1)[:, None] + np.square(second).sum(axis=1)
    found = np.maximum(squares - 2 * first @ second.T, 0) / (8 * P.shape[1])
    if Q is P:
        np.fill_diagonal(found, 0.0)
    return found
