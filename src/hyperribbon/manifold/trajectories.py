"""Training as a path through the space of models: progress, resampling, distances of paths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated as Float
from typing import Any, Literal

import numpy as np

from hyperribbon.core.boundary import array, checked, count, row
from hyperribbon.core.checks import ArgumentError, check_array, check_choice
from hyperribbon.core.devices.tensors import host_array
from hyperribbon.manifold.distances import bhattacharyya

__all__ = ["geodesic", "ignorance", "progress", "resample", "trajectory_distances", "truth"]


@checked(classes=count)
def truth(targets: Any, classes: int) -> Float[np.ndarray, "samples classes"]:
    """Return the model that knows every label: (samples, classes), one-hot."""
    return np.eye(classes)[host_array(targets)]


@checked(samples=count, classes=count)
def ignorance(samples: int, classes: int) -> Float[np.ndarray, "samples classes"]:
    """Return the model that gives every class the same probability: (samples, classes)."""
    return np.full((samples, classes), 1 / classes)


@checked(start=array, end=array, tau=array)
def geodesic(
    start: np.ndarray, end: np.ndarray, tau: float | np.ndarray
) -> Float[np.ndarray, "*k samples classes"]:
    """Return the shortest path from one model to another, in the metric of Fisher.

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
    a, b = np.sqrt(start), np.sqrt(end)
    first, second = _circle(np.einsum("sc,sc->s", a, b), np.asarray(tau, dtype=float)[..., None])
    return (first[..., None] * a + second[..., None] * b) ** 2


@checked(end=array, start=array)
def progress(
    P: Any,
    end: np.ndarray,
    start: np.ndarray | None = None,
    *,
    distance: Literal["angle", "bhattacharyya"] = "angle",
) -> Float[np.ndarray, "models"]:
    """Return how far along the geodesic from ignorance to truth each model has come: (models,).

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
    roots = np.sqrt(host_array(P))
    start = ignorance(*end.shape) if start is None else start
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


@checked(along=row, grid=row)
def resample(
    path: np.ndarray, along: np.ndarray, grid: np.ndarray
) -> Float[np.ndarray, "grid samples classes"]:
    """Return a trajectory at given progress: (len(grid), samples, classes).

    Between two recorded models the path follows their geodesic. Progress that falls back is held
    at its highest value so far.

    Args:
        path: (points, samples, classes), one trajectory.
        along: (points,), its progress, from `progress`.
        grid: Values of progress, within the range that the trajectory covers.

    Raises:
        ArgumentError: There is not one value of progress a point, or the grid leaves their range.
    """
    path = check_array("path", path, ndim=3)
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


@checked()
def trajectory_distances(
    paths: Sequence[np.ndarray], *, floor: float | None = None
) -> Float[np.ndarray, "paths paths"]:
    """Return the mean Bhattacharyya distance of trajectories at equal progress: (paths, paths).

        d(u, v) = ∫ D(u(s), v(s)) ds,

    as a mean over the points of trajectories that were resampled on the same grid.

    Args:
        paths: Trajectories of shape (points, samples, classes), all resampled alike.
        floor: Rule for tiny probabilities, see `bhattacharyya`.

    Raises:
        ArgumentError: The trajectories have different shapes.
    """
    paths = [check_array(f"paths[{i}]", path, ndim=3) for i, path in enumerate(paths)]
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
    """Return the weights of start and end on the great circle at τ."""
    theta = np.arccos(np.clip(cosine, -1, 1))
    sine = np.sin(theta)
    near = sine < 1e-8
    safe = np.where(near, 1.0, sine)
    first = np.where(near, 1 - tau, np.sin((1 - tau) * theta) / safe)
    second = np.where(near, tau, np.sin(tau * theta) / safe)
    return first, second
