"""Fluctuations of a network under its optimiser: exact, resumable, beside the theory."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import hyperribbon as hr
from hyperribbon.core import ArgumentError
from hyperribbon.noise.fluctuations import _affordable, _resolved_first
from hyperribbon.noise.mode_predictions import gradients_of_steps, noise_of_gradients
from hyperribbon.noise.weight_records import principal_modes

LOSS = nn.MSELoss()


def generator(seed=0):
    return torch.Generator("cpu").manual_seed(seed)


def problem(samples=60, inputs=4, dtype=torch.float64):
    draws = generator()
    X = torch.randn(samples, inputs, generator=draws, dtype=dtype)
    noise = 0.3 * torch.randn(samples, 1, generator=draws, dtype=dtype)
    return X, X.sum(dim=1, keepdim=True) + noise


def network(dtype=torch.float64):
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)).to(dtype)
    draws = generator(1)
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=draws, dtype=dtype) / 2
    return model


def batches(size=6):
    X, Y = problem()
    return [(X[i : i + size], Y[i : i + size]) for i in range(0, len(X), size)]


def stored_weights(model, optimizer, data, steps, name):
    model, optimizer = copy.deepcopy((model, optimizer))
    rows = []
    for step in range(steps):
        x, y = data[step % len(data)]
        optimizer.zero_grad()
        LOSS(model(x), y).backward()
        optimizer.step()
        rows.append(dict(model.named_parameters())[name].detach().reshape(-1).clone())
    return torch.stack(rows).numpy(), model


def test_it_equals_a_computation_from_stored_weights():
    model, data = network(), batches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    found = hr.fluctuations(model, LOSS, data, optimizer, steps=300, k=20, samples=None)
    means = {}
    for layer in ("0", "2"):
        rows, moved = stored_weights(model, optimizer, data, 300, f"{layer}.weight")
        means[f"{layer}.weight"] = torch.from_numpy(rows.mean(axis=0))
        direct = hr.weight_covariance(rows, k=20)
        np.testing.assert_allclose(
            found[layer].variances, direct.eigenvalues, rtol=1e-6, atol=1e-14
        )
    with torch.no_grad():
        for name, p in moved.named_parameters():
            if name in means:
                p.copy_(means[name].reshape(p.shape))
    rows, _ = stored_weights(model, optimizer, data, 300, "0.weight")
    H = hr.Hessian(moved, LOSS, data, params="0.weight")
    direct = hr.variance_flatness(rows, H, k=20, warn=False, strict=False)
    np.testing.assert_allclose(found["0"].curvatures, direct.curvatures, rtol=1e-6, atol=1e-9)
    if found["0"].flatness is not None:
        psi = found["0"].flatness.corrected_exponent
        assert psi == pytest.approx(direct.corrected_exponent, rel=1e-6)


def test_little_memory_keeps_the_leading_modes():
    model, data = network(), batches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    whole = hr.fluctuations(model, LOSS, data, optimizer, steps=300, k=4)
    small = hr.fluctuations(model, LOSS, data, optimizer, steps=300, k=4, memory=1.0)
    for layer in ("0", "2"):
        np.testing.assert_allclose(small[layer].variances, whole[layer].variances, rtol=1e-2)
        assert small[layer].captured == pytest.approx(whole[layer].captured, abs=1e-3)


@pytest.mark.parametrize("shape", [(300, 60), (60, 300), (300, 700), (300, 9000)])
def test_principal_modes_are_those_of_the_singular_values(shape):
    """Beyond 256 rows and columns they are found in a Krylov space, and nearly the same."""
    draws = np.random.default_rng(0)
    scale = np.arange(1.0, min(shape) + 1) ** -0.8
    left = np.linalg.qr(draws.normal(size=(shape[0], min(shape))))[0]
    right = np.linalg.qr(draws.normal(size=(shape[1], min(shape))))[0]
    rows = torch.from_numpy((left * scale) @ right.T)
    modes, along = principal_modes(rows, 10)
    exact = min(shape) <= 256
    seen = torch.linalg.vector_norm(along, dim=0).numpy()
    np.testing.assert_allclose(seen, scale[:10], rtol=1e-9 if exact else 0.02)
    np.testing.assert_allclose(modes.T @ modes, np.eye(10), atol=1e-12)
    np.testing.assert_allclose(rows @ modes, along, atol=1e-12)
    np.testing.assert_allclose(along.T @ along, np.diag(seen**2), atol=1e-12)


def test_curvature_is_measured_along_resolved_modes_first():
    """Layer b has two resolved modes, too few for ψ; a and c take turns, three modes at a time."""
    times = {
        "a": np.array([900.0, 200.0, 5.0, 3.0, 2.0, 1.0]),
        "b": np.array([900.0, 800.0, 2.0, 1.0]),
        "c": np.array([9.0, 800.0, 2.0, 1.0]),
    }

    def chosen(count):
        return {name: list(modes) for name, modes in _resolved_first(times, 1000, count).items()}

    assert chosen(3) == {"a": [2, 3, 4], "b": [], "c": []}
    assert chosen(6) == {"a": [2, 3, 4], "b": [], "c": [0, 2, 3]}
    assert chosen(7) == {"a": [2, 3, 4, 5], "b": [], "c": [0, 2, 3]}
    assert chosen(14) == {name: list(range(len(own))) for name, own in times.items()}


def test_a_tenth_of_the_training_pays_for_samples():
    assert _affordable("auto", 4000.0, 40) == 100
    assert _affordable("auto", 4000.0, 100) == 64
    assert _affordable("auto", 4e6, 100) == 1024
    assert _affordable(None, 4000.0, 40) is None
    assert _affordable(7, 4000.0, 40) == 7


def test_curvature_of_a_short_training_is_of_three_modes():
    """40 steps of 6 samples pay for no more; the other layer has no ψ, and says why."""
    model, data = network(), batches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    found = hr.fluctuations(model, LOSS, data, optimizer, steps=40)
    known = [int(np.isfinite(layer.curvatures).sum()) for layer in found.layers.values()]
    assert sorted(known) == [0, 3]
    for layer, count in zip(found.layers.values(), known, strict=True):
        if not count:
            assert layer.flatness is None
            assert "too few" in layer.reason or "curvature is known" in layer.reason
    assert len(found.summary().splitlines()) >= 2


def test_nothing_of_the_user_changes():
    model = network()
    loader = DataLoader(TensorDataset(*problem()), 6, shuffle=True, generator=generator(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    LOSS(model(loader.dataset[0][0]), loader.dataset[0][1]).backward()
    optimizer.step()
    model.eval()
    state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    drawn, order = torch.get_rng_state(), loader.generator.get_state()
    gradients = [p.grad.clone() for p in model.parameters()]
    hr.fluctuations(model, LOSS, loader, optimizer, steps=40)
    for now, then in zip(model.state_dict().values(), state[0].values(), strict=True):
        assert torch.equal(now, then)
    assert str(optimizer.state_dict()) == str(state[1])
    assert torch.equal(torch.get_rng_state(), drawn)
    assert torch.equal(loader.generator.get_state(), order)
    assert all(map(torch.equal, [p.grad for p in model.parameters()], gradients))
    assert not model.training


class Interrupted(Exception):
    pass


class Faulty(torch.optim.Adam):
    left = 75

    def step(self, closure=None):
        Faulty.left -= 1
        if Faulty.left == 0:
            raise Interrupted
        return super().step(closure)


def test_an_interrupted_measurement_resumes_with_the_same_result(tmp_path):
    model = nn.Sequential(network()[:2], nn.Dropout(0.2), network()[2])
    loader = DataLoader(TensorDataset(*problem()), 6, shuffle=True)
    optimizer = Faulty(model.parameters(), lr=0.01)
    options = {"steps": 100, "k": 4, "mode": "eval"}
    with pytest.raises(Interrupted):
        hr.fluctuations(model, LOSS, loader, optimizer, folder=tmp_path, **options)
    assert len(list(tmp_path.glob("state/*"))) == 1
    resumed = hr.fluctuations(model, LOSS, loader, optimizer, folder=tmp_path, **options)
    whole = hr.fluctuations(model, LOSS, loader, optimizer, **options)
    assert resumed.losses == pytest.approx(whole.losses, rel=1e-9)
    for name in whole.layers:
        np.testing.assert_array_equal(resumed[name].variances, whole[name].variances)
        np.testing.assert_array_equal(resumed[name].curvatures, whole[name].curvatures)
    with pytest.raises(ArgumentError, match="other settings"):
        hr.fluctuations(model, LOSS, loader, optimizer, folder=tmp_path, seed=1, **options)


@pytest.mark.parametrize("rule", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}])
@pytest.mark.parametrize("replacement", [False, True])
def test_a_linear_model_fluctuates_as_predicted(rule, replacement):
    X, Y = problem(samples=100, inputs=6)
    model = nn.Linear(6, 1, bias=False).double()
    model.weight.data = torch.linalg.lstsq(X, Y).solution.T.contiguous()
    data = TensorDataset(X, Y)
    sampler = torch.utils.data.RandomSampler(data, replacement=replacement, generator=generator())
    loader = DataLoader(data, 20, sampler=sampler)
    lr = 0.05 * (1 - rule.get("momentum", 0.0))  # small, so that noise hardly depends on weights
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, **rule)
    for x, y in [batch for _ in range(20) for batch in loader]:
        optimizer.zero_grad()
        LOSS(model(x), y).backward()
        optimizer.step()
    found = hr.fluctuations(model, LOSS, loader, optimizer, steps=1500, samples=None)[""]
    assert found.resolved.all()
    assert found.ratio == pytest.approx(1, abs=0.2)
    assert all("mean" in text for text in found.broken)  # one test in a thousand
    if replacement:
        assert 0.5 < np.median(found.times / found.predicted_times) < 2


def test_directions_of_the_hessian():
    model, data = network(), batches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    found = hr.fluctuations(
        model, LOSS, data, optimizer, steps=200, along="hessian", k=3, samples=None
    )
    rows, _ = stored_weights(model, optimizer, data, 200, "0.weight")
    H = hr.Hessian(model, LOSS, data, params="0.weight")
    vectors = hr.eigsh(H, 3).eigenvectors.numpy()
    np.testing.assert_allclose(
        found["0"].variances, (rows @ vectors).var(axis=0, ddof=1), rtol=1e-4
    )
    total = rows.var(axis=0, ddof=1).sum()
    assert found["0"].captured == pytest.approx(found["0"].variances.sum() / total)


def test_frozen_and_tied_weights_and_buffers_are_skipped():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Linear(4, 1))
    model[2].weight = model[0].weight
    model[3].weight.requires_grad_(False)
    X, Y = problem(dtype=torch.float32)
    loader = DataLoader(TensorDataset(X, Y), 10, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    found = hr.fluctuations(model, LOSS, loader, optimizer, steps=30)
    assert list(found.layers) == ["0"]
    assert found["0"].weights == 16
    assert found["0"].no_prediction == ""  # the steps give the noise, also of batch norm


def test_a_recorded_training_gives_the_same(tmp_path):
    model, data = network(), batches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    rows = {
        n: stored_weights(model, optimizer, data, 60, n)[0] for n, _ in model.named_parameters()
    }
    trajectory = hr.Trajectory.create(tmp_path / "run")
    shapes = {n: p.shape for n, p in model.named_parameters()}
    for step in range(60):
        state = {n: torch.from_numpy(r[step]).reshape(shapes[n]) for n, r in rows.items()}
        trajectory.append(step, weights=state)
    new = hr.fluctuations(model, LOSS, data, optimizer, steps=60, k=4)
    old = hr.fluctuations(model, LOSS, data, optimizer, trajectory=trajectory, k=4)
    for name in new.layers:
        np.testing.assert_allclose(old[name].variances, new[name].variances, rtol=1e-6)


def test_results_are_read_and_drawn(tmp_path):
    model = network()
    loader = DataLoader(TensorDataset(*problem()), 6, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    found = hr.fluctuations(model, LOSS, loader, optimizer, steps=200)
    assert list(found.to_frame().index) == ["0", "2"]
    assert "modes resolved" in found.summary()
    assert len(repr(found)) < 200
    assert found.plot().get_xlabel() == "exponent ψ"
    assert "predicted" in found["0"].plot().get_legend_handles_labels()[1]
    assert "ψ" in found.report(tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"data": problem()}, "DataLoader"),
        ({"data": DataLoader(TensorDataset(*problem()), 60, shuffle=True)}, "one batch"),
        ({"optimizer": torch.optim.SGD(network().parameters(), lr=0.1)}, "none of the chosen"),
        ({"along": "gradient"}, "along"),
        ({"layers": "nothing"}, "params|layers"),
    ],
)
def test_what_cannot_be_measured_is_named(change, match):
    model = network()
    given = {"data": batches(), "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    given |= {"steps": 20} | change
    with pytest.raises(ArgumentError, match=match):
        hr.fluctuations(model, LOSS, **given)


def test_an_optimizer_that_evaluates_the_loss_itself_is_refused():
    model = network()
    with pytest.raises(ArgumentError, match="several times"):
        hr.fluctuations(model, LOSS, batches(), torch.optim.LBFGS(model.parameters()), steps=20)


def test_a_diverging_training_is_named():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e6)
    with pytest.raises(ArgumentError, match="the loss is"):
        hr.fluctuations(model, LOSS, batches(), optimizer, steps=50)


class Replay(torch.optim.SGD):
    """Puts given weights in place, one row per step."""

    rows, taken = torch.empty(0), 0

    def step(self, closure=None):
        (weight,) = self.param_groups[0]["params"]
        weight.data.copy_(Replay.rows[Replay.taken])
        Replay.taken += 1


def synthetic(drift):
    """Return the fluctuations of a linear model whose mean moves by so many deviations."""
    X, Y = problem(samples=100, inputs=6)
    model = nn.Linear(6, 1, bias=False).double()
    H = (2 * X.T @ X / len(X)).numpy()
    draws = np.random.default_rng(0).normal(size=(1000, 6)) @ np.linalg.cholesky(H).T
    draws += drift * draws.std(axis=0) * np.linspace(-0.5, 0.5, len(draws))[:, None]
    optimizer = Replay(model.parameters(), lr=0.05)
    Replay.taken = 0
    Replay.rows = torch.linalg.lstsq(X, Y).solution.T + 0.01 * torch.from_numpy(draws)
    loader = DataLoader(TensorDataset(X, Y), 20, shuffle=True)
    return hr.fluctuations(model, LOSS, loader, optimizer, steps=1000, samples=None)


def test_psi_of_moving_weights_is_marked():
    found = synthetic(0.5)
    layer = found[""]
    assert not layer.stationary
    assert not found.to_frame()["stationary"].any()
    assert layer.stationarity.doubt in layer.broken
    assert layer.flatness is not None
    for line in (layer.summary(), repr(layer.flatness), found.summary().splitlines()[0]):
        assert "not stationary: the " in line
        assert line.index("not stationary") < line.index("ψ")
    assert "1 of 1 layers (1 not stationary)" in repr(found)
    assert found.plot().get_legend_handles_labels()[1] == ["not stationary"]
    assert layer.plot().get_legend().get_title().get_text() == "not stationary"
    assert "not stationary" in layer.flatness.plot().get_legend_handles_labels()[1][-1]


def test_a_direction_of_drift_is_left_out_of_psi():
    found = synthetic(5.0)
    layer = found[""]
    low, high = layer.flatness.interval
    assert low < 2 < high
    assert high - low < 1
    assert list(layer.resolved) == [False, True, True, True, True, True]
    assert layer.stationary
    assert layer.moments_needed > 2000
    assert f"all in at least {layer.moments_needed:,} records" in layer.summary()
    wide = replace(layer, flatness=replace(layer.flatness, interval=(-3.0, 5.0)))
    assert "ψ not determined (-3 to 5)" in wide.summary()


def test_psi_of_weights_that_stay_is_not_marked():
    found = synthetic(0.0)
    layer = found[""]
    assert layer.stationary
    assert layer.resolved.all()
    low, high = layer.flatness.interval
    assert low < 2 < high  # variance in proportion to curvature
    assert high - low < 1
    assert "not stationary" not in found.summary() + repr(found) + repr(layer.flatness)
    assert found.plot().get_legend() is None


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.8},
        {"momentum": 0.8, "dampening": 0.3},
        {"momentum": 0.9, "nesterov": True},
    ],
)
def test_gradients_follow_from_the_steps(options):
    """What `fluctuations` takes from weights alone is what torch computed."""
    model, data = network(), batches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, **options)
    weights, gradients = [], []
    for step in range(60):
        x, y = data[step % len(data)]
        optimizer.zero_grad()
        LOSS(model(x), y).backward()
        optimizer.step()
        weights.append(model[0].weight.detach().reshape(-1).clone())
        gradients.append(model[0].weight.grad.reshape(-1).clone())
    path = torch.stack(weights).numpy()
    found = gradients_of_steps({"0": SimpleNamespace(projections=path)}, {"lr": 0.05, **options})
    true = torch.stack(gradients).numpy()[-len(found) :]
    np.testing.assert_allclose(found, true, atol=1e-9 * abs(true).max())
    assert len(found) >= 19


def test_noise_is_the_covariance_of_the_gradients():
    draws, H = np.random.default_rng(0), np.diag([0.1, 0.02])
    noise = draws.normal(size=(40_000, 2)) @ np.array([[1.0, 0.3], [0.0, 0.5]])
    expected = np.cov(noise.T)
    weights = np.zeros(2)
    gradients = []
    for xi in noise:
        gradients.append(H @ weights + xi)
        weights = weights - 0.1 * gradients[-1]
    np.testing.assert_allclose(noise_of_gradients(np.array(gradients), None), expected, atol=0.03)
    epochs = noise[:40_000].reshape(-1, 4, 2)
    epochs = epochs - epochs.mean(axis=1, keepdims=True)  # sums to zero in every epoch of four
    found = noise_of_gradients(epochs.reshape(-1, 2), 4)
    inside = np.diff(epochs, axis=1).reshape(-1, 2)
    np.testing.assert_allclose(
        inside.T @ inside / len(inside) / 2 * 0.75, 0.75 * expected, atol=0.03
    )
    assert np.trace(found) == pytest.approx(0.75 * np.trace(expected), rel=0.1)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SGD, {"lr": 0.02, "momentum": 0.9}),
        (torch.optim.Adam, {"lr": 0.01, "betas": (0.9, 0.99)}),
        (torch.optim.RMSprop, {"lr": 0.003, "alpha": 0.99}),
    ],
)
def test_predictions_hold_for_linear_regression(kind, options):
    X, Y = problem(samples=400, inputs=6)
    model = nn.Sequential(nn.Linear(6, 1, bias=False)).double()
    data = TensorDataset(X, Y)
    sampler = RandomSampler(data, replacement=True, generator=generator(2))
    loader = DataLoader(data, 20, sampler=sampler)
    optimizer = kind(model.parameters(), **options)
    for _ in range(60):  # to the end, so that Adam's preconditioner has settled
        for x, y in loader:
            optimizer.zero_grad()
            LOSS(model(x), y).backward()
            optimizer.step()
    found = hr.fluctuations(model, LOSS, loader, optimizer, steps=3000, samples=None)["0"]
    assert found.ratio == pytest.approx(1, abs=0.3)
    assert not [text for text in found.broken if "noise" in text or "preconditioner" in text]
    np.testing.assert_allclose(found.noise_change, 1, atol=0.35)


def test_a_loss_that_falls_is_named():
    X, Y = problem()
    model = network()
    loader = DataLoader(TensorDataset(X, Y * 0 + X.sum(dim=1, keepdim=True)), 6, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    found = hr.fluctuations(model, LOSS, loader, optimizer, steps=400)
    assert found.losses[0] > 1.5 * found.losses[1]
    assert "training loss went from" in found.summary()
    assert any(
        "noise is not constant" in text for row in found.layers.values() for text in row.broken
    )
