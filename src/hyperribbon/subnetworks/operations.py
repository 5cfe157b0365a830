"""Operations on selected entries: prune, re-initialise, or re-randomise."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn

from hyperribbon.core import ArgumentError, Mask, derive_seed, torch_generator
from hyperribbon.core.checks import check_finite, validate
from hyperribbon.core.parameters import check_mask, copies_of
from hyperribbon.subnetworks.states import (
    State,
    check_same_architecture,
    layer_of,
    state_of,
)

Initializer = Callable[[int], nn.Module | State] | nn.Module | State


@validate()
def prune(state: nn.Module | State, mask: Mask) -> dict[str, torch.Tensor]:
    """Return the operation's new state: selected entries set to zero.

    Args:
        state: A module or a state dict; it stays as it is.
        mask: The entries to remove.

    Returns:
        A state dict for `load_state_dict`; entries of other parameters and buffers are copies.
        Tied parameters (several names, one memory) change together; in a state dict, which may come
        from a file, equal values count as tied.

    >>> mask = Mask({"weight": torch.tensor([True, False])})
    >>> prune({"weight": torch.tensor([1.0, 2.0])}, mask)["weight"]
    tensor([0., 2.])
    """
    source, state = state, state_of("state", state)
    _check_finite("state", state, mask)
    return _replace(source, state, mask, lambda name: torch.zeros_like(state[name]))


@validate()
def reinitialize(
    final: nn.Module | State, initial: nn.Module | State, mask: Mask
) -> dict[str, torch.Tensor]:
    """Return the operation's new state: selected entries reset to their initial values.

    Implements Algorithm 1 of [subnetworks] for the entries that `mask` selects.

    Args:
        final: The trained network: a module or a state dict; it stays as it is.
        initial: The initial state.
        mask: The entries to reset.

    Raises:
        ArgumentError: The states or the mask belong to different architectures.
    """
    if initial is None:
        remedy = "Keep copy.deepcopy(model.state_dict()) before training, or use rerandomize."
        raise ArgumentError("initial", None, "re-initialising needs the initial state", remedy)
    source, final, start = final, state_of("final", final), state_of("initial", initial)
    check_mask(mask, final, "state")
    check_same_architecture(final, start, list(mask))
    _check_finite("final", final, mask)
    _check_finite("initial", start, mask)
    return _replace(source, final, mask, lambda name: start[name].to(final[name]))


@validate()
def rerandomize(
    final: nn.Module | State, mask: Mask, initializer: Initializer, *, seed: int = 0
) -> dict[str, torch.Tensor]:
    """Return the operation's new state: selected entries redrawn from the initialiser.

    Raises an ArgumentError when the mask does not match, or a layer cannot draw new values.

    Args:
        final: The trained network: a module or a state dict; it stays as it is.
        mask: The entries to redraw.
        initializer: Where new values come from. A function of a seed that builds a fresh
            module or state (torch's own initialisers follow the seed too, so `lambda seed: Net()`
            will do); a module, whose layers' own `reset_parameters` are used on a copy; or
            the initial state, whose entries are shuffled within each parameter, which is a draw
            from the same distribution when its entries are i.i.d.
        seed: Seed of the draw. The global random state is not touched.
    """
    state = state_of("final", final)
    check_mask(mask, state, "state")
    fresh = redraw(initializer, seed=seed, names=list(mask))
    check_same_architecture(state, fresh, list(mask))
    _check_finite("final", state, mask)
    _check_finite("initializer", fresh, mask)
    return _replace(final, state, mask, lambda name: fresh[name].to(state[name]))


@validate()
def redraw(
    initializer: Initializer, *, seed: int = 0, names: list[str] | None = None
) -> dict[str, torch.Tensor]:
    """Return a newly drawn initial state, for operations on sub-networks.

    Args:
        initializer: Function, module or initial state.
        seed: Seed of the draw.
        names: The parameters that must be redrawn (by default all of the module's).
    """
    if isinstance(initializer, nn.Module):
        fresh = copy.deepcopy(initializer)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive_seed(seed, "redraw"))
            _reset(fresh, names)
        return state_of("initializer", fresh)
    if callable(initializer):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive_seed(seed, "redraw"))
            return state_of("initializer(seed)", initializer(seed))
    generator = torch_generator(seed, "redraw")
    fresh = {}
    for name, tensor in state_of("initializer", initializer).items():
        shuffled = torch.randperm(tensor.numel(), generator=generator, device="cpu").to(
            tensor.device
        )
        fresh[name] = tensor.reshape(-1)[shuffled].reshape(tensor.shape)
    return fresh


def _check_finite(argument: str, state: State, mask: Mask) -> None:
    """Raise if a parameter on which an operation acts is not finite."""
    check_mask(mask, state, "state")
    for name in mask:
        check_finite(f"{argument}[{name!r}]", state[name])


def _reset(model: nn.Module, names: list[str] | None) -> None:
    wanted = [name for name, _ in model.named_parameters()] if names is None else names
    # Children first: a container such as MultiheadAttention overrides what its children drew.
    for module_name, module in reversed(list(model.named_modules())):
        reset = getattr(module, "reset_parameters", None) or getattr(
            module, "_reset_parameters", None
        )
        owned = [name for name in wanted if layer_of(name) == module_name]
        if callable(reset):
            reset()
        elif owned:
            reason = f"it owns {owned} but has no reset_parameters"
            remedy = "Give a function that builds a freshly initialised model."
            raise ArgumentError("initializer", type(module).__name__, reason, remedy)


def _replace(
    source: nn.Module | State, state: State, mask: Mask, value: Callable[[str], torch.Tensor]
) -> dict[str, torch.Tensor]:
    check_mask(mask, state, "state")
    aliases = copies_of(state, by_values=not isinstance(source, nn.Module))
    new = {name: tensor.clone() for name, tensor in state.items() if name not in mask}
    for name, entry in mask.items():
        replaced = torch.where(entry.to(state[name].device), value(name), state[name])
        for alias in aliases[name]:
            if alias == name or alias not in mask:
                new[alias] = replaced
    return {name: new[name] for name in state}
