"""Every operator against dense float64 matrices from plain autograd."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hyperribbon.core import Mask
from hyperribbon.operators import GGN, NTK, Fisher, GradientCovariance, Hessian, Jacobian

LOSSES = (
    "cross_entropy",
    "cross_entropy_sum",
    "cross_entropy_weighted",
    "cross_entropy_smooth",
    "cross_entropy_ignore",
    "cross_entropy_soft",
    "cross_entropy_functional",
    "mse",
    "mse_sum",
    "bce",
    "bce_weighted",
    "callable_mean",
    "callable_sum",
)
KINDS = ("mlp", "relu", "cnn", "transformer")
PAIRS = [
    *(("mlp", name) for name in LOSSES),
    *(("cnn", name) for name in ("cross_entropy_smooth", "bce", "callable_mean")),
    *(("transformer", name) for name in ("cross_entropy_smooth", "cross_entropy_ignore", "mse")),
    ("relu", "cross_entropy"),
]


@pytest.mark.parametrize(("kind", "loss_name"), PAIRS)
def test_hessian_is_the_second_derivative(
    kind, loss_name, make_case, make_losses, reference, close
):
    model, inputs, targets = make_case(kind)
    loss, targets = make_losses(kind, targets, model(inputs).detach())[loss_name]
    dense = reference(model, inputs).hessian(lambda f: loss(f, targets))
    operator = Hessian(model, loss, (inputs, targets))
    block = torch.randn(len(dense), 3, dtype=torch.float64)
    close(operator @ block, dense @ block)
    close(operator @ block[:, 0], dense @ block[:, 0])


@pytest.mark.parametrize(("kind", "loss_name"), PAIRS)
def test_ggn_is_the_curvature_of_the_loss_through_the_linearised_model(
    kind, loss_name, make_case, make_losses, reference, close
):
    model, inputs, targets = make_case(kind)
    loss, targets = make_losses(kind, targets, model(inputs).detach())[loss_name]
    dense = reference(model, inputs).ggn(lambda f: loss(f, targets))
    operator = GGN(model, loss, (inputs, targets))
    block = torch.randn(len(dense), 3, dtype=torch.float64)
    close(operator @ block, dense @ block)
    close(operator.diagonal(), dense.diagonal())
    assert operator.trace() == pytest.approx(float(dense.trace()), rel=1e-9)
    gram = operator.gram()
    assert gram.shape == (operator.gram_size, operator.gram_size)
    close(gram @ gram, gram @ gram.T)
    values, vectors = torch.linalg.eigh(gram)
    close(operator.lift(vectors) @ operator.lift(vectors).T, dense, 1e-9)
    close(values.sum(), dense.trace())


@pytest.mark.parametrize("activation", [nn.ReLU, nn.ReLU6, nn.Hardtanh])
@pytest.mark.parametrize("idle", [(2, 1), (6, 4)])
@pytest.mark.parametrize("names", [None, ["3.weight", "5.bias"], ["1.bias", "5.weight"]])
def test_units_that_no_sample_moves(activation, idle, names, reference, close):
    """Some or all units of both hidden layers are far inside the flat parts of the activation."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(5, 6), activation(), nn.Linear(6, 4), activation(), nn.Linear(4, 3)
    ).double()
    with torch.no_grad():
        model[1].bias[: idle[0]] = torch.tensor([-50.0, 50.0] * 3)[: idle[0]]
        model[3].bias[: idle[1]] = -50.0
    if activation is nn.ReLU:
        with torch.no_grad():
            model[1].bias.clamp_(max=2)
    inputs, targets = torch.randn(11, 5).double(), torch.randint(3, (11,))
    loss = nn.CrossEntropyLoss()
    dense = reference(model, inputs, names)
    hessian = dense.hessian(lambda f: loss(f, targets))
    block = torch.randn(len(hessian), 3, dtype=torch.float64)
    close(Hessian(model, loss, (inputs, targets), params=names) @ block, hessian @ block)
    ggn = GGN(model, loss, (inputs, targets), params=names)
    expected = dense.ggn(lambda f: loss(f, targets))
    close(ggn @ block, expected @ block)
    close(ggn.diagonal(), expected.diagonal())
    jacobian = dense.jacobian().flatten(0, 1)
    close(NTK(model, inputs, params=names).to_dense(), jacobian @ jacobian.T)


