"""Losses as sums over samples: value, gradient, curvature and its root in the outputs.

A loss of reduction "mean" is Σ/amount with one amount for all the data (the number of samples, of
elements, or the total class weight), never an average of batch averages.
"""

from hyperribbon.operators.risk.losses.base import Loss, one_element_each
from hyperribbon.operators.risk.losses.callables import CallableLoss
from hyperribbon.operators.risk.losses.elementwise import (
    BCEWithLogitsLoss,
    ElementwiseLoss,
    MSELoss,
)

__all__ = [
    "BCEWithLogitsLoss",
    "CallableLoss",
    "ElementwiseLoss",
    "Loss",
    "MSELoss",
    "one_element_each",
]
