"""Networks that are written, wrapped or called in ways that a library may not expect."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

from zoo.registry import Network, labels, network


def _body() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def _classify(model: nn.Module, **more: Any) -> Network:
    return Network(model, nn.CrossEntropyLoss(), torch.randn(5, 4), labels(5), **more)


class TwoNames(nn.Module):
    """One layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 5)
        self.net = nn.Sequential(self.fc, nn.ReLU(), nn.Linear(5, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x) + self.fc(x)[:, :3]


@network()
def module_under_two_names() -> Network:
    return _classify(TwoNames())


class Siblings(nn.Module):
    """One layer under two names of one parent, both of them used."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.again, self.head = self.first, nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.again(torch.sigmoid(self.first(x))))


@network()
def module_twice_in_one_parent() -> Network:
    return _classify(Siblings())


class TiedAutoencoder(nn.Module):
    """A decoder that is the transposed encoder, and a layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.middle = nn.Linear(4, 3), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        code = torch.relu(self.middle(torch.tanh(self.middle(self.encoder(x)))))
        return F.linear(code, self.encoder.weight.t())


@network()
def tied_autoencoder() -> Network:
    x = torch.randn(5, 4)
    return Network(TiedAutoencoder(), nn.MSELoss(), x, x.clone())


@network(may_be_refused="its code is not Python's")
def scripted() -> Network:
    return _classify(torch.jit.script(_body()))


@network(may_be_refused="its code is not Python's")
def traced() -> Network:
    return _classify(torch.jit.trace(_body(), torch.randn(2, 4)))


@network()
def compiled() -> Network:
    return _classify(torch.compile(_body(), backend="eager"))


class FrozenTrunk(nn.Module):
    """A trunk evaluated without gradients: for the derivatives it is a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.middle, self.head = nn.Linear(4, 5), nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            hidden = torch.relu(self.trunk(x))
        return self.head(torch.relu(self.middle(hidden)))


@network()
def trunk_without_gradients() -> Network:
    return _classify(FrozenTrunk())


@network()
def trunk_frozen_by_flag() -> Network:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    model[0].requires_grad_(False)
    return _classify(model)


class Checkpointed(nn.Module):
    """Activations computed again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.body = nn.Linear(4, 4), _body()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.body, torch.relu(self.first(x)), use_reentrant=False)


@network()
def checkpointed() -> Network:
    return _classify(Checkpointed())


class Captured(nn.Module):
    """A lambda that holds the module itself, and one that holds a parameter's layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 3)
        self.enter = lambda x: torch.tanh(self.first(x))
        second = self.second
        self.leave = lambda x: second(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.leave(self.enter(x))


@network(may_be_refused="its forward reaches a module through a closure")
def closure_over_itself() -> Network:
    return _classify(Captured())


class BoundForward(nn.Module):
    """A layer whose forward was replaced by a function that holds the old one."""

    def __init__(self) -> None:
        super().__init__()
        self.body = _body()
        inner = self.body.forward
        self.body.forward = lambda x: inner(x) * 2 - x[:, :3]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


@network(may_be_refused="its forward reaches a module through a closure")
def forward_replaced() -> Network:
    return _classify(BoundForward())


class Scaled(nn.Module):
    """A loss with a parameter of its own: not one of the model's."""

    def __init__(self) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor([0.3, -0.2, 0.1]))

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(outputs * self.log_scale.exp(), targets)


@network()
def loss_with_parameters() -> Network:
    return Network(_body(), Scaled(), torch.randn(5, 4), labels(5))


class Cube(torch.autograd.Function):
    """x³ with a derivative that cannot be differentiated again."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * gradient


class OnceDifferentiable(nn.Module):
    """A linear layer, x³, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(Cube.apply(self.first(x)))


@network(may_be_refused="it cannot be differentiated twice", truth="differences")
def once_differentiable_activation() -> Network:
    return _classify(OnceDifferentiable())


class Remembering(nn.Module):
    """Keeps its last activation and counts its calls, in a buffer and in a number."""

    def __init__(self) -> None:
        super().__init__()
        self.body = _body()
        self.register_buffer("calls", torch.zeros(()))
        self.number, self.last = 0, torch.zeros(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.number += 1
        self.last = self.body[0](x)
        return self.body[2](self.body[1](self.last))


@network()
def remembers_its_calls() -> Network:
    return _classify(Remembering())


@network()
def hooks_that_change_the_answer() -> Network:
    model = _body()
    model[0].register_forward_hook(lambda module, args, out: out * 1.5)
    model.register_forward_pre_hook(lambda module, args: (args[0] + 0.3,))
    return _classify(model)


@network(may_be_refused="its forward hook makes a tensor of the module anew")
def pruned() -> Network:
    model = _body()
    prune.random_unstructured(model[0], "weight", amount=0.4)
    return _classify(model)


class Centred(nn.Module):
    """Subtracts the mean over the batch: samples mix."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        return self.second(torch.tanh(hidden - hidden.mean(0)))


@network(mixes=True)
def centred_over_the_batch() -> Network:
    return _classify(Centred())
