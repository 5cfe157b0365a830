"""The objective that is measured is the one that is trained: own losses, sequences, class axes."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import hyperribbon as hr
from hyperribbon.core import ArgumentError
from inspection.autograd import sharpest
from inspection.language import language_model, tokens

GAUSS_NEWTON = {"gauss_newton.trace", "noise.scale", "layers.first_share", "layers.second_share"}


def failed(found):
    return [(o.step, o.reason) for o in found.outcomes if o.status == "failed"]


@pytest.mark.parametrize("kind", ["dict", "loader"])
def test_the_loss_of_a_language_model_is_its_own(quiet, kind):
    """Shifted by one token, over the labels that are not −100."""
    model, ids = language_model().train(), tokens(24)
    labels = ids.clone()
    labels[::3, 4:] = -100
    batch = {"input_ids": ids, "labels": labels}
    rows = [{name: part[i] for name, part in batch.items()} for i in range(24)]
    data = batch if kind == "dict" else torch.utils.data.DataLoader(rows, batch_size=8)
    found = hr.inspect(model, data=data, k=1, budget=20, console=quiet)
    assert model.training
    model.eval()
    value, _ = sharpest(model, lambda: model(**batch).loss)
    assert found["model.loss"].value == pytest.approx(float(model(**batch).loss.detach()), rel=1e-5)
    assert found["hessian.largest"].value == pytest.approx(value, rel=1e-3)
    assert found["hessian.largest"].samples == 24
    assert {quantity.key for quantity in found} >= GAUSS_NEWTON
    assert not failed(found)
    right = model(**batch).logits[:, :-1].argmax(-1) == labels[:, 1:]
    told = labels[:, 1:] != -100
    expected = right[told].float().mean()
    assert found["model.accuracy"].value == pytest.approx(float(expected), abs=1e-6)


class Penalised(nn.Module):
    """Has a loss of its own that is no function of its logits."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))

    def forward(self, x, labels=None):
        logits = self.layers(x)
        penalty = self.layers[0](x).tanh().square().mean()
        return {"logits": logits, "loss": F.cross_entropy(logits, labels) + penalty}


def test_a_loss_that_is_not_recognised_has_a_hessian_and_declines_the_rest(quiet):
    model, x = Penalised().double(), torch.randn(24, 4).double()
    data = {"x": x, "labels": torch.arange(24) % 3}
    found = hr.inspect(model, data=data, k=1, budget=20, optimizer=0.1, console=quiet)
    value, _ = sharpest(model, lambda: model(**data)["loss"])
    assert found["model.loss"].value == pytest.approx(
        float(model(**data)["loss"].detach()), rel=1e-9
    )
    assert found["hessian.largest"].value == pytest.approx(value, rel=1e-3)
    assert "slices" in found.parts
    assert found.is_complete
    assert not {quantity.key for quantity in found} & GAUSS_NEWTON
    reasons = {o.step: o.reason for o in found.outcomes if o.status == "omitted"}
    for step in ("Trace and layers", "Gradient noise", "Fisher information"):
        assert "own loss is not recognised" in reasons[step]
    parts = ("sharpness", "trace", "noise", "pruning", "predictions", "weights")
    compared = hr.compare(model, Penalised().double(), data=data, groups=3, parts=parts)
    assert compared["loss"].a == pytest.approx(float(model(**data)["loss"].detach()), rel=1e-9)
    assert "trace" not in compared
    assert "own loss is not recognised" in " ".join(compared.notes)


@pytest.mark.parametrize("name", ["inspect", "compare"])
def test_a_model_without_a_loss_has_to_be_given_one(name):
    model, data = nn.Linear(4, 3), (torch.randn(24, 4), torch.arange(24) % 3)
    with pytest.raises(ArgumentError, match="the output of Linear has no loss of its own") as told:
        if name == "inspect":
            hr.inspect(model, None, data, budget=5)
        else:
            hr.compare(model, nn.Linear(4, 3), data=data)
    assert told.value.argument == "loss"
    assert "Timed" not in str(told.value)


class Tagger(nn.Module):
    """Scores (n, T, V) of every token, of a mean over those before it."""

    def __init__(self, vocabulary):
        super().__init__()
        self.table, self.head = nn.Embedding(vocabulary, 5), nn.Linear(5, vocabulary)

    def forward(self, x):
        return self.head(self.table(x).cumsum(1).tanh())


