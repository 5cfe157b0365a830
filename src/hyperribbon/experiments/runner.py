"""Run an experiment: compute or resume, draw, judge, store."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from hyperribbon.core.checks import check_positive_int
from hyperribbon.core.store import RunFolder, Store, write_json, writing
from hyperribbon.core.store.atomic import write_text
from hyperribbon.experiments.context import Context, Progress
from hyperribbon.experiments.costs import peak_megabytes
from hyperribbon.experiments.judging import at_smoke, combine
from hyperribbon.experiments.registry import Experiment, find_experiment
from hyperribbon.experiments.settings import change_config, changed_settings
from hyperribbon.experiments.statements import with_settings
from hyperribbon.experiments.workers import Workers
from hyperribbon.plots.style import STYLE, label_logs

__all__ = ["run"]


def run(
    id: str,
    config: Mapping[str, Any] | Any = None,
    *,
    preset: str = "smoke",
    seeds: int = 1,
    seed: int = 0,
    out: str | Path = "runs",
    with_data: bool = False,
    fresh: bool = False,
    progress: Progress | None = None,
    workers: Workers | None = None,
) -> RunFolder:
    """Run one experiment and return its folder; a finished run is not computed again.

    Args:
        id: Such as "ribbons/fig4".
        config: Settings that differ from the preset's, by name, or a whole configuration.
        preset: "smoke" (seconds), "laptop" (minutes) or "paper" (as printed).
        seeds: How many seeds, from `seed` on; claims are judged over all of them, and the figure
            shows the first.
        seed: Seed of everything random in it.
        out: The store's folder.
        with_data: Use the presets for full data sets.
        fresh: Forget an earlier result of the same configuration first.
        progress: Told how far the work is.
        workers: Where the items of its maps run.

    Raises:
        ArgumentError: Unknown id, preset or setting, a folder that cannot be written to, or another
            process is at work on the same run.
    """
    experiment = find_experiment(id)
    printed = experiment.config(preset, with_data=with_data)
    chosen = printed if config is None else change_config(printed, config)
    changed = changed_settings(printed, chosen)
    all_seeds = list(range(seed, seed + check_positive_int("seeds", seeds)))
    store = Store(out)
    info: dict[str, Any] = {"title": experiment.title, "preset": preset, "code": experiment.code}
    if seeds > 1:
        info["seeds"] = all_seeds
    if changed:
        info["changed"] = changed
    folder = store.run(id, chosen, seed, **info)
    with folder.locked():
        contexts = [Context(s, folder.parts, store.shared, progress, workers) for s in all_seeds]
        if fresh:
            contexts[0].forget()
            for name in ("claims.json", "result.safetensors"):
                (folder.path / name).unlink(missing_ok=True)
        if folder.is_complete:
            return folder
        if not folder.has_result:
            started, cpu = time.monotonic(), time.process_time()
            trees = [experiment.compute(chosen, context) for context in contexts]
            folder.save_result(trees[0] if seeds == 1 else {"seeds": trees})
            contexts[0].forget()
            write_json(
                folder.path / "run.json",
                {
                    **folder.info,
                    "seconds": round(time.monotonic() - started, 2),
                    "cpu_seconds": round(time.process_time() - cpu, 2),
                    "peak_megabytes": round(peak_megabytes()),
                },
            )
        tree = folder.load_result()
        results = [experiment.result(one) for one in (tree["seeds"] if seeds > 1 else [tree])]
        _draw(experiment, results[0], folder, _caption(changed, all_seeds))
        claims = combine([experiment.claims(result) for result in results], experiment.comparisons)
        claims = with_settings(at_smoke(claims) if preset == "smoke" else claims, changed)
        folder.save_claims(claims)
    return folder


def _caption(changed: Mapping[str, Any], seeds: list[int]) -> str:
    parts = [f"{name} = {value}" for name, value in changed.items()]
    text = f"changed: {', '.join(parts)}" if parts else ""
    of_seeds = f"seed {seeds[0]} of {len(seeds)}" if len(seeds) > 1 else ""
    return " · ".join(filter(None, (text, of_seeds)))


def _draw(experiment: Experiment, result: Any, run: RunFolder, caption: str) -> None:
    with mpl.rc_context(STYLE):
        for name, figure in _named(experiment.plot(result)).items():
            label_logs(figure)
            if caption:
                figure.text(0.5, -0.01, caption, ha="center", va="top", fontsize=7, color="0.4")
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
