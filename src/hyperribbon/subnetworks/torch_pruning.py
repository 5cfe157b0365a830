"""Masks to and from `torch.nn.utils.prune`, which keeps `name_orig` and `name_mask`."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import prune as torch_prune

from hyperribbon.core import ArgumentError, Mask
from hyperribbon.subnetworks.states import State, check_mask, layer_of, state_of

__all__ = ["from_torch_prune", "to_torch_prune"]


def from_torch_prune(source: nn.Module | State) -> Mask:
    """Return the entries that `torch.nn.utils.prune` has pruned.

    Args:
        source: A module with pruned parameters, or its state dict.

    Returns:
        The mask of the pruned entries (torch's masks hold 1 where an entry is kept).

    Raises:
        ArgumentError: Nothing has been pruned there.
    """
    named = source.state_dict() if isinstance(source, nn.Module) else source
    pruned = {
        name.removesuffix("_mask"): tensor == 0
        for name, tensor in named.items()
        if name.endswith("_mask") and name.removesuffix("_mask") + "_orig" in named
    }
    if not pruned:
        raise ArgumentError(
            "source",
            list(named)[:5],
            "it holds no masks of torch.nn.utils.prune",
            "Prune it first, or build a mask with hr.select.",
        )
    return Mask(pruned)


def to_torch_prune(model: nn.Module, mask: Mask) -> nn.Module:
    """Install a mask in a model with `torch.nn.utils.prune`, in place.

    From then on the selected entries are zero in every forward pass and receive no gradient, so any
    training loop keeps the sub-network. `torch.nn.utils.prune.remove` makes it permanent.

    Args:
        model: The model to change.
        mask: The entries to prune; parameters without a selected entry are left alone.

    Returns:
        The same model.
    """
    check_mask(mask, state_of("model", model))
    modules = dict(model.named_modules())
    for name, entry in mask.items():
        if bool(entry.any()):
            keep = (~entry).to(torch.get_default_dtype())
            torch_prune.custom_from_mask(modules[layer_of(name)], name.rpartition(".")[2], keep)
    return model
