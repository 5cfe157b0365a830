"""Two networks side by side."""

from hyperribbon.application.inspection.comparison.compare import compare
from hyperribbon.application.inspection.comparison.result import Comparison, Difference, Shared

__all__ = ["Comparison", "Difference", "Shared", "compare"]
