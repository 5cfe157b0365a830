"""Run benchmarks: `python -m benchmarks [module | module/row ...]`."""

from __future__ import annotations

import importlib
import pkgutil
import sys

from rich.console import Console

import benchmarks
from benchmarks.harness import Measure, Race, run_rows


def discover() -> dict[str, list[Race | Measure]]:
    """Return the rows of every module of the package that has some."""
    found = {}
    for info in pkgutil.iter_modules(benchmarks.__path__):
        if not info.name.startswith("_") and info.name != "harness":
            rows = getattr(importlib.import_module(f"benchmarks.{info.name}"), "ROWS", None)
            if rows is not None:
                found[info.name] = rows
    return found


def by_name(found: dict[str, list[Race | Measure]]) -> dict[str, tuple[str, Race | Measure]]:
    """Return (module, row) by module/row."""
    return {f"{module}/{row.name}": (module, row) for module, rows in found.items() for row in rows}


def choose(
    found: dict[str, list[Race | Measure]], names: list[str]
) -> dict[str, list[Race | Measure]]:
    """Return the rows that are asked for by module or by module/row; all without names."""
    listed = by_name(found)
    unknown = [name for name in names if name not in found and name not in listed]
    if unknown:
        raise SystemExit(f"unknown: {', '.join(unknown)}. Known: {', '.join([*found, *listed])}")
    if not names:
        return found
    chosen: dict[str, list[Race | Measure]] = {}
    for full, (module, row) in listed.items():
        if module in names or full in names:
            chosen.setdefault(module, []).append(row)
    return chosen


def main(names: list[str]) -> int:
    """Run the chosen rows; 1 when answers disagree or a row breaks."""
    console, found = Console(), discover()
    if {"-h", "--help"} & set(names):
        print(__doc__, *by_name(found), sep="\n  ")
        return 0
    outcomes = [run_rows(m, rows, console) for m, rows in choose(found, names).items()]
    return 0 if all(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
