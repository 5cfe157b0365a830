"""Run an experiment: compute or resume, draw, judge, store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from hyperribbon.core.store import RunFolder, Store, writing
from hyperribbon.core.store.atomic import write_text
from hyperribbon.experiments.context import Context, Progress
from hyperribbon.experiments.registry import Experiment, find_experiment
from hyperribbon.experiments.workers import Workers
from hyperribbon.plots.style import STYLE, label_logs

__all__ = ["run_experiment"]


def run_experiment(
    id: str,
    *,
    preset: str = "laptop",
    out: str | Path = "runs",
    seed: int = 0,
    with_data: bool = False,
    fresh: bool = False,
    progress: Progress | None = None,
    workers: Workers | None = None,
) -> RunFolder:
    """Run one experiment and return its folder; a finished run is not computed again.

    Args:
        id: Such as "ribbons/fig4".
        preset: "smoke" (seconds), "laptop" (minutes) or "paper" (as printed).
        out: The store's folder.
        seed: Seed of everything random in it.
        with_data: Use the presets for full data sets.
        fresh: Forget an earlier result of the same configuration first.
        progress: Told how far the work is.
        workers: Where the items of its maps run.

    Raises:
        ArgumentError: Unknown id or preset, a folder that cannot be written to, or another process
            is at work on the same run.
    """
    experiment = find_experiment(id)
    config = experiment.config(preset, with_data=with_data)
    store = Store(out)
    run = store.run(id, config, seed, title=experiment.title, preset=preset, code=experiment.code)
    with run.locked():
        context = Context(seed, run.parts, store.shared, progress, workers)
        if fresh:
            context.forget()
            for name in ("claims.json", "result.safetensors"):
                (run.path / name).unlink(missing_ok=True)
        if run.is_complete:
            return run
        if not run.has_result:
            run.save_result(experiment.compute(config, context))
            context.forget()
        result = experiment.result(run.load_result())
        _draw(experiment, result, run)
        run.save_claims(experiment.claims(result))
    return run


def _draw(experiment: Experiment, result: Any, run: RunFolder) -> None:
    with mpl.rc_context(STYLE):
        for name, figure in _named(experiment.plot(result)).items():
            label_logs(figure)
            _save_figure(figure, run.figures, name)
    if experiment.interactive is not None:
        for name, figure in _named(experiment.interactive(result)).items():
            write_text(run.figures / f"{name}.plotly.json", figure.to_json())


def _save_figure(figure: Figure, folder: Path, name: str) -> None:
    for kind in ("png", "svg"):
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        with writing(folder / f"{name}.{kind}") as temporary:
            figure.savefig(temporary, format=kind, metadata=metadata)


def _named(figures: Any) -> Mapping[str, Any]:
    return figures if isinstance(figures, Mapping) else {"figure": figures}
