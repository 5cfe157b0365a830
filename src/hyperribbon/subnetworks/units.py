"""Units of a network that can be removed whole: channels, neurons and attention heads.

A unit is a channel, a neuron or a head together with every entry of the weights that belongs to it:
the rows that compute it, its normalisation, and the columns that read it. Which entries these are
follows from the graph of the forward pass (torch.fx), traced without data. What the graph has that
is not known here keeps the units that reach it whole.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import fx, nn

from hyperribbon.core import Mask
from hyperribbon.core.checks import torch_module, validate
from hyperribbon.subnetworks.states import layer_of

_ELEMENTWISE = frozenset(
    # the functions and methods of one tensor that treat every entry alone
    """relu relu_ relu6 gelu silu tanh sigmoid leaky_relu elu selu celu mish hardswish hardtanh
    hardsigmoid softplus softsign logsigmoid dropout dropout1d dropout2d dropout3d alpha_dropout
    abs neg exp sqrt square pow clamp clip erf sin cos contiguous clone detach float half double
    to type""".split()  # noqa: SIM905
)
_BINARY = frozenset(
    """add iadd add_ mul imul mul_ sub isub sub_ div truediv itruediv maximum
    minimum""".split()  # noqa: SIM905
)
_POOLS = frozenset(
    f"{adaptive}{kind}_pool{dimension}d"
    for adaptive in ("", "adaptive_")
    for kind in ("max", "avg")
    for dimension in (1, 2, 3)
) | {"interpolate"}
_REDUCTIONS = frozenset({"mean", "sum", "amax", "amin"})
_PROPERTIES = frozenset({"dim", "ndim", "dtype", "device", "is_cuda"})
_SIZED = frozenset("view reshape unflatten split chunk tensor_split unbind".split())  # noqa: SIM905
_ACTIVATIONS = (
    nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.LeakyReLU, nn.ELU, nn.SELU,
    nn.CELU, nn.Mish, nn.Hardswish, nn.Hardtanh, nn.Hardsigmoid, nn.Softplus, nn.Softsign,
    nn.LogSigmoid, nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d,
    nn.AlphaDropout,
)  # fmt: skip
_POOL_LAYERS = (
    nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d,
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool1d,
    nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d, nn.Upsample, nn.ZeroPad2d,
)  # fmt: skip
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_PER_CHANNEL = (
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm,
    nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d,
)  # fmt: skip
_BLOCKS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
KINDS = {"channel": "channels", "head": "heads", "unit": "units"}


@dataclass(frozen=True)
class Axis:
    """The units along one axis of a parameter or buffer.

    Attributes:
        name: Of the tensor.
        axis: Which axis.
        labels: (n,) the unit of every index; 0 for those that stay.
        reads: Whether the axis reads units (columns of the next layer), or makes them.
    """

    name: str
    axis: int
    labels: torch.Tensor
    reads: bool


@dataclass(frozen=True)
class Units:
    """What can be removed from a network.

    Attributes:
        axes: Where the units are.
        heads: The units that are attention heads; all others are channels or neurons.
        whole: Layers that stay as they are, with the reason.
    """

    axes: tuple[Axis, ...]
    heads: frozenset[int]
    whole: dict[str, str]

    def __repr__(self) -> str:
        """Show how many removable units a network has: channels, neurons and heads."""
        channels, heads = len(self.of_kind("channel")), len(self.heads)
        return f"Units({channels} channels, {heads} heads, {len(self.whole)} layers left whole)"

    def of_kind(self, kind: str) -> list[int]:
        """Return the units of a kind: channels (and neurons), heads, or all."""
        wanted = {"channel": (False,), "head": (True,), "unit": (False, True)}[kind]
        return [unit for unit in self.families if (unit in self.heads) in wanted]

    def entries_left(
        self, tensors: Mapping[str, torch.Tensor], gone: Iterable[int]
    ) -> dict[str, int]:
        """Return the number of entries of each tensor that are left without some units."""
        lost = torch.tensor(sorted(gone), dtype=torch.long, device="cpu")
        sizes = {name: list(tensor.shape) for name, tensor in tensors.items()}
        for axis in self.axes:
            if axis.name in sizes:
                sizes[axis.name][axis.axis] = int((~torch.isin(axis.labels, lost)).sum())
        return {name: prod(shape) for name, shape in sizes.items()}

    @cached_property
    def families(self) -> dict[int, tuple[tuple[str, int], ...]]:
        """The axes that each unit is on: units of one family lie on the same ones."""
        found: dict[int, list[tuple[str, int]]] = {}
        for axis in self.axes:
            for unit in axis.labels.unique().tolist():
                if unit:
                    found.setdefault(unit, []).append((axis.name, axis.axis))
        return {unit: tuple(places) for unit, places in sorted(found.items())}

    def mask(self, model: nn.Module, chosen: Iterable[int]) -> Mask:
        """Return the mask of all entries of some units, over the parameters that have units."""
        units = torch.tensor(sorted(chosen), dtype=torch.long, device="cpu")
        parameters = dict(model.named_parameters())
        entries: dict[str, torch.Tensor] = {}
        for axis in self.axes:
            if axis.name not in parameters or not bool(axis.labels.any()):
                continue
            empty = torch.zeros(parameters[axis.name].shape, dtype=torch.bool, device="cpu")
            entry = entries.setdefault(axis.name, empty)
            entry.movedim(axis.axis, 0)[torch.isin(axis.labels, units)] = True
        return Mask(entries)

    def scores(self, entries: dict[str, torch.Tensor], *, is_size: bool) -> dict[int, float]:
        """Return a score of every unit from scores of its entries.

        Args:
            entries: Scores by parameter name.
            is_size: Whether they are sizes of weights: the score is then their root mean square,
                divided by its mean over the family. Else it is their sum, the effect on the loss.
        """
        count = 1 + max(self.families, default=0)
        sums, numbers = (torch.zeros(count, dtype=torch.float64, device="cpu") for _ in range(2))
        for axis in self.axes:
            if axis.name not in entries:
                continue
            own = (
                entries[axis.name]
                .double()
                .cpu()
                .movedim(axis.axis, 0)
                .reshape(len(axis.labels), -1)
            )
            sums.index_add_(0, axis.labels, (own.square() if is_size else own).sum(1))
            numbers.index_add_(0, axis.labels, torch.full_like(sums[axis.labels], own.shape[1]))
        if not is_size:
            return {unit: float(sums[unit]) for unit in self.families}
        sizes = (sums / numbers.clamp(min=1)).sqrt()
        members: dict[Any, list[int]] = {}
        for unit, family in self.families.items():
            members.setdefault(family, []).append(unit)
        means = {family: float(sizes[own].mean()) for family, own in members.items()}
        return {u: float(sizes[u]) / (means[f] or 1.0) for u, f in self.families.items()}

    def dead(self, state: dict[str, torch.Tensor]) -> set[int]:
        """Return the units that nothing reads: every entry that reads them is zero."""
        alive: set[int] = set()
        for axis in self.axes:
            if axis.reads and axis.name in state:
                used = state[axis.name].movedim(axis.axis, 0).reshape(len(axis.labels), -1)
                alive |= set(axis.labels[(used != 0).any(1).cpu()].tolist())
        return set(self.families) - alive


@validate()
def find_units(model: nn.Module) -> Units:
    """Find the units (channels, neurons, attention heads) that can be removed from a network.

    Known are linear layers and convolutions (plain and depthwise), batch and instance norm,
    activations, dropout, pooling, flattening, sums, products and concatenations of branches,
    `nn.MultiheadAttention` (heads) and torch's transformer layers. A module whose forward pass
    torch.fx cannot trace is taken apart: the modules inside it are traced one by one, their inputs
    and outputs left whole.

    Args:
        model: Any module; it is not called.

    Returns:
        The units, and the layers that stay whole with the reason.
    """
    found = _Finder(torch_module("model", model))
    found.visit(model, "")
    return found.units()


@dataclass
class _Value:
    """A tensor in the graph: the units along its channel axis; None where they are not known."""

    labels: torch.Tensor | None = None
    axis: int = -1
    flat: str = ""  # "inner" or "outer": the axis was joined with others, unit by unit or around
    rank: int = 0  # where it is known
    is_shape: bool = False  # whether it is the shape of that tensor

    def counts_units(self, index: Any) -> bool:
        """Return whether an entry of the shape, or a slice of it, may be the number of units."""
        if self.labels is None:
            return False
        if not self.rank or not isinstance(index, int | slice):
            return index != 0
        chosen = range(self.rank)[index]
        return self.axis % self.rank in ([chosen] if isinstance(chosen, int) else chosen)


_UNKNOWN = _Value()
_BATCH = object()
"""The number of samples, as a size."""


class _Finder:
    """Follows units through graphs; units that meet something unknown are joined with unit 0."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._parents = [0]
        self._axes: dict[tuple[int, int, bool], tuple[str, torch.Tensor]] = {}
        self._why: dict[int, str] = {}
        self._heads: set[int] = set()
        self._whole: dict[str, str] = {}
        self._seen: set[int] = set()
        self._graphs: dict[int, fx.Graph] = {}
        self._direct: set[str] = set()  # parameters that a forward pass reads by itself
        names: dict[int, list[str]] = {}
        for name, tensor in model.named_parameters(remove_duplicate=False):
            names.setdefault(id(tensor), []).append(name)
        self._tied = {key for key, own in names.items() if len(own) > 1}

    # Union-find

    def _new(self, count: int) -> torch.Tensor:
        start = len(self._parents)
        self._parents.extend(range(start, start + count))
        return torch.arange(start, start + count, device="cpu")

    def _root(self, unit: int) -> int:
        while self._parents[unit] != unit:
            self._parents[unit] = self._parents[self._parents[unit]]
            unit = self._parents[unit]
        return unit

    def _join(self, first: Iterable[int], second: Iterable[int]) -> None:
        for one, other in zip(first, second, strict=True):
            low, high = sorted((self._root(one), self._root(other)))
            self._parents[high] = low

    def _keep(self, value: Any, why: str) -> None:
        """Leave the units of a value whole."""
        if isinstance(value, _Value) and value.labels is not None:
            for unit in value.labels.tolist():
                self._why.setdefault(unit, why)
                self._join([unit], [0])

    # Parameters

    def _along(
        self, name: str, axis: int, labels: torch.Tensor | None, reads: bool = False
    ) -> torch.Tensor:
        """Note the units along an axis of a tensor; new ones where they are not given."""
        tensor = self._tensor(name)
        if labels is None:
            labels = (
                torch.zeros(tensor.shape[axis], dtype=torch.long, device="cpu") if reads else None
            )
        key = id(tensor), axis, reads
        if key in self._axes:
            known = self._axes[key][1]
            if labels is not None:
                self._join(labels.tolist(), known.tolist())
            return known
        if labels is None:
            labels = self._new(tensor.shape[axis])
        self._axes[key] = name, labels
        if id(tensor) in self._tied:
            self._keep(_Value(labels), "its weights are shared")
        return labels

    def _tensor(self, name: str) -> torch.Tensor:
        owner, _, own = name.rpartition(".")
        return getattr(self._model.get_submodule(owner), own)

    def units(self) -> Units:
        """Return the units (channels, neurons, heads) that tracing found."""
        axes = []
        for name, labels in self._axes.values():
            if name in self._direct:
                self._keep(_Value(labels), "its weights are used elsewhere")
        reading, making = set[int](), set[int]()
        rooted = []
        for (_, axis, reads), (name, labels) in self._axes.items():
            own = torch.tensor(
                [self._root(unit) for unit in labels.tolist()], dtype=torch.long, device="cpu"
            )
            (reading if reads else making).update(own.tolist())
            rooted.append(Axis(name, axis, own, reads))
        for entry in rooted:
            both = torch.tensor(sorted((reading & making) - {0}), dtype=torch.long, device="cpu")
            labels = torch.where(torch.isin(entry.labels, both), entry.labels, 0)
            axes.append(Axis(entry.name, entry.axis, labels, entry.reads))
        reasons = dict(self._whole)
        for (_, _, reads), (name, labels) in self._axes.items():
            if not reads and self._tensor(name).ndim > 1:
                why = next((self._why[u] for u in labels.tolist() if u in self._why), None)
                if why is not None:
                    reasons.setdefault(layer_of(name) or name, why)
        heads = frozenset(self._root(unit) for unit in self._heads) - {0}
        return Units(tuple(axes), heads, reasons)

    # Modules

    def visit(self, module: nn.Module, path: str) -> None:
        """Find the units inside a module, whose own inputs and outputs stay."""
        if id(module) in self._seen:
            return
        self._seen.add(id(module))
        blocks = *_BLOCKS, nn.MultiheadAttention
        if (isinstance(module, blocks) and _is_known(module)) or not list(module.children()):
            self._inside(module, path)
            return
        try:
            graph = self._trace(module)
        except Exception as error:  # whatever the forward pass does with what stands for a tensor
            reason = f"its forward pass cannot be traced ({type(error).__name__})"
            self._whole[path or type(module).__name__] = reason
            for name, child in module.named_children():
                self.visit(child, _below(path, name))
            return
        self._follow(module, graph, path)

    def _trace(self, module: nn.Module) -> fx.Graph:
        """Trace a forward pass to find units; in a second try, what cannot be traced is a node."""
        if id(module) not in self._graphs:
            try:
                found = _Tracer().trace(module)
            except Exception:
                parts = [part for part in module.modules() if part is not module]
                opaque = {id(part) for part in parts if not self._is_traceable(part)}
                found = _Tracer(opaque).trace(module)
            self._graphs[id(module)] = found
        return self._graphs[id(module)]

    def _is_traceable(self, module: nn.Module) -> bool:
        try:
            self._trace(module)
        except Exception:
            return False
        return True

    def _inside(self, module: nn.Module, path: str) -> None:
        """Find units in layers that are known whole: attention heads, transformer layers."""
        if isinstance(module, nn.MultiheadAttention):
            self._attention(module, path)
        elif isinstance(module, _BLOCKS):
            hidden = self._along(_below(path, "linear1.weight"), 0, None)
            if module.linear1.bias is not None:
                self._along(_below(path, "linear1.bias"), 0, hidden)
            self._along(_below(path, "linear2.weight"), 1, hidden, reads=True)
            for name in ("self_attn", "multihead_attn"):
                attention = getattr(module, name, None)
                if isinstance(attention, nn.MultiheadAttention):
                    self._attention(attention, _below(path, name))
        elif any(parameter.ndim > 1 for parameter in module.parameters(recurse=False)):
            kind = type(module).__name__
            layers = nn.Linear, *_CONVOLUTIONS, *_TRANSPOSED
            known = _is_known(module) and (isinstance(module, layers) or kind == "Conv1D")
            reason = (
                "what calls it cannot be traced" if known else f"{kind} layers are not supported"
            )
            self._whole.setdefault(path, reason)

    def _attention(self, module: nn.MultiheadAttention, path: str) -> None:
        if module.in_proj_weight is None or module.bias_k is not None or module.add_zero_attn:
            self._whole[path] = "attention with separate or additional keys"
        if path in self._whole:
            return
        heads = self._new(module.num_heads)
        self._heads.update(heads.tolist())
        rows = heads.repeat_interleave(module.head_dim)
        self._along(_below(path, "in_proj_weight"), 0, rows.repeat(3))
        if module.in_proj_bias is not None:
            self._along(_below(path, "in_proj_bias"), 0, rows.repeat(3))
        self._along(_below(path, "out_proj.weight"), 1, rows, reads=True)

    # Graphs

    def _follow(self, module: nn.Module, graph: fx.Graph, path: str) -> None:
        values: dict[fx.Node, Any] = {}

        for node in graph.nodes:
            given: Any = fx.map_arg(node.args, values.__getitem__)
            named: Any = fx.map_arg(node.kwargs, values.__getitem__)
            if node.op == "output":
                for value in _values((given, named)):
                    self._keep(value, "its units are outputs of the model")
            elif node.op in ("placeholder", "get_attr"):
                values[node] = _UNKNOWN
                if node.op == "get_attr":
                    self._direct.add(_below(path, str(node.target)))
            elif node.op == "call_module":
                target = str(node.target)
                own = module.get_submodule(target)
                if isinstance(own, nn.MultiheadAttention) and _reads_weights(node):
                    self._whole[_below(path, target)] = "its attention weights are used"
                values[node] = self._layer(own, _below(path, target), given, named)
            else:
                values[node] = self._function(node, given, named)

    def _layer(self, layer: nn.Module, path: str, given: list[Any], named: dict[str, Any]) -> Any:
        self._seen.add(id(layer))
        first = given[0] if len(given) == 1 and not named else None
        kind = type(layer).__name__
        if not _is_known(layer):
            return self._refuse([*given, *named.values()], kind, layer, path)
        if not isinstance(getattr(layer, "weight", None), nn.Parameter | None):
            self._whole[path] = "its weight is computed from other parameters"
            return self._refuse([*given, *named.values()], kind)
        if not isinstance(first, _Value):
            return self._refuse([*given, *named.values()], kind, layer, path)
        if isinstance(layer, _ACTIVATIONS):
            return first
        if isinstance(layer, _POOL_LAYERS) and first.axis == 1 and not first.flat:
            return first
        if isinstance(layer, nn.Flatten):
            return self._flatten(first, layer.start_dim, layer.end_dim)
        if isinstance(layer, nn.Linear) or kind == "Conv1D":
            turned = not isinstance(layer, nn.Linear)
            return self._dense(layer, path, first, int(turned), last=True)
        if isinstance(layer, _CONVOLUTIONS) and layer.groups == 1:
            return self._dense(layer, path, first, 0, last=False)
        if isinstance(layer, _TRANSPOSED) and layer.groups == 1:
            return self._dense(layer, path, first, 1, last=False)
        is_depthwise = isinstance(layer, _CONVOLUTIONS) and (
            layer.groups == layer.in_channels == layer.out_channels
        )
        if is_depthwise or isinstance(layer, _PER_CHANNEL):
            return self._per_channel(layer, path, first)
        if isinstance(layer, nn.PReLU) and layer.num_parameters == 1:
            return first
        return self._refuse([first], kind, layer, path)

    def _refuse(
        self, values: Any, what: str, layer: nn.Module | None = None, path: str = ""
    ) -> Any:
        """Leave the units of values whole that meet something unknown."""
        sized = ", whose sizes are fixed in the forward pass" if what in _SIZED else ""
        for value in _values(values):
            self._keep(value, f"it reaches {what}{sized}")
        if layer is not None:
            self._seen.discard(id(layer))
            self.visit(layer, path)
        return _UNKNOWN

    def _dense(
        self, layer: nn.Module, path: str, value: _Value, makes: int, *, last: bool
    ) -> _Value:
        """Follow a layer that reads all units and makes others, axis `makes` of its weight."""
        weight = self._tensor(_below(path, "weight"))
        fits = value.axis == -1 or bool(value.flat) if last else value.axis == 1 and not value.flat
        read = _resolve(value, weight.shape[1 - makes]) if fits else None
        if read is None:
            self._keep(value, f"it reaches {path}")
        self._along(_below(path, "weight"), 1 - makes, read, reads=True)
        made = self._along(_below(path, "weight"), makes, None)
        if getattr(layer, "bias", None) is not None:
            self._along(_below(path, "bias"), 0, made)
        return _Value(made, -1 if last else 1, rank=value.rank if last else weight.ndim)

    def _per_channel(self, layer: nn.Module, path: str, value: _Value) -> _Value:
        """Follow a layer that treats every unit alike and alone."""
        tensors = dict(layer.named_parameters(recurse=False))
        tensors |= {n: t for n, t in layer.named_buffers(recurse=False) if t.ndim}
        size = getattr(layer, "num_features", None) or layer.out_channels
        full = _resolve(value, int(size))  # type: ignore[arg-type]
        if full is None:
            self._keep(value, f"it reaches {path}")
            return _UNKNOWN
        for name in tensors:
            self._along(_below(path, name), 0, full)
        return _Value(full, value.axis if not value.flat else -1, rank=value.rank)

    def _function(self, node: fx.Node, given: Any, named: Any) -> Any:
        name = node.target if isinstance(node.target, str) else node.target.__name__
        values = _values((given, named))
        if not values:  # arithmetic of sizes, or a new tensor
            own = getattr(node.target, "__module__", "")
            return None if own in ("_operator", "builtins") else _UNKNOWN
        first = given[0] if given and isinstance(given[0], _Value) else values[0]
        if name in _PROPERTIES or (name == "getattr" and given[1] in _PROPERTIES):
            return None
        if name == "size" or (name == "getattr" and given[1] == "shape") or first.is_shape:
            return self._size(node, first, given, named)
        if name in _ELEMENTWISE and len(values) == 1:
            return first
        if name in _BINARY and len(values) <= 2:
            return self._combine(values, name) if len(values) == 2 else first
        if name in _POOLS and first.axis == 1 and not first.flat and len(values) == 1:
            return first
        if name == "flatten" and len(values) == 1:
            ends = dict(zip(("start_dim", "end_dim"), given[1:], strict=False))
            return self._flatten(first, **{"start_dim": 0, "end_dim": -1, **ends, **named})
        if name in ("view", "reshape") and not named:
            shape = given[1] if isinstance(given[1], list | tuple) else given[1:]
            if len(shape) == 2 and shape[0] is _BATCH and shape[1] == -1:
                return self._flatten(first, 1, -1)
        if name in _REDUCTIONS and len(values) == 1 and first.axis == 1 and not first.flat:
            dims = named.get("dim", given[1] if len(given) > 1 else ())
            dims = {dim % first.rank for dim in ((dims,) if isinstance(dims, int) else dims)}
            if dims == set(range(2, first.rank)):
                is_kept = named.get("keepdim", given[2] if len(given) > 2 else False)
                return first if is_kept else _Value(first.labels, -1, rank=2)
        if name == "cat" and values and isinstance(given[0], list | tuple):
            dim = named.get("dim", given[1] if len(given) > 1 else 0)
            parts = [v for v in values if v.labels is not None and v.axis == dim and not v.flat]
            if len(parts) == len(values) == len(given[0]):
                labels = torch.cat([value.labels for value in parts if value.labels is not None])
                return _Value(labels, dim, rank=first.rank)
        if name == "transpose" and first.rank == 3 and sorted(given[1:]) == [1, 2]:
            return _Value(first.labels, -1 if first.axis == 1 else 1, rank=3)
        if name == "getitem" and first.axis == 1 and not first.flat and _is_spatial(given[1]):
            return first
        return self._refuse(values, name)

    def _size(self, node: fx.Node, value: _Value, given: Any, named: Any) -> Any:
        """Follow a size; units whose number the forward pass uses stay whole."""
        if node.target == "size" or node.target is getattr:
            index = named.get("dim", given[1] if len(given) > 1 else "shape")
            if index == "shape":
                return replace(value, is_shape=True)
        elif node.target is operator.getitem:
            index = given[1]
        else:
            index = None
        if node.users and value.counts_units(index):
            self._keep(value, "the forward pass uses their number")
        return _BATCH if index == 0 else None

    def _combine(self, values: list[_Value], name: str) -> _Value:
        one, other = values
        if (
            one.labels is not None
            and other.labels is not None
            and (len(one.labels), one.axis, one.flat) == (len(other.labels), other.axis, other.flat)
        ):
            self._join(one.labels.tolist(), other.labels.tolist())
            return one
        return self._refuse(values, f"{name} with a tensor of another kind")

    def _flatten(self, value: _Value, start_dim: int, end_dim: int) -> _Value:
        if value.labels is None or (start_dim, end_dim) == (1, -1):
            flat = value.flat or ("inner" if value.axis == 1 else "outer")
            return _Value(value.labels, -1, flat, 2)
        if (start_dim, end_dim) == (2, -1) and value.axis == 1 and not value.flat:
            return _Value(value.labels, 1, rank=3)
        return self._refuse([value], "flatten")


