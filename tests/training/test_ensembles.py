import numpy as np
import pytest
import torch
from torch import nn

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.store.check import check_folder
from hyperribbon.papers.training import (
    DivergenceError,
    make_architecture,
    mlp,
    train,
    train_ensemble,
)
from hyperribbon.recording import predict
from hyperribbon.recording.trajectory import Trajectory

LOSS = nn.CrossEntropyLoss()
SETTINGS = [
    {"lr": 0.05},
    {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01, "sampling": "replacement"},
    {"lr": 0.05, "momentum": 0.9, "nesterov": True, "schedule": {1: 0.5}},
    {"lr": 0.01, "optimizer": "adam", "sampling": "without_replacement"},
    {"lr": 0.01, "optimizer": "adamw", "weight_decay": 0.1},
]


def small(seed):
    return mlp((64, 8, 3), "tanh", seed=seed, dtype=torch.float64)


def vit(seed):
    return make_architecture("vision_transformer", (1, 8, 8), 3, seed).double()


def jitter(inputs, generator):
    return inputs + 0.1 * torch.randn(inputs.shape, generator=generator, dtype=inputs.dtype)


@pytest.fixture
def double_images(images):
    return images[0].double(), images[1]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("make", [small, vit])
def test_together_equals_apart_to_rounding(double_images, settings, make):
    common = {"epochs": 2, "batch_size": 32, "augment": jitter, "test": double_images, **settings}
    ensemble = train_ensemble(make, LOSS, double_images, seeds=[3, 5, 9], together=True, **common)
    for member in ensemble:
        alone = train(make(member.seed), LOSS, double_images, seed=member.seed, **common)
        for name, tensor in alone.final.items():
            # Adam divides by √v: rounding of the gradient, 1e-16, grows to at most 1e-8 of a step
            torch.testing.assert_close(member.result.final[name], tensor, rtol=1e-8, atol=1e-9)
        assert all(torch.equal(member.result.initial[k], v) for k, v in alone.initial.items())
        assert member.result.history.keys() == alone.history.keys()
        for name, values in alone.history.items():
            np.testing.assert_allclose(member.result.history[name], values, rtol=1e-8)


def test_convolutions_together_equal_apart(double_images):
    for name in ("all_convolutional", "conv_mixer", "wide_resnet"):

        def make(seed, name=name):
            return make_architecture(name, (1, 8, 8), 3, seed).double()

        common = {"seeds": [0, 1], "epochs": 1, "lr": 0.05, "batch_size": 30}
        together = train_ensemble(make, LOSS, double_images, together=True, **common)
        apart = train_ensemble(make, LOSS, double_images, together=False, **common)
        for one, two in zip(together, apart, strict=True):
            for key, tensor in one.result.final.items():
                torch.testing.assert_close(tensor, two.result.final[key], rtol=1e-9, atol=1e-10)


def test_snapshots_and_trajectories(images, tmp_path):
    makers = {"mlp": lambda s: mlp((64, 8, 3), seed=s), "linear": lambda s: mlp((64, 3), seed=s)}
    seen = []
    ensemble = train_ensemble(
        makers,
        LOSS,
        images,
        seeds=[0, 1],
        epochs=3,
        lr=0.05,
        batch_size=30,
        probe=images[0][:20],
        every=[0, 1, 2, 5],
        folder=tmp_path,
        on_member=lambda name, seed: seen.append((name, seed)),
    )
    assert seen == [("mlp", 0), ("mlp", 1), ("linear", 0), ("linear", 1)]
    assert [(m.name, m.seed) for m in ensemble] == seen
    assert ensemble.predictions().shape == (4 * 5, 20, 3)
    member = ensemble[1]
    assert member.steps.tolist() == [0, 1, 2, 5, 9]
    np.testing.assert_allclose(member.epochs, [0, 1 / 3, 2 / 3, 5 / 3, 3])
    np.testing.assert_allclose(np.exp(member.predictions).sum(-1), 1, rtol=1e-5)
    stored = Trajectory.open(tmp_path / "mlp" / "seed-1")
    np.testing.assert_array_equal(stored.predictions(), member.predictions)
    model = mlp((64, 8, 3), seed=1)
    for index, state in [(0, member.result.initial), (4, member.result.final)]:
        model.load_state_dict(stored.weights(index))
        assert all(torch.equal(state[k], v) for k, v in model.state_dict().items())
        np.testing.assert_allclose(predict(model, images[0][:20]), member.predictions[index])


