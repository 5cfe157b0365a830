"""One call: plan, measure a model within a budget, collect, read in plain words.

Names load on first use, so that a report of stored inspections is written without torch.
"""

from typing import TYPE_CHECKING

import hyperribbon.core.rich_quietly  # noqa: F401 - before anything imports rich
from hyperribbon.core.first_use import on_first_use

if TYPE_CHECKING:
    from hyperribbon.inspection.anisotropy import (
        Anisotropy,
        anisotropy_by_layer,
        effective_ranks,
        eigenfunctions,
        excess_kurtoses,
        measure_anisotropy,
    )
    from hyperribbon.inspection.comparison import Comparison, compare
    from hyperribbon.inspection.engine.findings import Inspection, Outcome
    from hyperribbon.inspection.engine.inspecting import inspect
    from hyperribbon.inspection.engine.planning import Budget, InspectionPlan
    from hyperribbon.inspection.engine.quantities import Part, Quantity
    from hyperribbon.inspection.linear.comparison import Assumption, TheoryComparison
    from hyperribbon.inspection.linear.measurements import leading_eigenvalues, linear_measurements
    from hyperribbon.inspection.linear.theory import compare_with_theory
    from hyperribbon.inspection.watching import Curvature, watch

__all__ = [
    "Anisotropy",
    "Assumption",
    "Budget",
    "Comparison",
    "Curvature",
    "Inspection",
    "InspectionPlan",
    "Outcome",
    "Part",
    "Quantity",
    "TheoryComparison",
    "anisotropy_by_layer",
    "compare",
    "compare_with_theory",
    "effective_ranks",
    "eigenfunctions",
    "excess_kurtoses",
    "inspect",
    "leading_eigenvalues",
    "linear_measurements",
    "measure_anisotropy",
    "watch",
]

__getattr__, __dir__ = on_first_use(
    __name__,
    {
        "anisotropy": (
            "Anisotropy",
            "anisotropy_by_layer",
            "effective_ranks",
            "eigenfunctions",
            "excess_kurtoses",
            "measure_anisotropy",
        ),
        "comparison": ("Comparison", "compare"),
        "engine.findings": ("Inspection", "Outcome"),
        "engine.inspecting": ("inspect",),
        "linear.comparison": ("Assumption", "TheoryComparison"),
        "linear.measurements": ("leading_eigenvalues", "linear_measurements"),
        "linear.theory": ("compare_with_theory",),
        "engine.planning": ("Budget", "InspectionPlan"),
        "engine.quantities": ("Part", "Quantity"),
        "watching": ("Curvature", "watch"),
    },
)
