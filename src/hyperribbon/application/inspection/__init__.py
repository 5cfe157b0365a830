"""One call: plan, measure a model within a budget, collect, read in plain words.

Names load on first use, so that a report of stored inspections is written without torch.
"""

from typing import TYPE_CHECKING

import hyperribbon.core.progress  # noqa: F401 - before anything imports rich
from hyperribbon.core.lazy import lazy_attributes

if TYPE_CHECKING:
    from hyperribbon.application.inspection.anisotropy import (
        Anisotropy,
        anisotropy_by_layer,
        effective_ranks,
        eigenfunctions,
        excess_kurtoses,
        measure_anisotropy,
    )
    from hyperribbon.application.inspection.comparison import Comparison, compare
    from hyperribbon.application.inspection.engine.clock import Budget
    from hyperribbon.application.inspection.engine.inspect import inspect
    from hyperribbon.application.inspection.linear.measurements import (
        leading_eigenvalues,
        linear_measurements,
    )
    from hyperribbon.application.inspection.linear.theory import (
        Assumption,
        TheoryComparison,
        compare_with_theory,
    )
    from hyperribbon.application.inspection.quantities import Part, Quantity
    from hyperribbon.application.inspection.recorded_curvature import Curvature, watch
    from hyperribbon.application.inspection.result import (
        Inspection,
        InspectionPlan,
        Outcome,
    )

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

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_attributes(__name__)
