"""InPCA and PCA: low-dimensional coordinates of models, with one interface."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import scipy.linalg
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from hyperribbon.core import html
from hyperribbon.core.boundary import checked, matrix, row, square
from hyperribbon.core.checks import (
    ArgumentError,
    check_absent,
    check_array,
    check_choice,
    check_finite,
    check_positive_int,
)
from hyperribbon.core.generators import numpy_generator
from hyperribbon.manifold.landmarks import share_of_stress, stress_of_all
from hyperribbon.manifold.predictions import open_models
from hyperribbon.manifold.stored_tiles import TileRule
from hyperribbon.manifold.streaming import (
    Centring,
    Streaming,
    cross_product,
    orient,
    rounding_of,
    stream_inpca,
)

__all__ = ["InPCA", "PCA", "explained_stress"]


class InPCA(TransformerMixin, BaseEstimator):
    """Intensive principal component analysis: models in a Minkowski space that keeps distances.

    The matrix D of Bhattacharyya distances is centred and diagonalised,

        W = −½ L D Lᵀ,   L = I − 1wᵀ,   W = Σᵢ λᵢ vᵢvᵢᵀ,   xᵢ = √|λᵢ| vᵢ,

    with eigenvalues sorted by |λ|. Negative ones belong to time-like directions, along which
    squared differences count negatively: D = Σᵢ sign(λᵢ)(xᵢ(u) − xᵢ(v))² when all are kept.
    Implements the embedding of Fig. 1 of [ribbons].

    Args:
        n_components: Number of coordinates; None for all.
        metric: "bhattacharyya" for predictions (models, samples, classes), "precomputed" for a
            matrix of distances.
        landmarks: How many models, or which ones (their indices, or a mask with one boolean a
            model), the space is built from; the others are projected into it. A number is drawn
            by `seed`, one from each of as many stretches of the models in their order, so that all
            parts of trajectories are there. None for all.
        log: Whether predictions are log-probabilities.
        floor: Rule for tiny probabilities, see `bhattacharyya`.
        precision: Of the distances; "double" reproduces the fitted points in `transform` to 1e-8.
        seed: For the draw of the landmarks.
        streaming: Memory and disk for more models than a matrix of distances has room for; their
            directions are found tile by tile then, see `stream_inpca`.

    Attributes:
        embedding_: (models, n_components), coordinates of the models given to `fit`.
        eigenvalues_: (n_components,), signed, descending in magnitude.
        time_like_: (n_components,), whether the direction's eigenvalue is negative.
        explained_stress_: (n_components,), share of the stress explained by the first 1, 2, …
            directions: 1 − √(1 − Σ_{i≤k} λᵢ²/‖W‖²); NaN where all models are the same to rounding,
            so that there is nothing to explain. With landmarks, an estimate of that of all
            models: the landmarks' own, without its bias (by jackknife).
        stress_error_: (n_components,), bound on the error of this estimate; zeros when all models
            are landmarks.
        spectrum_: All eigenvalues of W, descending in magnitude; the leading ones when the models
            were too many for a matrix of distances.
        landmarks_: Indices of the models that the space is built from.

    >>> P = np.array([[[0.5, 0.5]], [[0.7, 0.3]], [[0.99, 0.01]]])
    >>> inpca = InPCA(n_components=2).fit(P)
    >>> bool(np.abs(inpca.transform(P) - inpca.embedding_).max() < 1e-8)
    True
    """

    def __init__(
        self,
        n_components: int | None = 3,
        metric: Literal["bhattacharyya", "precomputed"] = "bhattacharyya",
        landmarks: int | np.ndarray | None = None,
        *,
        log: bool = False,
        floor: float | None = None,
        precision: Literal["single", "double"] = "double",
        seed: int = 0,
        streaming: Streaming | None = None,
    ) -> None:
        self.n_components = n_components
        self.metric = metric
        self.landmarks = landmarks
        self.log = log
        self.floor = floor
        self.precision: Literal["single", "double"] = precision
        self.seed = seed
        self.streaming = streaming

    def _repr_html_(self) -> str:
        """Show the first two coordinates of the models, in a notebook."""
        if not hasattr(self, "embedding_"):
            return html.card(repr(self), html.note("not fitted yet"))
        points = self.embedding_
        rows = [
            (i + 1, value, "time-like" if value < 0 else "space-like", f"{share:.1%}")
            for i, (value, share) in enumerate(
                zip(self.eigenvalues_, self.explained_stress_, strict=True)
            )
        ]
        columns = ("component", "eigenvalue", "kind", "distances held so far")
        picture = "" if points.shape[1] < 2 else html.curve(
            points[:, 0], points[:, 1], marks=True, x_label="component 1", y_label="component 2"
        )  # fmt: skip
        return html.card(f"InPCA of {len(points):,} models", picture, html.table(columns, rows))

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        """Show the same where scikit-learn would show its diagram."""
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    @checked()
    def fit(self, X: Any, y: None = None, sample_weight: np.ndarray | None = None) -> InPCA:
        """Build the space.

        Args:
            X: (models, samples, classes): an array, a zarr array or its path, or a `Trajectory`;
                or (models, models) distances.
            y: Ignored.
            sample_weight: (models,), how much each model counts; zero places a model without
                letting it shape the space. None for equal weights.
        """
        check_choice("metric", self.metric, ("bhattacharyya", "precomputed"))
        if self.metric == "precomputed":
            self._check_precomputed()
        models = open_models(X)
        wanted = 2 if self.metric == "precomputed" else 3
        if len(models.shape) != wanted or 0 in models.shape:
            shape = "(models, models)" if wanted == 2 else "(models, samples, classes)"
            raise ArgumentError(
                "X", models, f"it must be an array {shape} that is not empty", f"Give {shape}."
            )
        chosen = self._choose(models.shape[0])
        weights = _weights(sample_weight, models.shape[0])[chosen]
        weights = weights * (len(chosen) / weights.sum())
        self.landmarks_ = chosen
        self.n_features_in_ = models.shape[1]
        if self.metric != "precomputed" and self._settings().is_needed(len(chosen)):
            return self._fit_streaming(X, models, weights)
        distances = self._landmark_distances(models)
        self._centre(distances, weights)
        roots = np.sqrt(weights)
        matrix = roots[:, None] * self._centred(distances) * roots
        eigenvalues, vectors = scipy.linalg.eigh((matrix + matrix.T) / 2)
        order = np.argsort(-np.abs(eigenvalues), kind="stable")
        count = len(order) if self.n_components is None else self.n_components
        count = check_positive_int("n_components", count, maximum=len(order))
        self.spectrum_ = eigenvalues[order]
        self.eigenvalues_ = self.spectrum_[:count]
        self.time_like_ = self.eigenvalues_ < 0
        vectors = orient(vectors[:, order[:count]])
        scale = np.sqrt(np.abs(self.eigenvalues_))
        usable = scale > scale[0] * 1e-8
        self._project = (
            roots[:, None]
            * vectors
            * np.where(usable, np.sign(self.eigenvalues_) / np.where(usable, scale, 1.0), 0.0)
        )
        self.explained_stress_ = share_of_stress(self.eigenvalues_, (self.spectrum_**2).sum())
        if len(chosen) == models.shape[0]:
            self.stress_error_ = np.zeros(count)
            self.embedding_ = self._centred(distances) @ self._project
        else:
            self.explained_stress_, self.stress_error_ = stress_of_all(
                distances, weights, count, models.shape[0]
            )
            precomputed = self.metric == "precomputed"
            self.embedding_ = self.transform(models[:, chosen] if precomputed else models)
        return self

    def _check_precomputed(self) -> None:
        """Raise where something is asked of distances that are not computed here."""
        single = None if self.precision == "double" else self.precision
        asked = {"log": self.log or None, "floor": self.floor, "precision": single,
                 "streaming": self.streaming}  # fmt: skip
        for name, value in asked.items():
            check_absent(name, value, "it is of distances between predictions, and they are given")

    def _fit_streaming(self, X: Any, models: Any, weights: np.ndarray) -> InPCA:
        if self.n_components is None or len(self.landmarks_) < models.shape[0]:
            raise ArgumentError(
                "n_components" if self.n_components is None else "landmarks",
                self.n_components if self.n_components is None else self.landmarks,
                f"{len(self.landmarks_)} models have no room as a matrix of distances in "
                f"{self._settings().bytes / 1e9:.1f} GB",
                "Ask for a few components of all models, use fewer landmarks, or allow more "
                "memory with streaming=Streaming(memory=...).",
            )
        found = stream_inpca(
            X,
            self.n_components,
            sample_weight=weights,
            rule=self._rule(),
            streaming=self.streaming,
            seed=self.seed,
        )
        self.spectrum_ = self.eigenvalues_ = found.eigenvalues
        self.time_like_ = found.eigenvalues < 0
        self.explained_stress_ = found.explained_stress
        self.stress_error_ = np.zeros(self.n_components)
        self.embedding_ = found.embedding
        self._models, self._project, self._centring = models, found.project, found.centring
        return self

    def fit_transform(
        self, X: Any, y: None = None, sample_weight: np.ndarray | None = None
    ) -> np.ndarray:
        """Build the space and return the coordinates of the models it was built from."""
        return self.fit(X, sample_weight=sample_weight).embedding_

    @checked()
    def transform(self, X: Any) -> np.ndarray:
        """Return coordinates of models: predictions, or distances to the fitted landmarks.

        x = −½(d − d·w − column means + grand mean)·V·sign(λ)/√|λ|.
        """
        check_is_fitted(self, "eigenvalues_")
        models = open_models(X)
        block = np.column_stack([self._project, self._centring.weights])
        if self.metric != "precomputed":
            if tuple(models.shape[1:]) != tuple(self._models.shape[1:]):
                samples, classes = self._models.shape[1:]
                reason = f"the space is of models on {samples} samples with {classes} classes"
                raise ArgumentError("X", models, reason, "Give predictions on the same samples.")
            memory = self._settings().bytes
            product = cross_product(models, self._models, block, self._rule(), memory)
        elif models.ndim != 2 or models.shape[1] != len(self.landmarks_):
            raise ArgumentError(
                "X",
                models,
                f"the space was built from {len(self.landmarks_)} models",
                "Give distances to each of them: (models, landmarks).",
            )
        else:
            product = models @ block
        return self._centring.coordinates(product, self._project)

    def _choose(self, count: int) -> np.ndarray:
        if self.landmarks is None:
            return np.arange(count)
        if not isinstance(self.landmarks, np.ndarray) and np.ndim(self.landmarks) == 0:
            wanted = check_positive_int("landmarks", self.landmarks, maximum=count)
            rng = numpy_generator(self.seed, "landmarks")
            return np.array([rng.choice(part) for part in np.array_split(np.arange(count), wanted)])
        return _landmark_indices(self.landmarks, count)

    def _landmark_distances(self, models: Any) -> np.ndarray:
        """Return the distances between the landmarks, and keep their predictions."""
        if self.metric == "precomputed":
            if models.ndim != 2 or models.shape[0] != models.shape[1]:
                raise ArgumentError(
                    "X", models, "distances form a square", "Give (models, models)."
                )
            distances = models[np.ix_(self.landmarks_, self.landmarks_)]
        else:
            self._models = _take(models, self.landmarks_)
            distances = self._rule().between(self._models).astype(float, copy=False)
            if np.abs(distances).max() <= rounding_of(self._models, self._rule()):
                distances = np.zeros_like(distances)
        return check_finite("X", distances)

    def _settings(self) -> Streaming:
        return Streaming() if self.streaming is None else self.streaming

    def _rule(self) -> TileRule:
        return TileRule(self.log, self.floor, self.precision)

    def _centre(self, distances: np.ndarray, weights: np.ndarray) -> None:
        w = weights / weights.sum()
        means = w @ distances
        self._centring = Centring(w, means, float(means @ w))

    def _centred(self, distances: np.ndarray) -> np.ndarray:
        centring = self._centring
        rows = (distances @ centring.weights)[:, None]
        return -(distances - rows - centring.column_means + centring.grand_mean) / 2


class PCA(TransformerMixin, BaseEstimator):
    """Principal components of models by their Euclidean predictions, with the interface of InPCA.

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

    @checked()
    def fit(self, X: Any, y: None = None, sample_weight: np.ndarray | None = None) -> PCA:
        """Build the space from predictions (models, ...), flattened for each model."""
        points = _flat(X)
        weights = _weights(sample_weight, len(points))
        weights = weights * (len(points) / weights.sum())
        self.mean_ = weights @ points / len(points)
        centred = points - self.mean_
        rounding = len(points) * np.finfo(float).eps * np.abs(points).max()
        if np.abs(centred).max() <= rounding:
            centred = np.zeros_like(centred)
        scaled = np.sqrt(weights)[:, None] * centred
        _, singular, V = scipy.linalg.svd(scaled, full_matrices=False)
        count = len(singular) if self.n_components is None else self.n_components
        count = check_positive_int("n_components", count, maximum=len(singular))
        self.spectrum_ = singular**2
        self.eigenvalues_ = self.spectrum_[:count]
        self.time_like_ = np.zeros(count, dtype=bool)
        self.components_ = orient(V[:count].T).T
        self.explained_stress_ = share_of_stress(self.eigenvalues_, (self.spectrum_**2).sum())
        variance = self.spectrum_.sum()
        self.explained_variance_ratio_ = self.eigenvalues_ / (variance or np.nan)
        self.n_features_in_ = points.shape[1]
        self.embedding_ = self.transform(points)
        return self

    def fit_transform(
        self, X: Any, y: None = None, sample_weight: np.ndarray | None = None
    ) -> np.ndarray:
        """Build the space and return the coordinates of the models it was built from."""
        return self.fit(X, sample_weight=sample_weight).embedding_

    @checked()
    def transform(self, X: Any) -> np.ndarray:
        """Return coordinates of models."""
        check_is_fitted(self, "components_")
        flat = _flat(X)
        if flat.shape[1] != len(self.mean_):
            reason = f"the space is of models with {len(self.mean_)} numbers each"
            raise ArgumentError("X", flat, reason, "Give models of the same kind.")
        return (flat - self.mean_) @ self.components_.T


