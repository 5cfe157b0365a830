"""Network states: which entries are weights, and whether two states match."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from hyperribbon.core import ArgumentError, ParameterFilter, checks
from hyperribbon.core.checks import check_choice, check_readable, check_shape, validate
from hyperribbon.core.parameters import choose_names, listing, omitted_of_state

State = Mapping[str, torch.Tensor]


def state_of(argument: str, source: nn.Module | State | None) -> dict[str, torch.Tensor]:
    """Return the state of a module or a state dict: named tensors without gradients.

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
        isinstance(name, str) and isinstance(tensor, torch.Tensor)
        for name, tensor in source.items()
    ):
        remedy = "Give the model, model.state_dict(), or the weights of a Trajectory."
        raise ArgumentError(argument, source, "expected a module or a state dict", remedy)
    state = {}
    for name, tensor in source.items():
        check_readable(f"{argument}[{name!r}]", tensor)
        if name.endswith("_orig") and name[: -len("_orig")] + "_mask" in source:
            base = name[: -len("_orig")]
            kept = source[base + "_mask"]
            check_readable(f"{argument}[{base + '_mask'!r}]", kept)
            check_shape(
                f"{argument}[{base + '_mask'!r}]", kept, tuple(tensor.shape), "it is pruned"
            )
            state[base] = (tensor * source[base + "_mask"]).detach()
        elif not (name.endswith("_mask") and name[: -len("_mask")] + "_orig" in source):
            state[name] = tensor.detach()
    return state


def check_same_architecture(final: State, initial: State, names: list[str]) -> None:
    """Raise unless the state `initial` has tensors of the same shapes for `names`."""
    for name in names:
        if name not in initial:
            reason = f"it has no parameter {name!r}, which the final state has"
            remedy = "Give the initial state of the same architecture."
            raise ArgumentError("initial", list(initial), reason, remedy)
        if initial[name].shape != final[name].shape:
            reason = f"parameter {name!r} has shape {tuple(final[name].shape)} in the final state"
            remedy = "Give the initial state of the same architecture."
            raise ArgumentError("initial", tuple(initial[name].shape), reason, remedy)


@validate()
def eligible_names(
    source: nn.Module | State,
    include: str = "weights",
    params: ParameterFilter = None,
    *,
    model: nn.Module | None = None,
    initial: nn.Module | State | None = None,
    frozen: bool = False,
) -> list[str]:
    """Return the names in a state that may be selected, in the state's order.

    A module knows which of its tensors are trained; a state dict does not. For a state dict, these
    are omitted: statistics of normalisation layers, copies of other tensors (tied parameters),
    masks (zeros and ones, or infinities) and, if the initial state is given, unchanged tensors.

    Args:
        source: A module or a state dict. Tied parameters count once, under their first name.
        include: "weights" for tensors of two or more dimensions; "all" for biases and the scales
            of normalisation layers too.
        params: A name pattern such as "layers.0.*" or a predicate on (name, tensor), which choose
            among those; or a list of exact names, which may name anything.
        model: The module that a state dict belongs to.
        initial: The initial state.
        frozen: Whether parameters that are not trained count too.

    Raises:
        ArgumentError: Nothing is selected, or a name does not exist.
    """
    check_choice("include", include, ("weights", "all"))
    state = state_of("source", source)
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
    chosen = choose_names(params, state, eligible)
    if not chosen:
        raise ArgumentError(
            "params", params, "it chooses no parameter", f"It has: {listing(state)}."
        )
    return chosen


def _trained_of_module(module: nn.Module, frozen: bool) -> set[str]:
    """Return the parameters of a module's state that require gradients, or all."""
    parameters = dict(checks.torch_module("model", module).named_parameters())
    trained = [name for name, parameter in parameters.items() if parameter.requires_grad]
    chosen = parameters if frozen else trained or parameters
    return {name.removesuffix("_orig") for name in chosen}


def _trained_of_state(
    source: nn.Module | State, state: State, initial: nn.Module | State | None, frozen: bool
) -> set[str]:
    """Return the entries of a state dict that may be trained parameters."""
    named = source if isinstance(source, Mapping) else {}
    kept = {name for name, tensor in named.items() if isinstance(tensor, nn.Parameter)}
    start = {} if initial is None else state_of("initial", initial)
    omitted = omitted_of_state(state, start if start.keys() >= state.keys() else None)
    owned = {
        name
        for name, tensor in state.items()
        if name not in omitted
        and (not kept or name in kept or f"{name}_orig" in kept)
        and not _is_mask(tensor)
    }
    if frozen or initial is None:
        return owned
    moved = {name for name in owned if name not in start or not _same(state[name], start[name])}
    return moved or owned


def _is_mask(tensor: torch.Tensor) -> bool:
    """Whether a tensor of a state is a mask: zeros and ones, or infinities."""
    if tensor.ndim < 2 or not tensor.is_floating_point() or not tensor.numel():
        return False
    zeros, ones = tensor == 0, tensor == 1
    either = bool((zeros | ones).all()) and bool(zeros.any()) and bool(ones.any())
    return either or bool(tensor.isinf().any())


def _same(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.shape == second.shape and torch.equal(first, second.to(first))


@validate(name=checks.text)
def layer_of(name: str) -> str:
    """Return the layer of a state's parameter: "layers.0" for "layers.0.weight"."""
    return name.rpartition(".")[0]
