"""The experiments there are: every public module in the folder of a paper."""

from __future__ import annotations

import difflib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import hyperribbon.papers.experiments as package
from hyperribbon.core.checks import ArgumentError, check_choice, text, validate
from hyperribbon.core.claims import Claim
from hyperribbon.papers.experiments.context import Context
from hyperribbon.papers.experiments.fingerprint import fingerprint
from hyperribbon.papers.experiments.judging import Comparison
from hyperribbon.papers.experiments.names import PAPERS, PRESETS, experiment_id, natural_order
from hyperribbon.papers.experiments.statements import Ledger


@dataclass(frozen=True)
class Experiment:
    """One experiment: how to compute a figure, draw it and judge it."""

    module: ModuleType

    @property
    def id(self) -> str:
        """The id in the registry: paper and figure, such as "ribbons/fig4"; claims carry it too."""
        return experiment_id(self.module.__name__)

    @property
    def paper(self) -> str:
        """Key of the paper that a registered experiment belongs to."""
        return self.id.split("/")[0]

    @property
    def title(self) -> str:
        """What a registered experiment shows, in a few words."""
        return self.module.TITLE

    @property
    def compute(self) -> Callable[[Any, Context], Any]:
        """Compute the result of a registered experiment for a configuration."""
        return self.module.compute

    @property
    def plot(self) -> Callable[[Any], Any]:
        """Return a registered experiment's figure of a result, or figures by name."""
        return self.module.plot

    @property
    def ledger(self) -> Ledger:
        """The ledger of a registered experiment: the statements its claims are judged by."""
        return Ledger(self.id, *self.module.STATEMENTS)

    def claims(self, result: Any) -> list[Claim]:
        """Return a registered experiment's claims: statements judged by what a result measures."""
        return self.ledger.judge(self.module.measure(result))

    @property
    def comparisons(self) -> dict[str, Comparison]:
        """How a registered experiment's claims are compared over several seeds, by id."""
        return self.ledger.comparisons()

    def random(self, figure: str) -> str | None:
        """What of a registered experiment's figure depends on the seed; "" for nothing."""
        found = getattr(self.module, "RANDOM", None)
        return found.get(figure) if isinstance(found, dict) else found

    @property
    def interactive(self) -> Callable[[Any], Any] | None:
        """Return the plotly figure, or figures, of a registered experiment's result, if any."""
        return getattr(self.module, "interactive", None)

    @property
    def code(self) -> str:
        """Digest of a registered experiment's module, of what it calls, and of versions.

        A changed experiment is another run.
        """
        functions = (self.compute, self.plot, self.module.measure, self.ledger.judge)
        interactive = () if self.interactive is None else (self.interactive,)
        return fingerprint(*functions, *interactive)[:8]

    def config(self, preset: str, *, with_data: bool = False) -> Any:
        """Return a registered experiment's configuration of a preset.

        Args:
            preset: "smoke", "laptop" or "paper".
            with_data: Whether the full data sets are available.
        """
        check_choice("preset", preset, PRESETS)
        presets = self.module.PRESETS
        if with_data:
            presets = getattr(self.module, "PRESETS_WITH_DATA", presets)
        return presets[preset]

    def reductions(self, config: Any) -> dict[str, str]:
        """Return what of a configuration the data do not allow, for a registered experiment.

        A paper's package with such configurations has a function of this name.
        """
        paper = import_module(self.module.__name__.rpartition(".")[0])
        return paper.reductions(config) if hasattr(paper, "reductions") else {}

    def result(self, tree: dict[str, Any]) -> Any:
        """Return a stored result as a registered experiment's Result."""
        return self.module.Result(**tree)


@cache
def all_experiments() -> dict[str, Experiment]:
    """Return the registry: every experiment by id, in the order of papers and figures."""
    found = {}
    for paper in PAPERS:
        room = import_module(f"{package.__name__}.{paper}")
        names = sorted(
            (info.name for info in pkgutil.iter_modules(room.__path__)), key=natural_order
        )
        for name in names:
            if not name.startswith("_"):
                experiment = Experiment(import_module(f"{room.__name__}.{name}"))
                found[experiment.id] = experiment
    return found


@validate(id=text)
def find_experiment(id: str) -> Experiment:
    """Look an experiment up in the registry by its id.

    Raises:
        ArgumentError: There is none of that id; near ones are named.
    """
    paper, _, figure = id.partition("/")
    name = f"{package.__name__}.{paper}.{figure.replace('-', '_').replace('.', '_')}"
    named = figure.isprintable() and figure and not figure.startswith("_")
    if paper in PAPERS and named and find_spec(name) is not None:
        experiment = Experiment(import_module(name))
        if experiment.id == id:
            return experiment
    near = difflib.get_close_matches(id, all_experiments(), n=3, cutoff=0.4)
    hint = f"Did you mean {' or '.join(near)}? " if near else ""
    raise ArgumentError(
        "id", id, "there is no such experiment", f"{hint}See them all with: hyperribbon list"
    )
