"""What an inspection will do and how long it will take, before it does it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from hyperribbon.core import html
from hyperribbon.core.checks import check_positive
from hyperribbon.core.devices.memory import free_memory
from hyperribbon.core.devices.processes import ProcessGroupError
from hyperribbon.inspection.engine.looks import Look
from hyperribbon.inspection.engine.notebook import Notebook
from hyperribbon.inspection.engine.quantities import Part
from hyperribbon.inspection.engine.subject import Subject

__all__ = ["Budget", "InspectionPlan", "PlannedStep", "Step", "make_plan"]

_USABLE = 0.9
"""Share of the time left that is planned; the rest is for what estimates miss."""
_MOST = 4e9
"""Bytes that are used when none are named: more would not be noticed, and other machines may have
less, where other pieces of the data would round differently."""
_MOMENT = 1e-6
"""Least seconds per product."""
_ENOUGH = 512
"""Samples beyond which every step must fit at its full length."""


@dataclass(frozen=True)
class Budget:
    """What an inspection may take.

    Attributes:
        seconds: Time.
        memory: Bytes that everything together stays below, besides the model and the data given:
            graphs, solvers, recorded weights and predictions. Where it does not suffice, fewer
            eigenpairs, records or samples are used, or a step says so. None for half of what is
            free, 4 GB at most.
    """

    seconds: float = 60.0
    memory: float | None = None

    @classmethod
    def of(cls, value: Budget | float) -> Budget:
        """Return a budget; a number is seconds.

        >>> Budget.of(30).seconds
        30.0
        """
        budget = (
            value if isinstance(value, Budget) else cls(seconds=check_positive("budget", value))
        )
        check_positive("budget.seconds", budget.seconds)
        if budget.memory is None:
            return replace(budget, memory=min(0.5 * free_memory(), _MOST))
        check_positive("budget.memory", budget.memory)
        return budget

    @property
    def bytes(self) -> float:
        """The memory in bytes; nothing is free where none was decided on."""
        return self.memory or 0.0


@dataclass(frozen=True)
class Step:
    """One kind of measurement.

    Attributes:
        name: Its name.
        title: What it measures.
        order: Steps are done from low to high: the most telling for what they cost come first.
        run: Function of the subject, the notebook and the products it may spend.
        wish: Hessian products it would like, given the subject and the notebook.
        least: Products below which it is not worth starting.
        is_fixed: Whether it cannot spend less than its wish.
        is_late: Whether looks at more samples come first: it tells least for what it costs.
        fewest: Samples below which it says little; where there are as many, it has them or is left
            out.
        obstacle: Returns why it cannot be done, or "".
    """

    name: str
    title: str
    order: int
    run: Callable[[Subject, Notebook, int], Part]
    wish: Callable[[Subject, Notebook], float]
    least: int = 1
    is_fixed: bool = False
    is_late: bool = False
    fewest: int = 1
    obstacle: Callable[[Subject, Notebook], str] = lambda subject, notebook: ""


@dataclass(frozen=True)
class PlannedStep:
    """A step with what it may spend, or why it is left out.

    Attributes:
        step: The step.
        wish: Products it would like.
        products: Products planned.
        seconds: Their time.
        samples: Samples that they are of.
        reason: Why it is left out, or "".
        is_postponed: Whether it is left out for lack of time alone, and done if some is left over.
    """

    step: Step
    wish: int
    products: int
    seconds: float
    samples: int
    reason: str = ""
    is_postponed: bool = False

    @property
    def each(self) -> float:
        """Seconds per product."""
        return self.seconds / self.products


@dataclass(frozen=True)
class InspectionPlan:
    """What will be done.

    Attributes:
        steps: In order, those left out included.
        samples: Samples that will be used, except by steps that need more.
        seconds_per_product: Time of one Hessian product on them.
        budget: What it may take.
    """

    steps: tuple[PlannedStep, ...]
    samples: int
    seconds_per_product: float
    budget: Budget

    @property
    def seconds(self) -> float:
        """Expected time of everything."""
        return sum(planned.seconds for planned in self.steps if not planned.reason)

    def table(self) -> pd.DataFrame:
        """Return one row for each step."""
        rows = [
            (p.step.title, 0, 0.0, p.reason)
            if p.reason
            else (p.step.title, p.products, round(p.seconds, 2), "")
            for p in self.steps
        ]
        return pd.DataFrame(rows, columns=["step", "products", "seconds", "left out because"])

    def _repr_html_(self) -> str:
        """Show the steps, in a notebook."""
        title = f"{len(self.steps)} steps on {self.samples:,} samples, about {self.seconds:.0f} s"
        table = self.table()
        return html.card(title, html.table(list(table.columns), table.itertuples(index=False)))


def make_plan(
    steps: Sequence[Step], looks: Sequence[Look], notebook: Notebook, budget: Budget, left: float
) -> tuple[InspectionPlan, Look]:
    """Decide on samples and products for each step.

    As many samples are used as looks had, where every step fits at its full length; else up to 512
    on which all fit in a shortened form; else the fewest. A step that says little on so few is done
    on more, or left out with the time it needs. Then every step spends less, then those are left
    out that do not fit beside the ones before them, unless these turn out to leave time. A step
    that cannot be planned is left out and says why.

    Returns:
        The plan, and the look whose samples it decided on.
    """
    usable = _USABLE * left
    timed = [look for look in looks if look.product] or [looks[0]]
    requests = _requests(steps, timed[0].subject, notebook)
    asked = [entry for entry in requests if not entry.reason]
    wanted = sum(entry.wish for entry in asked)
    least = sum(entry.least for entry in asked)
    bearable = [
        look
        for look in timed
        if wanted * look.product <= usable
        or (look.samples <= _ENOUGH and least * look.product <= usable)
    ]
    look = bearable[-1] if bearable else timed[0]
    requests = [entry.placed(look, timed) for entry in requests]
    asked = [entry for entry in requests if not entry.reason]
    fixed = sum(entry.wish * entry.each for entry in asked if entry.step.is_fixed)
    flexible = sum(entry.wish * entry.each for entry in asked if not entry.step.is_fixed)
    scale = min(1.0, max(usable - fixed, 0.0) / flexible) if flexible else 1.0
    planned = _leave_out([entry.planned(scale) for entry in requests], left)
    return InspectionPlan(tuple(planned), look.samples, max(look.product, _MOMENT), budget), look


@dataclass(frozen=True)
class _Request:
    """What a step wishes, or why it cannot be done.

    Attributes:
        step: The step.
        wish: Products it would like.
        reason: Why it is left out, or "".
        samples: Samples that it is of.
        each: Seconds per product on them.
    """

    step: Step
    wish: float
    reason: str
    samples: int = 0
    each: float = _MOMENT

    @property
    def least(self) -> float:
        """Products without which it is not done."""
        return self.wish if self.step.is_fixed else min(self.wish, self.step.least)

    def placed(self, look: Look, timed: Sequence[Look]) -> _Request:
        """Return the request with the samples it is of: those decided on, or more if it must."""
        total = look.subject.total
        fewest = self.step.fewest if total is None else min(self.step.fewest, total)
        found = next((entry for entry in (look, *timed) if entry.samples >= fewest), None)
        if found is not None:
            return replace(self, samples=found.samples, each=max(found.product, _MOMENT))
        each = max(timed[-1].product, _MOMENT) * fewest / timed[-1].samples
        reason = f"it says little on fewer than {fewest} samples, on which it needs about "
        reason = self.reason or f"{reason}{max(self.wish * each, 1):.0f} s"
        return replace(self, samples=fewest, each=each, reason=reason)

    def planned(self, scale: float) -> PlannedStep:
        """Return the step with what it may spend, where steps that can spend a part of it."""
        share = self.wish if self.step.is_fixed else max(self.wish * scale, self.step.least)
        products = max(1, int(share))
        taken = products, products * self.each, self.samples
        return PlannedStep(self.step, max(products, int(self.wish)), *taken, self.reason)


def _requests(steps: Sequence[Step], subject: Subject, notebook: Notebook) -> list[_Request]:
    """Return what steps wish, and why some cannot be done; a failure is a reason."""
    requests = []
    for step in steps:
        reason, wish = "", 1.0
        try:
            reason = step.obstacle(subject, notebook)
            wish = float(step.wish(subject, notebook))
        except ProcessGroupError:
            raise
        except Exception as error:  # whatever the user's model raises
            reason = f"it could not be planned: {str(error) or repr(error)}"
        requests.append(_Request(step, wish, reason))
    return requests


def _leave_out(planned: list[PlannedStep], seconds: float) -> list[PlannedStep]:
    """Leave out every step that does not fit beside those before it."""
    kept, left = [], seconds
    for entry in planned:
        if not entry.reason and entry.seconds > left:
            reason = f"it needs about {max(entry.seconds, 1):.0f} s"
            entry = replace(entry, reason=reason, is_postponed=True)
        left -= 0.0 if entry.reason else entry.seconds
        kept.append(entry)
    return kept
