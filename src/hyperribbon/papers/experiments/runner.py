"""Run an experiment: compute or resume, draw, judge, store."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from hyperribbon.core.checks import ArgumentError, validate
from hyperribbon.core.claims import Claim
from hyperribbon.core.store import RunFolder, Store, writing
from hyperribbon.core.store.atomic import write_text
from hyperribbon.papers.experiments.context import Context, Progress
from hyperribbon.papers.experiments.costs import Meter
from hyperribbon.papers.experiments.judging import LEVEL, at_smoke, combine
from hyperribbon.papers.experiments.registry import Experiment, find_experiment
from hyperribbon.papers.experiments.seeds import AUTO, SECONDS, check_seeds, run_seeds
from hyperribbon.papers.experiments.settings import change_config, changed_settings
from hyperribbon.papers.experiments.statements import with_settings
from hyperribbon.papers.experiments.workers import SerialWorkers, Workers
from hyperribbon.plots.style import STYLE, label_logs

FORMATS: dict[str, dict[str, None]] = {"png": {"Software": None}, "svg": {"Date": None}}
"""Formats of a run's figures, and what is left out of their metadata."""

_CAPTION_WIDTH = 90


@validate()
def run(
    id: str,
    config: Mapping[str, Any] | Any = None,
    *,
    preset: str = "smoke",
    seeds: int | str = 1,
    seed: int = 0,
    out: str | Path = "runs",
    with_data: bool = False,
    fresh: bool = False,
    progress: Progress | None = None,
    workers: Workers | None = None,
) -> RunFolder:
    """Run one experiment, the runner's work; a finished run is not computed again.

    Args:
        id: Such as "ribbons/fig4".
        config: Settings that differ from the preset's, by name, or a whole configuration.
        preset: "smoke" (seconds), "laptop" (minutes) or "paper" (as printed).
        seeds: How many seeds, from `seed` on; claims are judged over all of them, and the figure
            shows the first. "auto" takes as many as decide the claims within the preset's time
            (`experiments.seeds.SECONDS`), by a rule that is fixed beforehand: see `run_seeds`.
        seed: Seed of everything random in it.
        out: The store's folder.
        with_data: Use the presets for full data sets.
        fresh: Forget an earlier result of the same configuration first.
        progress: Receives the progress of the work.
        workers: Where the items of its maps run.

    Raises:
        ArgumentError: Unknown id, preset or setting, a folder that cannot be written to, or another
            process is at work on the same run.
    """
    for name, value, method in (("progress", progress, "start"), ("workers", workers, "run")):
        if value is not None and not hasattr(value, method):
            raise ArgumentError(name, value, f"it has no {method}()", "Omit it.")
    experiment = find_experiment(id)
    printed = experiment.config(preset, with_data=with_data)
    chosen = printed if config is None else change_config(printed, config)
    changed, reduced = changed_settings(printed, chosen), experiment.reductions(chosen)
    asked = check_seeds(seeds)
    store = Store(out)
    info: dict[str, Any] = {"title": experiment.title, "preset": preset, "code": experiment.code}
    if asked == AUTO:
        info["sequential"] = True
    elif asked > 1:
        info["seeds"] = list(range(seed, seed + asked))
    if changed:
        info["changed"] = changed
    if reduced:
        info["reduced"] = reduced
    folder = store.run(id, chosen, seed, **info)

    meter = Meter(folder.parts / "cost.json")

    def context(one: int) -> Context:
        return Context(one, folder.parts, store.shared, progress, workers, spent=meter.add)

    def judge(trees: list[Any], level: float) -> list[Claim]:
        claims = [experiment.claims(experiment.result(tree)) for tree in trees]
        return combine(claims, experiment.comparisons, level)

    with folder.lock():
        if fresh:
            context(seed).forget()
            folder.reset()
        if folder.is_complete:
            return folder
        if not folder.has_result:
            with meter:
                trees, level = run_seeds(
                    lambda one: experiment.compute(chosen, context(one)),
                    judge,
                    asked,
                    seed,
                    folder.parts,
                    SECONDS[preset],
                    experiment.comparisons,
                )
            cost = meter.cost()
            if not isinstance(workers, SerialWorkers | None):
                del cost["peak_megabytes"]  # that of the others is not known
            drawn = {"seeds": list(range(seed, seed + len(trees)))} if asked == AUTO else {}
            folder.save_info(**drawn, **cost)
            folder.save_result(trees[0] if asked == 1 else {"seeds": trees, "level": level})
            context(seed).forget()
        found = folder.load_result()
        trees, level = ([found], LEVEL) if asked == 1 else (found["seeds"], found["level"])
        _draw(experiment, trees[0], folder, changed, reduced, (seed, len(trees)))
        claims = judge(trees, level)
        claims = with_settings(at_smoke(claims) if preset == "smoke" else claims, changed)
        claims = with_settings(claims, reduced, "Fewer than asked for")
        folder.save_claims(claims)
    return folder


def _caption(
    changed: Mapping[str, Any],
    reduced: Mapping[str, str],
    seed: int,
    count: int,
    random: str | None,
) -> str:
    """Return the runner's caption of a figure: what is not as printed, and which seed it shows."""
    parts = [f"{name} = {value}" for name, value in changed.items()]
    text = f"changed: {', '.join(parts)}" if parts else ""
    fewer = "\n".join(
        textwrap.fill(f"{name} = {value}", _CAPTION_WIDTH) for name, value in reduced.items()
    )
    of_seeds = f"seed {seed} of {count}" if count > 1 and random != "" else ""
    of_seeds = f"{random}: {of_seeds}" if of_seeds and random else of_seeds
    return " · ".join(filter(None, (text, fewer, of_seeds)))


def _draw(
    experiment: Experiment,
    tree: Any,
    run: RunFolder,
    changed: Mapping[str, Any],
    reduced: Mapping[str, str],
    seeds: tuple[int, int],
) -> None:
    result = experiment.result(tree)
    with mpl.rc_context(STYLE):
        for name, figure in _by_name(experiment.plot(result)).items():
            label_logs(figure)
            caption = _caption(changed, reduced, *seeds, experiment.random(name))
            if caption:
                figure.supxlabel(caption, fontsize=7, color="0.4")  # the layout moves the axes up
            _save_figure(figure, run.figures, name)
    if experiment.interactive is not None:
        for name, figure in _by_name(experiment.interactive(result)).items():
            write_text(run.figures / f"{name}.plotly.json", figure.to_json())


def _save_figure(figure: Figure, folder: Path, name: str) -> None:
    for kind, metadata in FORMATS.items():
        with writing(folder / f"{name}.{kind}") as temporary:
            figure.savefig(temporary, format=kind, metadata=metadata)
        figure.set_layout_engine("none")  # both have the layout of the first


def _by_name(figures: Any) -> Mapping[str, Any]:
    return figures if isinstance(figures, Mapping) else {"figure": figures}
