"""Weight decay and Adam's corrections in the stability limit, where a sharpness is known."""

import pytest
import torch
from torch import nn

from hyperribbon.application.inspection.engine.notebook import Level, Notebook
from hyperribbon.application.inspection.engine.subject import Subject
from hyperribbon.application.inspection.parts.stability import stability_part
from hyperribbon.application.inspection.quantities import Quantity
from hyperribbon.prediction.update_rules import update_rule


def half_squares(outputs, targets):
    return ((outputs - targets) ** 2 / 2).mean()


@pytest.fixture
def task():
    """A regression with its Hessian's largest eigenvalue."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(30, 4, generator=generator, dtype=torch.float64)
    top = float(torch.linalg.eigvalsh(inputs.T @ inputs / 30)[-1])
    data = (inputs, torch.zeros(30, 1, dtype=torch.float64))
    return nn.Linear(4, 1, bias=False).double(), data, top


OPTIONS = [{"weight_decay": 0.7}, {"weight_decay": 0.7, "momentum": 0.9}]


@pytest.mark.parametrize("options", OPTIONS)
def test_a_sharpness_that_is_known_gives_the_ratio_of_the_eigensolver(task, options):
    model, data, top = task
    rule = update_rule(torch.optim.SGD(model.parameters(), lr=0.1, **options), model)
    subject = Subject(model, half_squares, data)
    known = Quantity("hessian.largest", "", top, 0.02, "", "")
    level = Level(subject, 30)
    notebook = Notebook(k=2, seed=0, rule=rule, levels=[level])
    solved = stability_part(level, notebook)
    level.statistics["sharpness"] = known
    told = stability_part(level, notebook)
    expected = 0.1 * (top + 0.7) / rule.limit
    assert told["stability.ratio"].value == pytest.approx(expected)
    assert told["stability.ratio"].error == pytest.approx(0.1 * 0.02 / rule.limit)
    assert solved["stability.ratio"].value == pytest.approx(expected, rel=1e-3)  # its tolerance


@pytest.mark.parametrize("options", OPTIONS)
def test_descent_diverges_just_above_the_largest_stable_curvature(task, options):
    model, data, _ = task
    rule = update_rule(torch.optim.SGD(model.parameters(), lr=0.1, **options), model)
    part = stability_part(
        Level(Subject(model, half_squares, data)), Notebook(k=2, seed=0, rule=rule)
    )
    limit = part["stability.curvature"].value
    for factor, grows in ((0.97, False), (1.03, True)):
        weight = nn.Parameter(torch.ones((), dtype=torch.float64))
        optimizer = torch.optim.SGD([weight], lr=0.1, **options)
        for _ in range(300):
            optimizer.zero_grad()
            (factor * limit * weight**2 / 2).backward()
            optimizer.step()
        assert (abs(float(weight.detach())) > 10) is grows


def test_adams_rates_are_those_of_its_last_step():
    """Without momentum a step moves each weight by its rate times its gradient, early on too."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, betas=(0.0, 0.999))
    for _ in range(3):
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
    rates = update_rule(optimizer, model).rates
    for name, parameter in model.named_parameters():
        moved = before[name] - parameter.detach()
        torch.testing.assert_close(rates[name] * parameter.grad, moved)