def test_intervals_always_have_both_ends(images):
    ensemble = train_ensemble(
        small_float, LOSS, images, seeds=[0], epochs=3, lr=0.1, batch_size=40, every="2ep"
    )
    assert ensemble[0].steps.tolist() == [0, 6, 9]


def small_float(seed):
    return mlp((64, 8, 3), seed=seed)


def test_models_that_cannot_be_batched_are_trained_in_turn(images):
    def make(seed):
        return nn.Sequential(mlp((64, 8), seed=seed), nn.Dropout(0.5), mlp((8, 3), seed=seed))

    common = {"seeds": [0, 1], "epochs": 1, "lr": 0.1}
    assert len(train_ensemble(make, LOSS, images, **common)) == 2
    with pytest.raises(ArgumentError, match="dropout"):
        train_ensemble(make, LOSS, images, together=True, **common)


def test_a_diverging_member_is_named(images):
    targets = images[0].flatten(1)[:, :3]
    with pytest.raises(DivergenceError) as caught:
        train_ensemble(
            small_float, nn.MSELoss(), (images[0], targets), seeds=[4, 5], epochs=50, lr=1e4
        )
    assert "seed 4" in caught.value.__notes__[0] or "seed 5" in caught.value.__notes__[0]


def test_arguments_are_checked(images, tmp_path):
    common = {"epochs": 1, "lr": 0.1}
    with pytest.raises(ArgumentError, match="seeds"):
        train_ensemble(small_float, LOSS, images, seeds=[1, 1], **common)
    with pytest.raises(ArgumentError, match="every"):
        train_ensemble(small_float, LOSS, images, seeds=[1], every=[0, 10**6], **common)
    ensemble = train_ensemble(small_float, LOSS, images, seeds=[1], folder=tmp_path, **common)
    with pytest.raises(ArgumentError, match="other settings"):
        other = common | {"epochs": 2}
        train_ensemble(small_float, LOSS, images, seeds=[1], folder=tmp_path, **other)
    with pytest.raises(ArgumentError, match="no predictions"):
        ensemble.predictions()


class Stop(Exception):
    pass


@pytest.mark.parametrize("together", [True, False])
def test_an_interrupted_ensemble_resumes_bit_identically(images, tmp_path, together):
    common = {"seeds": [1, 4], "epochs": 3, "lr": 0.05, "momentum": 0.9, "batch_size": 32}
    common |= {"together": together, "probe": images[0][:4], "test": images}

    def fit(folder):
        return train_ensemble(small_float, LOSS, images, folder=folder, augment=interrupt, **common)

    steps = at = 0

    def interrupt(inputs, generator):
        nonlocal steps
        steps += 1
        if steps == at:
            raise Stop
        return inputs

    whole = fit(tmp_path / "whole")
    for at in (1, 2, 4, 5, 7, 8):
        steps, folder = 0, tmp_path / str(at)
        with pytest.raises(Stop):
            fit(folder)
        for again in (fit(folder), fit(folder)):
            for member, other in zip(again, whole, strict=True):
                assert member.steps.tolist() == other.steps.tolist()
                np.testing.assert_array_equal(member.predictions, other.predictions)
                for state in ("initial", "final"):
                    found, expected = getattr(member.result, state), getattr(other.result, state)
                    assert all(torch.equal(found[n], t) for n, t in expected.items())
                for name, values in other.result.history.items():
                    np.testing.assert_array_equal(member.result.history[name], values)
        assert check_folder(folder).findings == ()
        assert not list(folder.rglob("resume"))
    with pytest.raises(ArgumentError, match=r"trained with other settings: \['lr'\]"):
        common["lr"] = 0.1
        fit(tmp_path / "whole")
