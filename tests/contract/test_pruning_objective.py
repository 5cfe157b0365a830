"""Pruning is judged by the user's own loss or accuracy, in its own unit, wherever it is asked."""

import pytest
import torch
from rich.console import Console
from torch import nn

import hyperribbon as hr


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.label, self.size = nn.Linear(5, 8), nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, x):
        features = torch.tanh(self.body(x))
        return {"label": self.label(features), "size": self.size(features).squeeze(-1)}


def two_losses(outputs, targets):
    label = nn.functional.cross_entropy(outputs["label"], targets["label"])
    return label + 0.5 * nn.functional.mse_loss(outputs["size"], targets["size"])


class TiedTokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 5), nn.Linear(5, 9, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(torch.tanh(self.embedding(tokens)))


def problem(kind):
    """Return a model, a loss, data, and the metric as torch computes it."""
    torch.manual_seed(1)
    inputs = torch.randn(40, 5)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    if kind == "several binary labels":
        targets, loss = (torch.rand(40, 3) > 0.5).float(), nn.BCEWithLogitsLoss()
    elif kind == "a sum over samples":
        targets, loss = torch.randn(40, 3), nn.MSELoss(reduction="sum")
    elif kind == "outputs and targets in dicts":
        model, targets = TwoHeads(), {"label": torch.arange(40) % 3, "size": torch.randn(40)}
        loss = two_losses
    elif kind == "tied weights":
        model, inputs, targets = TiedTokens(), torch.arange(40) % 9, torch.randn(40, 9).softmax(1)
        loss = nn.CrossEntropyLoss()
    elif kind == "weighted soft labels":
        targets = torch.softmax(torch.randn(40, 3), 1)
        loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0, 0.5]))
    else:
        model = nn.Sequential(nn.Conv1d(2, 6, 1), nn.Tanh(), nn.Conv1d(6, 3, 1))
        inputs, targets = torch.randn(40, 2, 7), torch.randint(0, 3, (40, 7))
        targets[:20, 2:] = 9
        loss = nn.CrossEntropyLoss(ignore_index=9)
        told = targets != 9
        accuracy = (model(inputs).argmax(1) == targets)[told].float().mean()
        return model, loss, (inputs, targets), float(accuracy)
    return model, loss, (inputs, targets), float(loss(model(inputs), targets).detach())


@pytest.mark.parametrize(
    "kind",
    [
        "outputs and targets in dicts",
        "several binary labels",
        "a sum over samples",
        "tied weights",
        "weighted soft labels",
        "labels left out",
    ],
)
def test_the_metric_is_the_users_own(kind):
    model, loss, data, expected = problem(kind)
    assert hr.prunable(model, loss, data).baseline == pytest.approx(expected, rel=1e-5)
    if isinstance(model, TwoHeads):  # inspections take the same way
        return
    found = hr.inspect(model, loss, data, budget=5, console=Console(quiet=True))
    numbers = found.table().set_index("key")["value"]
    assert numbers["subnetworks.baseline"] == pytest.approx(expected, rel=1e-5)
    if kind == "labels left out":
        assert numbers["model.accuracy"] == pytest.approx(expected, rel=1e-5)


def test_a_network_that_has_learned_nothing_is_told_so():
    torch.manual_seed(0)
    model, inputs = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)), torch.randn(60, 5)
    targets = model(10 * inputs).argmin(1)  # every guess of the model is wrong
    found = hr.prunable(model, nn.CrossEntropyLoss(), (10 * inputs, targets))
    assert found.fraction == 1
    assert "has not learned anything" in found.summary()
    assert "Zeroing all weights leaves" in found.summary()
    assert "leaves accuracy at 0.0%" in found.summary()


def test_fewer_eigenvalues_than_asked_for_are_all_there_are():
    model, data = nn.Linear(20, 1), (torch.randn(80, 20), torch.randn(80, 1))
    found = hr.inspect(model, nn.MSELoss(), data, budget=5, console=Console(quiet=True))
    (step,) = [o for o in found.outcomes if o.step.startswith("Leading eigenvalues of the H")]
    assert (step.status, step.reason) == ("done", "")


class Residual(nn.Module):
    """u' + u of a network u(x), whose forward pass differentiates by its input."""

    def __init__(self):
        super().__init__()
        self.u = nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 1))

    def forward(self, x):
        x = x.detach().requires_grad_()
        u = self.u(x)
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        return slope + u


class OwnLoss(nn.Module):
    """A model whose own loss is no known function of its logits."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3))

    def forward(self, x, labels=None):
        z = self.body(x)
        return {"loss": nn.functional.cross_entropy(z, labels) + 0.1 * (z**2).mean(), "logits": z}


@pytest.mark.parametrize("kind", ["differentiates inside", "own loss"])
def test_prunable_and_inspect_agree_on_unusual_models(kind):
    torch.manual_seed(3)
    x = torch.linspace(0, 1, 17)[:, None] if kind == "differentiates inside" else torch.randn(17, 4)
    model, loss, data = Residual(), nn.MSELoss(), (x, torch.zeros(17, 1))
    if kind == "own loss":
        model, loss, data = OwnLoss(), None, {"x": x, "labels": torch.arange(17) % 3}
    value = loss(model(x), data[1]) if loss else model(**data)["loss"]
    found = hr.prunable(model, loss, data)
    assert (found.metric, found.baseline) == ("loss", pytest.approx(float(value.detach())))
    pruned = {n: t for n, t in found.state.items() if n in model.state_dict()}
    inspected = hr.inspect(model, loss, data, budget=15, console=Console(quiet=True))
    numbers = inspected.table().set_index("key")["value"]
    assert numbers["subnetworks.baseline"] == pytest.approx(found.baseline)
    assert numbers["subnetworks.prunable"] == pytest.approx(found.fraction)
    model.load_state_dict(pruned)
    value = loss(model(x), data[1]) if loss else model(**data)["loss"]
    assert found.value == pytest.approx(float(value.detach()), rel=1e-5)


def test_a_loss_of_pairs_of_samples_is_refused():
    model, x = nn.Linear(6, 2), torch.randn(12, 6)

    def loss(outputs, targets):
        return nn.functional.cross_entropy(outputs @ outputs.T, torch.arange(len(outputs)))

    with pytest.raises(hr.ArgumentError, match="depends on the others"):
        hr.prunable(model, loss, (x, torch.zeros(12)))