@checked(distances=square, embedding=matrix, time_like=row)
def explained_stress(
    distances: np.ndarray, embedding: np.ndarray, time_like: np.ndarray
) -> np.ndarray:
    """Return how well 1, 2, … coordinates of any embedding keep the distances of its points.

        1 − ‖W − X_k J X_kᵀ‖_F/‖W‖_F,   W = −½ L D L,   J = diag(±1),

    with the coordinates X centred over the points. For the points an InPCA was built from this is
    its `explained_stress_`; for other points it says how well they fit into that space.

    Args:
        distances: (m, m), distances between the points.
        embedding: (m, k), their coordinates.
        time_like: (k,), which coordinates count negatively.
    """
    rows = distances - distances.mean(axis=1, keepdims=True)
    W = -(rows - rows.mean(axis=0)) / 2
    X = embedding - embedding.mean(axis=0)
    J = np.where(time_like, -1.0, 1.0)
    along = J * np.einsum("ik,ij,jk->k", X, W, X, optimize=True)
    overlap = J[:, None] * J * (X.T @ X) ** 2
    norm = (W**2).sum()
    if norm == 0:
        raise ArgumentError(
            "distances", distances, "all points are the same", "Give some that differ."
        )
    sizes = np.arange(1, X.shape[1] + 1)
    left = np.array([norm - 2 * along[:k].sum() + overlap[:k, :k].sum() for k in sizes])
    return 1 - np.sqrt(np.clip(left, 0, None) / norm)


