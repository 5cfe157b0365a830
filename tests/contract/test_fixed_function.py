"""What is no fixed function is refused by every operator, and no refusal leaves traces."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import hyperribbon as hr
from contract.changing import FIXED, LOSSES, MODELS, data, network
from zoo.untouched import untouched

QUIET = Console(quiet=True)
KINDS = ("Hessian", "GGN", "GradientCovariance")


def measured(kind: str, *arguments: Any, **options: Any) -> torch.Tensor:
    """Build an operator and use it once: the user has a number only then."""
    operator = getattr(hr, kind)(*arguments, **options)
    return operator @ torch.ones(operator.shape[0], dtype=operator.dtype)


def test_there_are_forty():
    assert len(LOSSES) + len(MODELS) >= 40


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FIXED)
def test_a_fixed_function_that_keeps_something_is_taken(name, kind):
    """Else the tests below would pass where everything is refused."""
    model = network()
    with untouched(model):
        found = measured(kind, model, FIXED[name](), data())
    assert found.isfinite().all() and found.norm() > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_that_changes_is_refused(name, kind):
    model = network()
    with untouched(model), pytest.raises(hr.ArgumentError) as refused:
        measured(kind, model, LOSSES[name](), data())
    assert refused.value.argument == "loss"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_changes_is_refused(name, kind):
    model = MODELS[name]()
    with untouched(), pytest.raises(hr.ArgumentError) as refused:
        measured(kind, model, nn.CrossEntropyLoss(), data())
    assert refused.value.argument == "model"


class Augmented(Dataset):
    """Samples that are turned at random when they are read."""

    def __init__(self, draw: Callable[[], float]) -> None:
        self.x, self.y = data()
        self.draw = draw

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index] + 0.1 * self.draw(), self.y[index]


class Broken(nn.Module):
    """Draws numbers and then fails."""

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        torch.rand(3), np.random.rand(3), random.random()
        raise hr.ArgumentError("loss", None, "of its own", "None.")


def with_weight(value: float) -> nn.Module:
    model = network()
    with torch.no_grad():
        model[0].weight[0, 0] = value
    return model


def refusals() -> dict[str, Callable[[], Any]]:
    """Return fifty calls and more that are refused, each for a reason of its own."""
    x, y = data()
    cross, draws = nn.CrossEntropyLoss(), np.random.rand
    dropout = network(nn.Dropout(0.3))
    tagger = nn.Sequential(nn.Unflatten(1, (5, 1)), nn.Linear(1, 4)).double()
    found: dict[str, Callable[[], Any]] = {}
    changing = [(name, network, make) for name, make in LOSSES.items()]
    changing += [(name, make, lambda: cross) for name, make in MODELS.items()]
    for place, (name, model, loss) in enumerate(changing):
        kind = KINDS[place % len(KINDS)]
        found[f"{kind} of {name}"] = lambda k=kind, m=model, l=loss: measured(k, m(), l(), (x, y))
    augmented = {
        "augmented by torch": Augmented(lambda: float(torch.randn(()))),
        "augmented by numpy": Augmented(lambda: float(draws())),
        "augmented by random": Augmented(random.random),
    }
    for name, samples in augmented.items():
        found[name] = lambda s=samples: measured("Hessian", network(), cross, s)
        loader = DataLoader(samples, batch_size=8)
        found[f"{name}, in a loader"] = lambda d=loader: measured("GGN", network(), cross, d)
    for kind in KINDS:
        found[f"dropout in training, {kind}"] = lambda k=kind: measured(
            k, dropout, cross, (x, y), mode="train"
        )
    found |= {
        "dropout as it is": lambda: measured("Hessian", dropout.train(), cross, (x, y), mode=None),
        "a mode of another name": lambda: hr.Risk(network(), cross, (x, y), mode="training"),
        "labels of other length": lambda: hr.Risk(network(), cross, (x, y[:-1])),
        "labels out of range": lambda: hr.Risk(network(), cross, (x, y + 3)),
        "classes on another axis": lambda: hr.Risk(tagger, cross, (x, y[:, None].repeat(1, 5))),
        "inputs of other width": lambda: hr.inspect(
            network(), cross, (x[:, :4], y), k=1, budget=2, console=QUIET
        ),
        "no samples": lambda: hr.Risk(network(), cross, (x[:0], y[:0])),
        "weights that are NaN": lambda: hr.Risk(with_weight(float("nan")), cross, (x, y)),
        "weights that are infinite": lambda: measured(
            "Hessian", with_weight(float("inf")), cross, (x, y)
        ),
        "inputs that are NaN": lambda: measured("Hessian", network(), cross, (x / 0 * 0, y)),
        "a loss that is NaN": lambda: measured(
            "Hessian", network(), lambda f, y: F.cross_entropy(f, y) * float("nan"), (x, y)
        ),
        "a loss of many numbers": lambda: hr.Risk(
            network(), lambda f, y: F.cross_entropy(f, y, reduction="none"), (x, y)
        ),
        "a loss of none": lambda: hr.Risk(network(), lambda f, y: None, (x, y)),
        "a loss that is no function": lambda: hr.Risk(network(), 3, (x, y)),
        "no loss at all": lambda: hr.Hessian(network(), None, (x, y)),
        "a loss that fails by itself": lambda: hr.Risk(network(), Broken(), (x, y)),
        "data that are a number": lambda: hr.Risk(network(), cross, 3),
        "comparison on too few": lambda: hr.compare(
            network(), network(), loss=cross, data=(x[:3], y[:3]), console=QUIET
        ),
        "comparison of noise": lambda: hr.compare(
            MODELS["model_with_noise_by_torch"](),
            network(),
            loss=cross,
            data=(x, y),
            console=QUIET,
        ),
        "too many eigenvalues": lambda: hr.eigsh(hr.Hessian(network(), cross, (x, y)), 10_000),
        "a mask of another model": lambda: hr.Risk(
            network(), cross, (x, y), mask=hr.Mask({"nothing": torch.ones(3).bool()})
        ),
        "parameters of no such name": lambda: hr.Risk(network(), cross, (x, y), params="nothing*"),
        "targets of the wrong kind": lambda: hr.Risk(network(), nn.MSELoss(), (x, y)),
    }
    return found


def states() -> tuple[Any, ...]:
    held: Any = np.random.get_state()
    return torch.get_rng_state().tolist(), held[1].tolist(), held[2], random.getstate()


def test_fifty_refusals_leave_the_random_states_alone():
    taken, drew = [], []
    calls = refusals()
    assert len(calls) >= 50
    for name, call in calls.items():
        before = states()
        try:
            call()
        except hr.ArgumentError:
            pass
        else:
            taken.append(name)
        if states() != before:
            drew.append(name)
    assert not drew, f"the random states have changed after: {', '.join(drew)}"
    assert not taken, f"not refused: {', '.join(taken)}"


def test_answers_leave_the_random_states_alone():
    """Also of a model with dropout, a normalisation and data in a loader that shuffles."""
    x, y = data()
    model = network(nn.BatchNorm1d(3), nn.Dropout(0.3)).double()
    before = states()
    loader = DataLoader(TensorDataset(x, y), batch_size=8)
    hr.eigsh(hr.Hessian(model, nn.CrossEntropyLoss(), loader), 1)
    hr.trace(hr.GGN(model, nn.CrossEntropyLoss(), (x, y)))
    hr.inspect(model, nn.CrossEntropyLoss(), (x, y), k=1, budget=1, console=QUIET)
    assert states() == before
