"""Two networks side by side."""

from hyperribbon.inspection.comparison.comparing import compare
from hyperribbon.inspection.comparison.differences import Difference, Shared
from hyperribbon.inspection.comparison.result import Comparison

__all__ = ["Comparison", "Difference", "Shared", "compare"]
