"""Stability limits of optimisers whose parameter groups differ, against real divergence."""

import numpy as np
import pytest
import torch
from torch import nn

from hyperribbon.application.inspection.engine.notebook import Level, Notebook
from hyperribbon.application.inspection.engine.subject import Subject
from hyperribbon.application.inspection.parts.stability import stability_part
from hyperribbon.core.checks import ArgumentError
from hyperribbon.prediction.update_rules import update_rule


class Halves(nn.Module):
    """A regression whose weights are in two modules, so that two groups share its Hessian."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 1, bias=False), nn.Linear(3, 1, bias=False)

    def forward(self, x):
        return self.a(x[:, :2]) + self.b(x[:, 2:])


@pytest.fixture
def task():
    torch.manual_seed(0)
    inputs = torch.randn(40, 5, dtype=torch.float64) @ torch.randn(5, 5, dtype=torch.float64)
    return Halves().double(), (inputs, torch.zeros(40, 1, dtype=torch.float64))


def test_an_optimiser_inside_a_wrapper_is_read(task):
    """Trainers hand out accelerate's or Lightning's wrapper, whose `.optimizer` is torch's."""

    class Wrapper(torch.optim.Optimizer):
        def __init__(self, optimizer):
            self.optimizer, self.param_groups = optimizer, optimizer.param_groups

    model, _ = task
    own = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    assert update_rule(Wrapper(own), model) == update_rule(own, model)


def _sgd(model, scale, first, second):
    groups = [
        {"params": module.parameters(), **options, "lr": scale * options["lr"]}
        for module, options in ((model.a, first), (model.b, second))
    ]
    return torch.optim.SGD(groups, lr=1.0)


def _ratio(rule, hessian):
    """Return the largest eigenvalue of S½(H + W)S½ from dense matrices."""
    sizes = {"a.weight": 2, "b.weight": 3}

    def flat(values):
        if isinstance(values, float):
            return np.full(5, values)
        return np.concatenate(
            [np.broadcast_to(np.asarray(values[n]).ravel(), sizes[n]) for n in sizes]
        )

    root = np.sqrt(flat(rule.rates) / rule.limit)
    matrix = root[:, None] * (hessian + np.diag(flat(rule.weight_decay))) * root
    return float(np.linalg.eigvalsh(matrix)[-1])


CASES = [
    ({"lr": 1.0, "momentum": 0.9}, {"lr": 1.0, "momentum": 0.0}),
    ({"lr": 1.0, "momentum": 0.0}, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    ({"lr": 0.3, "momentum": 0.5, "dampening": 0.5}, {"lr": 1.0, "momentum": 0.95}),
    ({"lr": 1.0}, {"lr": 1.0, "weight_decay": 50.0}),
    ({"lr": 1.0, "momentum": 0.8, "weight_decay": 3.0}, {"lr": 0.2, "weight_decay": 40.0}),
]


@pytest.mark.parametrize(("first", "second"), CASES)
def test_sgd_of_different_groups_diverges_just_above_the_limit(task, first, second):
    model, (inputs, targets) = task
    hessian = (inputs.T @ inputs / 40).numpy()
    whole = _ratio(update_rule(_sgd(model, 1.0, first, second), model), hessian)
    for factor, grows in ((0.97, False), (1.03, True)):
        optimizer = _sgd(model, factor / whole, first, second)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(1.0)
        for _ in range(300):
            optimizer.zero_grad()
            ((model(inputs) - targets) ** 2 / 2).mean().backward()
            optimizer.step()
        size = max(float(p.detach().abs().max()) for p in model.parameters())
        assert (size > 10) is grows


@pytest.mark.parametrize(("first", "second"), CASES)
def test_the_part_reports_the_limit_of_the_groups(task, first, second):
    model, data = task
    optimizer = _sgd(model, 0.01, first, second)
    hessian = (data[0].T @ data[0] / 40).numpy()
    expected = _ratio(update_rule(optimizer, model), hessian)

    def half_squares(outputs, targets):
        return ((outputs - targets) ** 2 / 2).mean()

    subject = Subject(model, half_squares, data)
    notebook = Notebook(k=2, seed=0, rule=update_rule(optimizer, model))
    part = stability_part(Level(subject), notebook)
    (ratio,) = [q.value for q in part.quantities if q.key == "stability.ratio"]
    assert ratio == pytest.approx(expected, rel=1e-3)  # the tolerance of the eigenvalue


def test_adamw_diverges_just_above_its_limit():
    """Its decay shrinks the weights beside the gradient and takes ηw from the limit of 2."""
    model = nn.Linear(1, 1, bias=False).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5, weight_decay=1.0)
    model.weight.grad = torch.ones(1, 1, dtype=torch.float64)
    optimizer.step()
    rule = update_rule(optimizer, model)
    assert rule.limit == pytest.approx(1.5 * 1.9 / 0.1)
    size = float(rule.rates["weight"])
    for factor, grows in ((0.97, False), (1.03, True)):
        curvature = factor * rule.limit / size
        weight, average = 1.0, 0.0
        for _ in range(600):
            average = 0.9 * average + 0.1 * curvature * weight
            weight = 0.5 * weight - size * average
        assert (abs(weight) > 1) is grows


