"""Training trajectories in model space: progress, resampling, and distances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated as Float
from typing import Any, Literal

import numpy as np

from hyperribbon.core import checks
from hyperribbon.core.checks import (
    ArgumentError,
    Check,
    check_array,
    check_choice,
    check_shape,
    validate,
)
from hyperribbon.manifold.distances import bhattacharyya


def _probabilities(ndim: int) -> Check:
    def check(argument: str, value: Any) -> np.ndarray:
        found = check_array(argument, value, ndim=ndim)
        if (found < 0).any():
            raise ArgumentError(argument, found, "some are negative", "Give probabilities.")
        return found

    return check


_model, _models = _probabilities(2), _probabilities(3)


@validate(classes=checks.count)
def truth(targets: Any, classes: int) -> Float[np.ndarray, "samples classes"]:
    """Return the truth where trajectories should end: one-hot labels, (samples, classes)."""
    labels = checks.wholes("targets", targets)
    if labels.max() >= classes:
        reason = f"there are {classes} classes, 0 to {classes - 1}"
        raise ArgumentError("targets", targets, reason, "Give labels below the number of classes.")
    return np.eye(classes)[labels]


@validate(samples=checks.count, classes=checks.count)
def ignorance(samples: int, classes: int) -> Float[np.ndarray, "samples classes"]:
    """Return ignorance, where trajectories begin: equal probabilities, (samples, classes)."""
    return np.full((samples, classes), 1 / classes)


@validate(start=_model, end=_model, tau=checks.array)
def geodesic(
    start: np.ndarray, end: np.ndarray, tau: float | np.ndarray
) -> Float[np.ndarray, "*k samples classes"]:
    """Return points on the geodesic between two models, which trajectories are compared with.

    Square roots of probabilities lie on a sphere, one for each sample; the path follows its great
    circle,

        √p_τ = [sin((1−τ)θ)·√p₀ + sin(τθ)·√p₁]/sin θ,   cos θ = Σ_c √(p₀p₁).

    Args:
        start: (samples, classes), probabilities.
        end: (samples, classes), probabilities.
        tau: Where on the path: 0 is the start, 1 the end. A number or an array of k.

    Returns:
        (samples, classes), or (k, samples, classes) for an array.
    """
    check_shape("end", end, start.shape, f"the start has shape {start.shape}")
    a, b = np.sqrt(start), np.sqrt(end)
    first, second = _circle(np.einsum("sc,sc->s", a, b), np.asarray(tau, dtype=float)[..., None])
    return (first[..., None] * a + second[..., None] * b) ** 2


@validate(P=_models, end=_model, start=_model)
def progress(
    P: Any,
    end: np.ndarray,
    start: np.ndarray | None = None,
    *,
    distance: Literal["angle", "bhattacharyya"] = "angle",
) -> Float[np.ndarray, "models"]:
    """Return how far a trajectory's models are along the geodesic from ignorance to truth.

    It is the τ in [0, 1] whose point on the geodesic is nearest to the model, in the mean over
    samples of the angle arccos Σ√(pq) or of the Bhattacharyya distance −log Σ√(pq). Only the
    affinities with the two ends enter, so the search is cheap: a grid, then golden sections.

    Args:
        P: (models, samples, classes), probabilities.
        end: (samples, classes), the goal, usually `truth`.
        start: (samples, classes); None for ignorance.
        distance: "angle" or "bhattacharyya".
    """
    check_choice("distance", distance, ("angle", "bhattacharyya"))
    check_shape("end", end, P.shape[1:], f"the models have shape {P.shape[1:]}")
    start = ignorance(*end.shape) if start is None else start
    check_shape("start", start, end.shape, f"the end has shape {end.shape}")
    roots = np.sqrt(P)
    to_start = np.einsum("msc,sc->ms", roots, np.sqrt(start))
    to_end = np.einsum("msc,sc->ms", roots, np.sqrt(end))
    apart = np.einsum("sc,sc->s", np.sqrt(start), np.sqrt(end))

    def cost(tau: np.ndarray) -> np.ndarray:
        first, second = _circle(apart, tau[:, None])
        affinity = np.clip(first * to_start + second * to_end, 1e-300, 1.0)
        each = np.arccos(affinity) if distance == "angle" else -np.log(affinity)
        return each.mean(axis=1)

    grid = np.linspace(0, 1, 65)
    costs = np.stack([cost(np.full(len(roots), tau)) for tau in grid])
    best = grid[costs.argmin(axis=0)]
    low, high = np.clip(best - grid[1], 0, 1), np.clip(best + grid[1], 0, 1)
    golden = (np.sqrt(5) - 1) / 2
    for _ in range(40):
        left, right = high - golden * (high - low), low + golden * (high - low)
        nearer = cost(left) < cost(right)
        low, high = np.where(nearer, low, left), np.where(nearer, right, high)
    return (low + high) / 2


@validate(path=_models, along=checks.row, grid=checks.row)
def resample(
    path: np.ndarray, along: np.ndarray, grid: np.ndarray
) -> Float[np.ndarray, "grid samples classes"]:
    """Return a trajectory interpolated at given progress: (len(grid), samples, classes).

    Between two recorded models the path follows their geodesic. Progress that falls back is held
    at its highest value so far.

    Args:
        path: (points, samples, classes), one trajectory.
        along: (points,), its progress, from `progress`.
        grid: Values of progress, within the range that the trajectory covers.

    Raises:
        ArgumentError: Progress and points differ in number, or the grid exceeds the range.
    """
    if len(along) != len(path):
        reason = f"the trajectory has {len(path)} points"
        raise ArgumentError("along", along, reason, "Give the progress of each of them.")
    reached = np.maximum.accumulate(np.asarray(along, dtype=float))
    grid = np.asarray(grid, dtype=float)
    if grid.min() < reached[0] - 1e-12 or grid.max() > reached[-1] + 1e-12:
        reason = f"the trajectory's progress runs from {reached[0]:.4g} to {reached[-1]:.4g}"
        raise ArgumentError("grid", grid, reason, "Stay inside this range.")
    after = np.clip(np.searchsorted(reached, grid, side="left"), 1, len(reached) - 1)
    gap = reached[after] - reached[after - 1]
    share = np.clip((grid - reached[after - 1]) / np.where(gap > 0, gap, 1.0), 0, 1)
    return np.stack(
        [geodesic(path[i - 1], path[i], tau) for i, tau in zip(after, share, strict=True)]
    )


@validate(paths=checks.list_of(_models), floor=checks.positive)
def trajectory_distances(
    paths: Sequence[np.ndarray], *, floor: float | None = None
) -> Float[np.ndarray, "paths paths"]:
    """Return the mean Bhattacharyya distance between trajectories at equal progress.

        d(u, v) = ∫ D(u(s), v(s)) ds,

    as a mean over the points of trajectories that were resampled on the same grid.

    Args:
        paths: Trajectories of shape (points, samples, classes), all resampled alike.
        floor: Rule for tiny probabilities, see `bhattacharyya`.

    Raises:
        ArgumentError: The trajectories have different shapes.
    """
    shapes = {path.shape for path in paths}
    if len(shapes) != 1:
        reason = "trajectories have different shapes"
        raise ArgumentError("paths", sorted(shapes), reason, "Resample them first.")
    stacked = np.stack(paths)
    points = stacked.shape[1]
    total = np.zeros((len(stacked), len(stacked)))
    for point in range(points):
        total += bhattacharyya(stacked[:, point], floor=floor, precision="double")
    return total / points


def _circle(cosine: np.ndarray, tau: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a trajectory's weights of start and end on a geodesic's great circle at τ."""
    theta = np.arccos(np.clip(cosine, -1, 1))
    sine = np.sin(theta)
    near = sine < 1e-8
    safe = np.where(near, 1.0, sine)
    first = np.where(near, 1 - tau, np.sin((1 - tau) * theta) / safe)
    second = np.where(near, tau, np.sin(tau * theta) / safe)
    return first, second
