"""Commands on the papers: `hyperribbon list` and `reproduce`."""

from __future__ import annotations

import json
import math
import os
import re
import time
from ast import literal_eval
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column, Table

import hyperribbon
from hyperribbon.application.cli.shell import count, one_of
from hyperribbon.core.checks import ArgumentError, MissingExtraError, check_choice
from hyperribbon.core.claims import ORIGINS, VERDICTS, Claim
from hyperribbon.papers.experiments.names import PAPERS, PRESETS, experiment_id, natural_order

_TITLE = re.compile(r'^TITLE = (".*")$', re.MULTILINE)
_VAGUE = 30  # above this ratio of bounds, the upper one is uninformative
_SECONDS_BETWEEN_LINES = 10.0
_COLORS = {"holds": "green", "fails": "red", "undecided": "yellow", "not comparable": "cyan"}


def list_experiments(
    paper: Annotated[
        str | None,
        typer.Option(
            help="Only ribbons, subnetworks, fluctuations or linear_networks.",
            autocompletion=one_of(*PAPERS),
        ),
    ] = None,
    cost: Annotated[
        bool, typer.Option("--cost", help="Show time and memory of each preset, on one core.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List every figure of the papers, by paper.

    Times are for one core and one seed; "about" and "at least" mark estimates from other presets.

    Examples: `hyperribbon list --paper ribbons`, `hyperribbon list --cost`
    """
    if paper is not None:
        check_choice("--paper", paper, PAPERS)
    titles = experiment_titles()
    chosen = [id for id in titles if paper in (None, id.split("/")[0])]
    if as_json:
        typer.echo(json.dumps([{"id": id, "title": titles[id]} for id in chosen], indent=2))
        return
    headings = PRESETS if cost else ("what it shows",)
    table = Table(Column("id", no_wrap=True), *headings, box=None, pad_edge=False)
    for id in chosen:
        table.add_row(id, *([_cost(id, preset) for preset in PRESETS] if cost else [titles[id]]))
    Console().print(table)


def _cost(id: str, preset: str) -> str:
    from hyperribbon.papers.experiments import find_experiment
    from hyperribbon.papers.experiments.costs import cost_of

    found = cost_of(find_experiment(id), preset)
    if found is None or not found.at_most or not found.seconds:
        return "unknown"
    if found.measured:
        return f"{_time(found.seconds)}, {found.megabytes / 1000:.1f} GB"
    if found.seconds == found.at_most:
        return f"about {_time(found.seconds)}"
    if found.at_most > _VAGUE * found.seconds:
        return f"at least {_time(found.seconds)}"
    return f"about {_time(found.seconds)} to {_time(found.at_most)}"


def _time(seconds: float) -> str:
    """Format how long reproducing a paper's experiment takes."""
    for unit, name in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.2g} {name}"
    return f"{seconds:.2g} s"


def experiment_titles() -> dict[str, str]:
    """Return every experiment's title by its id, in the order of papers and figures.

    Same as `hyperribbon.papers.experiments.all_experiments`, but without importing the experiments.
    """
    package = Path(hyperribbon.__file__).parent / "papers" / "experiments"
    found = {}
    for paper in PAPERS:
        for path in sorted((package / paper).glob("[!_]*.py"), key=lambda p: natural_order(p.stem)):
            (title,) = _TITLE.findall(path.read_text())
            found[experiment_id(f"{paper}.{path.stem}")] = literal_eval(title)
    return found


def _complete_ids(incomplete: str) -> list[tuple[str, str]]:
    """Return the papers' experiments whose ids begin so, with titles, for the shell."""
    return [(id, title) for id, title in experiment_titles().items() if id.startswith(incomplete)]


def reproduce(
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            help="Experiments, such as ribbons/fig4; see `hyperribbon list`.",
            autocompletion=_complete_ids,
        ),
    ] = None,
    paper: Annotated[
        str | None,
        typer.Option(help="Every experiment of one paper.", autocompletion=one_of(*PAPERS)),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every experiment.")] = False,
    preset: Annotated[
        str,
        typer.Option(
            help="smoke (seconds), laptop (minutes) or paper (as printed).",
            autocompletion=one_of(*PRESETS),
        ),
    ] = "laptop",
    data: Annotated[
        Path | None,
        typer.Option(help="Folder with MNIST/raw, FashionMNIST/raw, cifar-10-batches-bin."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Output folder; one subfolder per run.")] = Path("runs"),
    jobs: Annotated[int, typer.Option(help="Number of worker processes.")] = 1,
    dask: Annotated[
        str | None, typer.Option(help="Address of a Dask scheduler to run on, tcp://HOST:8786.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    seeds: Annotated[
        str,
        typer.Option(
            help="Number of seeds from --seed on; auto: as many as needed in the preset's time."
        ),
    ] = "1",
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a setting, such as depth=3; may be repeated."),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard earlier results first.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the claims to this file.")
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(help="Folder for the claims and the numbers of every figure as CSV files."),
    ] = None,
) -> None:
    """Reproduce figures of the papers and check their claims.

    A failed claim is a finding, not an error: the exit status is 0 if the run completed. To resume
    an interrupted run, run the same command again.

    Examples:
    `hyperribbon reproduce ribbons/fig4 --preset smoke --json claims.json`,
    `hyperribbon reproduce --paper linear_networks --data ~/data --jobs 2`,
    `hyperribbon reproduce linear_networks/fig1-right --seeds 5 --set depth=3 --set data=digits`
    """
    from hyperribbon.core.store import ensure_folder, write_json
    from hyperribbon.papers.experiments import choose_workers, run_experiments

    check_choice("--preset", preset, PRESETS)
    if seeds != "auto" and not seeds.isdecimal():
        raise ArgumentError("--seeds", seeds, "expected a number", "Give a number, or auto.")
    chosen = _choose(ids or [], paper, everything)
    with_data = _use_data(data)
    ensure_folder("--out", out)
    if json_file is not None:
        ensure_folder("--json", json_file.parent)
    if csv is not None:
        if csv.suffix == ".csv":
            reason = "every run writes several tables"
            raise ArgumentError("--csv", str(csv), reason, "Give the name of a folder.")
        ensure_folder("--csv", csv)
    config = _overrides(chosen, preset, with_data, changes or [])
    workers = choose_workers(jobs, dask)
    console = Console()
    found: list[Claim] = []
    broken: list[str] = []
    mistakes: list[ArgumentError | MissingExtraError] = []
    settings = {"config": config, "preset": preset, "with_data": with_data, "fresh": fresh}
    settings |= {"out": out.resolve(), "seed": seed, "seeds": seeds}
    progress = _ConsoleProgress(console)
    try:
        for outcome in run_experiments(chosen, workers=workers, progress=progress, **settings):
            console.print(f"[bold]{outcome.id}[/] ({preset})  [dim]{outcome.seconds:.1f} s[/]")
            if outcome.mistake is not None:
                mistakes.append(outcome.mistake)
                console.print(f"  {outcome.mistake}", markup=False, soft_wrap=True)
            if outcome.broken is not None:
                broken.append(outcome.id)
                console.print(outcome.broken, markup=False)
            if outcome.run is not None:
                claims = outcome.run.load_claims()
                found += claims
                _show(claims, console)
                if preset == "paper":
                    console.print(f"  {_describe_scale(claims)}", markup=False, soft_wrap=True)
                console.print(f"  {outcome.run.path}\n", markup=False, soft_wrap=True)
                if csv is not None:
                    _write_csv(csv, outcome.run, found)
                if json_file is not None:
                    write_json(json_file, [claim.to_json() for claim in found])
    except KeyboardInterrupt:
        Console(stderr=True).print(
            "Interrupted. Finished work is kept; run the same command again to resume."
        )
        raise typer.Exit(130) from None
    finally:
        progress.bars.stop()
    worked = len(chosen) - len(broken) - len(mistakes)
    console.print(
        f"{count(worked, 'experiment')} at preset {preset}: {_count_verdicts(found)}",
        soft_wrap=True,
    )
    if broken:
        console.print(f"[bold red]Broke:[/] {', '.join(broken)}")
        raise typer.Exit(1)
    if mistakes:
        raise mistakes[0]


def _write_csv(folder: Path, run: Any, claims: list[Claim]) -> None:
    """Write for a reproduced paper its claims so far, and the numbers behind the figures."""
    import pandas as pd

    from hyperribbon.core.store import write_text
    from hyperribbon.core.store.trees import tree_frame

    records = [claim.to_json() | {"expected": _interval(claim)} for claim in claims]
    write_text(folder / "claims.csv", pd.DataFrame(records).to_csv(index=False))
    name = run.path.name.rsplit("-", 1)[0]
    write_text(folder / f"{name}.csv", tree_frame(run.load_result()).to_csv(index=False))


class _ConsoleProgress:
    """Progress on the terminal: a bar per task; if output goes to a file, a line every ten seconds.

    Args:
        console: Console to print to.
    """

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn())
        is_file = not console.is_terminal
        options = {"console": console, "transient": True, "disable": is_file}
        self.bars = Progress(*columns, TimeElapsedColumn(), **options)
        self.bars.start()
        self._printed = time.monotonic()

    def start(self, label: str, total: int) -> TaskID:
        """Start a task of a paper's experiment on the terminal."""
        return self.bars.add_task(label, total=total)

    def advance(self, handle: TaskID, count: int = 1) -> None:
        """Report completed units of a paper's experiment."""
        self.bars.advance(handle, count)
        now = time.monotonic()
        if self.bars.disable and now - self._printed > _SECONDS_BETWEEN_LINES:
            self._printed = now
            for task in self.bars.tasks:
                line = f"  {task.description}: {task.completed:.0f} of {task.total:.0f}"
                self.bars.console.print(line, markup=False)

    def finish(self, handle: TaskID) -> None:
        """Remove a finished task of a paper's experiment."""
        self.bars.remove_task(handle)


def _choose(ids: list[str], paper: str | None, everything: bool) -> list[str]:
    from hyperribbon.papers.experiments import all_experiments, find_experiment

    ways = [bool(ids), paper is not None, everything]
    if sum(ways) != 1:
        raise ArgumentError(
            "ID", ids, "expected IDs, --paper, or --all", "See: hyperribbon reproduce --help"
        )
    if paper is not None:
        check_choice("--paper", paper, PAPERS)
        return [e.id for e in all_experiments().values() if e.paper == paper]
    return list(all_experiments()) if everything else [find_experiment(id).id for id in ids]


def _overrides(chosen: list[str], preset: str, with_data: bool, texts: list[str]) -> dict[str, Any]:
    """Return a paper's settings overridden on the command line."""
    from hyperribbon.papers.experiments import find_experiment
    from hyperribbon.papers.experiments.settings import read_changes

    if not texts:
        return {}
    if len(chosen) > 1:
        raise ArgumentError("--set", texts, "--set applies to a single experiment", "Give one ID.")
    return read_changes(texts, find_experiment(chosen[0]).config(preset, with_data=with_data))


def _describe_scale(claims: list[Claim]) -> str:
    """Describe where the largest preset is smaller than the paper."""
    missing = dict.fromkeys(c.needs for c in claims if c.verdict == "not comparable")
    if missing:
        return f"not as printed; the paper has {'; '.join(missing)}"
    return "as printed, where the paper prints its settings"


def _count_verdicts(claims: list[Claim]) -> str:
    """Summarize the verdicts on a paper by the origin of the expected interval."""
    ours = [claim for claim in claims if not claim.on_the_paper]
    rows = []
    for origin in dict.fromkeys((*ORIGINS, *(claim.expected.origin for claim in claims))):
        verdicts = [c.verdict for c in claims if c.on_the_paper and c.expected.origin == origin]
        counts = ", ".join(f"{verdicts.count(v)} {v}" for v in VERDICTS if v in verdicts)
        rows += [f"\n  {origin}: {counts}"] if verdicts else []
    apart = f"\n  apart: {count(len(ours), 'observation or regression')}" if ours else ""
    return f"{count(len(claims) - len(ours), 'claim')}{''.join(rows)}{apart}"


def _use_data(folder: Path | None) -> bool:
    from hyperribbon.core.data.sources import DATA_VARIABLE

    if folder is not None:
        if not folder.is_dir():
            raise ArgumentError(
                "--data", str(folder), "the folder does not exist", "Give the folder with the data."
            )
        os.environ[DATA_VARIABLE] = str(folder.resolve())
    return DATA_VARIABLE in os.environ


def _show(claims: list[Claim], console: Console) -> None:
    for claim in claims:
        measured = f"{claim.measured:.6g}"
        if claim.uncertainty > 0:
            measured += f" ± {claim.uncertainty:.2g}"
        console.print(
            f"  [{_COLORS[claim.verdict]}]{claim.verdict:9}[/] "
            f"{escape(claim.place)}: {escape(claim.reading)}",
            soft_wrap=True,
        )
        if claim.verdict == "not comparable":
            console.print(f"            needs {claim.needs}", markup=False, soft_wrap=True)
        why = f"; {claim.why}" if claim.why else ""
        console.print(
            f"            measured {measured}, expected {_interval(claim)} "
            f"({claim.expected.origin}){why}",
            style="dim",
            markup=False,
            soft_wrap=True,
        )


def _interval(claim: Claim) -> str:
    low, high = claim.expected.low, claim.expected.high
    if math.isinf(high):
        return f"at least {low:.6g}"
    if math.isinf(low):
        return f"at most {high:.6g}"
    if high - low <= 1e-4 * abs(low):
        return f"{(low + high) / 2:.6g}"
    return f"{low:.4g} to {high:.4g}"
