"""Convert masks to and from `torch.nn.utils.prune`."""

from __future__ import annotations

from torch import nn
from torch.nn.utils import prune as torch_prune

from hyperribbon.core import ArgumentError, Mask
from hyperribbon.core.checks import validate
from hyperribbon.core.parameters import check_mask, copies_of
from hyperribbon.subnetworks.states import State, layer_of, state_of


@validate()
def from_torch_prune(source: nn.Module | State) -> Mask:
    """Return the entries that `torch.nn.utils.prune` has pruned.

    Args:
        source: A module with pruned parameters, or its state dict.

    Returns:
        The mask of the pruned entries (torch's masks hold 1 where an entry is kept).

    Raises:
        ArgumentError: Nothing has been pruned there.
    """
    state_of("source", source)
    named = source.state_dict() if isinstance(source, nn.Module) else source
    pruned = {
        name.removesuffix("_mask"): tensor == 0
        for name, tensor in named.items()
        if name.endswith("_mask") and name.removesuffix("_mask") + "_orig" in named
    }
    if not pruned:
        reason = "it has no masks of torch.nn.utils.prune"
        remedy = "Prune it first, or build a mask with hr.select."
        raise ArgumentError("source", list(named)[:5], reason, remedy)
    return Mask(pruned)


@validate()
def to_torch_prune(model: nn.Module, mask: Mask) -> nn.Module:
    """Install a mask in a model with `torch.nn.utils.prune`, in place.

    From then on the selected entries are zero in every forward pass and receive no gradient, so any
    training loop keeps the sub-network. `torch.nn.utils.prune.remove` makes it permanent.

    torch recomputes a pruned weight when its module is called. The output projection of
    `nn.MultiheadAttention` is never called, only read, so the attention module recomputes it.

    Args:
        model: The model to change.
        mask: The entries to prune; parameters without a selected entry are not changed. Tied
            parameters are pruned together.

    Returns:
        The same model.
    """
    state = state_of("model", model)
    check_mask(mask, state, "state")
    modules, aliases = dict(model.named_modules()), copies_of(state, by_values=False)
    for name, entry in mask.items():
        if not bool(entry.any()):
            continue
        keep = (~entry).to(state[name])
        for alias in aliases[name]:
            if alias == name or alias not in mask:
                module = modules[layer_of(alias)]
                torch_prune.custom_from_mask(module, alias.rpartition(".")[2], keep)
                owner = modules[layer_of(layer_of(alias))]
                if isinstance(owner, nn.MultiheadAttention) and module is owner.out_proj:
                    owner.register_forward_pre_hook(_renew_output_projection)
    return model


def _renew_output_projection(attention: nn.MultiheadAttention, inputs: object) -> None:
    for hook in attention.out_proj._forward_pre_hooks.values():
        if isinstance(hook, torch_prune.BasePruningMethod):
            hook(attention.out_proj, inputs)