@pytest.mark.parametrize("params", [None, "*weight", "0.*", ["0.bias", "4.weight"]])
@pytest.mark.parametrize("between", [nn.ReLU(), nn.Tanh()])
def test_inputs_that_are_zero_on_whole_chunks(reference, close, between, params):
    torch.manual_seed(0)
    inputs, targets = torch.zeros(300, 40).double(), torch.randint(3, (300,))
    inputs[:, torch.randperm(40)[:10]] = torch.randn(300, 10).double()
    inputs[290:, 7] = 1.0
    model = nn.Sequential(
        nn.Linear(40, 6), between, nn.Linear(6, 5, bias=False), between, nn.Linear(5, 3)
    ).double()
    loss = nn.CrossEntropyLoss()
    data = {"memory": 3e5, "data": (inputs, targets), "params": params}
    hessian, ggn = (kind(model, loss, **data) for kind in (Hessian, GGN))
    assert len(list(hessian.risk.chunks())) > 1
    dense = reference(model, inputs, hessian.space.names)
    expected = dense.hessian(lambda f: loss(f, targets))
    close(hessian.to_dense(), expected)
    close(hessian.diagonal(), expected.diagonal())
    close(ggn.to_dense(), dense.ggn(lambda f: loss(f, targets)))
    for name, layer in hessian.layers().items():
        places = [
            i
            for n, s in hessian.space.slices().items()
            if n.rpartition(".")[0] == name
            for i in range(s.start, s.stop)
        ]
        close(layer.to_dense(), expected[places][:, places])


def test_jacobian_and_kernel(case, reference, close):
    model, inputs, _ = case
    dense = reference(model, inputs).jacobian()
    dense = dense.reshape(-1, dense.shape[2])
    jacobian, kernel = Jacobian(model, inputs), NTK(model, inputs)
    assert jacobian.shape == dense.shape
    assert jacobian.T.T is jacobian
    right = torch.randn(dense.shape[1], 2, dtype=torch.float64)
    left = torch.randn(dense.shape[0], 2, dtype=torch.float64)
    close(jacobian @ right, dense @ right)
    close(jacobian.T @ left, dense.T @ left)
    close(jacobian.to_dense(), dense)
    close(kernel.to_dense(), dense @ dense.T)
    close(kernel @ left, dense @ (dense.T @ left))
    close(kernel.diagonal(), dense.square().sum(1))
    assert kernel.trace() == pytest.approx(float(dense.square().sum()), rel=1e-9)
    close(sum(term.to_dense() for term in kernel.layers().values()), dense @ dense.T)


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
@pytest.mark.parametrize("centered", [True, False])
def test_gradient_covariance(kind, centered, make_case, reference, close):
    model, inputs, targets = make_case(kind)
    gradients = reference(model, inputs).sample_gradients(
        lambda f: nn.functional.cross_entropy(f, targets, reduction="none")
    )
    mean = gradients.mean(0)
    dense = gradients.T @ gradients / len(inputs) - centered * torch.outer(mean, mean)
    options = {"centered": centered}
    operator = GradientCovariance(model, nn.CrossEntropyLoss(), (inputs, targets), **options)
    check_everything(operator, dense, close)
    for replacement, factor in ((True, 1 / 4), (False, (11 - 4) / (4 * (11 - 1)))):
        operator = GradientCovariance(
            model,
            nn.CrossEntropyLoss(),
            (inputs, targets),
            batch_size=4,
            replacement=replacement,
            **options,
        )
        check_everything(operator, factor * dense, close)


def test_weighted_sample_gradients_average_to_the_gradient(
    make_case, make_losses, reference, close
):
    model, inputs, targets = make_case("mlp")
    for name in ("cross_entropy_weighted", "cross_entropy_ignore", "mse_sum", "mse"):
        loss, labels = make_losses("mlp", targets, model(inputs).detach())[name]
        operator = GradientCovariance(model, loss, (inputs, labels), centered=False)
        whole = reference(model, inputs)
        gradient = torch.autograd.functional.jacobian(
            lambda w, whole=whole, loss=loss, labels=labels: loss(whole.outputs(w), labels),
            whole.flat,
        )
        close(operator.mean_gradient(), gradient)
        rows = operator.lift(torch.eye(11, dtype=torch.float64)) * 11**0.5
        close(rows.mean(1), gradient)


@pytest.mark.parametrize("kind", KINDS)
def test_exact_fisher_of_classes_is_the_mean_outer_product_of_scores(
    kind, make_case, reference, close
):
    model, inputs, _ = make_case(kind, 4)
    whole = reference(model, inputs)
    outputs = whole.outputs(whole.flat).detach()
    classes, positions = outputs.shape[1], outputs[0, 0].numel()
    jacobian = whole.jacobian().reshape(len(inputs), classes, positions, -1)
    p = torch.softmax(outputs, 1).reshape(len(inputs), classes, positions)
    dense = torch.zeros(len(whole.flat), len(whole.flat), dtype=torch.float64)
    for n in range(len(inputs)):
        for t in range(positions):
            for y in range(classes):
                unit = torch.eye(classes, dtype=torch.float64)[y]
                score = jacobian[n, :, t].T @ (p[n, :, t] - unit)
                dense += p[n, y, t] * torch.outer(score, score) / len(inputs)
    check_everything(Fisher(model, inputs), dense, close)


