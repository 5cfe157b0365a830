"""Smaller dense networks from masks: units that nothing reads are removed."""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hyperribbon.core import ArgumentError, Mask
from hyperribbon.core.checks import check_choice, check_fraction, mapping, torch_module, validate
from hyperribbon.core.parameters import check_mask
from hyperribbon.core.result import Brief
from hyperribbon.core.states import header_size
from hyperribbon.operators.risk.batches import tensors
from hyperribbon.operators.risk.forward import call
from hyperribbon.subnetworks.operations import prune
from hyperribbon.subnetworks.states import State, layer_of, state_of
from hyperribbon.subnetworks.units import Units, find_units

SHARES = ("units", "parameters", "file")
"""What a fraction of the channels and heads may be a share of."""

_SAME = 1e-4  # by how much outputs may differ, relative to the largest


@dataclass(frozen=True)
class UnitRanking(Brief):
    """A ranking of units, from which masks of any size are taken.

    The last unit of every family (the channels of one layer) is never selected.

    Attributes:
        model: The network.
        units: Its units.
        order: Those ranked, first selected first; the last of every family at the end.
        scores: Their scores.
    """

    model: nn.Module
    units: Units
    order: tuple[int, ...]
    scores: Mapping[int, float]

    @property
    def size(self) -> int:
        """Number of ranked channels, neurons or heads by which a network can shrink."""
        return len(self.order)

    def select(self, fraction: float, of: str = "units") -> Mask:
        """Return the entries of the first units to shrink by.

        Args:
            fraction: Share of the units; or, with of="parameters" or "file", the share of the
                model's parameters or of its file that `shrink` removes with them, at least.
            of: "units", "parameters" or "file".

        Raises:
            ArgumentError: All units that can be removed hold less.
        """
        check_choice("of", of, SHARES)
        most = self.size - len({self.units.families[unit] for unit in self.order})
        count = int(check_fraction("fraction", fraction) * self.size + 0.5)
        if of != "units":
            left = self._left(of)
            goal = (1 - fraction) * left(0)
            if left(most) > goal:
                share = 1 - left(most) / left(0)
                what = "parameters" if of == "parameters" else "bytes of the file"
                reason = f"the units that can be removed hold {share:.1%} of the {what}"
                raise ArgumentError("fraction", fraction, reason, f"Give at most {share:.3f}.")
            count = bisect_left(range(most + 1), -goal, key=lambda count: -left(count))
        return self.units.mask(self.model, self.order[: min(count, most)])

    def _left(self, of: str) -> Callable[[int], int]:
        """Return the function: units removed -> what shrinking leaves, parameters or file bytes."""
        if of == "parameters":
            tensors, fixed = dict(self.model.named_parameters()), 0
            sizes = dict.fromkeys(tensors, 1)
        else:
            tensors = self.model.state_dict()
            sizes, fixed = {n: t.element_size() for n, t in tensors.items()}, header_size(tensors)

        def left(count: int) -> int:
            found = self.units.entries_left(tensors, self.order[:count])
            return fixed + sum(sizes[name] * number for name, number in found.items())

        return left


