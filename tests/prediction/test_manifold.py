"""The predicted manifold beside trained networks, and what a prediction is made of."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import hyperribbon as hr
from hyperribbon.core.checks import ArgumentError
from hyperribbon.prediction.initial import average_last_layer, draw_networks


@pytest.fixture(scope="module")
def data():
    generator = torch.Generator("cpu").manual_seed(5)
    inputs = torch.randn(24, 10, generator=generator, dtype=torch.float64)
    return inputs, torch.sign(inputs[:, :1] * inputs[:, 1:2])


def two_layers(width=200, outputs=1):
    return nn.Sequential(nn.Linear(10, width), nn.Tanh(), nn.Linear(width, outputs)).double()


def test_a_linear_model_follows_its_prediction_to_rounding(data):
    """Its kernel never changes, so one run starts and moves as the linearised network does."""
    y = data[1]
    model = nn.Linear(10, 1).double()
    found = hr.predict_manifold(model, nn.MSELoss(), data, steps=15, lr=0.2)
    decay = np.eye(24) - 0.2 * 2 / 24 * found.kernel
    f = torch.zeros(24, dtype=torch.float64).numpy()
    for step in range(15):
        np.testing.assert_allclose(found.path[step], f, atol=1e-12)
        f = y.numpy()[:, 0] + decay @ (f - y.numpy()[:, 0])
    measured = found.measure(networks=30)
    assert max(measured.kernel_drift.values()) < 1e-12
    assert measured.uncertainty == pytest.approx(1 + 2 * measured.spread)
    assert abs(measured.measured - measured.expected) < 3 * measured.spread + 1
    assert measured.captured > 0.93


def test_the_covariance_is_that_of_iterated_moments_over_kernels(data):
    model = two_layers()
    found = hr.predict_manifold(model, nn.MSELoss(), data, steps=12, lr=0.05, seed=3)
    start = average_last_layer(model, [data[0]], 16, 3).numpy()
    networks = draw_networks(model, found.kernels, None, 3)
    kernels = [hr.NTK(network, data[0]).to_dense().numpy() for network in networks]
    np.testing.assert_allclose(np.mean(kernels, axis=0), found.kernel, atol=1e-12)
    inside, averages = np.zeros((24, 24)), []
    for kernel in kernels:
        decay = np.eye(24) - 0.05 * 2 / 24 * kernel
        mean = -data[1].numpy()[:, 0]
        moment = start + np.outer(mean, mean)
        total, average = np.zeros_like(moment), np.zeros(24)
        for _ in range(12):
            total, average = total + moment / 12, average + mean / 12
            moment, mean = decay @ moment @ decay, decay @ mean
        inside += (total - np.outer(average, average)) / len(kernels)
        averages.append(average)
    expected = inside + np.cov(np.array(averages).T)
    np.testing.assert_allclose(found.covariance, expected, atol=1e-12)


def test_narrow_networks_have_kernels_of_their_own():
    """Runs of narrow networks differ by their kernels too, which the mean kernel would not show."""
    generator = torch.Generator("cpu").manual_seed(1)
    X = torch.randn(30, 10, generator=generator)
    model = nn.Sequential(nn.Linear(10, 128), nn.ReLU(), nn.Linear(128, 1))
    found = hr.predict_manifold(model, nn.MSELoss(), (X, torch.sign(X[:, :1])), steps=60, lr=0.03)
    seen = found.measure(networks=20)
    assert abs(seen.measured - seen.expected) <= 2


def test_a_network_that_leaves_its_linearisation_is_inside_the_uncertainty():
    """Its kernel grows several times: the prediction is off, and says so."""
    generator = torch.Generator("cpu").manual_seed(0)
    X = torch.randn(20, 1, 8, 8, generator=generator)
    y = torch.sign(X.mean(dim=(1, 2, 3)))[:, None]
    layers = [nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 1))
    found = hr.predict_manifold(model, nn.MSELoss(), (X, y), steps=60, lr=0.2)
    seen = found.measure(networks=10)
    assert max(seen.kernel_drift.values()) > 1
    assert abs(seen.measured - seen.expected) > 2 * seen.spread + 1
    assert abs(seen.measured - seen.expected) <= seen.uncertainty < 2 * seen.expected


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.SmoothL1Loss(beta=0.5)])
def test_trained_networks_have_the_expected_dimensions(data, loss):
    found = hr.predict_manifold(two_layers(), loss, data, steps=20, lr=0.05)
    assert found.method == ("closed form" if isinstance(loss, nn.MSELoss) else "kernel descent")
    measured = found.measure(networks=25)
    assert abs(measured.measured - measured.expected) <= 2 + 2 * measured.spread
    assert measured.captured > 0.9


@pytest.mark.parametrize(
    ("loss", "scale"),
    [
        (nn.MSELoss(), 2 / 24),
        (nn.MSELoss(reduction="sum"), 2.0),
        (lambda f, y: 0.5 * ((f - y) ** 2).sum(dim=1).mean(), 1 / 24),
    ],
)
def test_squared_losses_are_recognised_with_their_scale(data, loss, scale):
    found = hr.predict_manifold(two_layers(8), loss, data, steps=3, lr=1e-3)
    assert found.method == "closed form"
    assert found._problem.squared_scale() == pytest.approx(scale, rel=1e-6)
    np.testing.assert_allclose(found._problem.minimum(scale), data[1].numpy()[:, 0], atol=1e-9)


def test_the_last_layer_is_averaged_exactly(data):
    model = two_layers(40, outputs=2)
    exact = average_last_layer(model, [data[0][:9], data[0][9:]], 400, 1).numpy()
    with torch.no_grad():
        rows = [net(data[0]).flatten().numpy() for net in draw_networks(model, 4000, None, 2)]
    sampled = np.cov(np.stack(rows).T)
    assert exact.shape == (48, 48)
    assert np.linalg.norm(exact - sampled) < 0.1 * np.linalg.norm(exact)


def test_a_model_that_does_not_end_in_its_own_linear_layer_is_sampled(data):
    squashed = nn.Sequential(two_layers(6), nn.Tanh())
    assert average_last_layer(squashed, [data[0]], 2, 0) is None
    found = hr.predict_manifold(squashed, nn.MSELoss(), data, steps=4, lr=0.1)
    assert found.start == "sampled"


def test_model_and_random_state_are_left_alone(data):
    model = two_layers(12).train()
    state, before = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    hr.predict_manifold(model, nn.MSELoss(), data, steps=4, lr=0.1).measure(networks=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training and not any(m._forward_pre_hooks for m in model.modules())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, state[name])
    assert all(p.grad is None for p in model.parameters())


def test_class_labels_and_batches_are_taken():
    generator = torch.Generator("cpu").manual_seed(0)
    X = torch.randn(20, 10, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (20,), generator=generator)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, labels), batch_size=7)
    batched = hr.predict_manifold(
        two_layers(16, 3), nn.CrossEntropyLoss(), loader, steps=5, lr=0.1, initializations=6
    )
    whole = hr.predict_manifold(
        two_layers(16, 3), nn.CrossEntropyLoss(), (X, labels), steps=5, lr=0.1, initializations=6
    )
    np.testing.assert_allclose(batched.covariance, whole.covariance, atol=1e-6)
    assert batched.stderr >= 0


class OwnLoss(nn.Module):
    """As the models of transformers: batches are dicts, outputs have logits and a loss."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(10, 3).double()

    def forward(self, x, labels=None):
        logits = self.layer(x)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return SimpleNamespace(loss=loss, logits=logits)


