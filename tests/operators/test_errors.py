"""Arguments that cannot be used: each gives a message with the reason and the remedy."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from hyperribbon.core import ArgumentError, Mask
from hyperribbon.operators import (
    GGN,
    Fisher,
    GradientCovariance,
    Hessian,
    Projected,
    Restricted,
    Risk,
)

X, Y = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])


def model(*extra: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), *extra, nn.Linear(5, 3))


def test_dropout_in_training_mode_is_named():
    network = model(nn.Dropout(0.5)).train()
    with pytest.raises(ArgumentError, match=r"dropout in training mode: 1.*mode='eval'"):
        Hessian(network, nn.CrossEntropyLoss(), (X, Y), mode="train")
    assert network.training
    Hessian(network, nn.CrossEntropyLoss(), (X, Y))


def test_batch_norm_without_statistics_is_named():
    network = model(nn.BatchNorm1d(5, track_running_stats=False))
    batches = [(X[:3], Y[:3]), (X[3:], Y[3:])]
    with pytest.raises(ArgumentError, match=r"model='1'.*batch norm.*mode='train'"):
        Hessian(network, nn.CrossEntropyLoss(), batches)
    Hessian(network, nn.CrossEntropyLoss(), (X, Y))  # one batch is one function


@pytest.mark.parametrize("as_loader", [False, True])
def test_batch_norm_in_training_mode_keeps_the_batches(as_loader):
    network = model(nn.BatchNorm1d(5)).double().eval()
    x, before = X.double(), network[1].running_mean.clone()
    batches = [(x[:4], Y[:4]), (x[4:], Y[4:])]
    data = DataLoader(TensorDataset(x, Y), batch_size=4, shuffle=True) if as_loader else batches
    risk = Risk(network, nn.CrossEntropyLoss(), data, mode="train")
    assert risk.composition == "2 fixed batches of 4 samples, the last of 2"
    reference = copy.deepcopy(network).train()
    losses = [nn.functional.cross_entropy(reference(a), b) for a, b in batches]
    expected = (4 * losses[0] + 2 * losses[1]) / 6
    assert abs(risk.value() - expected.item()) < 1e-12
    parameters = list(reference.parameters())
    slopes = torch.autograd.grad(expected, parameters, create_graph=True)
    flat = torch.cat([slope.reshape(-1) for slope in slopes])
    rows = [torch.autograd.grad(entry, parameters, retain_graph=True) for entry in flat]
    dense = torch.stack([torch.cat([part.reshape(-1) for part in row]) for row in rows])
    assert torch.allclose(Hessian(risk).to_dense(), dense, atol=1e-10)
    assert torch.equal(network[1].running_mean, before) and not network.training


def test_random_forward():
    class Noisy(nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs) + torch.randn(3)

    with pytest.raises(ArgumentError, match="two evaluations on the same batch differ"):
        Hessian(Noisy(4, 3), nn.CrossEntropyLoss(), (X, Y))


def test_augmenting_data():
    class Augmenting(Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, index):
            return X[index] + torch.randn(4), Y[index]

    with pytest.raises(ArgumentError, match="augmentation"):
        Hessian(model(), nn.CrossEntropyLoss(), DataLoader(Augmenting(), batch_size=2))


def test_loss_that_is_not_a_number():
    with pytest.raises(ArgumentError, match="not a finite number"):
        Hessian(model(), lambda f, y: torch.log(-f.square()).mean(), (X, Y))
    bad = X.clone()
    bad[0, 0] = float("nan")
    with pytest.raises(ArgumentError, match="3 of the model's outputs are not finite"):
        Hessian(model(), nn.CrossEntropyLoss(), (bad, Y))


def test_loss_turning_nan_in_a_later_batch():
    bad = torch.cat([X.repeat(5, 1), torch.full((1, 4), float("inf"))])
    with pytest.raises(ArgumentError, match="not a finite number"):
        operator = Hessian(
            model(), nn.CrossEntropyLoss(), (bad, torch.zeros(31, dtype=torch.int64))
        )
        operator @ torch.zeros(operator.shape[0])


def test_data_on_another_device():
    with pytest.raises(ArgumentError, match=r"model is on cpu and the data on meta"):
        Hessian(model(), nn.CrossEntropyLoss(), (X.to("meta"), Y.to("meta")))


def test_empty_data():
    with pytest.raises(ArgumentError, match="no samples"):
        Hessian(model(), nn.CrossEntropyLoss(), (X[:0], Y[:0]))
    with pytest.raises(ArgumentError, match="yields no batch"):
        Hessian(model(), nn.CrossEntropyLoss(), DataLoader(TensorDataset(X[:0], Y[:0])))


@pytest.mark.parametrize("label", [3, -1])
def test_labels_out_of_range(label):
    wrong = Y.clone()
    wrong[2] = label
    for build in (Hessian, GGN, GradientCovariance):
        with pytest.raises(ArgumentError, match="a label is out of range: the model has 3 outputs"):
            build(model(), nn.CrossEntropyLoss(), (X, wrong))


def test_targets_of_another_shape():
    with pytest.raises(ArgumentError, match="same shape"):
        Hessian(model(), nn.MSELoss(), (X, Y.double()))
    with pytest.raises(ArgumentError, match="different lengths"):
        Hessian(model(), nn.CrossEntropyLoss(), (X, Y[:4]))
    with pytest.raises(ArgumentError, match="the model returns shape"):
        Hessian(model(), nn.CrossEntropyLoss(), (X, Y.unsqueeze(1)))


def test_losses_that_do_not_add_up():
    with pytest.raises(ArgumentError, match="reduction='none'"):
        Hessian(model(), nn.CrossEntropyLoss(reduction="none"), (X, Y))
    with pytest.raises(ArgumentError, match="neither the mean nor the sum"):
        batches = [(X[:3], Y[:3]), (X[3:], Y[3:])]
        Hessian(model(), lambda f, y: f.std() + f.square().sum() ** 2, batches)
    with pytest.raises(ArgumentError, match="one number"):
        Hessian(model(), lambda f, y: f, (X, Y))
    with pytest.raises(ArgumentError, match="not a function"):
        Hessian(model(), "mse", (X, Y))


def test_batches_that_need_a_forward():
    class Rows(Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, index):
            return {"x": X[index], "labels": Y[index]}

    with pytest.raises(ArgumentError, match="forward="):
        Hessian(model(), nn.CrossEntropyLoss(), Rows())


def test_output_that_is_not_a_tensor():
    class Pair(nn.Linear):
        def forward(self, inputs):
            return {"logits": super().forward(inputs)}

    with pytest.raises(ArgumentError, match="not a tensor"):
        Hessian(Pair(4, 3), nn.CrossEntropyLoss(), (X, Y))


def test_vectors_that_do_not_fit():
    operator = Hessian(model(), nn.CrossEntropyLoss(), (X, Y))
    size = operator.shape[0]
    for vector in (torch.zeros(size + 1), torch.zeros(size).double(), [0.0] * size):
        with pytest.raises(ArgumentError, match="vector="):
            operator @ vector


def test_unknown_choices():
    for options in (
        {"likelihood": "cauchy"},
        {"estimator": "type-1"},
        {"outputs": "logits"},
        {"likelihood": "gaussian", "variance": -1.0},
        {"likelihood": "gaussian", "variance": -torch.eye(3)},
        {"likelihood": "gaussian", "variance": torch.eye(2)},
        {"estimator": "mc", "samples": 0},
    ):
        with pytest.raises(ArgumentError):
            Fisher(model(), X, **options)
    with pytest.raises(ArgumentError, match="needs targets"):
        Fisher(model(), X, estimator="empirical")
    with pytest.raises(ArgumentError, match="without replacement"):
        GradientCovariance(model(), nn.CrossEntropyLoss(), (X, Y), batch_size=7, replacement=False)
    with pytest.raises(ArgumentError, match="selects no parameter"):
        Hessian(model(), nn.CrossEntropyLoss(), (X, Y), params="missing.*")
    with pytest.raises(ArgumentError, match="selects no parameter"):
        nothing = Mask({"0.bias": torch.zeros(5, dtype=torch.bool)})
        Hessian(model(), nn.CrossEntropyLoss(), (X, Y), mask=nothing)
    with pytest.raises(ArgumentError, match="memory"):
        Hessian(model(), nn.CrossEntropyLoss(), (X, Y), memory=0)


def test_algebra_that_does_not_fit():
    operator = Hessian(model(), nn.CrossEntropyLoss(), (X, Y))
    other = Hessian(model(nn.Linear(5, 5)), nn.CrossEntropyLoss(), (X, Y))
    with pytest.raises(ArgumentError, match="does not match"):
        operator + other
    with pytest.raises(ArgumentError, match="basis"):
        Projected(operator, torch.zeros(3, 2))
    with pytest.raises(ArgumentError, match="indices"):
        Restricted(operator, torch.tensor([operator.shape[0]]))


def test_loss_without_a_real_root_has_no_gram_matrix():
    operator = GGN(model(), lambda f, y: torch.cos(f).sum(), (X, Y))
    assert operator.gram_size is None
    with pytest.raises(ArgumentError, match="not convex"):
        operator.gram()


def test_iterable_data_of_random_numbers():
    class Stream(IterableDataset):
        def __iter__(self):
            for label in Y:
                yield torch.randn(4), label

    with pytest.raises(ArgumentError, match="augmentation"):
        Hessian(model(), nn.CrossEntropyLoss(), DataLoader(Stream(), batch_size=3))


class RootBehindARectifier(nn.Module):
    """√relu(Wx): constant where the rectifier is shut, where torch finds 0·∞ on the second pass."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(1, 3), nn.Linear(3, 2)
        self.register_parameter("gain", nn.Parameter(torch.ones(3)))

    def forward(self, x):
        return self.last((self.gain * self.first(x)).relu().abs().sqrt().add(1).log())


@pytest.mark.parametrize("memory", [None, 1e3])
def test_products_that_are_no_numbers_are_refused(memory):
    torch.manual_seed(0)
    rooted, loss = RootBehindARectifier().double(), nn.CrossEntropyLoss()
    with torch.no_grad():
        rooted.first.weight.fill_(1.0)
        rooted.first.bias.zero_()
    x, y = torch.linspace(1, 2, 40, dtype=torch.float64)[:, None], torch.arange(40) % 2
    x[-5:] *= -1  # the samples that are looked at first are smooth
    hessian = Hessian(rooted, loss, (x, y), memory=memory)
    ones = torch.ones(hessian.shape[0], dtype=torch.float64)
    for vectors in (ones, torch.stack([ones, 2 * ones], dim=1)):
        with pytest.raises(ArgumentError, match=r"NaN.*square root"):
            hessian @ vectors
    smooth = Hessian(rooted, loss, (x[:-5], y[:-5]), memory=memory)
    assert torch.isfinite(smooth @ ones).all()
