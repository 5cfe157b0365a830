"""Closed-form theory applied to the user's own network, before it is trained."""

from hyperribbon.prediction.manifold import (
    ManifoldComparison,
    ManifoldPrediction,
    predict_manifold,
)

__all__ = ["ManifoldComparison", "ManifoldPrediction", "predict_manifold"]
