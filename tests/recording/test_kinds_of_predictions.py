"""Predictions on a probe: log-probabilities of classes, other outputs as the model has them."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hyperribbon as hr
from hyperribbon.core.checks import ArgumentError
from hyperribbon.papers.training import mlp, train, train_ensemble
from hyperribbon.recording import predict

X = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
LABELS = torch.randint(3, (40,), generator=torch.Generator().manual_seed(1))


def record(folder, model, loss, data, **options):
    """Train two epochs and return the trajectory with what the model's outputs are at the end."""
    options = {"probe": X[:10]} | options
    with hr.Recorder(folder, "1ep", **options) as recorder:
        train(model, loss, data, epochs=2, lr=0.05, recorder=recorder)
    return hr.Trajectory.open(folder), model(X[:10]).detach()


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("loss", [nn.MSELoss(), F.l1_loss, lambda z, y: (z - y).square().mean()])
def test_numbers_are_recorded_as_they_are(tmp_path, width, loss):
    trajectory, outputs = record(tmp_path, mlp((6, 4, width)), loss, (X, X[:, :width]))
    np.testing.assert_array_equal(trajectory.predictions(-1), outputs.numpy())
    assert np.ptp(trajectory.predictions(-1)) > 0
    assert not trajectory.has_probabilities
    with pytest.raises(ArgumentError, match=r"regression.*hr\.PCA"):
        hr.InPCA(n_components=2).fit(trajectory)


@pytest.mark.parametrize(
    "loss", [nn.CrossEntropyLoss(), F.cross_entropy, lambda z, y: F.cross_entropy(z, y)]
)
def test_classes_are_recorded_as_log_probabilities(tmp_path, loss):
    trajectory, outputs = record(tmp_path, mlp((6, 4, 3)), loss, (X, LABELS))
    np.testing.assert_array_equal(trajectory.predictions(-1), outputs.log_softmax(-1).numpy())
    assert trajectory.has_probabilities


def test_soft_labels_and_likelihoods_are_classes_too(tmp_path):
    soft = F.one_hot(LABELS, 3).float() * 0.9 + 0.1 / 3
    one, outputs = record(tmp_path / "a", mlp((6, 3)), nn.CrossEntropyLoss(), (X, soft))
    np.testing.assert_array_equal(one.predictions(-1), outputs.log_softmax(-1).numpy())
    model = nn.Sequential(mlp((6, 3)), nn.LogSoftmax(1))
    two, outputs = record(tmp_path / "b", model, nn.NLLLoss(), (X, LABELS))
    np.testing.assert_allclose(two.predictions(-1), outputs.numpy(), atol=1e-6)


def test_what_is_asked_for_counts(tmp_path):
    loss, data = nn.CrossEntropyLoss(), (X, LABELS)
    one, outputs = record(tmp_path / "a", mlp((6, 3)), loss, data, predictions="outputs")
    np.testing.assert_array_equal(one.predictions(-1), outputs.numpy())
    assert one.has_probabilities  # scores of classes are probabilities but for a softmax
    how = {"predictions": "log_probabilities"}
    two, outputs = record(tmp_path / "b", mlp((6, 3)), nn.MSELoss(), (X, X[:, :3]), **how)
    np.testing.assert_array_equal(two.predictions(-1), outputs.log_softmax(-1).numpy())
    with pytest.raises(ArgumentError, match="one output"):
        record(tmp_path / "c", mlp((6, 1)), nn.MSELoss(), (X, X[:, :1]), **how)
    with pytest.raises(ArgumentError, match="predictions='chances'"):
        hr.Recorder(tmp_path / "d", probe=X, predictions="chances")


def test_without_a_loss_several_outputs_are_taken_for_classes(tmp_path):
    for width in (1, 3):
        model = mlp((6, width))
        with hr.Recorder(tmp_path / str(width), "1it", probe=X) as recorder:
            recorder.attach(model)
        found = hr.Trajectory.open(tmp_path / str(width)).predictions(-1)
        outputs = model(X).detach()
        expected = outputs if width == 1 else outputs.log_softmax(-1)
        np.testing.assert_array_equal(found, expected.numpy())


def test_a_run_goes_on_with_the_same_kind_of_predictions(tmp_path):
    data = (X, X[:, :3])
    for epochs in (1, 2):
        with hr.Recorder(tmp_path, "1ep", probe=X) as recorder:
            train(mlp((6, 3)), nn.MSELoss(), data, epochs=epochs, lr=0.05, recorder=recorder)
    assert len(hr.Trajectory.open(tmp_path)) == 3
    again = hr.Recorder(tmp_path, "1ep", probe=X, predictions="log_probabilities")
    with pytest.raises(ArgumentError, match="'outputs'"):
        train(mlp((6, 3)), nn.MSELoss(), data, epochs=3, lr=0.05, recorder=again)
    resumed = hr.Recorder(tmp_path, "1ep", probe=X)
    resumed.attach(mlp((6, 3)), step=2)
    resumed.step(0.1, epoch=3.0)
    resumed.close()
    assert np.exp(hr.Trajectory.open(tmp_path).predictions(-1)).sum(-1).std() > 1e-3


PROBES = {
    "pair": (X, LABELS),
    "loader": DataLoader(TensorDataset(X, LABELS), batch_size=7, shuffle=True),
    "dataset": TensorDataset(X),
    "array": X.numpy(),
    "double": X.double(),
    "batches": [X[:13], X[13:]],
}


@pytest.mark.parametrize("kind", PROBES)
def test_a_probe_is_any_data(tmp_path, kind):
    model = mlp((6, 3), seed=2)
    expected = model(X).detach().log_softmax(-1)
    torch.testing.assert_close(predict(model, PROBES[kind]), expected)
    with hr.Recorder(tmp_path, "1it", probe=PROBES[kind]) as recorder:
        recorder.attach(model)
    np.testing.assert_allclose(
        hr.Trajectory.open(tmp_path).predictions(-1), expected.numpy(), atol=1e-6
    )


def test_ensembles_keep_numbers_as_they_are(tmp_path):
    how = {"seeds": [0, 1], "epochs": 2, "lr": 0.05, "probe": X[:10]}
    for width in (1, 2):
        found = train_ensemble(
            lambda seed, width=width: mlp((6, 4, width), seed=seed),
            nn.MSELoss(),
            (X, X[:, :width]),
            folder=tmp_path / str(width),
            **how,
        )
        for member in found:
            model = mlp((6, 4, width))
            model.load_state_dict(member.result.final)
            torch.testing.assert_close(
                torch.from_numpy(member.predictions[-1]), model(X[:10]).detach()
            )
            assert member.trajectory is not None and not member.trajectory.has_probabilities
    asked = train_ensemble(
        lambda seed: mlp((6, 3), seed=seed),
        nn.CrossEntropyLoss(),
        (X, LABELS),
        predictions="outputs",
        **how,
    )
    assert np.abs(np.exp(asked[0].predictions).sum(-1) - 1).max() > 1e-3


def test_classes_along_the_second_axis_end_up_last(tmp_path):
    """nn.CrossEntropyLoss of outputs (n, C, T) has its classes there."""
    model = nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Conv1d(2, 4, 1))
    labels = torch.randint(4, (40, 3), generator=torch.Generator().manual_seed(1))
    with hr.Recorder(tmp_path, "1ep", probe=X[:10]) as recorder:
        train(model, nn.CrossEntropyLoss(), (X, labels), epochs=1, lr=0.1, recorder=recorder)
    found = hr.Trajectory.open(tmp_path).predictions(-1)
    expected = model(X[:10]).detach().log_softmax(1).transpose(1, 2)
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-6)
