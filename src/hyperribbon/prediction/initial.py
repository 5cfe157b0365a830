"""Freshly initialised copies of a network, and the covariance of their outputs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Annotated as Float
from typing import Any

import torch
from torch import nn

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.devices.modes import preserve_random_state
from hyperribbon.core.generators import derive_seed


def draw_networks(
    model: nn.Module, count: int, init: Callable[[], nn.Module] | None, seed: int
) -> Iterator[nn.Module]:
    """Yield networks like `model` with new initial weights; the global random state is kept.

    Args:
        model: Copied, and every module of the copy that has parameters is reset by its own
            `reset_parameters`; frozen parameters keep their values, and wholly frozen modules their
            buffers too.
        count: How many.
        init: Returns a new network, in place of that.
        seed: Of the initial weights.

    Raises:
        ArgumentError: A module with parameters has no `reset_parameters`.
    """
    for index in range(count):
        with preserve_random_state():
            torch.default_generator.manual_seed(derive_seed(seed, "network", index))
            fresh = copy.deepcopy(model) if init is None else init()
            if init is None:
                _reset(fresh)
            else:
                example = next(model.parameters())
                fresh = fresh.to(device=example.device, dtype=example.dtype)
        yield fresh.train(model.training)


def _reset(model: nn.Module) -> None:
    frozen = [(p, p.detach().clone()) for p in model.parameters() if not p.requires_grad]
    for name, module in model.named_modules():
        own = list(module.parameters(recurse=False))
        if own and not any(p.requires_grad for p in own):
            continue
        reset = getattr(module, "reset_parameters", None) or getattr(
            module, "_reset_parameters", None
        )
        if own and reset is None:
            reason = f"its module {name or type(module).__name__!r} has no reset_parameters()"
            remedy = "Pass init=, a function that returns a newly initialised network."
            raise ArgumentError("model", type(model).__name__, reason, remedy)
        if reset is not None:
            reset()
    with torch.no_grad():
        for parameter, value in frozen:
            parameter.copy_(value)


def average_last_layer(
    model: nn.Module, batches: list[torch.Tensor], count: int, seed: int
) -> Float[torch.Tensor, "N N"] | None:
    r"""Return the initial outputs' covariance, averaged exactly over a linear last layer.

    With independent initial weights of variance v and features h of the samples below the layer,

    $$\operatorname{Cov} f = \mathbb{E}[v_W\, h h^\top + v_b\, 1 1^\top] \otimes I_C,$$

    so only the features are sampled.

    Args:
        model: The network.
        batches: Inputs, in batches.
        count: Number of initialisations.
        seed: Of the initial weights.

    Returns:
        The covariance (nC, nC), samples varying slowest; None if the outputs are not those of an
        nn.Linear whose weights are trainable and its own.
    """
    name = _find_last_layer(copy.deepcopy(model), batches)
    if name is None:
        return None
    shared: torch.Tensor | float = 0.0
    outputs = 0
    for fresh in draw_networks(model, count, None, seed):
        layer: Any = fresh.get_submodule(name)
        given, _ = _calls(fresh, {name: layer}, batches)
        h = torch.cat(given[name]).double()
        shared = shared + float(layer.weight.detach().double().square().mean()) * (h @ h.T) / count
        if layer.bias is not None:
            shared = shared + float(layer.bias.detach().double().square().mean()) / count
        outputs = layer.out_features
    if not isinstance(shared, torch.Tensor):
        return None
    return torch.kron(shared, torch.eye(outputs, dtype=shared.dtype, device=shared.device))


def _find_last_layer(model: nn.Module, batches: list[torch.Tensor]) -> str | None:
    """Return the linear layer by which initial outputs are averaged, by name, or None."""
    layers = {name: m for name, m in model.named_modules() if type(m) is nn.Linear}
    given, whole = _calls(model, layers, batches[:1])
    if not isinstance(whole[0], torch.Tensor):
        return None
    owners = [id(p) for m in model.modules() for p in m.parameters(recurse=False)]
    for name, layer in layers.items():
        own = owners.count(id(layer.weight)) == 1
        own = own and all(p.requires_grad for p in layer.parameters())
        if own and len(given[name]) == 1 and given[name][0].ndim == 2:
            with torch.no_grad():
                if torch.equal(layer(given[name][0]).flatten(), whole[0].flatten()):
                    return name
    return None


def _calls(
    model: nn.Module, layers: Mapping[str, nn.Module], batches: list[torch.Tensor]
) -> tuple[dict[str, list[torch.Tensor]], list[torch.Tensor]]:
    """Return what layers are given at the initial weights, and what the model returns."""
    given: dict[str, list[torch.Tensor]] = {name: [] for name in layers}

    def record(calls: list[torch.Tensor]) -> Callable[..., None]:
        return lambda _module, inputs: calls.append(inputs[0])

    with ExitStack() as hooks, torch.no_grad():
        for name, layer in layers.items():
            hooks.enter_context(layer.register_forward_pre_hook(record(given[name])))
        return given, [model(batch) for batch in batches]