def _landmark_indices(given: Any, count: int) -> np.ndarray:
    """Return the indices that a mask or a list of indices chooses."""
    found = check_array("landmarks", given)
    chosen = found.astype(int)
    if np.asarray(given).dtype == bool and found.shape == (count,):
        chosen = np.flatnonzero(found)
    elif found.ndim != 1 or (chosen != found).any() or np.asarray(given).dtype == bool:
        chosen = np.zeros(0, dtype=int)
    inside = ((chosen >= 0) & (chosen < count)).all()
    if not chosen.size or not inside or len(set(chosen)) < len(chosen):
        raise ArgumentError(
            "landmarks",
            given,
            f"it chooses none or not each once of {count} models",
            f"Give a number, different indices from 0 to {count - 1}, or {count} booleans.",
        )
    return chosen


def _take(models: Any, chosen: np.ndarray) -> np.ndarray:
    """Return some models of an array that may be on disk."""
    if isinstance(models, np.ndarray):
        return models[chosen]
    if len(chosen) == models.shape[0]:
        return np.asarray(models[:])
    return np.concatenate([np.asarray(models[int(i) : int(i) + 1]) for i in chosen])


def _flat(X: Any) -> np.ndarray:
    array = check_array("X", X)
    if array.ndim < 2:
        raise ArgumentError("X", array, "models are rows", "Give (models, ...).")
    return array.reshape(len(array), -1)


def _weights(given: np.ndarray | None, count: int) -> np.ndarray:
    if given is None:
        return np.ones(count)
    weights = check_array("sample_weight", given)
    if weights.shape != (count,) or (weights < 0).any() or not weights.any():
        raise ArgumentError(
            "sample_weight", weights, f"there are {count} models", "Give one weight ≥ 0 for each."
        )
    return weights
