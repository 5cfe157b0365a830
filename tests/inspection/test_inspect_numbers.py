"""Every number of an inspection against dense linear algebra on the same small network."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import hyperribbon as hr
from hyperribbon.application.inspection import inspect
from hyperribbon.application.inspection.engine.subject import Subject
from hyperribbon.application.inspection.parts.gradient_noise import gauss_newton_factor
from hyperribbon.application.inspection.parts.landscape import (
    line_slice,
    plane_slice,
    random_direction,
)
from hyperribbon.application.inspection.sampling import standard_error


@pytest.fixture(scope="module")
def found(trained, quiet):
    model, loss, data, initial = trained
    return inspect(
        model,
        loss,
        data,
        initial=initial,
        optimizer=0.1,
        batch_size=32,
        k=20,
        budget=60,
        console=quiet,
    )


@pytest.fixture(scope="module")
def dense(trained):
    model, loss, data, _ = trained
    matrices = {
        kind.__name__: kind(model, loss, data).to_dense().double().numpy()
        for kind in (hr.Hessian, hr.GGN, hr.GradientCovariance)
    }
    gradient = torch.autograd.grad(loss(model(data[0]), data[1]), list(model.parameters()))
    matrices["gradient"] = torch.cat([g.reshape(-1) for g in gradient]).double().numpy()
    return matrices


def test_everything_that_applies_was_done(found):
    assert {o.status for o in found.outcomes} == {"done", "omitted"}
    omitted = [o.step for o in found.outcomes if o.status == "omitted"]
    assert omitted == ["Path of the training"]


def test_curvature_agrees_with_dense_matrices(found, dense):
    hessian, ggn = np.linalg.eigvalsh(dense["Hessian"]), np.linalg.eigvalsh(dense["GGN"])
    scale = hessian[-1]
    assert found["hessian.largest"].value == pytest.approx(hessian[-1], abs=1e-4 * scale)
    assert found["hessian.smallest"].value == pytest.approx(hessian[0], abs=1e-3 * scale)
    assert found["gauss_newton.largest"].value == pytest.approx(ggn[-1], abs=1e-4 * scale)
    assert found["gauss_newton.trace"].value == pytest.approx(ggn.sum(), rel=1e-4)
    trace = found["hessian.trace"]
    assert abs(trace.value - hessian.sum()) < 4 * trace.error + 1e-4 * hessian.sum()
    assert trace.error < 0.03 * hessian.sum()
    ratio = ggn[-10:].sum() / ggn.sum()
    assert found["gauss_newton.share10"].value == pytest.approx(ratio, rel=1e-3)
    assert found["hessian.ratio10"].value == pytest.approx(hessian[-1] / hessian[-10], rel=1e-2)


def _gaussian_fisher(model, data):
    return hr.Fisher(model, data[0], likelihood="gaussian").to_dense().double().numpy()


@pytest.mark.parametrize(
    ("loss", "factor"),
    [
        (nn.CrossEntropyLoss(), 1.0),
        (nn.CrossEntropyLoss(reduction="sum"), 1 / 240),
        (nn.CrossEntropyLoss(label_smoothing=0.1), 1.0),
        (lambda outputs, y: -outputs.log_softmax(1)[range(len(y)), y].mean(), 1.0),
        (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0])), None),
    ],
)
def test_the_fisher_information_is_named_or_measured(trained, quiet, loss, factor):
    model, _, data, _ = trained
    known = gauss_newton_factor(Subject(model, loss, data))
    assert (known is None) == (factor is None)
    if known is not None:
        assert known == ("categorical", pytest.approx(factor, rel=1e-4))
    fisher = hr.Fisher(model, data[0]).to_dense().double().numpy()
    found = inspect(model, loss, data, k=5, budget=20, console=quiet)
    largest = found["fisher.largest"]
    assert largest.value == pytest.approx(np.linalg.eigvalsh(fisher)[-1], rel=1e-3)
    assert found["fisher.trace"].value == pytest.approx(fisher.trace(), rel=1e-3)
    assert ("Gauss-Newton" in largest.method) == (factor is not None)
    assert "Fisher trace" in " ".join(found.reading())


@pytest.mark.parametrize("kind", ["squared", "summed", "binary", "absolute"])
def test_the_fisher_information_of_numbers_and_coins(trained, kind):
    model, _, (inputs, labels), _ = trained
    targets = nn.functional.one_hot(labels, 3).float()
    loss = {
        "squared": nn.MSELoss(),
        "summed": nn.MSELoss(reduction="sum"),
        "binary": nn.BCEWithLogitsLoss(),
        "absolute": nn.SmoothL1Loss(),
    }[kind]
    subject = Subject(model, loss, (inputs, targets))
    known = gauss_newton_factor(subject)
    if kind == "absolute":
        assert known is None
        return
    likelihood, factor = known
    assert likelihood == ("bernoulli" if kind == "binary" else "gaussian")
    ggn = hr.GGN(model, loss, (inputs, targets)).to_dense().double().numpy()
    if kind != "binary":
        np.testing.assert_allclose(factor * ggn, _gaussian_fisher(model, (inputs,)), atol=1e-4)
        return
    jacobian = hr.Jacobian(model, inputs).to_dense().double().reshape(240, 3, -1)
    p = model(inputs).detach().double().sigmoid()
    fisher = torch.einsum("nci,nc,ncj->ij", jacobian, p * (1 - p), jacobian) / 240
    np.testing.assert_allclose(factor * ggn, fisher, atol=1e-4 * float(fisher.max()))


def test_the_effective_rank_is_that_of_fifty_directions(trained, dense, quiet):
    model, loss, data, _ = trained
    shares = np.sort(np.linalg.eigvalsh(dense["GGN"]))[::-1][:50]
    shares = np.clip(shares, 1e-300, None) / shares.sum()
    true = math.exp(-(shares * np.log(shares)).sum())
    found = inspect(model, loss, data, k=50, budget=20, console=quiet)
    assert found["gauss_newton.rank50"].value == pytest.approx(true, rel=1e-3)


def test_noise_agrees_with_dense_matrices(found, dense):
    covariance, gradient = dense["GradientCovariance"], dense["gradient"]
    scale = covariance.trace() / (gradient @ gradient)
    assert found["noise.scale"].value == pytest.approx(scale, rel=1e-3)
    values, vectors = np.linalg.eigh(dense["Hessian"])
    leading = np.argsort(values)[::-1][:10]
    leading = leading[values[leading] > 0]
    projected = vectors[:, leading].T @ covariance @ vectors[:, leading]
    omega = values[leading]
    Q = (omega[:, None] - omega) / (omega[:, None] + omega) * projected
    defect = np.linalg.norm(Q) / np.linalg.norm(projected)
    assert found["noise.balance_defect"].value == pytest.approx(defect, rel=0.02)


def test_the_sampling_error_of_the_sharpness_is_that_of_fresh_samples(trained):
    model, loss, data, _ = trained
    top = hr.eigsh(hr.Hessian(model, loss, data), 1)
    seeds = 30
    v, subject = top.eigenvectors[:, 0], Subject(model, loss, data)
    errors = [
        standard_error(subject, lambda group: float(v @ (group.hessian @ v)), seed)
        for seed in range(seeds)
    ]
    direction = hr.Hessian(model, loss, data).space.unflatten(top.eigenvectors[:, 0])
    weights = {name: tensor.detach() for name, tensor in model.named_parameters()}

    def along(t, x, y):
        moved = {name: weights[name] + t * direction[name] for name in weights}
        return loss(torch.func.functional_call(model, moved, (x[None],)), y[None])

    second = torch.func.grad(torch.func.grad(along))
    single = torch.func.vmap(second, in_dims=(None, 0, 0))(torch.tensor(0.0), *data)
    expected = float(single.var() / len(single))
    # Disjoint groups make up the whole, so the square is unbiased over partitions. Over 8 groups it
    # scatters by √(2/7); 3.5 standard errors of the mean over seeds.
    tolerance = 3.5 * (2 / 7 / seeds) ** 0.5
    assert np.mean(np.square(errors)) == pytest.approx(expected, rel=tolerance)


def test_data_numbers_agree_with_the_correlation_matrix(found, classified):
    inputs = classified[0].double().numpy()
    values = np.linalg.eigvalsh(inputs.T @ inputs / len(inputs))[::-1]
    shares = np.cumsum(values) / values.sum()
    assert found["data.dimensions95"].value == np.searchsorted(shares, 0.95) + 1


def test_slices_are_the_loss_itself_and_the_quadratic_touches_it(trained):
    model, loss, data, _ = trained
    subject = Subject(model, loss, data)
    direction = random_direction(subject.hessian.space, subject.vector, seed=3)
    line = line_slice(subject, direction, "random direction", extent=1.0, points=9)
    unit = direction / direction.norm()
    moved = subject.hessian.space.unflatten(subject.vector + line.t[-1] * unit)
    outputs = torch.func.functional_call(model, moved, (data[0],))
    assert line.loss[-1] == pytest.approx(float(loss(outputs, data[1])), rel=1e-5)
    near = line_slice(subject, direction, "near", extent=1e-2, points=5)
    # The remainder is cubic, so halving the distance divides it by eight; single precision ends it.
    assert np.abs(near.loss - near.quadratic).max() < 1e-5
    assert near.range == pytest.approx(1e-2)


def test_a_plane_slice_contains_the_line_slices(trained):
    model, loss, data, _ = trained
    subject = Subject(model, loss, data)
    spectrum = hr.eigsh(subject.hessian, 2)
    first, second = spectrum.eigenvectors.T
    plane = plane_slice(subject, (first, second), ("a", "b"), extents=(0.5, 0.5), points=5)
    line = line_slice(subject, first, "a", extent=0.5, points=5)
    np.testing.assert_allclose(plane.loss[2], line.loss, rtol=1e-5)
    np.testing.assert_allclose(plane.quadratic[2], line.quadratic, rtol=1e-3)


def test_readings_are_plain_sentences_about_the_numbers(found):
    text = " ".join(found.reading())
    assert "Fisher trace" in text
    assert "critical" in text
    assert "of the largest stable one" in text
    assert all(sentence.endswith(".") for sentence in found.reading())


def test_every_number_says_how_it_was_obtained_and_how_certain_it_is(found):
    table = found.table()
    assert len(table) > 25
    assert (table["method"].str.len() > 3).all()
    assert (table["certainty"].str.len() > 3).all()
    assert table["key"].is_unique
    with pytest.raises(KeyError, match=r"hessian\.largest"):
        found["nonsense"]


def test_subnetworks_judge_layers_as_the_room_does(found, trained):
    model, _, data, initial = trained
    judged = hr.layer_criticality(
        model.state_dict(), initial, hr.subnetworks.metric_of(model, data), draws=2
    )
    critical = sum(layer.verdict == "critical" for layer in judged.layers)
    assert found["subnetworks.critical"].value == critical
    assert found["subnetworks.baseline"].value == pytest.approx(judged.baseline)


def test_regression_has_no_accuracy_but_everything_else(quiet):
    inputs = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
    model = nn.Linear(4, 2)
    found = inspect(
        model,
        nn.MSELoss(),
        (inputs, inputs[:, :2]),
        initial=model.state_dict(),
        k=4,
        budget=20,
        console=quiet,
    )
    assert found.is_complete, found.outcomes
    assert "accuracy" not in " ".join(found.table()["name"].str.lower())
    # The Hessian of a linear model under mean squared error is XᵀX/n in each output's block.
    extended = torch.cat([inputs, torch.ones(100, 1)], 1).double().numpy()
    largest = np.linalg.eigvalsh(extended.T @ extended / 100)[-1]
    assert found["hessian.largest"].value == pytest.approx(largest, rel=1e-4)


def test_methods_are_named_by_what_ran(found, trained):
    model, loss, data, _ = trained
    ran = hr.trace(hr.Hessian(model, loss, data), precision=0.02, max_matvecs=120)
    assert found["hessian.trace"].method.startswith(ran.method)
    texts = [quantity.method for part in found.parts.values() for quantity in part.quantities]
    assert not any("XTrace" in text for text in texts)
