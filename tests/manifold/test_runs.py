"""Several runs of different lengths: read, embedded, compared and drawn."""

import dataclasses
import shutil
import warnings

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn.pipeline import make_pipeline
from torch import nn

import hyperribbon as hr
from hyperribbon.core.checks import ArgumentError
from hyperribbon.manifold import bhattacharyya, gaussian_distances, symmetric_kl

LABELS = np.arange(6) % 3


def path(length, seed, scale=3.0):
    """Logits (T, 6, 3) that grow towards the labels."""
    rng = np.random.default_rng(seed)
    growth = np.linspace(0, scale, length)[:, None, None]
    return growth * np.eye(3)[LABELS] + 0.1 * rng.standard_normal((length, 6, 3))


def record(folder, model, loss, data, steps, probe):
    recorder = hr.Recorder(folder, "1it", probe=probe)
    hr.train(model, loss, data, epochs=steps, lr=0.1, batch_size=len(data[0]), recorder=recorder)
    return recorder


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Three classification runs of different lengths, and two regressions."""
    generator = torch.Generator("cpu").manual_seed(0)
    X = torch.randn(8, 4, generator=generator)
    labels, numbers = torch.arange(8) % 3, X[:, :1] ** 2
    folder = tmp_path_factory.mktemp("runs")
    classes = [
        record(folder / f"c{n}", nn.Linear(4, 3), nn.CrossEntropyLoss(), (X, labels), n, X)
        for n in (4, 6, 9)
    ]
    regressions = [
        record(folder / f"r{n}", nn.Linear(4, 1), nn.MSELoss(), (X, numbers), n, X) for n in (3, 5)
    ]
    return classes, regressions, labels.numpy()


def test_recorded_runs_are_embedded_and_drawn_in_one_line(recorded):
    classes, regressions, labels = recorded
    figure = hr.InPCA(3).fit(classes).plot()
    assert sum(panel.get_visible() for panel in figure.axes) == 3
    space = hr.InPCA(2).fit([run.folder for run in regressions])
    assert space.runs_.kind == "outputs" and space.runs_.labels == ["r3", "r5"]
    assert len(space.plot().axes) == 1
    runs = hr.Trajectories(classes, labels=["a", "b", "c"])
    assert [len(steps) for steps in runs.steps] == [len(p) for p in runs.paths]
    assert len({len(p) for p in runs.paths}) == 3
    assert [len(along) for along in runs.progress(labels)] == [len(p) for p in runs.paths]


def test_two_classifications_and_a_regression_are_embedded_and_drawn_in_three_lines(tmp_path):
    generator = torch.Generator("cpu").manual_seed(0)
    X = torch.randn(8, 4, generator=generator)
    labels = torch.arange(8) % 3
    hot = torch.nn.functional.one_hot(labels).float()
    losses = [(nn.CrossEntropyLoss(), labels, 4), (nn.CrossEntropyLoss(), labels, 9)]
    recorders = [
        record(tmp_path / str(n), nn.Linear(4, 3), loss, (X, y), n, X)
        for loss, y, n in [*losses, (nn.MSELoss(), hot, 6)]
    ]

    runs = hr.Trajectories(recorders, labels=["short", "long", "regression"], kind="outputs")
    space = hr.InPCA(3).fit(runs)
    figure = space.plot()

    assert runs.kind == "outputs" and len({len(path) for path in runs.paths}) == 3
    np.testing.assert_allclose(runs.paths[0].sum(axis=-1), 1, atol=1e-6)
    assert not np.allclose(runs.paths[2].sum(axis=-1), 1, atol=1e-3)
    points = runs.stack()
    expected = ((points[0] - points[-1]) ** 2).mean(axis=0).sum() / 8
    x = hr.InPCA(None).fit(runs).embedding_
    assert ((x[0] - x[-1]) ** 2).sum() == pytest.approx(expected, rel=1e-6)
    assert sum(panel.get_visible() for panel in figure.axes) == 3
    assert {text.get_text() for text in figure.legends[0].get_texts()} >= {"short", "regression"}
    with pytest.raises(ArgumentError, match="same samples and classes"):
        hr.Trajectories(recorders)


def test_probabilities_logarithms_and_logits_are_one_embedding():
    logits = [path(5, 0), path(8, 1)]
    probabilities = [softmax(run, axis=-1) for run in logits]
    expected = hr.InPCA(3).fit(np.concatenate(probabilities)).embedding_
    for runs in (logits, probabilities, [np.log(run) for run in probabilities]):
        found = hr.InPCA(3).fit(runs)
        np.testing.assert_allclose(found.embedding_, expected, atol=1e-9)
        np.testing.assert_allclose(found.transform(runs), expected, atol=1e-7)


def test_regressions_are_embedded_as_gaussians():
    rng = np.random.default_rng(0)
    runs = [rng.standard_normal((4, 10)), rng.standard_normal((7, 10, 1))]
    stacked = np.concatenate([runs[0][..., None], runs[1]])
    space = hr.InPCA(None).fit(hr.Trajectories(runs))
    differences = stacked[:, None, :, 0] - stacked[None, :, :, 0]
    np.testing.assert_allclose(gaussian_distances(stacked), (differences**2).mean(-1) / 8)
    centred = stacked[:, :, 0] - stacked[:, :, 0].mean(axis=0)
    variances = np.linalg.svd(centred, compute_uv=False) ** 2 / 80
    np.testing.assert_allclose(space.eigenvalues_[:10], variances, rtol=1e-9)
    again = space.transform(hr.Trajectories(runs))  # the eleventh direction is rounding
    np.testing.assert_allclose(again[:, :10], space.embedding_[:, :10], atol=1e-9)


def test_ensembles_are_runs():
    generator = torch.Generator("cpu").manual_seed(0)
    X = torch.randn(12, 4, generator=generator)
    ensemble = hr.train_ensemble(
        lambda seed: hr.training.mlp((4, 5, 3), seed=seed),
        nn.CrossEntropyLoss(),
        (X, torch.arange(12) % 3),
        epochs=2,
        lr=0.1,
        seeds=[0, 1, 2],
        probe=X,
    )
    runs = hr.Trajectories(ensemble)
    assert len(runs) == 3 and runs.kind == "probabilities" and len(set(runs.labels)) == 3
    assert len(hr.InPCA(2).fit([ensemble, ensemble]).runs_) == 6
    blind = dataclasses.replace(ensemble[0], predictions=None)
    with pytest.raises(ArgumentError, match=r"no recorded predictions.*probe"):
        hr.InPCA(2).fit([blind, ensemble[1]])


def test_a_folder_of_runs_is_all_of_them(recorded):
    classes, _, _ = recorded
    folder = classes[0].folder.parent
    with pytest.raises(ArgumentError, match=r"kind='outputs'|same samples"):
        hr.InPCA(2).fit(folder)  # regressions of one output stand beside classifications
    found = hr.Trajectories([one.folder for one in classes], labels=[None, "b", None])
    assert found.labels == ["c4", "b", "c9"]
    with pytest.raises(ArgumentError, match="list with one label per run"):
        hr.Trajectories(found.paths, labels="abc")


def test_a_folder_of_classifications_is_embedded(recorded, tmp_path):
    for one in recorded[0]:
        shutil.copytree(one.folder, tmp_path / one.folder.name)
    assert hr.InPCA(2).fit(tmp_path).runs_.labels == ["c4", "c6", "c9"]


def test_many_runs_have_colours_of_their_own_and_a_short_legend():
    runs = hr.Trajectories([path(3, seed) for seed in range(30)], labels=["run" * 20] * 30)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a legend that leaves no room for the panels warns
        figure = hr.InPCA(3).fit(runs).plot()
        figure.canvas.draw()
    (legend,) = figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts[-1] == "last snapshot" and len(texts) == 11
    assert legend.get_title().get_text() == "10 of 30 runs" and max(map(len, texts)) <= 25
    lines = [line for line in figure.axes[0].lines if len(line.get_xdata()) > 1]
    assert len({tuple(line.get_color()) for line in lines}) == 30


def test_the_symmetrised_divergence_is_the_sum_of_both():
    P = softmax(path(5, 3), axis=-1)
    p, q = P[1], P[4]
    expected = (p * np.log(p / q)).sum(-1).mean() + (q * np.log(q / p)).sum(-1).mean()
    found = symmetric_kl(P)
    assert found[1, 4] == pytest.approx(expected, rel=1e-12)
    given_logs = symmetric_kl(np.log(P), np.log(P[:2]), log=True)
    np.testing.assert_allclose(given_logs, found[:, :2], atol=1e-14)
    space = hr.InPCA(3, metric="symmetric_kl").fit(P)
    np.testing.assert_allclose(space.transform(P), space.embedding_, atol=1e-9)
    sure = np.array([[[1.0, 0.0]], [[0.5, 0.5]]])
    with pytest.raises(ArgumentError, match="zero"):
        symmetric_kl(sure)
    assert np.isfinite(symmetric_kl(sure, floor=1e-6)).all()


def test_the_interval_of_the_stress_is_that_of_resampled_runs():
    runs = [path(6, seed) for seed in range(8)]
    space = hr.InPCA(2).fit(runs)
    low, high = space.stress_interval(draws=60)
    assert (low <= space.explained_stress_ + 0.05).all() and (low < high).all()
    alike = hr.InPCA(2).fit([path(6, 0)] * 3)
    low, high = alike.stress_interval(draws=20)
    np.testing.assert_allclose(low, high, atol=1e-9)
    with pytest.raises(ArgumentError, match="three or more"):
        hr.InPCA(2).fit(runs[:2]).stress_interval()


def test_distances_of_runs_are_those_at_equal_progress():
    runs = hr.Trajectories([path(9, 0), path(14, 0), path(9, 1, scale=5.0)])
    found = runs.distances(LABELS)
    assert found.shape == (3, 3) and (np.diagonal(found) < 1e-12).all()
    assert found[0, 1] < 0.05
    assert runs.plot_dendrogram(LABELS).get_xlabel() == "distance at equal progress"


def test_scikit_learn_conventions_hold():
    P = softmax(path(6, 0), axis=-1)
    space = hr.InPCA(2).set_output(transform="pandas").fit(P)
    assert list(space.transform(P).columns) == ["inpca0", "inpca1"]
    assert list(space.get_feature_names_out()) == ["inpca0", "inpca1"]
    two = hr.InPCA(3).fit(P[:2])
    assert two.embedding_.shape == (2, 2)
    assert make_pipeline(hr.InPCA(2)).fit_transform(P).shape == (6, 2)


def test_arrays_of_runs_of_different_lengths_are_recognised():
    rng = np.random.default_rng(0)
    regressions = [rng.standard_normal((4, 10)), rng.standard_normal((7, 10))]
    assert hr.InPCA(2).fit(regressions).runs_.kind == "outputs"
    with pytest.raises(ArgumentError, match=r"same samples and classes .*\(10, 1\) outputs"):
        hr.InPCA(2).fit([rng.random((4, 10, 3)), regressions[0]])


@pytest.mark.parametrize(
    ("runs", "match"),
    [
        ([], "none"),
        ([np.zeros((2, 3, 4)), np.zeros((2, 5, 4))], "same samples"),
        ([np.zeros((2, 3, 4)), np.zeros((2, 3))], "same samples"),
        ([np.full((2, 3), np.nan)], "finite|NaN"),
    ],
)
def test_runs_that_cannot_share_a_space_are_refused(runs, match):
    with pytest.raises(ArgumentError, match=match):
        hr.Trajectories(runs)
    with pytest.raises(ArgumentError, match="one label per run"):
        hr.Trajectories([np.zeros((2, 3, 4))], labels=["a", "b"])


def test_bhattacharyya_distances_of_runs_are_unchanged():
    P = softmax(path(5, 2), axis=-1)
    space = hr.InPCA(None).fit([P])
    distances = bhattacharyya(P, precision="double")
    x = space.embedding_
    signs = np.where(space.time_like_, -1.0, 1.0)
    rebuilt = ((x[:, None] - x[None]) ** 2 * signs).sum(-1)
    np.testing.assert_allclose(rebuilt, distances, atol=1e-8)
