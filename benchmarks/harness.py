"""The harness: races against peers and measured limits, as a table and as JSON.

A module of this package that holds a list `ROWS` is found by itself; its rows are of two kinds.

A `Race` times our route and its peers on the same work in one process:

    def work():                        # once; what all contenders share (model, data, vectors)
        ...
    ROWS = [
        Race(
            name="hessian product",
            work=work,
            ours=Contender(lambda s: s.operator @ s.vector, prepare=build_ours),
            peers={"curvlinops": Contender(run, prepare=build, requires="curvlinops")},
            difference=relative_difference,   # (our answer, their answer) -> number
            tolerance=1e-4,                   # answers further apart are never timed
            targets={"curvlinops": 2.2},      # their time over ours, at least
            repeats=7,
        ),
    ]

`prepare(work)` is not timed and returns what `run` gets (without it, `run` gets the work itself).
Every contender runs once untimed: this warms it up and gives the answer that is compared. Then all
of them run in turn, `repeats` times, and medians are compared, so a slow spell of the machine hits
everybody. A peer that is not installed is named as missing. `notes(answer)` may add numbers that
belong beside a time (a true residual, say), for every contender.

A `Measure` runs one function that returns `Limit`s: numbers with the bounds they must keep (peak
memory, a ratio of products, a scaling exponent) or without bounds, for a table.

    Measure(name="tracking", run=lambda: [Limit("products, warm over cold", 0.31, high=0.45)])

`python -m benchmarks` runs everything, `python -m benchmarks operators "spectra/top ten"` a module
or single rows. Results go to benchmarks/results/<module>.json. A target that is missed is shown as
missed; the exit status is 1 when answers disagree or a row breaks. A module may hold a function
`summary(results)` that returns one more table of all its rows.

With `--quick` modules measure less where they can, races take three rounds at most, and nothing is
written: a look, not a result.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.util
import inspect
import json
import multiprocessing
import os
import platform
import statistics
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

__all__ = [
    "Contender",
    "Limit",
    "Measure",
    "QUICK",
    "Race",
    "is_quick",
    "limit_line",
    "peak_memory",
    "relative_difference",
    "run_rows",
]

RESULTS = Path(__file__).parent / "results"
QUICK = "HYPERRIBBON_BENCH_QUICK"


def is_quick() -> bool:
    """Whether a look is wanted rather than a result."""
    return bool(os.environ.get(QUICK))


@dataclass(frozen=True)
class Contender:
    """One way to do the work.

    Attributes:
        run: What is timed; gets what `prepare` returned, or the work itself.
        prepare: Builds the contender's own objects from the work, untimed.
        requires: The module that has to be installed, for a peer.
        repeats: Timed runs, when other than the race's. With 0, for a very slow peer, the run
            that gives the answer is the one that is timed.
    """

    run: Callable[[Any], Any]
    prepare: Callable[[Any], Any] | None = None
    requires: str | None = None
    repeats: int | None = None

    @property
    def missing(self) -> bool:
        """Whether the module it needs is not installed."""
        return self.requires is not None and importlib.util.find_spec(self.requires) is None


@dataclass(frozen=True)
class Race:
    """Our route against its peers on the same work; see the module's text."""

    name: str
    work: Callable[[], Any]
    ours: Contender
    peers: Mapping[str, Contender]
    difference: Callable[[Any, Any], float]
    tolerance: float
    targets: Mapping[str, float] = field(default_factory=dict)
    repeats: int = 5
    notes: Callable[[Any], dict[str, float]] | None = None


@dataclass(frozen=True)
class Limit:
    """A measured number and the bounds it must keep.

    Attributes:
        name: What it is.
        value: The number; None when it could not be measured.
        low: Lower bound, or None.
        high: Upper bound, or None.
        unit: Its unit.
        note: What a reader has to know beside it.
        agrees: Whether the answer behind it is right; a wrong one is not timed.
    """

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    unit: str = ""
    note: str = ""
    agrees: bool = True

    @property
    def verdict(self) -> str:
        """Return "met", "missed", "disagrees", or "" when there is no bound."""
        if not self.agrees:
            return "disagrees"
        if self.low is None and self.high is None:
            return ""
        if self.value is None:
            return "missed"
        low = -float("inf") if self.low is None else self.low
        high = float("inf") if self.high is None else self.high
        return "met" if low <= self.value <= high else "missed"


@dataclass(frozen=True)
class Measure:
    """One function that returns measured numbers."""

    name: str
    run: Callable[[], list[Limit]]


