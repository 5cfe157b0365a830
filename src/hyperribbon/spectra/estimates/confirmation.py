"""Whether a number that an operator gives by itself agrees with a few of its products."""

from __future__ import annotations

from math import isfinite, sqrt

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.spectral_results import Estimate
from hyperribbon.spectra.estimates.sketch import Sketch, row_products, widths
from hyperribbon.spectra.products import Products
from hyperribbon.spectra.rounding import in_float64

_PROBES = 4
_DEVIATIONS = 8  # standard deviations by which the probes may differ from a number
_SLACK = 1e-2  # relative rounding of such numbers


def exactly(products: Products, value: float) -> Estimate:
    """Return a trace or norm known exactly, once confirmed, as an estimate without error.

    Raises:
        ArgumentError: It is not finite.
    """
    if not isfinite(value):
        reason = f"the number it gives is {value}"
        remedy = "Check that the loss, the weights and the data are finite."
        raise ArgumentError("op", type(products.op).__name__, reason, remedy)
    return Estimate(value, 0.0, True, products.matvecs, "exact")


def confirmed_trace(products: Products, sketch: Sketch) -> Estimate | None:
    """Return the trace an operator gives by itself, if its products confirm it; else None.

    Rounding may leave nothing of a difference of two large numbers. So a trace that the products
    contradict is taken once more in float64, where the operator has that.
    """
    op = products.op
    value, moments = float(op.trace()), ProbeMoments(sketch)
    exactly(products, value)
    if not moments.allow_trace(value, is_positive=hasattr(op, "gram")):
        exact = in_float64(products)
        if not getattr(exact, "has_exact_trace", False):
            return None
        value = float(exact.trace())
        if not moments.allow_trace(value, is_positive=hasattr(op, "gram")):
            return None
    return exactly(products, value)


class ProbeMoments:
    """Means of ωᵀAω and ‖Aω‖² over a few probes ω with E[ωωᵀ] = I, and the largest ‖Aω‖/‖ω‖.

    Args:
        sketch: Where the probes come from, with no directions.
    """

    def __init__(self, sketch: Sketch) -> None:
        first: list[float] = []
        second: list[float] = []
        for width in widths(_PROBES, sketch.block):
            omega = sketch.draw(width)
            image = sketch.multiply(omega)
            first += row_products(omega, image).tolist()
            second += row_products(image, image).tolist()
        self._first, self._second = sum(first) / _PROBES, sum(second) / _PROBES
        self._largest = sqrt(max(second) / sketch.products.size)

    def allow_trace(self, value: float, *, is_positive: bool) -> bool:
        """Confirm a trace by probes: whether it is within 8√(2/n)·‖A‖ of their mean.

        That of a positive semidefinite operator is also no smaller than ‖A‖₂ ≥ ‖Aω‖/‖ω‖.

        Returns:
            True when the probes do not speak against the value.
        """
        if is_positive and value < (1 - _SLACK) * self._largest:
            return False
        limit = _DEVIATIONS * sqrt(2 * self._second / _PROBES)
        return abs(self._first - value) <= limit + _SLACK * abs(value)

    def allow_norm(self, value: float) -> bool:
        """Confirm ‖A‖² by probes: whether it is not far below the mean of ‖Aω‖²."""
        limit = 1 + _DEVIATIONS * sqrt(2 / _PROBES) + _SLACK
        return self._second <= limit * value**2
