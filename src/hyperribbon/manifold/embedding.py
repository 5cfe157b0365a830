"""InPCA: low-dimensional coordinates of models by the distances of their predictions."""

from __future__ import annotations

from typing import Annotated as Float
from typing import Any, Literal

import numpy as np
import scipy.linalg
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
)
from sklearn.utils.validation import check_is_fitted

from hyperribbon.core.checks import (
    ArgumentError,
    check_absent,
    check_array,
    check_choice,
    check_finite,
    check_fraction,
    check_positive_int,
    validate,
)
from hyperribbon.core.generators import numpy_generator
from hyperribbon.manifold.distances import gaussian_distances, symmetric_kl
from hyperribbon.manifold.predictions import model_weights, open_models, take_models
from hyperribbon.manifold.rounding import (
    rounding_of_centred,
    rounding_of_models,
    rounding_of_stress,
)
from hyperribbon.manifold.runs import as_trajectories
from hyperribbon.manifold.shown import ShownEmbedding
from hyperribbon.manifold.stored_tiles import TileRule
from hyperribbon.manifold.streaming import (
    Centring,
    Streaming,
    cross_product,
    orient,
    projection,
    stream_inpca,
)
from hyperribbon.manifold.stress import share_of_stress, stress_of_all, stress_of_landmarks