def relative_difference(ours: Any, theirs: Any) -> float:
    """Return ‖a − b‖/‖b‖ of two arrays, tensors or numbers."""
    a, b = (np.asarray(torch.as_tensor(x).detach().cpu(), dtype=np.float64) for x in (ours, theirs))
    if a.shape != b.shape:
        raise ValueError(f"answers of different shapes: {a.shape} and {b.shape}")
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def peak_memory(function: Callable[..., Any], *arguments: Any) -> float:
    """Return by how many bytes resident memory rises at its peak while `function` runs.

    What the heap holds free is given back to the system before, so that it is not used again
    unseen: the rise is what the function needs, not what it needs beyond others' leavings.

    The function runs in a fresh process, so it and its arguments must be picklable. When it is a
    generator function, what it does before its first `yield` (imports, loading data) counts as the
    base and not as the rise.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure_memory, args=(sender, function, arguments))
    process.start()
    sender.close()
    try:
        answer = receiver.recv()
    except EOFError:
        answer = RuntimeError(f"{function.__name__} died while its memory was measured")
    process.join()
    if isinstance(answer, Exception):
        raise answer
    return answer


def _measure_memory(sender: Any, function: Callable[..., Any], arguments: tuple) -> None:
    try:
        running = function(*arguments) if inspect.isgeneratorfunction(function) else None
        if running is not None:
            next(running)
        gc.collect()
        with contextlib.suppress(OSError, AttributeError):  # other systems than Linux's
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        base = _memory_line("VmRSS")
        for _ in running if running is not None else [function(*arguments)]:
            pass
        sender.send(float(_memory_line("VmHWM") - base))
    except Exception as error:
        sender.send(RuntimeError(f"{function.__name__}: {error}\n{traceback.format_exc()}"))


def _memory_line(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {key}")


def run_rows(
    module: str,
    rows: list[Race | Measure],
    console: Console,
    summary: Callable[[list[dict[str, Any]]], Table] | None = None,
) -> bool:
    """Run rows, print them, write their JSON; return whether all answers agreed."""
    table = Table(title=f"{module} ({torch.get_num_threads()} threads)", title_justify="left")
    for column in ("row", "who", "median", "times ours", "target", "verdict", "notes"):
        table.add_column(column, overflow="fold")
    results, sound = [], True
    for row in rows:
        console.print(f"[dim]{module}/{row.name} …[/dim]")
        try:
            lines = _run_race(row) if isinstance(row, Race) else _run_measure(row)
        except Exception:
            console.print_exception()
            lines = [{"who": "", "verdict": "broke", "notes": traceback.format_exc(limit=1)}]
        sound = sound and not any(line["verdict"] in ("broke", "disagrees") for line in lines)
        results.append({"row": row.name, "lines": lines})
        for index, line in enumerate(lines):
            table.add_row(row.name if index == 0 else "", *_cells(line))
        table.add_section()
    console.print(table)
    if summary is not None:
        console.print(summary(results))
    if not is_quick():
        _write(module, results)
    return sound


def _run_race(race: Race) -> list[dict[str, Any]]:
    work = race.work()
    contenders = {"ours": race.ours, **race.peers}
    present = {name: c for name, c in contenders.items() if not c.missing}
    states = {n: c.prepare(work) if c.prepare else work for n, c in present.items()}
    answers, firsts = {}, {}
    for name, contender in present.items():
        start = time.perf_counter()
        answers[name] = contender.run(states[name])
        firsts[name] = time.perf_counter() - start
    apart = {n: race.difference(answers["ours"], answer) for n, answer in answers.items()}
    agreeing = {name: c for name, c in present.items() if apart[name] <= race.tolerance}
    times: dict[str, list[float]] = {
        name: [firsts[name]] if c.repeats == 0 else [] for name, c in agreeing.items()
    }
    rounds = min(race.repeats, 3) if is_quick() else race.repeats
    for turn in range(rounds):
        for name, contender in agreeing.items():
            if turn < (rounds if contender.repeats is None else contender.repeats):
                gc.collect()
                start = time.perf_counter()
                contender.run(states[name])
                times[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(t) for name, t in times.items()}
    lines = []
    for name, contender in contenders.items():
        line: dict[str, Any] = {"who": name, "verdict": "", "target": race.targets.get(name)}
        if name not in present:
            line |= {"verdict": "missing", "notes": f"{contender.requires} is not installed"}
        elif name not in agreeing:
            line |= {
                "verdict": "disagrees",
                "difference": apart[name],
                "notes": f"answers differ by {apart[name]:.2g}, allowed {race.tolerance:.2g}",
            }
        else:
            ratio = medians[name] / medians["ours"]
            line |= {"seconds": times[name], "median": medians[name], "ratio": ratio}
            line["difference"] = apart[name]
            if line["target"] is not None:
                line["verdict"] = "met" if ratio >= line["target"] else "missed"
            line["notes"] = race.notes(answers[name]) if race.notes else {}
        lines.append(line)
    return lines


def _run_measure(measure: Measure) -> list[dict[str, Any]]:
    return [limit_line(limit) for limit in measure.run()]


def limit_line(limit: Limit) -> dict[str, Any]:
    """Return what is written of a limit."""
    return {"who": limit.name, **asdict(limit), "verdict": limit.verdict}


def _cells(line: Mapping[str, Any]) -> list[str]:
    notes = line.get("notes", "")
    if isinstance(notes, Mapping):
        notes = ", ".join(f"{key} {value:.3g}" for key, value in notes.items())
    if "value" in line:
        bounds = [f"≥ {line['low']:.3g}"] if line["low"] is not None else []
        bounds += [f"≤ {line['high']:.3g}"] if line["high"] is not None else []
        value = "" if line["value"] is None else f"{line['value']:.4g} {line['unit']}".strip()
        return [line["who"], value, "", ", ".join(bounds), line["verdict"], line["note"]]
    median = f"{line['median']:.4g} s" if "median" in line else ""
    ratio = f"{line['ratio']:.2f}" if "ratio" in line else ""
    target = f"≥ {line['target']:g}" if line.get("target") is not None else ""
    return [line["who"], median, ratio, target, line["verdict"], str(notes)]


def _write(module: str, results: list[dict[str, Any]]) -> None:
    """Merge rows into the module's file, so that running one row keeps the others."""
    path = RESULTS / f"{module}.json"
    known = json.loads(path.read_text())["rows"] if path.exists() else []
    fresh = {result["row"] for result in results}
    document = {
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "rows": [row for row in known if row["row"] not in fresh] + results,
    }
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(document, indent=1) + "\n")
    temporary.replace(path)
