"""Answers that look fine and are wrong: one small test for each way to get one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import hyperribbon as hr
from hyperribbon.operators.derivatives import linearisation
from zoo.checking import ONE, check_ggn, check_hessian, mlp, or_refused, points, reference
from zoo.references import distance
from zoo.untouched import still_trains, untouched
from zoo.unusual import Centred, OnceDifferentiable, TwoNames

# A model that is not left alone


def test_a_module_under_two_names_stays_whole_and_trainable():
    model, (x, y) = TwoNames().double(), points()
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-6)
    weight = model.fc.weight
    operator = hr.Hessian(model, nn.CrossEntropyLoss(), (x, y))
    operator @ torch.ones(operator.shape[0]).double()
    assert model.fc.weight is model.net[0].weight is weight
    assert isinstance(weight, nn.Parameter)
    still_trains(model, optimiser, lambda m: F.cross_entropy(m(x), y))


# A model whose parameters are not used where they seem to be


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["script", "trace"])
def test_the_trace_of_a_scripted_model_is_not_zero(kind):
    model, (x, y) = mlp(), points()
    true = float(reference(model, nn.CrossEntropyLoss(), x, y).ggn_diagonal().sum())
    model = torch.jit.script(model) if kind == "script" else torch.jit.trace(model, x)
    with or_refused():
        estimate = hr.trace(hr.GGN(model, nn.CrossEntropyLoss(), (x, y)))
        spread = 1e-9 * true if estimate.exact else 6 * estimate.stderr
        assert abs(estimate.value - true) <= spread
    with or_refused():
        check_hessian(model, nn.CrossEntropyLoss(), x, y)


class Trunk(nn.Module):
    """A chain of linear layers and ReLUs of which the first is no function of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            hidden = self.trunk(x).relu()
        return self.head(hidden)


def test_a_trunk_under_no_grad_has_no_curvature():
    model, (x, y) = Trunk().double(), points()
    check_hessian(model, nn.CrossEntropyLoss(), x, y)
    check_ggn(model, nn.CrossEntropyLoss(), x, y)
    operator = hr.GGN(model, nn.CrossEntropyLoss(), (x, y))
    assert not operator.diagonal()[: 4 * 5 + 5].any()
    truth = reference(model, nn.CrossEntropyLoss(), x, y)
    assert distance(hr.NTK(model, x).to_dense(), truth.jacobian @ truth.jacobian.T) < 1e-9


class Gated(nn.Module):
    """A map times a gate through which no gradient flows, by torch's own two ways to say so."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.free, self.gate, self.how = nn.Linear(4, 3), nn.Linear(4, 3), how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "detach":
            return self.free(x) * self.gate(x).tanh().detach()
        with torch.no_grad():
            gate = self.gate(x).tanh()
        return self.free(x) * gate


@pytest.mark.parametrize("arithmetic", [-1.0, 1e9], ids=["one by one", "together"])
@pytest.mark.parametrize("how", ["detach", "no_grad"])
def test_no_way_to_a_product_moves_weights_that_no_gradient_reaches(how, arithmetic, monkeypatch):
    # Forward mode goes through no_grad(); which way is taken must not decide what is returned.
    monkeypatch.setattr(linearisation, "_ARITHMETIC", arithmetic)
    model, (x, y) = Gated(how).double(), points()
    check_ggn(model, nn.CrossEntropyLoss(), x, y)
    check_hessian(model, nn.CrossEntropyLoss(), x, y)


class Words(nn.Module):
    """An embedding by function, whose last row is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Parameter(torch.randn(5, 3)), nn.Linear(6, 3)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(F.embedding(words, self.table, padding_idx=-1).flatten(1))


def test_the_last_row_as_padding_has_no_curvature():
    model, words = Words().double(), torch.tensor([[0, 4], [4, 1], [2, 3], [4, 4]])
    y = torch.tensor([0, 1, 2, 0])
    check_hessian(model, nn.CrossEntropyLoss(), words, y)
    check_ggn(model, nn.CrossEntropyLoss(), words, y)
    truth = reference(model, nn.CrossEntropyLoss(), words, y)
    operator = hr.GGN(model, nn.CrossEntropyLoss(), (words, y))
    assert distance(operator.diagonal(), truth.ggn_diagonal()) < 1e-9
    assert operator.trace() == pytest.approx(float(truth.ggn_diagonal().sum()), rel=1e-9)