class _Tracer(fx.Tracer):
    """Traces a forward pass down to the layers that are known, and to opaque ones (ids)."""

    def __init__(self, opaque: Collection[int] = ()) -> None:
        super().__init__()
        self._opaque = opaque

    def keys(self, obj: fx.Proxy) -> Any:
        """Follow units through a call without its further keyword arguments."""
        return ()

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if isinstance(m, nn.Sequential):
            return False
        known = super().is_leaf_module(m, module_qualified_name) or type(m).__name__ == "Conv1D"
        return known or id(m) in self._opaque


def _resolve(value: _Value, size: int) -> torch.Tensor | None:
    """Return the unit of each of `size` entries; None where these are not all of the value's."""
    if value.labels is None:
        return None
    times, rest = divmod(size, len(value.labels))
    if rest or (times > 1 and not value.flat) or times == 0:
        return None
    return (
        value.labels.repeat(times)
        if value.flat == "outer"
        else value.labels.repeat_interleave(times)
    )


def _is_known(layer: nn.Module) -> bool:
    """Return whether a layer's forward pass is that of torch's layer, so that units are known."""
    return type(layer).__module__.startswith("torch.nn.") or type(layer).__name__ == "Conv1D"


def _reads_weights(node: fx.Node) -> bool:
    """Return whether something reads the weights of an attention layer, which heads add to."""
    parts = [user for user in node.users if user.target is operator.getitem]
    weights = [user for user in parts if user.args[1] != 0 and user.users]
    return len(parts) < len(node.users) or bool(weights)


def _values(tree: Any) -> list[_Value]:
    """Return the tensors in nested arguments whose units are followed."""
    if isinstance(tree, _Value):
        return [tree]
    parts = (
        tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ()
    )
    return [value for part in parts for value in _values(part)]


def _is_spatial(index: Any) -> bool:
    """Whether an index takes all samples and all channels, so that units stay."""
    whole = slice(None, None, None)
    return isinstance(index, tuple) and len(index) > 2 and index[0] == index[1] == whole


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
