"""PCA of model predictions, with the interface of InPCA."""

from __future__ import annotations

from typing import Annotated as Float
from typing import Any

import numpy as np
import scipy.linalg
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from hyperribbon.core.checks import ArgumentError, check_array, check_positive_int, validate
from hyperribbon.manifold.predictions import model_weights
from hyperribbon.manifold.shown import ShownEmbedding
from hyperribbon.manifold.streaming import orient
from hyperribbon.manifold.stress import share_of_stress


class PCA(ShownEmbedding, TransformerMixin, BaseEstimator):
    """Principal component analysis of model predictions, with the interface of InPCA.

    Eigenvalues are those of the centred Gram matrix Σ_u w_u (x_u − x̄)(x_u − x̄)ᵀ with weights that
    sum to the number of models, so that InPCA of squared Euclidean distances gives the same space.

    Args:
        n_components: Number of coordinates; None for all.

    Attributes:
        embedding_: (models, n_components).
        eigenvalues_: (n_components,), descending.
        time_like_: All False: a Euclidean space has no time-like directions.
        explained_stress_: As for InPCA.
        explained_variance_ratio_: (n_components,), share of the variance by direction.
        spectrum_: All eigenvalues.
        components_: (n_components, features), the directions.
        mean_: (features,).
    """

    def __init__(self, n_components: int | None = 3) -> None:
        self.n_components = n_components

    @validate()
    def fit(self, X: Any, y: None = None, sample_weight: np.ndarray | None = None) -> PCA:
        """Fit the principal components of predictions (models, ...), flattened per model."""
        points = _flat(X)
        weights = model_weights(sample_weight, len(points))
        weights = weights * (len(points) / weights.sum())
        self.mean_: np.ndarray = weights @ points / len(points)
        centred = points - self.mean_
        rounding = (len(points) + 8) * np.finfo(float).eps * np.abs(points).max()
        if np.abs(centred).max() <= rounding:
            centred = np.zeros_like(centred)
        scaled = np.sqrt(weights)[:, None] * centred
        _, singular, V = scipy.linalg.svd(scaled, full_matrices=False)
        count = len(singular) if self.n_components is None else self.n_components
        count = check_positive_int("n_components", count, maximum=len(singular))
        self.spectrum_: np.ndarray = singular**2
        self.eigenvalues_: np.ndarray = self.spectrum_[:count]
        self.time_like_ = np.zeros(count, dtype=bool)
        self.components_ = orient(V[:count].T).T
        self.explained_stress_ = share_of_stress(self.eigenvalues_, (self.spectrum_**2).sum())
        variance = self.spectrum_.sum()
        self.explained_variance_ratio_: np.ndarray = self.eigenvalues_ / (variance or np.nan)
        self.n_features_in_: int = points.shape[1]
        self.embedding_ = self.transform(points)
        return self

    def fit_transform(
        self, X: Any, y: None = None, sample_weight: np.ndarray | None = None
    ) -> Float[np.ndarray, "models k"]:
        """Fit the principal components and return the coordinates of the models."""
        return self.fit(X, sample_weight=sample_weight).embedding_

    @validate()
    def transform(self, X: Any) -> Float[np.ndarray, "models k"]:
        """Return the coordinates of models along the principal components."""
        check_is_fitted(self, "components_")
        flat = _flat(X)
        if flat.shape[1] != len(self.mean_):
            reason = f"the embedding was fitted to models with {len(self.mean_)} predictions each"
            raise ArgumentError("X", flat, reason, "Give predictions of the same size.")
        return (flat - self.mean_) @ self.components_.T


def _flat(X: Any) -> np.ndarray:
    array = check_array("X", X)
    if array.ndim < 2:
        raise ArgumentError("X", array, "models are rows", "Give (models, ...).")
    return array.reshape(len(array), -1)
