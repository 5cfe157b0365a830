"""`Trajectories`: several training runs, of any lengths, to be embedded and compared together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from typing import Annotated as Float

import numpy as np

from hyperribbon.core.checks import ArgumentError, check_array, check_positive_int, is_tensor
from hyperribbon.core.devices.tensors import host_array
from hyperribbon.manifold.predictions import as_probabilities
from hyperribbon.manifold.trajectories import progress, resample, trajectory_distances, truth
from hyperribbon.recording.trajectory import Trajectory

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Trajectories:
    """Predictions of several training runs on the same samples; runs may have any lengths.

    Class probabilities, log-probabilities and logits are recognised and kept as probabilities.
    Outputs of regressions are kept as they are, the means of Gaussians of unit variance.

    Args:
        runs: For each run a Recorder, a `Trajectory`, its folder, a member of an ensemble, or an
            array (T, samples, classes) or (T, samples); or an ensemble, or a folder of folders, for
            all of its runs; or one such run.
        labels: A name for each run; None, for all or for one, for folder names, or numbers.
        kind: "probabilities" or "outputs"; None to recognise it: arrays whose last axis has one
            entry, or is missing, are outputs. With "outputs", runs of classifications are taken as
            points too, their class probabilities beside the outputs of a regression on one-hot
            labels: both share one space.

    Attributes:
        paths: For each run (T, samples, classes), float64.
        labels: For each run its name.
        steps: For each run (T,), optimiser steps, or 0, 1, … where they are not known.
        kind: "probabilities" or "outputs".

    >>> runs = Trajectories([np.full((3, 4, 2), 0.5), np.full((5, 4, 2), 0.5)], labels=["a", "b"])
    >>> runs
    Trajectories(2 runs, 8 models, 4 samples, probabilities)
    """

    def __init__(
        self,
        runs: Any,
        labels: Sequence[str] | None = None,
        *,
        kind: Literal["probabilities", "outputs"] | None = None,
    ) -> None:
        read = [_read_run(run, index, kind) for index, run in enumerate(_list_runs(runs))]
        if not read:
            raise ArgumentError("runs", runs, "there is none", "Give at least one run.")
        kinds, shapes = {run[2] for run in read}, {run[0].shape[1:] for run in read}
        if len(kinds) > 1 or len(shapes) > 1:
            what = ", ".join(f"{name}: {path.shape[1:]} {own}" for path, _, own, name in read)
            reason = f"runs must predict the same samples and classes ({what})"
            remedy = "Embed them separately."
            if len(shapes) == 1:
                remedy = "Take all as points with hr.Trajectories(runs, kind='outputs')."
            raise ArgumentError("runs", f"{len(read)} runs", reason, remedy)
        self.paths = [run[0] for run in read]
        self.steps = [run[1] for run in read]
        self.kind: str = kinds.pop()
        names = [None] * len(read) if labels is None else labels
        if isinstance(names, str) or len(names) != len(read):
            reason = f"there are {len(read)} runs"
            raise ArgumentError("labels", labels, reason, "Give a list with one label per run.")
        own = [run[3] for run in read]
        self.labels = [o if n is None else str(n) for o, n in zip(own, names, strict=True)]

    def __len__(self) -> int:
        """Return the number of runs in the trajectories."""
        return len(self.paths)

    def __iter__(self) -> Iterator[np.ndarray]:
        """Iterate over the runs' predictions."""
        return iter(self.paths)

    def __repr__(self) -> str:
        models, samples = sum(map(len, self.paths)), self.paths[0].shape[1]
        return f"Trajectories({len(self)} runs, {models} models, {samples} samples, {self.kind})"

    def stack(self) -> Float[np.ndarray, "models samples classes"]:
        """Return the models of all runs in one array, one run after the other."""
        return np.concatenate(self.paths)

    def split(self, rows: np.ndarray) -> list[np.ndarray]:
        """Return rows for the models of `stack` run by run."""
        return np.split(rows, np.cumsum([len(path) for path in self.paths])[:-1])

    def progress(self, targets: Any) -> list[np.ndarray]:
        """Return each run's progress from ignorance to the true labels.

        Args:
            targets: (samples,), class labels.

        Returns:
            For each run (T,), between 0 and 1.
        """
        end = self._truth(targets)
        return [progress(path, end) for path in self.paths]

    def distances(self, targets: Any, points: int = 20) -> Float[np.ndarray, "runs runs"]:
        """Return the mean Bhattacharyya distance between runs at equal progress.

        Args:
            targets: (samples,), class labels.
            points: Values of progress, within the range that all runs cover.

        Returns:
            A symmetric matrix with a zero diagonal.

        Raises:
            ArgumentError: The runs have no progress in common.
        """
        along = self.progress(targets)
        low, high = max(a[0] for a in along), min(a.max() for a in along)
        if low >= high:
            reason = f"no progress is common to all runs ({low:.3g} to {high:.3g})"
            raise ArgumentError("runs", repr(self), reason, "Omit runs that did not learn.")
        grid = np.linspace(low, high, check_positive_int("points", points))
        resampled = [resample(p, a, grid) for p, a in zip(self.paths, along, strict=True)]
        return trajectory_distances(resampled)

    def plot_dendrogram(self, targets: Any, ax: Axes | None = None) -> Axes:
        """Draw which runs took similar paths, and return the axes.

        Args:
            targets: (samples,), class labels.
            ax: Axes to draw into; None for new ones.

        Returns:
            The axes.
        """
        import hyperribbon  # plots is a higher layer, reached by its public name

        return hyperribbon.plots.plot_dendrogram(self.distances(targets), self.labels, ax=ax)

    def _truth(self, targets: Any) -> np.ndarray:
        if self.kind != "probabilities":
            reason = "progress towards the true labels is for classification"
            raise ArgumentError("runs", repr(self), reason, "Give runs of class probabilities.")
        return truth(targets, self.paths[0].shape[2])


