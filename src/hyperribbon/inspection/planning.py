"""What an inspection will do and how long it will take, before it does it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pandas as pd
import torch

from hyperribbon.core.checks import ArgumentError, check_positive
from hyperribbon.core.generators import torch_generator
from hyperribbon.core.memory import free_memory
from hyperribbon.inspection.notebook import Notebook
from hyperribbon.inspection.quantities import Part
from hyperribbon.inspection.subject import Subject

__all__ = ["Budget", "InspectionPlan", "PlannedStep", "Step", "make_plan"]

_PROBE = 256
"""Samples on which a product is timed; fewer when it is slow."""
_FEWEST = 512
"""Samples below which detail is given up before samples are."""
_VERY_FEWEST = 64
"""Samples below which steps are left out."""
_QUICK = 0.05
"""Seconds below which a product is timed again on more samples."""
_USABLE = 0.85
"""Share of the budget that is planned; the rest is for what estimates miss."""


@dataclass(frozen=True)
class Budget:
    """What an inspection may take.

    Attributes:
        seconds: Time.
        memory: Bytes that everything together stays below, besides the model and the data given:
            graphs, solvers, recorded weights and predictions. Where it does not suffice, fewer
            eigenpairs, records or samples are used, or a step says so. None for half of what is
            free.
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
            return replace(budget, memory=0.5 * free_memory())
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
        run: Function of the subject, the notebook and the products it may spend.
        wish: Hessian products it would like, given the subject and the notebook.
        least: Products below which it is not worth starting.
        is_fixed: Whether it cannot spend less than its wish.
        is_steady: Whether its time is that of Hessian products, so that it tells the pace.
        obstacle: Returns why it cannot be done, or "".
    """

    name: str
    title: str
    run: Callable[[Subject, Notebook, int], Part]
    wish: Callable[[Subject, Notebook], float]
    least: int = 1
    is_fixed: bool = False
    is_steady: bool = False
    obstacle: Callable[[Subject, Notebook], str] = lambda subject, notebook: ""


@dataclass(frozen=True)
class PlannedStep:
    """A step with what it may spend, or why it is left out.

    Attributes:
        step: The step.
        wish: Products it would like.
        products: Products planned.
        seconds: Their time.
        reason: Why it is left out, or "".
        is_postponed: Whether it is left out for lack of time alone, and done if some is left over.
    """

    step: Step
    wish: int
    products: int
    seconds: float
    reason: str = ""
    is_postponed: bool = False


@dataclass(frozen=True)
class InspectionPlan:
    """What will be done.

    Attributes:
        steps: In order, those left out included.
        samples: Samples that will be used.
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
        """Return one row a step."""
        return pd.DataFrame(
            [
                {
                    "step": planned.step.title,
                    "products": 0 if planned.reason else planned.products,
                    "seconds": 0.0 if planned.reason else round(planned.seconds, 2),
                    "left out because": planned.reason,
                }
                for planned in self.steps
            ]
        )


def make_plan(
    steps: Sequence[Step], subject: Subject, notebook: Notebook, budget: Budget
) -> tuple[InspectionPlan, Subject]:
    """Time one product, then decide on samples and products for each step.

    All samples are used if everything fits in the budget. Otherwise their number is lowered to
    512, then every step spends less, then samples go down to no less than 64, then the last steps
    are left out, unless the others turn out to leave time for them.

    Args:
        steps: Everything that could be done, the most telling first.
        subject: What is inspected, on all samples.
        notebook: The request.
        budget: What it may take.

    Returns:
        The plan, and the subject on the samples it decided on.

    Raises:
        ArgumentError: Not even one step fits.
    """
    total = subject.total
    slowest = subject.processes.largest
    probe = subject.with_samples(min(total or _PROBE, _VERY_FEWEST), notebook.seed)
    product = slowest(_time_product(probe))
    if product < _QUICK and (total is None or total > probe.samples):
        probe = subject.with_samples(min(total or _PROBE, _PROBE), notebook.seed)
        product = slowest(_time_product(probe))
    per_sample = product / probe.samples
    fixed = slowest(_time_column(probe)) * (min(notebook.k, probe.dimension) + 20)
    reasons = [step.obstacle(probe, notebook) for step in steps]
    wishes = [step.wish(probe, notebook) for step in steps]
    wanted = sum(wish for wish, reason in zip(wishes, reasons, strict=True) if not reason)
    fixed_wishes = sum(
        wish
        for step, wish, reason in zip(steps, wishes, reasons, strict=True)
        if step.is_fixed and not reason
    )
    usable = _USABLE * budget.seconds
    affordable = int(max(usable / wanted - fixed, 0.0) / per_sample) if wanted else 0
    most = total if total is not None else max(_FEWEST, 4096)
    least = sum(
        wish if step.is_fixed else min(wish, step.least)
        for step, wish, reason in zip(steps, wishes, reasons, strict=True)
        if not reason
    )
    bearable = int(max(usable / least - fixed, 0.0) / per_sample) if least else most
    samples = min(most, max(affordable, min(_FEWEST, max(bearable, _VERY_FEWEST))))
    per_product = per_sample * samples + fixed
    free = max(usable / per_product - fixed_wishes, 0.0)
    scale = min(1.0, free / (wanted - fixed_wishes)) if wanted > fixed_wishes else 1.0
    planned = []
    for step, wish, reason in zip(steps, wishes, reasons, strict=True):
        products = max(1, int(wish if step.is_fixed else wish * scale))
        if not reason and products < step.least:
            products = step.least
        seconds = products * per_product
        planned.append(PlannedStep(step, max(products, int(wish)), products, seconds, reason))
    planned = _leave_out(planned, budget.seconds)
    if all(entry.reason for entry in planned):
        raise ArgumentError(
            "budget", budget.seconds,
            f"one Hessian product on {samples} samples takes {per_product:.2g} s, so nothing fits",
            "Give more seconds, fewer samples, or fewer parameters with params=.",
        )  # fmt: skip
    chosen = subject if samples == total else subject.with_samples(samples, notebook.seed)
    return InspectionPlan(tuple(planned), samples, per_product, budget), chosen


def _leave_out(planned: list[PlannedStep], seconds: float) -> list[PlannedStep]:
    """Leave out the last steps until the rest fits."""
    for index in reversed(range(len(planned))):
        running = sum(entry.seconds for entry in planned if not entry.reason)
        if running <= seconds:
            break
        if not planned[index].reason:
            reason = f"it would take {planned[index].seconds:.0f} s more than the budget leaves"
            planned[index] = replace(planned[index], reason=reason, is_postponed=True)
    return planned


def _time_product(probe: Subject) -> float:
    """Return the seconds of one Hessian product."""
    generator = torch_generator(0, "timing")
    vector = torch.randn(
        probe.dimension, generator=generator, dtype=probe.hessian.dtype, device="cpu"
    )
    vector = vector.to(probe.hessian.device)
    times = []
    for _ in range(3):
        began = time.perf_counter()
        float((probe.hessian @ vector)[0])
        times.append(time.perf_counter() - began)
        if len(times) == 2 and times[1] > _QUICK:
            break
    return min(times[1:])


def _time_column(probe: Subject, columns: int = 16) -> float:
    """Return the seconds to make a vector orthogonal, twice, to one column of a basis."""
    basis = torch.ones(columns, probe.dimension, dtype=probe.hessian.dtype, device="cpu")
    basis = basis.to(probe.hessian.device)
    times = []
    for _ in range(3):
        began = time.perf_counter()
        float((basis.T @ (basis @ basis[0]))[0])
        times.append(time.perf_counter() - began)
    return min(times) / columns
