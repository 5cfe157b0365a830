"""States of a network: which entries are weights, and whether two states belong together."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

import torch
from torch import nn

from hyperribbon.core import ArgumentError, Mask, ParameterFilter
from hyperribbon.core.checks import check_choice

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
        raise ArgumentError(
            argument,
            source,
            "it is neither a module nor a state dict",
            "Give the model, model.state_dict(), or the weights of a Trajectory.",
        )
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
            raise ArgumentError(
                "initial",
                list(initial),
                f"it has no parameter {name!r}, which the final state has",
                "Give the initial state of the same architecture.",
            )
        if initial[name].shape != final[name].shape:
            raise ArgumentError(
                "initial",
                tuple(initial[name].shape),
                f"parameter {name!r} has shape {tuple(final[name].shape)} in the final state",
                "Give the initial state of the same architecture.",
            )


def check_mask(mask: Mask, state: State) -> None:
    """Raise unless the mask's names and shapes fit the state."""
    if not isinstance(mask, Mask):
        raise ArgumentError(
            "mask", mask, "it is not a Mask", "Build one with hr.Mask or hr.select."
        )
    for name, entry in mask.items():
        if name not in state:
            raise ArgumentError(
                "mask", name, "the state has no parameter of that name", _names_of(state)
            )
        if entry.shape != state[name].shape:
            raise ArgumentError(
                "mask",
                tuple(entry.shape),
                f"parameter {name!r} has shape {tuple(state[name].shape)}",
                "Build the mask from a state of this architecture.",
            )


def eligible_names(
    source: nn.Module | State, include: str = "weights", params: ParameterFilter = None
) -> list[str]:
    """Return the names of the parameters that may be selected, in the state's order.

    Args:
        source: A module (its parameters are known exactly) or a state dict (every floating-point
            entry but the running statistics of normalisation layers). Tied parameters count once,
            under their first name.
        include: "weights" for tensors of two or more dimensions; "all" for biases and the scales
            of normalisation layers too.
        params: A name pattern such as "layers.0.*" or a predicate on (name, tensor), which choose
            among those; or a list of exact names, which may name anything.

    Raises:
        ArgumentError: Nothing is chosen, or a name does not exist.
    """
    check_choice("include", include, ("weights", "all"))
    state = state_of("final", source)
    if isinstance(source, nn.Module):
        owned = {name.removesuffix("_orig") for name, _ in source.named_parameters()}
    else:
        firsts = {group[0] for group in aliases_of(state).values()}
        owned = {name for name in firsts if name.rpartition(".")[2] not in _STATISTICS}
    eligible = {
        name: tensor
        for name, tensor in state.items()
        if name in owned and tensor.is_floating_point() and (include == "all" or tensor.ndim >= 2)
    }
    if params is None:
        chosen = list(eligible)
    elif isinstance(params, str):
        chosen = [name for name in eligible if fnmatchcase(name, params)]
    elif callable(params):
        chosen = [name for name, tensor in eligible.items() if params(name, tensor)]
    else:
        wanted = list(params)
        unknown = [name for name in wanted if name not in state]
        if unknown:
            raise ArgumentError(
                "params", unknown, "the state has no parameter of that name", _names_of(state)
            )
        chosen = [name for name in state if name in set(wanted)]
    if not chosen:
        raise ArgumentError("params", params, "it chooses no parameter", _names_of(state))
    return chosen


def layer_of(name: str) -> str:
    """Return the module that owns a parameter: "layers.0" for "layers.0.weight"."""
    return name.rpartition(".")[0]


def aliases_of(state: State) -> dict[str, list[str]]:
    """Return, for every entry, the names of the entries that share its memory, itself included.

    Tied parameters appear under several names in a state dict; changing one must change all.
    """
    groups: dict[tuple, list[str]] = {}
    for name, tensor in state.items():
        key = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.shape)
        groups.setdefault(key if tensor.numel() else (name,), []).append(name)
    return {name: group for group in groups.values() for name in group}


def _names_of(state: State, limit: int = 12) -> str:
    names = list(state)
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return f"It has: {', '.join(names[:limit])}{rest}."