def test_what_the_optimiser_does_not_update_is_named(task):
    model, data = task
    optimizer = torch.optim.SGD(model.a.parameters(), lr=0.1)
    notebook = Notebook(k=2, seed=0, rule=update_rule(optimizer, model))
    with pytest.raises(ArgumentError, match="does not update"):
        stability_part(Level(Subject(model, nn.MSELoss(), data)), notebook)


def test_a_loss_that_is_maximised_has_no_limit(task):
    model, _ = task
    with pytest.raises(ArgumentError, match="maximises"):
        update_rule(torch.optim.SGD(model.parameters(), lr=0.1, maximize=True), model)


def _frozen_adam(model, scale, kind, decay):
    """Adam with a scaling that differs by weight and does not change, in two groups."""
    groups = [
        {"params": model.a.parameters(), "lr": scale, "betas": (0.9, 1 - 1e-12)},
        {
            "params": model.b.parameters(),
            "lr": 0.3 * scale,
            "betas": (0.6, 1 - 1e-12),
            "weight_decay": decay,
        },
    ]
    optimizer = kind(groups, lr=1.0, eps=1e-8, weight_decay=0.0)
    generator = torch.Generator().manual_seed(3)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = {
                "step": torch.tensor(1e15),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.rand(parameter.shape, generator=generator).to(parameter) + 0.1,
            }
    return optimizer


@pytest.mark.parametrize(
    ("kind", "decay"), [(torch.optim.Adam, 0.0), (torch.optim.Adam, 5.0), (torch.optim.AdamW, 2.0)]
)
def test_adam_of_different_groups_diverges_just_above_the_limit(task, kind, decay):
    """The part's own number, at 0.95 and 1.05 of the limit, against torch's own steps."""
    model, data = task

    def half_squares(outputs, targets):
        return ((outputs - targets) ** 2 / 2).mean()

    def ratio(scale):
        rule = update_rule(_frozen_adam(model, scale, kind, decay), model)
        notebook = Notebook(k=2, seed=0, rule=rule)
        part = stability_part(Level(Subject(model, half_squares, data)), notebook)
        return part["stability.ratio"]

    assert ratio(0.01).error > 0
    for wanted, grows in ((0.95, False), (1.05, True)):
        scale = 0.01
        for _ in range(4):  # AdamW's limit depends on the rate too
            scale *= wanted / ratio(scale).value
        optimizer = _frozen_adam(model, scale, kind, decay)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(1.0)
        size = 0.0  # the largest on the way: once gradients are huge, their squares damp Adam
        for _ in range(300):
            optimizer.zero_grad()
            half_squares(model(data[0]), data[1]).backward()
            optimizer.step()
            size = max(size, *(float(p.detach().abs().max()) for p in model.parameters()))
        assert (size > 1e3) is grows