class Writing(nn.Module):
    """A model that changes the tensor it is given: every time, or the first time only."""

    def __init__(self, once: bool) -> None:
        super().__init__()
        self.body, self.once = mlp(), once

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x.relu_() if self.once else x.mul_(2))


@pytest.mark.parametrize("memory", [None, ONE])
@pytest.mark.parametrize("form", ["pair", "list"])
@pytest.mark.parametrize("once", [False, True])
def test_a_model_that_writes_into_its_inputs(once, form, memory):
    model, (x, y) = Writing(once), points()
    truth = reference(model.body, nn.CrossEntropyLoss(), x.relu() if once else 2 * x, y)
    data = (x, y) if form == "pair" else [(x[:2], y[:2]), (x[2:], y[2:])]
    for kind, expected in ((hr.Hessian, truth.curved), (hr.GGN, truth.ggn(truth.block))):
        with untouched(model, x, y), or_refused():
            operator = kind(model, nn.CrossEntropyLoss(), data, memory=memory)
            assert distance(operator @ truth.block, expected) < 1e-9


# Derivatives that torch has not, or has wrong


class Patches(nn.Module):
    """Images as sequences of pixels behind a norm, as a vision transformer reads them.

    On a batch of one image torch's gradient of the norm's weights is wrong when the gradient that
    arrives there is transposed in memory; instance norm always is such a batch to it.
    """

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm, self.head = norm, nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(x).flatten(2).transpose(1, 2).flatten(1))


@pytest.mark.parametrize("memory", [None, ONE])
@pytest.mark.parametrize("norm", [nn.BatchNorm2d(2), nn.InstanceNorm2d(2, affine=True)], ids=str)
def test_norms_of_a_single_image(norm, memory):
    model, y = Patches(norm).double().eval(), torch.tensor([0, 1, 2])
    x, loss = torch.randn(3, 2, 2, 2).double(), nn.CrossEntropyLoss()
    for check in (check_hessian, check_ggn):
        with or_refused():
            check(model, loss, x, y, memory=memory)
    truth = reference(model, loss, x, y)
    rows = truth.sample_gradients()
    with or_refused():
        trace = hr.GGN(model, loss, (x, y), memory=memory).trace()
        assert trace == pytest.approx(float(truth.ggn_diagonal().sum()), rel=1e-9)
    with or_refused():
        operator = hr.GradientCovariance(model, loss, (x, y), centered=False, memory=memory)
        expected = float(rows.square().sum()) / len(rows)
        assert operator.trace() == pytest.approx(expected, rel=1e-9)


def test_an_activation_that_can_be_differentiated_only_once():
    model, (x, y) = OnceDifferentiable().double(), points()
    loss = nn.CrossEntropyLoss()
    with or_refused():
        check_hessian(model, loss, x, y, by_differences=True)
    with or_refused():
        check_ggn(model, loss, x, y)
    with or_refused():
        truth = reference(model, loss, x, y)
        assert distance(hr.Jacobian(model, x) @ truth.block, truth.jacobian @ truth.block) < 1e-9


def test_what_was_refused_stays_refused():
    """On one risk, asked again, by the same and by other operators."""
    model, (x, y) = OnceDifferentiable().double(), points()
    truth = reference(model, nn.CrossEntropyLoss(), x, y)
    expected = {
        hr.Hessian: truth.hessian_by_differences(truth.block),
        hr.GGN: truth.ggn(truth.block),
        hr.Jacobian: truth.jacobian @ truth.block,
    }
    risk = hr.Risk(model, nn.CrossEntropyLoss(), (x, y))
    for kind in (hr.Hessian, hr.Hessian, hr.GGN, hr.Jacobian, hr.GGN, hr.Jacobian):
        with or_refused():
            assert distance(kind(risk) @ truth.block, expected[kind]) < 1e-6


def test_weight_norm():
    model, (x, y) = mlp(), points()
    nn.utils.parametrizations.weight_norm(model[0])
    loss = nn.CrossEntropyLoss()
    with or_refused():
        check_hessian(model, loss, x, y, by_differences=True)
    check_ggn(model, loss, x, y)


