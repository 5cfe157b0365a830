"""What a network of the zoo is, and how one is built: seeded, in float64, away from zeros."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

__all__ = ["Entry", "Network", "REGISTRY", "double_by_default", "labels", "network"]

_NOISE = 0.1  # on all weights, so that no bias is zero and no scale one


@dataclass
class Network:
    """A model, its loss and its data.

    Attributes:
        model: The module.
        loss: loss(outputs, targets) -> number.
        inputs: What `call` gives to the model; a tensor unless `call` says otherwise.
        targets: What the loss compares with.
        call: call(model, inputs) -> outputs in plain torch, for the reference.
        data: What hyperribbon is given; (inputs, targets) by default.
        forward: What hyperribbon is given as forward=.
    """

    model: nn.Module
    loss: Any
    inputs: Any
    targets: Any
    call: Callable[[nn.Module, Any], torch.Tensor] = field(default=lambda model, x: model(x))
    data: Any = None
    forward: Callable[[nn.Module, Any], Any] | None = None

    def outputs(self) -> torch.Tensor:
        """Return the outputs, as a user of plain torch gets them."""
        return self.call(self.model, self.inputs)

    def options(self) -> dict[str, Any]:
        """Return the keywords that operators need for this network."""
        return {} if self.forward is None else {"forward": self.forward}


@dataclass(frozen=True)
class Entry:
    """A named network and what is expected of it.

    Attributes:
        name: Its name in the reports of the tests.
        make: Builds it.
        training: Whether it stays in training mode.
        mixes: Whether an output depends on several samples. Then one batch must be right, and what
            needs single samples or cuts the data is right or refused.
        may_be_refused: Why hyperribbon may say no to it ("" for never).
        truth: "both" when double backward passes and differences agree; "differences" when torch's
            own double backward pass is missing or wrong; "double backward" when the weights move
            where autograd does not look, so that differences of the gradient mean something else.
        precision: In which the network works inside, whatever its weights are.
    """

    name: str
    make: Callable[[], Network]
    training: bool = False
    mixes: bool = False
    may_be_refused: str = ""
    truth: str = "both"
    precision: torch.dtype = torch.float64

    def build(self) -> Network:
        """Return a fresh copy of the network: the same one every time."""
        with torch.random.fork_rng(), double_by_default(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(sum(map(ord, self.name)))
            made = self.make()
            made.model.train(self.training)
            with torch.no_grad():
                for parameter in made.model.parameters():
                    parameter.add_(_NOISE * torch.randn_like(parameter))
                for module in made.model.modules():
                    if isinstance(module, _NormBase) and module.running_mean is not None:
                        module.running_mean.copy_(0.2 * torch.randn_like(module.running_mean))
                        module.running_var.copy_(0.5 + torch.rand_like(module.running_var))
        if made.data is None:
            made = replace(made, data=(made.inputs, made.targets))
        return made


REGISTRY: dict[str, Entry] = {}


def network(**flags: Any) -> Callable[[Callable[[], Network]], Callable[[], Network]]:
    """Enter a function that builds a network into the registry, under its own name."""

    def enter(make: Callable[[], Network]) -> Callable[[], Network]:
        known = REGISTRY.get(make.__name__)  # pytest reads files a second time for doctests
        assert known is None or known.make.__code__.co_filename == make.__code__.co_filename
        REGISTRY[make.__name__] = Entry(make.__name__, make, **flags)
        return make

    return enter


@contextmanager
def double_by_default() -> Iterator[None]:
    """Build modules and tensors in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def labels(*shape: int, classes: int = 3) -> torch.Tensor:
    """Return random labels."""
    return torch.randint(classes, shape)
