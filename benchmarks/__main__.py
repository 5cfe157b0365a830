"""Run benchmarks: `python -m benchmarks [--quick] [module | module/row ...]`."""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import sys
from types import ModuleType

from rich.console import Console

import benchmarks
from benchmarks.harness import QUICK, Measure, Race, run_rows

Rows = dict[str, list[Race | Measure]]


def modules() -> dict[str, ModuleType]:
    """Return every module of the package that has rows."""
    names = [info.name for info in pkgutil.iter_modules(benchmarks.__path__)]
    loaded = {
        name: importlib.import_module(f"benchmarks.{name}")
        for name in names
        if not name.startswith("_") and name != "harness"
    }
    return {name: module for name, module in loaded.items() if hasattr(module, "ROWS")}


def by_name(found: Rows) -> dict[str, tuple[str, Race | Measure]]:
    """Return (module, row) by module/row."""
    return {f"{module}/{row.name}": (module, row) for module, rows in found.items() for row in rows}


def choose(found: Rows, names: list[str]) -> Rows:
    """Return the rows that are asked for by module or by module/row; all without names."""
    listed = by_name(found)
    unknown = [name for name in names if name not in found and name not in listed]
    if unknown:
        raise SystemExit(f"unknown: {', '.join(unknown)}. Known: {', '.join([*found, *listed])}")
    if not names:
        return found
    chosen: Rows = {}
    for full, (module, row) in listed.items():
        if module in names or full in names:
            chosen.setdefault(module, []).append(row)
    return chosen


def main(arguments: list[str]) -> int:
    """Run the chosen rows; 1 when answers disagree or a row breaks."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    console, loaded = Console(width=None if sys.stdout.isatty() else 180), modules()
    found = {name: module.ROWS for name, module in loaded.items()}
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog="\n  ".join(["rows:", *by_name(found)]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", help="modules or module/row; all without names")
    parser.add_argument("--quick", action="store_true", help="few rounds; nothing is written")
    parser.add_argument("--profile", metavar="ROW", help="where a network's products spend time")
    given = parser.parse_args(arguments)
    if given.profile is not None:
        from benchmarks.profiling import operations

        console.print(operations(given.profile.removeprefix("networks/")))
        return 0
    if given.quick:
        os.environ[QUICK] = "1"
    outcomes = [
        run_rows(name, rows, console, getattr(loaded[name], "summary", None))
        for name, rows in choose(found, given.names).items()
    ]
    return 0 if all(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