class Penalised(OwnLoss):
    """Its loss is no function of the outputs alone."""

    def forward(self, x, labels=None):
        found = super().forward(x, labels)
        if labels is not None:
            found.loss = found.loss + self.layer.weight.square().sum()
        return found


class Plain(OwnLoss):
    def forward(self, x):
        return super().forward(x).logits


def test_a_model_with_a_loss_of_its_own_is_predicted_as_with_that_loss():
    generator = torch.Generator("cpu").manual_seed(0)
    X = torch.randn(8, 10, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (8,), generator=generator)
    batches = [{"x": X[:5], "labels": labels[:5]}, {"x": X[5:], "labels": labels[5:]}]
    setting = {"steps": 4, "lr": 0.1, "initializations": 6}
    own = hr.predict_manifold(OwnLoss(), None, batches, **setting)
    given = hr.predict_manifold(Plain(), nn.CrossEntropyLoss(), (X, labels), **setting)
    np.testing.assert_allclose(own.covariance, given.covariance, atol=1e-6)
    assert own.measure(networks=2).runs == 2
    with pytest.raises(ArgumentError, match="logits"):
        hr.predict_manifold(Penalised(), None, batches, **setting)


def test_targets_without_an_axis_of_outputs_have_the_same_prediction(data):
    """The covariance averages over the last layer, also behind a squeeze."""
    squeezed = nn.Sequential(two_layers(16), nn.Flatten(0))
    flat = hr.predict_manifold(squeezed, nn.MSELoss(), (data[0], data[1][:, 0]), steps=4, lr=0.05)
    found = hr.predict_manifold(two_layers(16), nn.MSELoss(), data, steps=4, lr=0.05)
    assert flat.start == found.start == "last layer"
    np.testing.assert_allclose(flat.covariance, found.covariance, rtol=1e-9)