@validate(mask=mapping)
def shrink(model: nn.Module, mask: Mask | State, inputs: Any = None) -> nn.Module:
    """Return the network after shrinking: smaller, with the outputs of the masked one.

    Every channel, neuron and attention head that nothing reads any more (all entries that read it
    are masked or zero) is removed, with its weights, biases and normalisation. The result is a
    copy of the same class with smaller layers; `nn.MultiheadAttention` that loses heads becomes
    `PrunedAttention`. Masks of `select(granularity="channel")` remove whole units; a mask of single
    weights removes the few that have lost all their connections. See `find_units` for what is
    understood; all else stays whole.

    Args:
        model: The network; it stays as it is.
        mask: The entries to remove; or the state dict of a smaller network of this architecture, as
            it was saved, which is put into a network of its sizes.
        inputs: A batch to compare the outputs of both on, in evaluation mode.

    Raises:
        ArgumentError: Nothing can be removed, the mask is of another model, or the outputs differ.

    >>> net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> from hyperribbon.subnetworks import select
    >>> shrink(net, select(net, fraction=0.5, granularity="channel"))
    Sequential(
      (0): Linear(in_features=3, out_features=4, bias=True)
      (1): ReLU()
      (2): Linear(in_features=4, out_features=2, bias=True)
    )
    """
    torch_module("model", model)
    pruned_by_torch = [name for name, _ in model.named_buffers() if name.endswith("_mask")]
    if any(f"{n.removesuffix('_mask')}_orig" in model.state_dict() for n in pruned_by_torch):
        remedy = "Call torch.nn.utils.prune.remove, or shrink a fresh model that has the weights."
        reason = "torch.nn.utils.prune holds its weights"
        raise ArgumentError("model", type(model).__name__, reason, remedy)
    if isinstance(mask, Mapping) and not isinstance(mask, Mask):
        return _resize(model, state_of("mask", mask), "mask")
    state = state_of("model", model)
    check_mask(mask, state, "model")
    masked = prune(state, mask)
    units = find_units(model)
    gone = _sparing(units, units.dead(masked))
    if not gone:
        reason = "no channel, neuron or head that can be removed has lost all that reads it"
        remedy = "Select with granularity='channel' or 'head'; see subnetworks.find_units(model)."
        raise ArgumentError("mask", mask, reason, remedy)
    small = dict(masked)
    lost = torch.tensor(sorted(gone), dtype=torch.long, device="cpu")
    for axis in units.axes:
        keep = (~torch.isin(axis.labels, lost)).nonzero().squeeze(1)
        tensor = small[axis.name]
        small[axis.name] = tensor.index_select(axis.axis, keep.to(tensor.device))
    result = _resize(model, small, "mask")
    if inputs is not None:
        _compare(model, masked, result, inputs)
    return result


def _sparing(units: Units, dead: set[int]) -> set[int]:
    """Return the dead units to shrink by, but one of each axis that would lose all."""
    for axis in units.axes:
        present = set(axis.labels.tolist())
        if present and 0 not in present and present <= dead:
            dead = dead - {min(present)}
    return dead


def _resize(model: nn.Module, state: State, argument: str) -> nn.Module:
    """Return a copy of a model in shrinking, with tensors of other sizes."""
    result = copy.deepcopy(model)
    own = dict(result.state_dict(keep_vars=True))
    if own.keys() != state.keys():
        reason = f"the model has other tensors, such as {sorted(own.keys() ^ state.keys())[:3]}"
        remedy = "Give the state dict of a smaller network of this architecture."
        raise ArgumentError(argument, list(state)[:3], reason, remedy)
    changed = {layer_of(name) for name, t in own.items() if t.shape != state[name].shape}
    for path in sorted({layer_of(p) if p.endswith("out_proj") else p for p in changed}):
        layer = result.get_submodule(path)
        if isinstance(layer, nn.MultiheadAttention):
            result.set_submodule(path, PrunedAttention(layer, state[f"{path}.in_proj_weight"]))
    for name, tensor in state.items():
        layer = result.get_submodule(layer_of(name))
        short, value = name.rpartition(".")[2], tensor.detach().clone().to(own[name])
        if short in layer._parameters:
            layer._parameters[short] = nn.Parameter(value, own[name].requires_grad)
        else:
            layer._buffers[short] = value
    _retie(model, result)
    for path in changed:
        _describe(result.get_submodule(path))
    return result


def _retie(model: nn.Module, result: nn.Module) -> None:
    """Share after shrinking the tensors that the model's layers share."""
    first: dict[int, str] = {}
    for name, tensor in model.named_parameters(remove_duplicate=False):
        source = first.setdefault(id(tensor), name)
        if source != name:
            shared = result.get_submodule(layer_of(source))._parameters[source.rpartition(".")[2]]
            result.get_submodule(layer_of(name))._parameters[name.rpartition(".")[2]] = shared


def _describe(layer: nn.Module) -> None:
    """Let a layer's sizes after shrinking be those of its tensors."""
    weight: Any = getattr(layer, "weight", None)
    if isinstance(layer, nn.Linear):
        layer.out_features, layer.in_features = weight.shape
    elif isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        layer.out_channels = weight.shape[0]
        if layer.groups > 1:
            layer.groups = weight.shape[0]
        layer.in_channels = weight.shape[1] * layer.groups
    elif isinstance(layer, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d):
        layer.in_channels, layer.out_channels = weight.shape[:2]
    elif hasattr(layer, "num_features"):
        mean = layer._buffers.get("running_mean")
        layer.num_features = len(weight if weight is not None else mean)  # type: ignore[arg-type, assignment]
    elif type(layer).__name__ == "Conv1D":
        layer.nf = weight.shape[1]