def covariances(outputs):
    base = torch.randn(3, 3, dtype=torch.float64)
    full = base @ base.T + torch.eye(3).double()
    several = torch.randn(len(outputs), 3, 3, dtype=torch.float64)
    several = several @ several.mT + torch.eye(3).double()
    return {
        "number": (0.3, 0.3 * torch.eye(3).double().expand(len(outputs), 3, 3)),
        "matrix": (full, full.expand(len(outputs), 3, 3)),
        "function": (lambda x: several[: len(x)], several),
    }


@pytest.mark.parametrize("which", ["number", "matrix", "function"])
@pytest.mark.parametrize("space", ["model", "softmax"])
def test_gaussian_fisher_carries_the_inverse_covariance(which, space, make_case, reference, close):
    model, inputs, _ = make_case("mlp")
    whole = reference(model, inputs)
    outputs = whole.outputs(whole.flat).detach()
    variance, sigma = covariances(outputs)[which]
    jacobian = whole.jacobian()
    if space == "softmax":
        p = torch.softmax(outputs, 1)
        jacobian = (torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)) @ jacobian
    dense = torch.einsum("nip,nij,njq->pq", jacobian, torch.linalg.inv(sigma), jacobian) / 11
    operator = Fisher(model, inputs, likelihood="gaussian", outputs=space, variance=variance)
    check_everything(operator, dense, close)


def test_empirical_fisher_is_the_second_moment_of_the_gradients(make_case, reference, close):
    model, inputs, targets = make_case("cnn")
    gradients = reference(model, inputs).sample_gradients(
        lambda f: nn.functional.cross_entropy(f, targets, reduction="none")
    )
    operator = Fisher(model, (inputs, targets), estimator="empirical")
    check_everything(operator, gradients.T @ gradients / 11, close)
    values = torch.randn(11, 3).double()
    residuals = reference(model, inputs).sample_gradients(
        lambda f: (f - values).square().sum(1) / (2 * 0.5)
    )
    operator = Fisher(
        model, (inputs, values), likelihood="gaussian", estimator="empirical", variance=0.5
    )
    check_everything(operator, residuals.T @ residuals / 11, close)


@pytest.mark.parametrize("likelihood", ["categorical", "gaussian"])
def test_sampled_fisher_tends_to_the_exact_one(likelihood, make_case, close):
    model, inputs, _ = make_case("mlp")
    options = {"variance": 0.7} if likelihood == "gaussian" else {}
    exact = Fisher(model, inputs, likelihood=likelihood, **options).to_dense()
    sampled = Fisher(model, inputs, likelihood=likelihood, estimator="mc", samples=2000, **options)
    # the relative error of a second moment of s·N draws is about (4/(s·N))^½ ≈ 0.01
    close(sampled.to_dense(), exact, 0.05)
    close(sampled.to_dense(), sampled.to_dense(), 0.0)


def check_everything(operator, dense, close):
    block = torch.randn(len(dense), 3, dtype=torch.float64)
    close(operator @ block, dense @ block)
    close(operator.to_dense(), dense)
    close(operator.diagonal(), dense.diagonal())
    assert operator.trace() == pytest.approx(float(dense.trace()), rel=1e-9)
    lifted = operator.lift(torch.eye(operator.gram_size, dtype=torch.float64))
    close(lifted @ lifted.T, dense)
    close(operator.gram(), lifted.T @ lifted)


def test_ragged_batches_change_nothing(case, make_losses, reference, close):
    model, inputs, targets = case
    for name in ("cross_entropy_ignore", "mse"):
        loss, labels = make_losses("", targets, model(inputs).detach())[name]
        whole = reference(model, inputs)
        dense = whole.hessian(lambda f, loss=loss, labels=labels: loss(f, labels))
        loader = DataLoader(TensorDataset(inputs, labels), batch_size=4)
        vector = torch.randn(len(dense), dtype=torch.float64)
        close(Hessian(model, loss, loader) @ vector, dense @ vector)
        streamed = Hessian(model, loss, loader, memory=200)
        assert not streamed.risk.source.is_kept
        close(streamed @ vector, dense @ vector)