@pytest.mark.parametrize("length", [6, 8], ids=["T = V", "T ≠ V"])
def test_a_function_gets_the_outputs_as_the_model_returns_them(quiet, length):
    model, x = Tagger(6).double(), tokens(24, length, 6)
    labels = (x + 1) % 6
    labels[:, 0] = -100

    def loss(outputs, targets):
        return F.cross_entropy(outputs.reshape(-1, 6), targets.reshape(-1))

    value, _ = sharpest(model, lambda: loss(model(x), labels))
    found = hr.inspect(model, loss, (x, labels), k=1, budget=20, console=quiet)
    expected = float(loss(model(x), labels).detach())
    assert found["model.loss"].value == pytest.approx(expected, rel=1e-9)
    assert found["hessian.largest"].value == pytest.approx(value, rel=1e-3)
    right = (model(x).argmax(-1) == labels)[:, 1:].double().mean()
    assert found["model.accuracy"].value == pytest.approx(float(right))
    assert not failed(found)


def test_a_shifted_loss_has_no_accuracy_by_unshifted_labels(quiet):
    model, x = Tagger(6).double(), tokens(24, 8, 6)

    def loss(outputs, targets):
        return F.cross_entropy(outputs[:, :-1].reshape(-1, 6), targets[:, 1:].reshape(-1))

    found = hr.inspect(model, loss, (x, x), k=1, budget=10, console=quiet)
    assert found["model.loss"].value == pytest.approx(float(loss(model(x), x).detach()), rel=1e-9)
    assert "model.accuracy" not in {quantity.key for quantity in found}


@pytest.mark.parametrize("call", [hr.inspect, hr.Hessian])
def test_scores_on_the_last_axis_are_refused_by_torch_losses_in_every_call(call):
    x = tokens(8, 7, 12)
    options = {"budget": 5} if call is hr.inspect else {}
    match = (
        r"the model returns shape \(8, 7, 12\) but CrossEntropyLoss expects \(8, 12, 7\) for "
        r"targets \(8, 7\)"
    )
    with pytest.raises(ArgumentError, match=match) as told:
        call(Tagger(12), nn.CrossEntropyLoss(), (x, x), **options)
    assert "loss=None" in told.value.remedy
    assert "z.transpose(1, 2)" in told.value.remedy


def test_pairs_of_samples_are_measured_together(quiet):
    """Targets are places in the whole batch, which no part of it has."""
    model, x = nn.Linear(4, 3).double(), torch.randn(24, 4).double()

    def loss(outputs, targets):
        units = F.normalize(outputs, dim=1)
        scores = (units @ units.T).masked_fill(torch.eye(len(outputs)).bool(), -torch.inf)
        return F.cross_entropy(scores, targets)

    partners = torch.arange(24).roll(12)
    value, _ = sharpest(model, lambda: loss(model(x), partners))
    found = hr.inspect(model, loss, (x, partners), k=1, budget=10, console=quiet)
    expected = float(loss(model(x), partners).detach())
    assert found["model.loss"].value == pytest.approx(expected, rel=1e-9)
    assert found["hessian.largest"].value == pytest.approx(value, rel=1e-3)
    assert "model.accuracy" not in {quantity.key for quantity in found}


def test_what_needs_a_loss_per_sample_is_skipped_where_samples_share_one(quiet):
    """Alone, every sample of an InfoNCE batch has a loss of zero, whatever the weights."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(70, 6)

    def loss(outputs, targets):
        return F.cross_entropy(outputs @ outputs.T, torch.arange(len(outputs)))

    found = hr.inspect(model, loss, (x, torch.zeros(70)), k=1, budget=10, console=quiet)
    (step,) = [o for o in found.outcomes if o.step == "Sub-networks"]
    assert step.status == "omitted"
    assert "needs a loss per sample" in step.reason
    assert not [quantity.key for quantity in found if quantity.key.startswith("subnetworks.")]


def test_an_indefinite_gauss_newton_matrix_has_no_shares_of_its_trace(quiet):
    torch.manual_seed(1)

    class Distances(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))

        def forward(self, anchor, positive, negative):
            return self.body(anchor), self.body(positive), self.body(negative)

    def loss(outputs, targets):
        return F.triplet_margin_loss(*outputs, margin=2.0)

    x = tuple(torch.randn(3, 70, 6))
    op = hr.GGN(Distances(), loss, (x, torch.zeros(70)))
    assert torch.linalg.eigvalsh(op.to_dense())[0] < 0
    found = hr.inspect(Distances(), loss, (x, torch.zeros(70)), budget=15, console=quiet)
    keys = {quantity.key for quantity in found}
    assert "gauss_newton.largest" in keys
    assert not keys & {"gauss_newton.share10", "gauss_newton.share50"}
