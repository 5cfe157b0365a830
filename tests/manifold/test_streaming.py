"""InPCA tile by tile gives what the dense route gives, and goes on after a stop."""

import pickle
from concurrent.futures import Executor, Future

import numpy as np
import pytest
import zarr
from scipy.special import softmax

from hyperribbon.core.checks import ArgumentError
from hyperribbon.manifold import InPCA, Streaming, bhattacharyya, stream_inpca
from hyperribbon.manifold.krylov import leading_pairs
from hyperribbon.manifold.stored_tiles import Distances, TileRule
from hyperribbon.manifold.stress import stress_of_all
from hyperribbon.recording.trajectory import Trajectory

SMALL = 3e5  # bytes: blocks of 16 models and more


def trajectories(count, samples=20, classes=4, seed=0):
    """Return models on a few curves: confidence grows, with slow directions of their own."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(samples, classes))
    directions = rng.normal(size=(6, samples, classes))
    time = rng.random((count, 1, 1)) * 4
    own = rng.normal(size=(count, 6)) * [1, 0.6, 0.4, 0.2, 0.1, 0.05]
    return softmax(time * truth + np.tensordot(own, directions, axes=1), axis=2)


@pytest.fixture
def models():
    return trajectories(150)


def stored(folder, models, **options):
    array = zarr.create_array(str(folder), shape=models.shape, dtype=models.dtype, **options)
    array[:] = models
    return array


@pytest.mark.parametrize("weighted", ["equal", "weights", "zeros"])
@pytest.mark.parametrize("disk", [None, 0.0])
def test_the_streamed_space_is_the_dense_one(models, weighted, disk):
    weights = None if weighted == "equal" else np.random.default_rng(1).random(150)
    if weights is not None and weighted == "zeros":
        weights[:20] = 0
    dense = InPCA(5).fit(models, sample_weight=weights)
    streaming = Streaming(memory=SMALL, disk=disk)
    streamed = InPCA(5, streaming=streaming).fit(models, sample_weight=weights)
    np.testing.assert_allclose(streamed.eigenvalues_, dense.eigenvalues_, rtol=1e-9)
    np.testing.assert_allclose(streamed.embedding_, dense.embedding_, atol=1e-8)
    np.testing.assert_allclose(streamed.explained_stress_, dense.explained_stress_, atol=1e-10)
    others = trajectories(7, seed=3)
    np.testing.assert_allclose(streamed.transform(others), dense.transform(others), atol=1e-8)


def test_single_precision_is_good_to_1e_5():
    models = trajectories(300, samples=60).astype(np.float32)
    dense = InPCA(3).fit(models)
    found = stream_inpca(models, 3, streaming=Streaming(memory=SMALL))
    assert found.kept and found.tiles > 10
    np.testing.assert_allclose(found.embedding, dense.embedding_, atol=1e-5)
    np.testing.assert_allclose(found.norm, np.linalg.norm(dense.spectrum_), rtol=1e-6)


def test_the_norm_is_that_of_the_centred_matrix(models):
    weights = np.random.default_rng(0).random(150)
    rule = TileRule(precision="double")
    found = stream_inpca(
        models, 2, sample_weight=weights, rule=rule, streaming=Streaming(memory=SMALL)
    )
    r = weights * 150 / weights.sum()
    L = np.eye(150) - np.outer(np.ones(150), r / 150)
    W = -L @ bhattacharyya(models, precision="double") @ L.T / 2
    expected = np.linalg.norm(np.sqrt(r)[:, None] * W * np.sqrt(r))
    assert found.norm == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("kind", ["array", "path", "trajectory"])
def test_models_may_be_on_disk(models, kind, tmp_path):
    if kind == "trajectory":
        X = Trajectory.create(tmp_path / "run")
        for step, predictions in enumerate(models):
            X.append(step, predictions=predictions)
    else:
        array = stored(tmp_path / "models.zarr", models, chunks=(10, 20, 4))
        X = array if kind == "array" else tmp_path / "models.zarr"
    expected = InPCA(2).fit(models)
    for inpca in (InPCA(2), InPCA(2, streaming=Streaming(memory=SMALL))):
        np.testing.assert_allclose(inpca.fit(X).embedding_, expected.embedding_, atol=1e-8)
    few = InPCA(2, landmarks=40).fit(X)
    np.testing.assert_allclose(few.embedding_, InPCA(2, landmarks=40).fit(models).embedding_)


def test_finished_tiles_are_kept_when_a_run_is_stopped(models, tmp_path, monkeypatch):
    formed = []
    between = TileRule.between

    def interrupted(self, P, Q=None):
        if len(formed) == 7:
            raise KeyboardInterrupt
        formed.append(1)
        return between(self, P, Q)

    monkeypatch.setattr(TileRule, "between", interrupted)
    streaming = Streaming(folder=tmp_path / "tiles", memory=SMALL)
    with pytest.raises(KeyboardInterrupt):
        stream_inpca(models, 2, streaming=streaming)
    assert len(list((tmp_path / "tiles").glob("*.safetensors"))) == 7
    monkeypatch.setattr(
        TileRule, "between", lambda self, P, Q=None: (formed.append(1), between(self, P, Q))[1]
    )
    again = stream_inpca(models, 2, streaming=streaming)
    assert len(formed) == again.tiles
    fresh = stream_inpca(models, 2, streaming=Streaming(memory=SMALL))
    np.testing.assert_array_equal(again.embedding, fresh.embedding)
    with pytest.raises(ArgumentError, match="other models"):
        stream_inpca(trajectories(150, seed=5), 2, streaming=streaming)


class Elsewhere(Executor):
    """Runs everything on a copy that went through pickle, as another process would."""

    def submit(self, function, *arguments):
        function, arguments = pickle.loads(pickle.dumps((function, arguments)))
        future = Future()
        future.set_result(function(*arguments))
        return future


@pytest.mark.parametrize("kept", [True, False])
def test_other_processes_give_the_same_numbers(models, tmp_path, kept):
    stored(tmp_path / "models.zarr", models)
    streaming = Streaming(
        memory=2e6, executor=Elsewhere(), disk=None if kept else 0, folder=tmp_path / "tiles"
    )
    found = stream_inpca(tmp_path / "models.zarr", 2, streaming=streaming)
    with pytest.raises(ArgumentError, match="zarr"):
        stream_inpca(models, 2, streaming=streaming)
    alone = stream_inpca(models, 2, streaming=Streaming(memory=2e6, disk=None if kept else 0))
    np.testing.assert_array_equal(found.embedding, alone.embedding)
    assert found.kept == kept == (tmp_path / "tiles").exists()


@pytest.mark.slow
def test_a_dask_cluster_gives_the_same_numbers(models, tmp_path):
    distributed = pytest.importorskip("distributed")
    stored(tmp_path / "models.zarr", models)
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        streaming = Streaming(memory=SMALL, executor=client.get_executor())
        found = stream_inpca(tmp_path / "models.zarr", 2, streaming=streaming)
    alone = stream_inpca(models, 2, streaming=Streaming(memory=SMALL))
    np.testing.assert_array_equal(found.embedding, alone.embedding)


def test_leading_pairs_restart_and_find_both_signs():
    rng = np.random.default_rng(0)
    V = np.linalg.qr(rng.normal(size=(400, 400)))[0]
    values = np.concatenate([[9.0, -8.0, 7.9, -7.8], np.linspace(-7, 7, 396)])
    A = (V * values) @ V.T
    found = leading_pairs(A.__matmul__, rng.normal(size=(400, 5)), 4, tol=1e-9, most=8)
    np.testing.assert_allclose(found.values, values[:4], rtol=1e-9)
    np.testing.assert_allclose(np.abs(np.diag(found.vectors.T @ V[:, :4])), 1, atol=1e-7)
    np.testing.assert_allclose(
        np.linalg.norm(A @ found.vectors - found.vectors * found.values, axis=0),
        found.residuals,
        atol=1e-12,
    )
    assert found.passes > 8


def test_products_with_distances(models):
    D = bhattacharyya(models, precision="double")
    distances = Distances(models, TileRule(precision="double"), SMALL)
    X = np.random.default_rng(0).normal(size=(150, 3))
    advanced = []
    np.testing.assert_allclose(distances.product(X, advance=advanced.append), D @ X, atol=1e-10)
    assert sum(advanced) == len(distances.pairs)


def test_the_landmarks_bound_covers_the_error():
    models = trajectories(600)
    D = bhattacharyya(models, precision="double")
    exact = InPCA(3, metric="precomputed").fit(D).explained_stress_
    covered, largest = [], 0.0
    for seed in range(8):
        few = InPCA(3, metric="precomputed", landmarks=120, seed=seed).fit(D)
        error = np.abs(few.explained_stress_ - exact)
        covered.append(error <= few.stress_error_)
        largest = max(largest, float(few.stress_error_.max()))
    assert np.mean(covered) >= 0.85
    assert largest < 0.25
    assert np.isinf(stress_of_all(D[:3, :3], np.ones(3), 2, 100)[1]).all()


def test_what_has_no_room_says_so(models):
    tight = Streaming(memory=SMALL)
    with pytest.raises(ArgumentError, match="few components"):
        InPCA(None, streaming=tight).fit(models)
    with pytest.raises(ArgumentError, match="fewer landmarks"):
        InPCA(2, landmarks=140, streaming=tight).fit(models)
    with pytest.raises(ArgumentError, match="samples"):
        stream_inpca(models[0], 2)
    with pytest.raises(ArgumentError, match="file does not exist"):
        stream_inpca("/nowhere/models.zarr", 2)