def test_own_runs_are_compared_and_drawn(data):
    found = hr.predict_manifold(two_layers(), nn.MSELoss(), data, steps=6, lr=0.05)
    states = [network.state_dict() for network in found._problem.draw(8)]
    runs = [found._problem.train(state, 0.05, 6)[0].reshape(6, 24, 1) for state in states]
    result = found.compare(runs)
    assert (result.runs, result.kernel_drift) == (8, {}) and np.isnan(result.uncertainty)
    assert list(result.to_frame().columns) == ["predicted", "measured"]
    assert len(result.plot().lines) == 4
    with pytest.raises(ArgumentError, match="6 steps of 24 outputs"):
        found.compare([run[:5] for run in runs])


def test_frozen_layers_keep_their_weights(data):
    """A frozen feature map is part of the function, as if the data were its features."""
    features, last = nn.Linear(10, 6).double().requires_grad_(False), nn.Linear(6, 1).double()
    whole = hr.predict_manifold(
        nn.Sequential(features, nn.Tanh(), last), nn.MSELoss(), data, steps=5, lr=0.1
    )
    inputs = torch.tanh(features(data[0]))
    alone = hr.predict_manifold(last, nn.MSELoss(), (inputs, data[1]), steps=5, lr=0.1)
    np.testing.assert_allclose(whole.covariance, alone.covariance, atol=1e-12)
    frozen = nn.Sequential(nn.Linear(10, 6), nn.Tanh(), nn.Linear(6, 1)).double()
    frozen[2].requires_grad_(False)
    found = hr.predict_manifold(frozen, nn.MSELoss(), data, steps=3, lr=0.1, initializations=30)
    assert found.start == "sampled"


def test_measured_networks_keep_frozen_weights_and_buffers_along_training(data):
    """In evaluation mode batch norm has the statistics of the new network at every step."""
    layers = [nn.Linear(10, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1)]
    model = nn.Sequential(*layers).double()
    with torch.no_grad():
        model(3 + 2 * data[0])  # running statistics far from those of a new network
    model[0].requires_grad_(False)
    found = hr.predict_manifold(model, nn.MSELoss(), data, steps=6, lr=0.05)
    network = next(found._problem.draw(1)).eval()
    outputs, _ = found._problem.train(network.state_dict(), 0.05, 6)
    optimizer = torch.optim.SGD([p for p in network.parameters() if p.requires_grad], lr=0.05)
    for step in range(6):
        predicted = network(data[0])
        expected = predicted.detach().numpy()[:, 0]
        np.testing.assert_allclose(outputs[step], expected, atol=1e-9)
        optimizer.zero_grad()
        nn.functional.mse_loss(predicted, data[1]).backward()
        optimizer.step()


class Parametrised(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(10, dtype=torch.float64))
        self.layer = nn.Linear(10, 1).double()

    def forward(self, x):
        return self.layer(x * self.scale)


def test_what_cannot_be_initialised_anew_asks_for_init(data):
    with pytest.raises(ArgumentError, match=r"reset_parameters.*init="):
        hr.predict_manifold(Parametrised(), nn.MSELoss(), data, steps=3, lr=0.1)
    found = hr.predict_manifold(
        Parametrised(), nn.MSELoss(), data, steps=3, lr=0.1, init=Parametrised
    )
    assert found.start == "sampled" and found.dimensions() >= 1


def test_a_learning_rate_that_diverges_is_named(data):
    with pytest.raises(ArgumentError, match=r"lr=50.*diverges"):
        hr.predict_manifold(two_layers(), nn.MSELoss(), data, steps=3, lr=50.0)
