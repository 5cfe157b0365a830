"""Measuring leaves model, gradients, mode, hooks, buffers and random state as they were."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hyperribbon.operators import GGN, NTK, Fisher, GradientCovariance, Hessian, Jacobian


def snapshot(model: nn.Module) -> dict:
    return {
        "state": {k: v.clone() for k, v in model.state_dict().items()},
        "versions": {n: p._version for n, p in model.named_parameters()},
        "ids": {n: id(p) for n, p in model.named_parameters()},
        "grads": {
            n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()
        },
        "needs": {n: p.requires_grad for n, p in model.named_parameters()},
        "modes": {n: m.training for n, m in model.named_modules()},
        "hooks": {
            n: (len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks))
            for n, m in model.named_modules()
        },
    }


def same(a: dict, b: dict) -> bool:
    tensors = all(torch.equal(a["state"][k], b["state"][k]) for k in a["state"])
    grads = all(
        (a["grads"][k] is None) == (b["grads"][k] is None)
        and (a["grads"][k] is None or torch.equal(a["grads"][k], b["grads"][k]))
        for k in a["grads"]
    )
    others = all(a[k] == b[k] for k in ("versions", "ids", "needs", "modes", "hooks"))
    return tensors and grads and others


def test_everything_stays_as_it_was(case):
    model, inputs, targets = case
    first = next(model.parameters())
    first.grad = torch.ones_like(first)
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    shuffled = DataLoader(
        TensorDataset(inputs, targets), 4, shuffle=True, generator=torch.Generator().manual_seed(5)
    )
    before = snapshot(model)
    states = (torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate())
    loader_state = shuffled.generator.get_state()
    with torch.no_grad():
        for data in ((inputs, targets), shuffled):
            for kind in (Hessian, GGN, GradientCovariance):
                operator = kind(model, nn.CrossEntropyLoss(), data)
                operator @ torch.ones(operator.shape[0], 2, dtype=torch.float64)
            operator.trace()
        Fisher(model, inputs, estimator="mc").gram()
        NTK(model, inputs).to_dense()
        Jacobian(model, inputs).T @ torch.ones(model(inputs).numel(), dtype=torch.float64)
    assert same(before, snapshot(model))
    assert torch.equal(states[0], torch.get_rng_state())
    assert np.array_equal(states[1], np.random.get_state()[1])
    assert states[2] == random.getstate()
    assert torch.equal(loader_state, shuffled.generator.get_state())
    assert calls  # the model's own hooks still run


def test_later_training_does_not_reach_an_operator(make_case, close):
    model, inputs, targets = make_case("mlp")
    operator = Hessian(model, nn.CrossEntropyLoss(), (inputs, targets))
    vector = torch.ones(operator.shape[0], dtype=torch.float64)
    before = operator @ vector
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    close(operator @ vector, before, 0.0)
    moved = operator.at(dict(model.named_parameters()))
    fresh = Hessian(model, nn.CrossEntropyLoss(), (inputs, targets))
    close(moved @ vector, fresh @ vector, 1e-12)
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    close(operator.at(flat) @ vector, fresh @ vector, 1e-12)


def test_frozen_and_unused_parameters(make_case, close):
    model, inputs, targets = make_case("mlp")
    model.unused = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    model[1].weight.requires_grad_(False)

    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = model[:6]
            self.unused = nn.Parameter(torch.zeros(2, dtype=torch.float64))

        def forward(self, inputs):
            return self.body(inputs)

    wrapped = Wrapper()
    operator = GGN(wrapped, nn.CrossEntropyLoss(), (inputs, targets))
    assert "body.1.weight" not in operator.space.names
    unused = operator.space.slices()["unused"]
    dense = operator.to_dense()
    assert not dense[unused].any()
    lifted = operator.lift(torch.eye(operator.gram_size, dtype=torch.float64))
    close(lifted @ lifted.T, dense)
    close(operator.gram(), lifted.T @ lifted)
    close(operator.diagonal(), dense.diagonal())
    assert not Hessian(wrapped, nn.CrossEntropyLoss(), (inputs, targets)).to_dense()[unused].any()
