"""States of a network: which entries are weights, and whether two states belong together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from torch import nn

from hyperribbon.core import ArgumentError, ParameterFilter
from hyperribbon.core.boundary import checked, text
from hyperribbon.core.checks import check_choice
from hyperribbon.core.parameters import is_named, listed_names, listing

__all__ = ["State", "eligible_names", "layer_of", "state_of"]

State = Mapping[str, torch.Tensor]

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def state_of(argument: str, source: nn.Module | State | None) -> dict[str, torch.Tensor]:
    """Return named tensors of a module or a state dict, without gradients.

    Where `torch.nn.utils.prune` has replaced a parameter by `name_orig` and `name_mask`, their
    product appears as `name`, which is what the network computes with.

    Args:
        argument: Name to use in messages.
        source: A module or its state dict.

    Raises:
        ArgumentError: It is neither.
    """
    if isinstance(source, nn.Module):
        source = source.state_dict()
    if not isinstance(source, Mapping) or not all(
        isinstance(tensor, torch.Tensor) for tensor in source.values()
    ):
        remedy = "Give the model, model.state_dict(), or the weights of a Trajectory."
        raise ArgumentError(argument, source, "it is neither a module nor a state dict", remedy)
    state = {}
    for name, tensor in source.items():
        if name.endswith("_orig") and name[: -len("_orig")] + "_mask" in source:
            base = name[: -len("_orig")]
            state[base] = (tensor * source[base + "_mask"]).detach()
        elif not (name.endswith("_mask") and name[: -len("_mask")] + "_orig" in source):
            state[name] = tensor.detach()
    return state


def check_same_architecture(final: State, initial: State, names: list[str]) -> None:
    """Raise unless `initial` has a tensor of the same shape for each of `names`."""
    for name in names:
        if name not in initial:
            reason = f"it has no parameter {name!r}, which the final state has"
            remedy = "Give the initial state of the same architecture."
            raise ArgumentError("initial", list(initial), reason, remedy)
        if initial[name].shape != final[name].shape:
            reason = f"parameter {name!r} has shape {tuple(final[name].shape)} in the final state"
            remedy = "Give the initial state of the same architecture."
            raise ArgumentError("initial", tuple(initial[name].shape), reason, remedy)


def check_data(data: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets, if they are two tensors with one row per sample."""
    is_pair = isinstance(data, Iterable) and not isinstance(data, torch.Tensor | str | Mapping)
    pair = tuple(data) if is_pair else ()
    if len(pair) != 2 or not all(isinstance(part, torch.Tensor) and part.ndim for part in pair):
        raise ArgumentError(
            "data", data, "it is not a pair of tensors", "Give (inputs, targets), a row a sample."
        )
    inputs, targets = cast(tuple[torch.Tensor, torch.Tensor], pair)
    if len(inputs) != len(targets) or not len(targets):
        reason = "inputs and targets must be as many, and at least one"
        remedy = "Give a pair of tensors with one row a sample."
        raise ArgumentError("data", (len(inputs), len(targets)), reason, remedy)
    return inputs, targets


def check_module(argument: str, model: Any) -> nn.Module:
    """Return a model, if it is one."""
    if not isinstance(model, nn.Module):
        raise ArgumentError(argument, model, "it is not a torch.nn.Module", "Give the model.")
    return model


@checked()
def eligible_names(
    source: nn.Module | State,
    include: str = "weights",
    params: ParameterFilter = None,
    *,
    model: nn.Module | None = None,
    initial: nn.Module | State | None = None,
    frozen: bool = False,
) -> list[str]:
    """Return the names of the parameters that may be selected, in the state's order.

    A module knows which of its tensors are trained. A state dict does not say it: there the
    running statistics of normalisation layers, masks (tensors of zeros and ones, or with
    infinities) and, where the start is given, tensors that are still exactly there are left out.

    Args:
        source: A module or a state dict. Tied parameters count once, under their first name.
        include: "weights" for tensors of two or more dimensions; "all" for biases and the scales
            of normalisation layers too.
        params: A name pattern such as "layers.0.*" or a predicate on (name, tensor), which choose
            among those; or a list of exact names, which may name anything.
        model: The module that a state dict belongs to.
        initial: The start of the training.
        frozen: Whether parameters that are not trained count too.

    Raises:
        ArgumentError: Nothing is chosen, or a name does not exist.
    """
    check_choice("include", include, ("weights", "all"))
    state = state_of("final", source)
    module = source if isinstance(source, nn.Module) else model
    owned = (
        _trained_of_state(source, state, initial, frozen)
        if module is None
        else _trained_of_module(module, frozen)
    )
    eligible = {
        name: tensor
        for name, tensor in state.items()
        if name in owned and tensor.is_floating_point() and (include == "all" or tensor.ndim >= 2)
    }
    if params is None:
        chosen = list(eligible)
    elif isinstance(params, str):
        chosen = [name for name in eligible if is_named(name, params)]
    elif callable(params):
        chosen = [name for name, tensor in eligible.items() if params(name, tensor)]
    else:
        wanted = params if isinstance(params, Iterable) else [params]
        chosen = listed_names(wanted, state, eligible)
    if not chosen:
        raise ArgumentError(
            "params", params, "it chooses no parameter", f"It has: {listing(state)}."
        )
    return chosen


def _trained_of_module(module: nn.Module, frozen: bool) -> set[str]:
    """Return the parameters that require a gradient; all where none does, or frozen ones count."""
    parameters = dict(check_module("model", module).named_parameters())
    trained = [name for name, parameter in parameters.items() if parameter.requires_grad]
    chosen = parameters if frozen else trained or parameters
    return {name.removesuffix("_orig") for name in chosen}


def _trained_of_state(
    source: nn.Module | State, state: State, initial: nn.Module | State | None, frozen: bool
) -> set[str]:
    """Return what may be trained parameters of a state dict, as far as its tensors tell."""
    named = source if isinstance(source, Mapping) else {}
    kept = {name for name, tensor in named.items() if isinstance(tensor, nn.Parameter)}
    firsts = {group[0] for group in aliases_of(state).values()}
    owned = {
        name
        for name in firsts
        if name.rpartition(".")[2] not in _STATISTICS
        and (not kept or name in kept or f"{name}_orig" in kept)
        and not _is_mask(state[name])
    }
    if frozen or initial is None:
        return owned
    start = state_of("initial", initial)
    moved = {name for name in owned if name not in start or not _same(state[name], start[name])}
    return moved or owned


def _is_mask(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds zeros and ones, both, or infinities, as causal masks do."""
    if tensor.ndim < 2 or not tensor.is_floating_point() or not tensor.numel():
        return False
    zeros, ones = tensor == 0, tensor == 1
    either = bool((zeros | ones).all()) and bool(zeros.any()) and bool(ones.any())
    return either or bool(tensor.isinf().any())


def _same(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.shape == second.shape and torch.equal(first, second.to(first))


@checked(name=text)
def layer_of(name: str) -> str:
    """Return the module that owns a parameter: "layers.0" for "layers.0.weight"."""
    return name.rpartition(".")[0]


def aliases_of(state: State) -> dict[str, list[str]]:
    """Return, for every entry, the names of the entries that share its memory, itself included.

    Tied parameters appear under several names in a state dict; changing one must change all.

    Returns:
        By name, the names that share memory with it.
    """
    groups: dict[tuple, list[str]] = {}
    for name, tensor in state.items():
        key = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.shape)
        groups.setdefault(key if tensor.numel() else (name,), []).append(name)
    return {name: group for group in groups.values() for name in group}