def as_trajectories(X: Any) -> Trajectories | None:
    """Return several runs given to an embedding as `Trajectories`; None for plain arrays."""
    if isinstance(X, Trajectories):
        return X
    if isinstance(X, np.ndarray) or is_tensor(X) or isinstance(X, Trajectory):
        return None
    if isinstance(X, str | Path):
        holds_runs = bool(_find_runs(Path(X)))
    else:
        several = isinstance(X, list | tuple) and bool(X)
        holds_runs = _is_run(X) or (several and (all(map(_is_run, X)) or _are_unlike(X)))
    try:
        return Trajectories(X) if holds_runs else None
    except ArgumentError as error:
        error.rename(error.argument.replace("runs", "X", 1))
        raise


def _are_unlike(arrays: Sequence[Any]) -> bool:
    """Return whether arrays of one or no axis of outputs are runs of different lengths."""
    shapes = {np.shape(run) for run in arrays if isinstance(run, np.ndarray) or is_tensor(run)}
    return len(shapes) > 1 and all(np.ndim(run) in (2, 3) for run in arrays)


def _is_run(run: Any) -> bool:
    if isinstance(run, np.ndarray) or is_tensor(run):
        return np.ndim(run) == 3
    named = hasattr(run, "trajectory") or hasattr(run, "members")
    return named or isinstance(run, str | Path | Trajectory)


def _list_runs(runs: Any) -> Iterable[Any]:
    if isinstance(runs, str | Path):
        return _find_runs(Path(runs)) or [runs]
    given = runs if isinstance(runs, list | tuple) else [runs]
    return [one for run in given for one in getattr(run, "members", [run])]


def _find_runs(folder: Path) -> list[Path]:
    """Return the folders of runs: the given one, or those directly in it."""
    here = folder / "trajectory.json"
    found = [here] if here.is_file() else sorted(folder.glob("*/trajectory.json"))
    return [path.parent for path in found]


def _read_run(run: Any, index: int, kind: str | None) -> tuple[np.ndarray, np.ndarray, str, str]:
    """Return predictions (T, samples, classes), steps, kind and name of one run."""
    name = f"run {index + 1}"
    if isinstance(run, str | Path):
        run = Trajectory.open(run)
    member = getattr(run, "predictions", None)
    if not (isinstance(member, np.ndarray) or is_tensor(member)):
        member, run = None, getattr(run, "trajectory", run)
    if isinstance(run, Trajectory) or run is None:
        kept = [record.index for record in run or () if record.has_predictions]
        if run is None or not kept:
            what = name if run is None else str(run.folder)
            remedy = "Give the Recorder, or train_ensemble, a probe set."
            raise ArgumentError("runs", what, "it has no recorded predictions", remedy)
        values = np.stack([np.asarray(run.predictions(row)) for row in kept])
        if run.has_probabilities and kind == "outputs":
            values = as_probabilities(values.astype(np.float64))
        elif kind != "outputs":
            kind = "probabilities" if run.has_probabilities else "outputs"
        steps, name = run.steps[kept], run.folder.name
    else:
        if member is not None:
            name = f"{run.name} {run.seed}"
        given = run if member is None else member
        values = check_array("runs", host_array(given) if is_tensor(given) else given, ndim=(2, 3))
        steps = np.arange(len(values)) if member is None else run.steps
    values = np.asarray(values, dtype=np.float64)
    if values.ndim == 2:
        values = values[:, :, None]
    if kind is None:
        kind = "outputs" if values.shape[2] == 1 else "probabilities"
    if not np.isfinite(values).all() and kind == "outputs":
        raise ArgumentError("runs", name, "some outputs are not finite", "Omit that run.")
    return (as_probabilities(values) if kind == "probabilities" else values), steps, kind, name
