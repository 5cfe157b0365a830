"""Experiments of [linear_networks]: their numbers, not only that they run."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.data import whiten
from hyperribbon.operators import Hessian
from hyperribbon.papers import experiments
from hyperribbon.papers.experiments import Experiment, runner
from hyperribbon.papers.experiments.context import Context
from hyperribbon.papers.experiments.linear_networks import (
    _data,
    counts,
    fig1_left,
    fig1_middle,
    fig1_right,
    fig2_right,
    fig3,
    fig4,
    samples,
)
from hyperribbon.papers.experiments.linear_networks._sweeps import (
    SweepConfig,
    balanced_sharpness,
    predictions,
)
from hyperribbon.theory import linear_networks as theory


@pytest.fixture
def context(tmp_path):
    parts, shared = tmp_path / "parts", tmp_path / "shared"
    parts.mkdir()
    shared.mkdir()
    return Context(0, parts, shared)


def verdicts(module, result):
    return {
        claim.id.rpartition("/")[2]: claim.verdict for claim in Experiment(module).claims(result)
    }


def test_uniform_mnist_ends_at_the_general_form_and_below_the_printed_one(context):
    config = SweepConfig(shares=(0.1,))
    result = fig1_right.compute(config, context)
    trained = result.trained[0, 0, 0]
    assert trained == pytest.approx(0.691, abs=0.002)
    assert trained == pytest.approx(result.general[0, 0], rel=1e-3)
    assert result.printed[0, 0] == pytest.approx(0.7113, abs=1e-4)
    # What the printed form leaves out is the loss floor, reached to a thousandth.
    assert result.loss[0, 0, 0] == pytest.approx(result.floor[0, 0], abs=1e-3)
    assert result.samples[0, 0] == 5000


@pytest.mark.parametrize("samples", [500, 60])
def test_moments_from_the_gram_matrix_are_those_of_the_singular_value_decomposition(samples):
    item = {"data": "digits", "share": 0.3, "samples": samples, "data_seed": 1}
    data, white = _data.white_data(item)
    facts = _data.moments_of(item)
    reference = whiten(data.inputs.double().numpy().T)
    n = white.shape[1]
    assert len(white) == reference.rank
    assert np.abs(white @ white.T / n - np.eye(len(white))).max() < 1e-9
    assert np.allclose(np.sort(facts["scales"]), np.sort(reference.scales), rtol=1e-8)
    labels = _data.one_hot(data)
    assert np.allclose(facts["cross"], labels @ white.T / n, atol=1e-10)
    ours, theirs = (
        np.linalg.svd(labels @ inputs.T / n, compute_uv=False)
        for inputs in (white, reference.inputs)
    )
    assert np.allclose(ours, theirs, rtol=1e-9)


def test_subsampling_keeps_the_shares_and_says_when_a_class_is_too_small(context, monkeypatch):
    with pytest.raises(ArgumentError, match=r"class 0 would need 7.* and has 178"):
        _data.subsample("digits", 0.5, 1500, 0)
    samples = _data.fitting_samples("digits", 0.5, 1500)
    labels = []
    monkeypatch.setattr(context, "shared_folder", lambda work, item, label: labels.append(label))
    config = SweepConfig(data=("digits",), shares=(0.1, 0.5), samples=1500)
    assert [item["samples"] for item in _data.data_items(config, context)] == [1500, samples]
    assert labels == [
        "moments of digits, 0.1",
        f"moments of digits, 0.5 ({samples} of 1500 images)",
    ]
    counts = np.bincount(_data.subsample("digits", 0.5, samples, 0).targets)
    assert counts[0] == 178
    assert len(set(counts[1:])) == 1
    assert 0.48 < counts[0] / counts.sum() < 0.52


def test_the_printed_count_is_right_for_a_wide_hidden_layer():
    counted, by_rule, printed = counts._shallow([3, 6, 4], np.random.default_rng(0))
    assert counted == by_rule == printed == 3 * 4


def test_fewer_images_than_asked_for_are_told_everywhere(tmp_path, monkeypatch):
    """In the run, in every claim, and under the figure."""
    shown = []
    monkeypatch.setattr(runner, "_save_figure", lambda figure, *_: shown.append(figure))
    config = {"depths": (2, 3), "shares": (0.1, 0.5), "epochs": 3}
    run = experiments.run("linear_networks/depth", config, out=tmp_path)
    told = f"1500, but {_data.fitting_samples('digits', 0.5, 1500)} at share 0.5 of digits"
    assert run.info["reduced"] == {"samples": told}
    assert all(f"Fewer than asked for: samples = {told}." in c.setting for c in run.load_claims())
    assert f"samples = {told}" in " ".join(shown[-1].get_supxlabel().split())
    whole = experiments.run("linear_networks/depth", {**config, "samples": 300}, out=tmp_path)
    assert "reduced" not in whole.info


OF_SHARES = {}  # one experiment and preset for each way of choosing images
for _id, _experiment in experiments.all_experiments().items():
    for _preset in ("smoke", "laptop", "paper"):
        if _experiment.paper == "linear_networks":
            _config = _experiment.config(_preset)
            if hasattr(_config, "shares"):
                OF_SHARES[_config.data, _config.shares, _config.samples] = (_id, _preset)


@pytest.mark.parametrize(("id", "preset"), OF_SHARES.values())
def test_every_experiment_on_shares_of_classes_says_how_many_images_it_takes(
    id, preset, context, monkeypatch
):
    """What is told is what the work is given, and what the data then have."""
    experiment = experiments.find_experiment(id)
    config = experiment.config(preset)
    monkeypatch.setattr(context, "shared_folder", lambda *_: "")
    items = _data.data_items(config, context)
    fewer = [
        f"{item['samples']} at share {item['share']:g} of {_data.NAMES[item['data']]}"
        for item in items
        if item["samples"] != config.samples
    ]
    told = {"samples": f"{config.samples}, but {', '.join(fewer)}"} if fewer else {}
    assert experiment.reductions(config) == told
    item = min(items, key=lambda item: item["samples"])
    data = _data.subsample(item["data"], item["share"], item["samples"], item["data_seed"])
    assert len(data.targets) == item["samples"]


def test_raw_moments_on_principal_axes_are_those_of_the_data(context):
    config = SweepConfig(data=("digits",), shares=(0.1,), samples=500)
    (item,) = _data.data_items(config, context)
    moments, facts = _data.read_moments(item, white=False)
    data = _data.subsample("digits", 0.1, 500, 0)
    X, Y = data.inputs.double().numpy().T, _data.one_hot(data)
    assert np.allclose(
        np.sort(moments.inputs), np.linalg.eigvalsh(X @ X.T / 500), atol=1e-9 * moments.inputs.max()
    )
    raw, ours = (np.linalg.svd(m, compute_uv=False) for m in (Y @ X.T / 500, moments.cross))
    assert np.allclose(raw, ours, rtol=1e-9)
    # (1/2n)‖Y‖² less what the least-squares map explains.
    fit = np.linalg.lstsq(X.T, Y.T, rcond=None)[0].T @ X
    floor = np.sum((fit - Y) ** 2) / (2 * 500)
    assert predictions(facts, 4)["floor"] == pytest.approx(floor, rel=1e-8)


def test_the_trace_estimate_is_within_four_standard_errors_all_along(context):
    result = fig3.compute(fig3.PRESETS["smoke"], context)
    exact = result.closed_form[:, result.estimated]
    for found in (result.printed, result.ours):
        estimate, stderr = np.moveaxis(found, -1, 0)
        assert np.all(np.abs(estimate - exact) < 4 * stderr)
        assert np.all(stderr < 0.05 * exact)
    scores = (result.printed[..., 0] - exact) / result.printed[..., 1]
    assert np.ptp(scores) > 0.5  # vectors are drawn anew at every record


def test_the_error_of_eq_15_falls_while_the_loss_stays_high(context):
    result = fig4.compute(fig4.PRESETS["smoke"], context)
    assert np.all(np.diff(result.errors, axis=1) < 0)
    assert result.errors[0, 0] > 1
    assert result.errors[0, -1] < 0.1
    assert result.loss[0, -1] > 0.1


@pytest.mark.slow
def test_the_error_of_eq_15_on_mnist_follows_the_paper(context):
    result = fig4.compute(fig4.PRESETS["laptop"], context)
    expected = {0: 9.9, 100: 8.1, 1000: 3.6, 3000: 1.0}
    found = dict(zip(result.epochs.tolist(), result.errors[0], strict=True))
    for epoch, percent in expected.items():  # of one other random start
        assert found[epoch] == pytest.approx(percent, rel=0.25)


@pytest.mark.parametrize("start", ["balanced", "kaiming_uniform"])
def test_twenty_times_the_rate_for_a_twentieth_of_the_epochs_follows_the_same_flow(start, context):
    config = SweepConfig(data=("digits",), shares=(0.3,), samples=500)
    (item,) = _data.data_items(config, context)
    data, white = _data.white_data(item)
    X, Y = (torch.from_numpy(rows.T.copy()).float() for rows in (white, _data.one_hot(data)))
    scale = 0.5 if start == "balanced" else 0.0
    common = {"depth": 4, "width": 12, "start": start, "scale": scale, "seed": 3}
    slow = fig2_right.train(X, Y, {**common, "lr": 0.01, "epochs": 2000})
    fast = fig2_right.train(X, Y, {**common, "lr": 0.2, "epochs": 100})
    assert fast["trained"] == pytest.approx(slow["trained"], rel=0.02)
    assert fast["loss"] == pytest.approx(slow["loss"], rel=0.02)


def test_raw_minima_are_as_sharp_as_the_dense_gauss_newton_matrix_says():
    """The balanced network with the least-squares map, its Jacobian written out."""
    item = {"data": "digits", "share": 0.1, "samples": 90, "data_seed": 1}
    moments = _data.to_moments(_data.moments_of(item), white=False)
    seen = moments.inputs > 0
    least = np.zeros_like(moments.cross)
    least[:, seen] = moments.cross[:, seen] / moments.inputs[seen]
    left, singular, right = np.linalg.svd(least, full_matrices=False)
    middle = np.diag(singular ** (1 / 3))
    layers = [middle @ right, middle, left @ middle]
    assert np.allclose(layers[2] @ layers[1] @ layers[0], least)
    jacobian = theory.jacobian(layers, np.diag(np.sqrt(moments.inputs)))
    largest = np.linalg.norm(jacobian, 2) ** 2
    assert balanced_sharpness([least], moments, 3) == pytest.approx(largest, rel=1e-5)


@pytest.mark.parametrize(
    ("module", "failing"),
    [
        (fig1_left, set()),
        (fig1_middle, set()),
        (counts, {"balanced-printed", "shallow-printed"}),
    ],
)
def test_closed_forms_fail_where_the_paper_slips_and_nowhere_else(module, failing, context):
    result = module.compute(module.PRESETS["smoke"], context)
    found = verdicts(module, result)
    assert {name for name, verdict in found.items() if verdict != "holds"} == failing


def test_training_within_the_span_of_the_inputs_is_training_on_the_inputs():
    torch.manual_seed(0)
    X, Y = torch.randn(5, 12).double(), torch.randn(5, 3).double()
    full = nn.Sequential(nn.Linear(12, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    small = copy.deepcopy(full)
    inputs = samples.restrict_to_span(small, X)
    assert inputs.shape == (5, 5)
    largest = []
    for model, given in ((full, X), (small, inputs)):
        for _ in range(30):
            weights = list(model.parameters())
            loss = (model(given) - Y).square().mean()
            for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                weight.data -= 0.1 * gradient
        dense = Hessian(model, nn.MSELoss(), (given, Y)).to_dense()
        largest.append((float(loss.detach()), float(torch.linalg.eigvalsh(dense)[-1])))
    assert largest[1] == pytest.approx(largest[0], rel=1e-9)
