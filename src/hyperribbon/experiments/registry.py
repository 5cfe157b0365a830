"""The experiments there are: every module of the package that states an ID."""

from __future__ import annotations

import difflib
import hashlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import hyperribbon.experiments as package
from hyperribbon.core.boundary import checked, text
from hyperribbon.core.checks import ArgumentError, check_choice
from hyperribbon.core.claims import Claim
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.fingerprint import fingerprint
from hyperribbon.experiments.judging import Comparison
from hyperribbon.experiments.statements import Ledger

__all__ = ["PAPERS", "Experiment", "all_experiments", "find_experiment"]

PAPERS = ("ribbons", "subnetworks", "fluctuations", "linear_networks")
_PRESETS = ("smoke", "laptop", "paper")


@dataclass(frozen=True)
class Experiment:
    """One figure: how to compute it, draw it and judge it."""

    module: ModuleType

    @property
    def id(self) -> str:
        """Paper and figure, such as "ribbons/fig4"."""
        return self.module.ID

    @property
    def paper(self) -> str:
        """Key of the paper."""
        return self.id.split("/")[0]

    @property
    def title(self) -> str:
        """What it shows, in a few words."""
        return self.module.TITLE

    @property
    def compute(self) -> Callable[[Any, Context], Any]:
        """Return the result of a configuration."""
        return self.module.compute

    @property
    def plot(self) -> Callable[[Any], Any]:
        """Return the figure, or figures by name, of a result."""
        return self.module.plot

    @property
    def claims(self) -> Callable[[Any], list[Claim]]:
        """Return the claims of a result."""
        return self.module.claims

    @property
    def ledger(self) -> Ledger | None:
        """The statements that its claims are judged by, where they are written down."""
        return getattr(self.module, "LEDGER", None)

    @property
    def comparisons(self) -> dict[str, Comparison]:
        """How each claim is compared over several seeds, by its id."""
        return self.ledger.comparisons() if self.ledger is not None else {}

    @property
    def interactive(self) -> Callable[[Any], Any] | None:
        """Return the plotly figure, or figures by name, of a result, where there is one."""
        return getattr(self.module, "interactive", None)

    @property
    def code(self) -> str:
        """Digest of the module, of what it calls within the experiments, and of versions.

        A changed experiment is another run.
        """
        functions = (self.compute, self.plot, self.claims, self.interactive)
        parts = [fingerprint(function) for function in functions if function is not None]
        text = inspect.getsource(self.module) + "".join(parts)
        return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()

    def config(self, preset: str, *, with_data: bool = False) -> Any:
        """Return the configuration of a preset.

        Args:
            preset: "smoke", "laptop" or "paper".
            with_data: Whether a folder of full data sets is at hand.
        """
        check_choice("preset", preset, _PRESETS)
        presets = self.module.PRESETS
        if with_data:
            presets = getattr(self.module, "PRESETS_WITH_DATA", presets)
        return presets[preset]

    def reduced(self, config: Any) -> dict[str, str]:
        """Return what of a configuration its data do not allow, and what is used instead.

        A paper's package says so, where it has a function of this name.
        """
        paper = import_module(self.module.__name__.rpartition(".")[0])
        return paper.reduced(config) if hasattr(paper, "reduced") else {}

    def result(self, tree: dict[str, Any]) -> Any:
        """Return a stored result as the experiment's Result."""
        return self.module.Result(**tree)


@cache
def all_experiments() -> dict[str, Experiment]:
    """Return every experiment by id, in the order of papers and figures."""
    found = {}
    for paper in PAPERS:
        room = import_module(f"{package.__name__}.{paper}")
        names = sorted(
            (info.name for info in pkgutil.iter_modules(room.__path__)), key=_natural_order
        )
        for name in names:
            if not name.startswith("_"):
                experiment = Experiment(import_module(f"{room.__name__}.{name}"))
                found[experiment.id] = experiment
    return found


@checked(id=text)
def find_experiment(id: str) -> Experiment:
    """Return an experiment by its id.

    Raises:
        ArgumentError: There is none of that id; near ones are named.
    """
    paper, _, figure = id.partition("/")
    name = f"{package.__name__}.{paper}.{figure.replace('-', '_').replace('.', '_')}"
    if paper in PAPERS and figure.isprintable() and figure and find_spec(name) is not None:
        module = import_module(name)
        if getattr(module, "ID", None) == id:
            return Experiment(module)
    near = difflib.get_close_matches(id, all_experiments(), n=3, cutoff=0.4)
    hint = f"Did you mean {' or '.join(near)}? " if near else ""
    raise ArgumentError(
        "id", id, "there is no such experiment", f"{hint}See them all with: hyperribbon list"
    )


def _natural_order(name: str) -> list[tuple[int, int | str]]:
    parts: list[tuple[int, int | str]] = []
    digits = ""
    for character in name + "\0":
        if character.isdigit():
            digits += character
            continue
        if digits:
            parts.append((0, int(digits)))
            digits = ""
        parts.append((1, character))
    return parts