def test_batches_of_dicts_with_a_forward(make_case, reference, close):
    model, inputs, targets = make_case("transformer")
    samples = [
        {"tokens": tokens, "labels": labels} for tokens, labels in zip(inputs, targets, strict=True)
    ]
    loader = DataLoader(samples, batch_size=2)
    loss = nn.CrossEntropyLoss()
    whole = reference(model, inputs)
    dense = whole.hessian(lambda f: loss(f, targets))
    taken_from_the_batch = Hessian(
        model, loss, loader, forward=lambda model, batch: model(batch["tokens"])
    )
    returned = Hessian(
        model, loss, loader, forward=lambda model, batch: (model(batch["tokens"]), batch["labels"])
    )
    close(taken_from_the_batch.to_dense(), dense)
    close(returned.to_dense(), dense)
    kernel = NTK(model, loader, forward=lambda model, batch: model(batch["tokens"]))
    jacobian = whole.jacobian().flatten(0, 1)
    close(kernel.to_dense(), jacobian @ jacobian.T)


def test_parameter_subsets_and_layers(case, reference, close):
    model, inputs, targets = case
    loss = nn.CrossEntropyLoss()
    names = [name for name, _ in model.named_parameters()][:3]
    dense = reference(model, inputs, names).hessian(lambda f: loss(f, targets))
    close(Hessian(model, loss, (inputs, targets), params=names).to_dense(), dense)
    ggn = reference(model, inputs, names).ggn(lambda f: loss(f, targets))
    check_everything(GGN(model, loss, (inputs, targets), params=names), ggn, close)
    whole = Hessian(model, loss, (inputs, targets))
    full = whole.to_dense()
    start = 0
    for name, block in whole.layers().items():
        size = block.shape[0]
        assert all(n.startswith(name) for n in block.space.names)
        close(block.to_dense(), full[start : start + size, start : start + size])
        start += size
    assert start == whole.shape[0]


def test_masks_pick_rows_and_columns(case, reference, close):
    model, inputs, targets = case
    loss = nn.CrossEntropyLoss()
    generator = torch.Generator().manual_seed(1)
    mask = Mask(
        {
            name: torch.rand(p.shape, generator=generator) < 0.3
            for name, p in model.named_parameters()
        }
    )
    chosen = torch.cat([mask[name].reshape(-1) for name, _ in model.named_parameters()])
    whole = reference(model, inputs)
    hessian = whole.hessian(lambda f: loss(f, targets))[chosen][:, chosen]
    close(Hessian(model, loss, (inputs, targets), mask=mask).to_dense(), hessian)
    ggn = whole.ggn(lambda f: loss(f, targets))[chosen][:, chosen]
    check_everything(GGN(model, loss, (inputs, targets), mask=mask), ggn, close)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
@pytest.mark.parametrize(
    "names",
    [
        None,
        ["1.bias"],
        ["1.weight", "5.bias"],
        ["3.weight"],
        ["3.bias", "5.weight"],
        ["1.bias", "3.weight", "5.bias"],
    ],
)
def test_chains_with_frozen_layers_zero_features_and_dead_units(
    activation, names, make_case, reference, close
):
    model, inputs, targets = make_case("mlp" if activation is nn.Tanh else "relu")
    inputs[:, [0, 3]] = 0
    with torch.no_grad():
        model[1].bias[2] = -100.0  # a unit that ReLU never lets through
    loss = nn.CrossEntropyLoss()
    dense = reference(model, inputs, names)
    hessian = Hessian(model, loss, (inputs, targets), params=names)
    close(hessian.to_dense(), dense.hessian(lambda out: loss(out, targets)))
    close(hessian @ torch.ones(hessian.shape[0]).double(), hessian.to_dense().sum(1))
    ggn = GGN(model, loss, (inputs, targets), params=names)
    close(ggn.to_dense(), dense.ggn(lambda out: loss(out, targets)))
    jacobian = dense.jacobian().flatten(0, 1)
    close(NTK(model, inputs, params=names).to_dense(), jacobian @ jacobian.T)
    close(Jacobian(model, inputs, params=names).to_dense(), jacobian)


def test_a_pruned_network_lies_in_its_kinks_and_is_accepted(reference, close):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    with torch.no_grad():
        model[0].weight[:4], model[0].bias[:4] = 0.0, 0.0
    inputs, targets = torch.randn(11, 5).double(), torch.randint(3, (11,))
    loss = nn.CrossEntropyLoss()
    dense = reference(model, inputs)
    close(
        Hessian(model, loss, (inputs, targets)).to_dense(),
        dense.hessian(lambda f: loss(f, targets)),
    )
    close(GGN(model, loss, (inputs, targets)).to_dense(), dense.ggn(lambda f: loss(f, targets)))
