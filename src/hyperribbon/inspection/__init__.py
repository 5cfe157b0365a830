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
    from hyperribbon.inspection.chain_measurements import leading_eigenvalues, linear_measurements
    from hyperribbon.inspection.comparison import Comparison, compare
    from hyperribbon.inspection.findings import Inspection, Outcome
    from hyperribbon.inspection.inspecting import inspect
    from hyperribbon.inspection.linear_comparison import Assumption, TheoryComparison
    from hyperribbon.inspection.linear_theory import compare_with_theory
    from hyperribbon.inspection.planning import Budget, InspectionPlan
    from hyperribbon.inspection.quantities import Part, Quantity
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
        "findings": ("Inspection", "Outcome"),
        "inspecting": ("inspect",),
        "linear_comparison": ("Assumption", "TheoryComparison"),
        "chain_measurements": ("leading_eigenvalues", "linear_measurements"),
        "linear_theory": ("compare_with_theory",),
        "planning": ("Budget", "InspectionPlan"),
        "quantities": ("Part", "Quantity"),
        "watching": ("Curvature", "watch"),
    },
)
