"""The checks of what stays untouched find every kind of change."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from zoo.untouched import still_trains, untouched
from zoo.unusual import Remembering, TwoNames


def swap_parameter(model):
    model.fc.weight = nn.Parameter(model.fc.weight.detach().clone())


def swap_parameter_under_one_name(model):
    other = nn.Linear(4, 5)
    other._parameters = dict(model.fc._parameters)
    model.net[0] = other


def write_and_restore(model):
    with torch.no_grad():
        model.fc.weight.add_(1).sub_(1)


def fill_gradients(model):
    model(torch.zeros(1, 4)).sum().backward()


CHANGES = {
    "parameter": swap_parameter,
    "module": swap_parameter_under_one_name,
    "version": write_and_restore,
    "grad": fill_gradients,
    "value": lambda m: m.fc.weight.data.add_(1),
    "requires_grad": lambda m: m.fc.bias.requires_grad_(False),
    "mode": lambda m: m.fc.train(),
    "hook": lambda m: m.fc.register_forward_hook(lambda *_: None),
    "buffer": lambda m: m.register_buffer("extra", torch.zeros(1)),
    "attribute": lambda m: setattr(m, "extra", 1),
    "torch random": lambda m: torch.rand(1),
    "numpy random": lambda m: np.random.rand(),
    "python random": lambda m: random.random(),
}


@pytest.mark.parametrize("what", CHANGES)
def test_changes_are_found(what):
    with torch.random.fork_rng():
        model = TwoNames().eval()
        with pytest.raises(AssertionError, match="touched: "), untouched(model):
            CHANGES[what](model)


def test_settings_are_found():
    try:
        with pytest.raises(AssertionError, match="default dtype"), untouched():
            torch.set_default_dtype(torch.float64)
    finally:
        torch.set_default_dtype(torch.float32)
    try:
        with pytest.raises(AssertionError, match="grad mode"), untouched():
            torch.set_grad_enabled(False)
    finally:
        torch.set_grad_enabled(True)


def test_data_and_what_a_module_remembers_are_found():
    model, x = Remembering().float(), torch.zeros(2, 4)
    with pytest.raises(AssertionError, match=r"data\[0\]: written to"), untouched(x):
        x.add_(0)
    with pytest.raises(AssertionError, match=r"\.last.*another object"), untouched(model):
        model(x)


def test_changes_are_found_when_the_call_raises():
    model = TwoNames()
    with pytest.raises(AssertionError, match="touched"), untouched(model):
        swap_parameter(model)
        raise ValueError


def test_nothing_is_found_when_nothing_changes():
    model, x = TwoNames().eval(), torch.zeros(2, 4)
    with untouched(model, x):
        model(x)


def test_a_model_that_lost_its_parameter_does_not_train():
    def step(model):
        return model(torch.ones(3, 4).double()).square().sum()

    model = TwoNames().double()
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-6)
    still_trains(model, optimiser, step)
    swap_parameter(model)
    with pytest.raises(AssertionError, match="does not lower the loss"):
        still_trains(model, optimiser, step)