class InPCA(ShownEmbedding, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Intensive principal component analysis: models in a Minkowski space that keeps distances.

    The matrix D of Bhattacharyya distances is centred and diagonalised,

        W = −½ L D Lᵀ,   L = I − 1wᵀ,   W = Σᵢ λᵢ vᵢvᵢᵀ,   xᵢ = √|λᵢ| vᵢ,

    with eigenvalues sorted by |λ|. Negative ones belong to time-like directions, along which
    squared differences count negatively: D = Σᵢ sign(λᵢ)(xᵢ(u) − xᵢ(v))² when all are kept.
    Implements the embedding of Fig. 1 of [ribbons].

    Args:
        n_components: Number of coordinates, fewer if there are fewer models; None for all.
        metric: "bhattacharyya" for predictions (models, samples, classes), "symmetric_kl" for the
            symmetrised Kullback–Leibler divergence instead, "precomputed" for a matrix of
            distances.
        landmarks: How many models, or which ones (indices, or a boolean mask), the embedding is
            fitted to; the others are projected into it. A number is drawn with `seed`, one from
            each of as many consecutive segments of the models, so that all parts of trajectories
            are covered. None for all.
        log: Whether predictions are log-probabilities.
        floor: Rule for tiny probabilities, see `bhattacharyya`.
        precision: Of the distances; "double" reproduces the fitted points in `transform` to 1e-8.
        seed: For the draw of the landmarks.
        streaming: Memory and disk limits for distance matrices that do not fit in memory;
            components are then computed tile by tile, see `stream_inpca`.

    Attributes:
        embedding_: (models, n_components), coordinates of the models given to `fit`.
        eigenvalues_: (n_components,), signed, descending in magnitude.
        time_like_: (n_components,), whether the direction's eigenvalue is negative.
        explained_stress_: (n_components,), share of the stress explained by the first 1, 2, …
            directions: 1 − √(1 − Σ_{i≤k} λᵢ²/‖W‖²); NaN if all models are identical up to rounding.
            With landmarks, a jackknife bias-corrected estimate for all models.
        stress_error_: (n_components,), bound on its error: of rounding alone when all models are
            landmarks, near 1 where models differ by little more than rounding.
        spectrum_: All eigenvalues of W, descending in magnitude; the leading ones when the models
            were too many for a matrix of distances.
        landmarks_: Indices of the models that the embedding is fitted to.
        runs_: The `Trajectories` that were given, or None.

    >>> P = np.array([[[0.5, 0.5]], [[0.7, 0.3]], [[0.99, 0.01]]])
    >>> inpca = InPCA(n_components=2).fit(P)
    >>> bool(np.abs(inpca.transform(P) - inpca.embedding_).max() < 1e-8)
    True
    """

    def __init__(
        self,
        n_components: int | None = 3,
        metric: Literal["bhattacharyya", "symmetric_kl", "precomputed"] = "bhattacharyya",
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

    @validate()
    def fit(self, X: Any, y: None = None, sample_weight: np.ndarray | None = None) -> InPCA:
        """Fit the InPCA embedding.

        Args:
            X: (models, samples, classes): an array, a zarr array or its path, or a `Trajectory`;
                (models, models) distances; or several runs, of any lengths: `Trajectories`, or a
                list of what it takes, whose probabilities are recognised and whose outputs of a
                regression are means of Gaussians.
            y: Ignored.
            sample_weight: (models,), how much each model counts; zero places a model without
                letting it shape the space. None for equal weights.

        Returns:
            Itself, fitted.

        Raises:
            ArgumentError: X is empty, or is not of that shape.
        """
        check_choice("metric", self.metric, ("bhattacharyya", "symmetric_kl", "precomputed"))
        if self.metric == "precomputed":
            self._check_precomputed()
        self.runs_ = None if self.metric == "precomputed" else as_trajectories(X)
        models = open_models(X) if self.runs_ is None else self.runs_.stack()
        self._is_gaussian = self.runs_ is not None and self.runs_.kind == "outputs"
        self._log = self.log and self.runs_ is None
        wanted = 2 if self.metric == "precomputed" else 3
        if len(models.shape) != wanted or 0 in models.shape:
            shape = "(models, models)" if wanted == 2 else "(models, samples, classes)"
            reason = f"expected a non-empty array {shape}"
            raise ArgumentError("X", models, reason, f"Give {shape}.")
        chosen = _choose_landmarks(self.landmarks, models.shape[0], self.seed)
        weights = model_weights(sample_weight, models.shape[0])[chosen]
        weights = weights * (len(chosen) / weights.sum())
        self.landmarks_ = chosen
        self.n_features_in_: int = models.shape[1]
        if self._is_tiled and self._settings().is_needed(len(chosen)):
            return self._fit_streaming(X, models, weights)
        distances = self._landmark_distances(models)
        self._set_centring(distances, weights)
        roots = np.sqrt(weights)
        matrix = roots[:, None] * self._centre_distances(distances) * roots
        norm, rounding = float(np.linalg.norm(matrix)), self._rounding(distances, weights)
        if norm <= rounding:
            distances, matrix = np.zeros_like(distances), np.zeros_like(matrix)
            self._set_centring(distances, weights)
        error = rounding_of_stress(norm, rounding) if norm > rounding else np.nan
        eigenvalues, vectors = scipy.linalg.eigh((matrix + matrix.T) / 2)
        order = np.argsort(-np.abs(eigenvalues), kind="stable")
        count = len(order) if self.n_components is None else self.n_components
        count = min(check_positive_int("n_components", count), len(order))
        self.spectrum_: np.ndarray = eigenvalues[order]
        self.eigenvalues_: np.ndarray = self.spectrum_[:count]
        self.time_like_: np.ndarray = self.eigenvalues_ < 0
        vectors = orient(vectors[:, order[:count]])
        self._project = projection(self.eigenvalues_, vectors, roots)
        self.explained_stress_ = share_of_stress(self.eigenvalues_, (self.spectrum_**2).sum())
        if len(chosen) == models.shape[0]:
            self.stress_error_ = np.full(count, error)
            self.embedding_ = self._centre_distances(distances) @ self._project
        else:
            self.explained_stress_, self.stress_error_ = stress_of_all(
                distances, weights, count, models.shape[0]
            )
            self.stress_error_ = self.stress_error_ + error
            precomputed = self.metric == "precomputed"
            self.embedding_ = self.transform(models[:, chosen] if precomputed else models)
        return self

    def _check_precomputed(self) -> None:
        """Raise if an option of the embedding does not apply to precomputed distances."""
        single = None if self.precision == "double" else self.precision
        asked: dict[str, Any] = {"log": self.log or None, "floor": self.floor}
        asked |= {"precision": single, "streaming": self.streaming}
        for name, value in asked.items():
            check_absent(name, value, "it applies to predictions, not to precomputed distances")

    def _fit_streaming(self, X: Any, models: Any, weights: np.ndarray) -> InPCA:
        if self.n_components is None or len(self.landmarks_) < models.shape[0]:
            raise ArgumentError(
                "n_components" if self.n_components is None else "landmarks",
                self.n_components if self.n_components is None else self.landmarks,
                f"the distance matrix of {len(self.landmarks_)} models does not fit in "
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
        self.stress_error_ = np.full(self.n_components, found.stress_error)
        self.embedding_ = found.embedding
        self._models, self._project, self._centring = models, found.project, found.centring
        return self

    def stress_interval(
        self, confidence: float = 0.95, draws: int = 200, seed: int = 0
    ) -> Float[np.ndarray, "2 k"]:
        """Return a bootstrap interval of an embedding's explained stress over runs: (2, k).

        Args:
            confidence: Coverage.
            draws: Resampled sets of runs.
            seed: Of the draws.

        Raises:
            ArgumentError: The embedding was not fitted to at least three runs.
        """
        check_is_fitted(self, "eigenvalues_")
        if self.runs_ is None or len(self.runs_) < 3 or len(self.landmarks_) < len(self.embedding_):
            reason = "a bootstrap over runs needs three or more, all of them landmarks"
            raise ArgumentError("X", self.runs_, reason, "Fit hr.Trajectories(runs).")
        models = self.runs_.stack()
        distances = self._between(models, models)
        groups = self.runs_.split(np.arange(len(models)))
        rng = numpy_generator(seed, "bootstrap over runs")
        shares = []
        for _ in range(check_positive_int("draws", draws)):
            rows = np.concatenate([groups[i] for i in rng.integers(len(groups), size=len(groups))])
            part = distances[np.ix_(rows, rows)]
            shares.append(stress_of_landmarks(part, np.ones(len(rows)), len(self.eigenvalues_)))
        tail = (1 - check_fraction("confidence", confidence)) / 2
        return np.nanquantile(shares, [tail, 1 - tail], axis=0)

    def fit_transform(
        self, X: Any, y: None = None, sample_weight: np.ndarray | None = None
    ) -> Float[np.ndarray, "models k"]:
        """Fit the InPCA embedding and return the coordinates of the models."""
        return self.fit(X, sample_weight=sample_weight).embedding_

    @validate()
    def transform(self, X: Any) -> Float[np.ndarray, "models k"]:
        """Return the embedding of further models, from predictions or distances to the landmarks.

        x = −½(d − d·w − column means + grand mean)·V·sign(λ)/√|λ|.

        Raises:
            ArgumentError: The shape does not match that of the fitted models.
        """
        check_is_fitted(self, "eigenvalues_")
        runs = None if self.metric == "precomputed" else as_trajectories(X)
        models = open_models(X) if runs is None else runs.stack()
        block = np.column_stack([self._project, self._centring.weights])
        if self.metric != "precomputed":
            if tuple(models.shape[1:]) != tuple(self._models.shape[1:]):
                samples, classes = self._models.shape[1:]
                reason = f"the embedding was fitted on {samples} samples with {classes} classes"
                raise ArgumentError("X", models, reason, "Give predictions on the same samples.")
            if not self._is_tiled:
                product = self._between(models, self._models) @ block
                return self._centring.coordinates(product, self._project)
            memory = self._settings().bytes
            product = cross_product(models, self._models, block, self._rule(), memory)
        elif models.ndim != 2 or models.shape[1] != len(self.landmarks_):
            remedy = "Give distances to each of them: (models, landmarks)."
            raise ArgumentError(
                "X", models, f"the embedding was fitted to {len(self.landmarks_)} models", remedy
            )
        else:
            product = models @ block
        return self._centring.coordinates(product, self._project)

    def _landmark_distances(self, models: Any) -> np.ndarray:
        """Return the distances between the embedding's landmarks, and keep their predictions."""
        if self.metric == "precomputed":
            if models.ndim != 2 or models.shape[0] != models.shape[1]:
                reason = "distances form a square"
                raise ArgumentError("X", models, reason, "Give (models, models).")
            distances = models[np.ix_(self.landmarks_, self.landmarks_)]
        else:
            self._models = take_models(models, self.landmarks_)
            distances = self._between(self._models, self._models)
        return check_finite("X", distances)

    @property
    def _is_tiled(self) -> bool:
        """Whether the embedding computes its distances tile by tile: Bhattacharyya distances."""
        return self.metric == "bhattacharyya" and not self._is_gaussian

    @property
    def _n_features_out(self) -> int:
        return self.embedding_.shape[1]

    def _between(self, models: Any, others: np.ndarray) -> np.ndarray:
        """Return the distances that the embedding needs between predictions, (models, others)."""
        if self._is_tiled:
            return self._rule().between(others).astype(float, copy=False)
        first, second = (np.asarray(part[:], dtype=float) for part in (models, others))
        return (
            gaussian_distances(first, second)
            if self._is_gaussian
            else symmetric_kl(first, second, log=self._log, floor=self.floor)
        )

    def _rounding(self, distances: np.ndarray, weights: np.ndarray) -> float:
        """Return a rounding bound on the norm of an embedding's centred distances."""
        squares = float(weights @ distances**2 @ weights)
        if not self._is_tiled:
            return rounding_of_centred(distances.shape, squares)
        memory = self._settings().bytes
        return rounding_of_models(self._models, weights, self._rule(), squares, memory)

    def _settings(self) -> Streaming:
        return Streaming() if self.streaming is None else self.streaming

    def _rule(self) -> TileRule:
        return TileRule(self._log, self.floor, self.precision)

    def _set_centring(self, distances: np.ndarray, weights: np.ndarray) -> None:
        w = weights / weights.sum()
        means = w @ distances
        self._centring = Centring(w, means, float(means @ w))

    def _centre_distances(self, distances: np.ndarray) -> np.ndarray:
        centring = self._centring
        rows = (distances @ centring.weights)[:, None]
        return -(distances - rows - centring.column_means + centring.grand_mean) / 2


def _choose_landmarks(landmarks: Any, count: int, seed: int) -> np.ndarray:
    """Return the indices of the landmarks that an embedding is fitted to.

    Args:
        landmarks: None for all; a number, of which one is drawn from each of as many stretches of
            the models in their order; or indices, or a mask.
        count: Models.
        seed: Of the draw.
    """
    if landmarks is None:
        return np.arange(count)
    if not isinstance(landmarks, np.ndarray | list | tuple) and np.ndim(landmarks) == 0:
        wanted = check_positive_int("landmarks", landmarks, maximum=count)
        rng = numpy_generator(seed, "landmarks")
        return np.array([rng.choice(part) for part in np.array_split(np.arange(count), wanted)])
    return _landmark_indices(landmarks, count)


def _landmark_indices(given: Any, count: int) -> np.ndarray:
    """Return the indices of the embedding's landmarks, from a mask or a list."""
    found = check_array("landmarks", given)
    chosen = found.astype(int)
    if np.asarray(given).dtype == bool and found.shape == (count,):
        chosen = np.flatnonzero(found)
    elif found.ndim != 1 or (chosen != found).any() or np.asarray(given).dtype == bool:
        chosen = np.zeros(0, dtype=int)
    inside = ((chosen >= 0) & (chosen < count)).all()
    if not chosen.size or not inside or len(set(chosen)) < len(chosen):
        reason = f"it selects none, or duplicates, of {count} models"
        remedy = f"Give a number, different indices from 0 to {count - 1}, or {count} booleans."
        raise ArgumentError("landmarks", given, reason, remedy)
    return chosen
