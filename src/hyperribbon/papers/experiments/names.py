"""Names of papers, presets and experiments, which need no import of what they name."""

from __future__ import annotations

import re

PAPERS = ("ribbons", "subnetworks", "fluctuations", "linear_networks")
PRESETS = ("smoke", "laptop", "paper")


def experiment_id(module: str) -> str:
    """Return an experiment's name, its id: its file stands for the figure as numbered.

    >>> experiment_id("thesis.figA_2"), experiment_id("paper.fig1_left")
    ('thesis/figA.2', 'paper/fig1-left')
    >>> experiment_id("experiments.paper.own_name")
    'paper/own_name'
    """
    paper, name = module.split(".")[-2:]
    if name.startswith(("fig", "table")):
        name = re.sub(r"_(?=\d)", ".", name).replace("_", "-")
    return f"{paper}/{name}"


def natural_order(name: str) -> list[tuple[int, int | str]]:
    """Return the key by which experiments are listed: numbers in their names count as numbers."""
    parts = re.findall(r"\d+|\D", name + "\0")
    return [(0, int(part)) if part.isdigit() else (1, part) for part in parts]