class Reentrant(nn.Module):
    """Checkpoints of the old kind, which `torch.autograd.grad` does not take."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.body, x.detach().requires_grad_(), use_reentrant=True)


def test_reentrant_checkpoints():
    body, (x, y) = mlp(), points()
    truth = reference(body, nn.CrossEntropyLoss(), x, y)
    with or_refused():
        operator = hr.Hessian(Reentrant(body), nn.CrossEntropyLoss(), (x, y))
        assert distance(operator @ truth.block, truth.curved) < 1e-9


# Samples that see each other


def test_mixed_samples_are_the_same_whatever_the_memory():
    model, (x, y) = Centred().double(), points()
    loss = nn.CrossEntropyLoss()
    check_hessian(model, loss, x, y)
    check_ggn(model, loss, x, y)
    for check in (check_hessian, check_ggn):
        with or_refused():
            check(model, loss, x, y, memory=ONE)


@pytest.mark.parametrize("place", range(1, 12))
def test_one_sample_that_depends_on_the_first_is_found(place):
    class Leaning(nn.Linear):
        def forward(self, x):
            rows = super().forward(x)
            extra = torch.zeros_like(rows)
            if len(rows) == 12:
                extra[place] = rows[0]
            return rows + extra

    x, y = torch.randn(12, 5), torch.arange(12) % 3
    assert hr.Risk(Leaning(5, 3), nn.CrossEntropyLoss(), (x, y)).mixes_samples


def test_mixed_samples_in_several_batches_are_refused():
    model, (x, y) = Centred().double(), points()
    for data in ([(x[:3], y[:3]), (x[3:], y[3:])], DataLoader(TensorDataset(x, y), batch_size=3)):
        for kind in (hr.Hessian, hr.GGN):
            with pytest.raises(hr.ArgumentError):
                operator = kind(model, nn.CrossEntropyLoss(), data)
                operator @ torch.ones(operator.shape[0]).double()


@pytest.mark.parametrize("memory", [None, ONE])
def test_the_trace_of_mixed_samples_is_right_or_not_called_exact(memory):
    model, (x, y) = Centred().double(), points()
    true = float(reference(model, nn.CrossEntropyLoss(), x, y).ggn_diagonal().sum())
    with or_refused():
        estimate = hr.trace(hr.GGN(model, nn.CrossEntropyLoss(), (x, y), memory=memory))
        spread = 1e-9 * true if estimate.exact else 6 * estimate.stderr
        assert abs(estimate.value - true) <= spread


def test_batch_norm_in_training_mode_on_one_batch():
    model, (x, y) = mlp(nn.BatchNorm1d(3).double()).train(), points()
    check_hessian(model, nn.CrossEntropyLoss(), x, y, mode="train")
    check_ggn(model, nn.CrossEntropyLoss(), x, y, mode="train")


# Bookkeeping


def test_restriction_to_repeated_coordinates():
    model, (x, y) = mlp(), points()
    operator = hr.Hessian(model, nn.CrossEntropyLoss(), (x, y))
    dense = operator.to_dense()
    chosen = torch.tensor([2, 1, 2])
    restricted = hr.operators.Restricted(operator, [2, 1, 2])
    assert distance(restricted.to_dense(), dense[chosen][:, chosen]) < 1e-12
    vector = torch.tensor([1.0, 2.0, 4.0]).double()
    assert distance(restricted @ vector, dense[chosen][:, chosen] @ vector) < 1e-12
    assert distance(restricted.diagonal(), dense.diagonal()[chosen]) < 1e-12


def test_the_jacobian_of_two_batches_has_the_rows_of_both():
    model, (x, y) = mlp(), points(7)
    expected = reference(model, nn.CrossEntropyLoss(), x, y).jacobian
    for parts in ([x[:4], x[4:]], [x[:3], x[3:6], x[6:]]):
        assert distance(hr.Jacobian(model, parts).to_dense(), expected) < 1e-9
        assert distance(hr.NTK(model, parts).to_dense(), expected @ expected.T) < 1e-9


@pytest.mark.parametrize("shuffle", [False, True])
def test_samples_that_a_loader_would_drop_count(shuffle):
    model, (x, y) = mlp(), points(7)
    truth = reference(model, nn.CrossEntropyLoss(), x, y)
    loader = DataLoader(TensorDataset(x, y), batch_size=3, shuffle=shuffle, drop_last=True)
    operator = hr.Hessian(model, nn.CrossEntropyLoss(), loader)
    assert distance(operator @ truth.block, truth.curved) < 1e-9
