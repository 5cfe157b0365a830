"""Experiment IDs and titles, read from source files without importing them."""

from __future__ import annotations

import re
from ast import literal_eval
from pathlib import Path

import hyperribbon

__all__ = ["PAPERS", "experiment_titles"]

PAPERS = ("ribbons", "subnetworks", "fluctuations", "linear_networks")
_TITLE = re.compile(r'^TITLE = (".*")$', re.MULTILINE)


def experiment_titles() -> dict[str, str]:
    """Return every experiment's title by its id, in the order of papers and figures.

    Same as `hyperribbon.experiments.all_experiments`, but without importing the experiments.
    """
    package = Path(hyperribbon.__file__).parent / "experiments"
    found = {}
    for paper in PAPERS:
        for path in sorted((package / paper).glob("[!_]*.py"), key=_natural_order):
            (title,) = _TITLE.findall(path.read_text())
            found[f"{paper}/{_figure(path.stem)}"] = literal_eval(title)
    return found


def _figure(name: str) -> str:
    if not name.startswith(("fig", "table")):
        return name
    return re.sub(r"_(?=\d)", ".", name).replace("_", "-")


def _natural_order(path: Path) -> list[tuple[int, int | str]]:
    parts = re.findall(r"\d+|\D", path.stem + "\0")
    return [(0, int(part)) if part.isdigit() else (1, part) for part in parts]
