"""Closed-form theory applied to the user's own network, before it is trained."""

from hyperribbon.prediction.manifold import (
    ManifoldComparison,
    ManifoldPrediction,
    predict_manifold,
)
from hyperribbon.prediction.sharpness import SharpnessPrediction, predict_sharpness

__all__ = [
    "ManifoldComparison",
    "ManifoldPrediction",
    "SharpnessPrediction",
    "predict_manifold",
    "predict_sharpness",
]