@torch.no_grad()
def _compare(model: nn.Module, masked: State, small: nn.Module, inputs: Any) -> None:
    whole = copy.deepcopy(model)
    whole.load_state_dict(masked)
    expected, found = (
        tensors(call(network.eval(), inputs)[0]) for network in (whole, copy.deepcopy(small))
    )
    for one, other in zip(expected, found, strict=True):
        if not one.numel():
            raise ArgumentError("inputs", inputs, "it is empty", "Give at least one sample.")
        gap = float((one.double() - other.double()).abs().max())
        scale = float(one.double().abs().max())
        if not gap <= _SAME * max(scale, 1e-30):
            reason = f"its outputs differ from those of the masked model by {gap:.2g}"
            remedy = "Its forward pass uses sizes or layers in a way that was not understood."
            raise ArgumentError("model", type(model).__name__, reason, remedy)


class PrunedAttention(nn.Module):
    """`nn.MultiheadAttention` with fewer heads than its inputs are wide.

    Args:
        attention: The layer it replaces; options are taken from it.
        in_proj_weight: (3·heads·head_dim, embed_dim), the weights of the heads that are left.
    """

    def __init__(self, attention: nn.MultiheadAttention, in_proj_weight: torch.Tensor) -> None:
        super().__init__()
        self.embed_dim: int = attention.embed_dim
        self.head_dim: int = attention.head_dim
        self.num_heads: int = len(in_proj_weight) // (3 * self.head_dim)
        self.batch_first, self.dropout = attention.batch_first, attention.dropout
        self._qkv_same_embed_dim = False  # torch's fused kernel expects all heads
        width = self.num_heads * self.head_dim
        like: dict[str, Any] = {"device": in_proj_weight.device, "dtype": in_proj_weight.dtype}
        self.in_proj_weight = nn.Parameter(torch.empty_like(in_proj_weight))
        has_bias = attention.in_proj_bias is not None
        self.in_proj_bias = nn.Parameter(torch.empty(3 * width, **like)) if has_bias else None
        has_bias = attention.out_proj.bias is not None
        self.out_proj = nn.utils.skip_init(nn.Linear, width, self.embed_dim, has_bias, **like)
        self.train(attention.training)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend with the shrunken heads as `nn.MultiheadAttention` does."""
        is_single = query.ndim == 2
        given = [t.unsqueeze(1) if is_single else t for t in (query, key, value)]
        if self.batch_first and not is_single:
            given = [t.transpose(0, 1) for t in given]
        weights = self.in_proj_weight.chunk(3)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        length, count = given[0].shape[:2]
        q, k, v = (
            F.linear(t, w, b).unflatten(-1, (self.num_heads, self.head_dim)).permute(1, 2, 0, 3)
            for t, w, b in zip(given, weights, biases, strict=True)
        )
        scores = q @ k.transpose(-1, -2) / self.head_dim**0.5
        if attn_mask is not None:
            own = attn_mask.unflatten(0, (count, -1)) if attn_mask.ndim == 3 else attn_mask
            if own.ndim == 4 and own.shape[1] != self.num_heads:
                raise ArgumentError(
                    "attn_mask",
                    tuple(attn_mask.shape),
                    "a mask for every head does not fit a layer that has lost heads",
                    "Give a mask of shape (L, S).",
                )
            scores = scores + _additive(own, scores)
        if key_padding_mask is not None:
            padding = key_padding_mask.reshape(count, 1, 1, -1)
            scores = scores + _additive(padding, scores)
        shares = F.dropout(scores.softmax(-1), self.dropout, self.training)
        heads = (shares @ v).permute(2, 0, 1, 3).reshape(length, count, -1)
        output = self.out_proj(heads)
        if is_single:
            output, shares = output.squeeze(1), shares.squeeze(0)
        elif self.batch_first:
            output = output.transpose(0, 1)
        if not need_weights:
            return output, None
        return output, shares.mean(-3) if average_attn_weights else shares


def _additive(mask: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a mask for shrunken attention as numbers to add: −∞ where a boolean one is True."""
    if mask.dtype != torch.bool:
        return mask.to(like)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, float("-inf"))
