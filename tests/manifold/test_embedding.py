import numpy as np
import pytest
from scipy.spatial.distance import cdist
from scipy.special import softmax
from sklearn.base import clone

from hyperribbon.core.checks import ArgumentError
from hyperribbon.manifold import PCA, InPCA, bhattacharyya, explained_stress


@pytest.fixture
def models():
    rng = np.random.default_rng(0)
    directions = rng.standard_normal((4, 60, 5))
    coordinates = rng.standard_normal((40, 4)) * [3, 1, 0.5, 0.2]
    return softmax(np.tensordot(coordinates, directions, axes=1), axis=2)


def test_all_dimensions_reproduce_the_distances(models):
    inpca = InPCA(n_components=None).fit(models)
    x, signs = inpca.embedding_, np.where(inpca.time_like_, -1, 1)
    rebuilt = ((x[:, None] - x[None]) ** 2 * signs).sum(axis=2)
    np.testing.assert_allclose(rebuilt, bhattacharyya(models, precision="double"), atol=1e-9)
    assert (np.diff(np.abs(inpca.eigenvalues_)) <= 1e-12).all()
    assert inpca.explained_stress_[-1] == pytest.approx(1, abs=1e-6)
    assert (inpca.time_like_ == (inpca.eigenvalues_ < 0)).all()


@pytest.mark.parametrize("weighted", [False, True])
def test_transform_reproduces_the_fitted_points(models, weighted):
    weights = np.random.default_rng(1).random(40) if weighted else None
    inpca = InPCA(n_components=8).fit(models, sample_weight=weights)
    assert np.abs(inpca.transform(models) - inpca.embedding_).max() < 1e-8
    assert np.abs(inpca.transform(models[[7]]) - inpca.embedding_[[7]]).max() < 1e-8


def test_explained_stress_of_the_embedding_is_its_definition(models):
    inpca = InPCA(n_components=6).fit(models)
    D = bhattacharyya(models, precision="double")
    L = np.eye(40) - 1 / 40
    W = -L @ D @ L / 2
    for k in range(1, 7):
        X, J = inpca.embedding_[:, :k], np.where(inpca.time_like_[:k], -1, 1)
        by_hand = 1 - np.linalg.norm(W - (X * J) @ X.T) / np.linalg.norm(W)
        assert inpca.explained_stress_[k - 1] == pytest.approx(by_hand, abs=1e-9)
    np.testing.assert_allclose(
        explained_stress(D, inpca.embedding_, inpca.time_like_), inpca.explained_stress_, atol=1e-7
    )


def test_weights_count_models_like_copies(models):
    weights = np.ones(40)
    weights[:3] = 3
    repeated = np.concatenate([models, models[:3], models[:3]])
    by_weight = InPCA(n_components=4).fit(models, sample_weight=weights)
    by_copies = InPCA(n_components=4).fit(repeated)
    np.testing.assert_allclose(
        np.abs(by_weight.embedding_), np.abs(by_copies.embedding_[:40]), atol=1e-8
    )


def test_a_model_of_weight_zero_is_placed_but_shapes_nothing(models):
    weights = np.ones(40)
    weights[-1] = 0
    with_it = InPCA(n_components=3).fit(models, sample_weight=weights)
    without = InPCA(n_components=3).fit(models[:-1])
    np.testing.assert_allclose(with_it.embedding_[:-1], without.embedding_, atol=1e-8)
    np.testing.assert_allclose(with_it.embedding_[-1:], without.transform(models[-1:]), atol=1e-8)


def test_landmarks_embed_the_rest_nearly_as_well(models):
    full = InPCA(n_components=4).fit(models)
    some = InPCA(n_components=4, landmarks=25).fit(models)
    assert some.embedding_.shape == (40, 4) and len(some.landmarks_) == 25
    D = bhattacharyya(models, precision="double")
    loss = full.explained_stress_[-1] - explained_stress(D, some.embedding_, some.time_like_)[-1]
    assert 0 <= loss < 0.05
    chosen = InPCA(n_components=4, landmarks=np.arange(10)).fit(models)
    alone = InPCA(n_components=4).fit(models[:10])
    np.testing.assert_allclose(chosen.embedding_[:10], alone.embedding_, atol=1e-8)


def test_precomputed_squared_distances_give_pca(models):
    points = models.reshape(40, -1)
    squared = cdist(points, points, "sqeuclidean")
    inpca = InPCA(n_components=5, metric="precomputed").fit(squared)
    pca = PCA(n_components=5).fit(models)
    np.testing.assert_allclose(inpca.eigenvalues_, pca.eigenvalues_, rtol=1e-9)
    np.testing.assert_allclose(np.abs(inpca.embedding_), np.abs(pca.embedding_), atol=1e-8)
    np.testing.assert_allclose(inpca.explained_stress_, pca.explained_stress_, rtol=1e-9)
    assert not pca.time_like_.any()
    np.testing.assert_allclose(pca.transform(models), pca.embedding_, atol=1e-12)


def test_embedding_does_not_depend_on_the_order_of_models(models):
    order = np.random.default_rng(2).permutation(40)
    one, other = InPCA(3).fit(models), InPCA(3).fit(models[order])
    np.testing.assert_allclose(np.abs(one.embedding_[order]), np.abs(other.embedding_), atol=1e-8)


def test_is_a_scikit_learn_estimator(models):
    inpca = clone(InPCA(n_components=2, landmarks=20, seed=3))
    assert inpca.get_params()["landmarks"] == 20
    assert inpca.set_params(n_components=1).fit_transform(models).shape == (40, 1)


def test_bad_shapes_say_what_to_do(models):
    with pytest.raises(ArgumentError, match="square"):
        InPCA(metric="precomputed").fit(np.zeros((3, 4)))
    with pytest.raises(ArgumentError, match="n_components"):
        InPCA(n_components=0).fit(models)
    with pytest.raises(ArgumentError, match="one weight"):
        InPCA().fit(models, sample_weight=np.ones(3))
