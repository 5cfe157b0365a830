"""A model's parameters as one vector, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import accumulate, pairwise
from math import prod

import torch
from torch import nn

from hyperribbon.core import checks
from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.checks import names as chosen_names
from hyperribbon.core.devices.memory import give_back
from hyperribbon.core.mask import Mask
from hyperribbon.core.result import Brief

ParameterFilter = str | Iterable[str] | Callable[[str, torch.Tensor], bool] | None

LARGE = 2**20
"""Coordinates of the parameters from which memory is given back as soon as it is free."""
_PART = 512  # weights of an output that are transposed together
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True)
class ParameterSpace(Brief):
    """An ordered set of named parameters (or of masked entries of them) as coordinates.

    Coordinates run over the parameters in the model's order, each flattened row by row; with a mask
    only its selected entries are coordinates. A tensor shared by several layers is counted once,
    under its first name.

    Attributes:
        names: Parameter names, in order.
        shapes: Their shapes.
        selections: For each parameter, the flat indices that are coordinates, or None for all.
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    selections: tuple[torch.Tensor | None, ...]

    @classmethod
    def of_model(
        cls, model: nn.Module, params: ParameterFilter = None, mask: Mask | None = None
    ) -> ParameterSpace:
        """Return the space of a model's parameters.

        Args:
            model: Any module.
            params: None for every parameter that requires a gradient; the name of a parameter or
                a module, a pattern such as "layers.0.*" (see `is_named`) or a predicate on (name,
                tensor), which choose among those; or a list of names, of which those of parameters
                may be frozen too.
            mask: Restrict the coordinates to the selected entries; parameters it does not name
                drop out.

        Raises:
            ArgumentError: Nothing is selected, a name does not exist, or the mask does not match.
        """
        available = dict(model.named_parameters())
        chosen = _filter(available, params)
        if mask is not None:
            check_mask(mask, available, "model")
            chosen = [name for name in chosen if name in mask and bool(mask[name].any())]
        if not chosen:
            raise ArgumentError(
                "params" if mask is None else "mask",
                params if mask is None else mask,
                "it selects no parameter of the model",
                f"The model has: {listing(available)}.",
            )
        selections = tuple(
            None
            if mask is None or bool(mask[name].all())
            else mask[name].to(available[name].device).reshape(-1).nonzero().squeeze(1)
            for name in chosen
        )
        return cls(tuple(chosen), tuple(available[name].shape for name in chosen), selections)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of coordinates of each parameter in the space."""
        return tuple(
            prod(shape) if selection is None else selection.numel()
            for shape, selection in zip(self.shapes, self.selections, strict=True)
        )

    @cached_property
    def _is_whole(self) -> bool:
        return all(selection is None for selection in self.selections)

    @cached_property
    def dimension(self) -> int:
        """Number of coordinates of the parameters, P."""
        return sum(self.sizes)

    @property
    def copied(self) -> int:
        """Coordinates that are in memory twice while `flatten` frees the parameters' tensors."""
        return max(self.sizes) if self.dimension >= LARGE else self.dimension

    def slices(self) -> dict[str, slice]:
        """Return the range of coordinates of each parameter."""
        return dict(self._ranges)

    @cached_property
    def _ranges(self) -> dict[str, slice]:
        stops = list(accumulate(self.sizes, initial=0))
        return {name: slice(*pair) for name, pair in zip(self.names, pairwise(stops), strict=True)}

    def flatten(
        self, tensors: Mapping[str, torch.Tensor], *, batched: bool = False, frees: bool = False
    ) -> torch.Tensor:
        """Return named parameters' tensors as coordinates (P,), or (P, k) with k leading rows each.

        Args:
            tensors: A tensor for every name of the space; other names are ignored.
            batched: Whether each tensor has shape (k, *shape).
            frees: Whether to remove large tensors from their dict once they are copied, so that the
                memory of one parameter is taken twice and not that of all.
        """
        first = tensors[self.names[0]]
        lead = first.shape[:1] if batched else ()
        frees = frees and self.dimension >= LARGE
        if self._is_whole and lead in ((), (1,)) and not frees:
            pieces = [tensors[name].reshape(-1).to(first.dtype) for name in self.names]
            return torch.cat(pieces).reshape(-1, *lead)
        flat = first.new_empty(self.dimension, *lead)
        del first
        quarter = self.dimension // 4 + 1
        for (name, window), shape, selection in zip(
            self._ranges.items(), self.shapes, self.selections, strict=True
        ):
            piece = tensors[name].movedim(0, -1) if batched else tensors[name]
            if selection is None:
                _copy(piece, flat[window].view((*shape, *lead)))
            else:
                flat[window] = piece.reshape(-1, *lead)[selection]
            if frees:
                del piece, tensors[name]  # pyright: ignore[reportIndexIssue]
                if window.start // quarter < window.stop // quarter:
                    give_back()
        return flat

    def unflatten(self, vector: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return parameters' tensors by name from a vector (P,), or with leading rows from (P, k).

        Entries that are not coordinates are zero.

        Raises:
            ArgumentError: It is not of shape (P,) or (P, k).
        """
        if vector.ndim not in (1, 2) or vector.shape[0] != self.dimension:
            reason = f"the space has {self.dimension} coordinates"
            remedy = f"Give shape ({self.dimension},) or ({self.dimension}, k)."
            raise ArgumentError("vector", vector, reason, remedy)
        rows = vector if vector.ndim == 1 else vector.T
        tensors: dict[str, torch.Tensor] = {}
        for (name, window), shape, selection in zip(
            self._ranges.items(), self.shapes, self.selections, strict=True
        ):
            piece = rows[..., window]
            if selection is not None:
                full = piece.new_zeros((*piece.shape[:-1], prod(shape)))
                full[..., selection] = piece
                piece = full
            tensors[name] = piece.reshape((*piece.shape[:-1], *shape))
        return tensors

    def layers(self) -> dict[str, ParameterSpace]:
        """Return one parameter space per layer: parameters grouped by the module that owns them."""
        groups: dict[str, list[int]] = {}
        for position, name in enumerate(self.names):
            groups.setdefault(name.rpartition(".")[0], []).append(position)
        return {
            layer: ParameterSpace(
                tuple(self.names[i] for i in members),
                tuple(self.shapes[i] for i in members),
                tuple(self.selections[i] for i in members),
            )
            for layer, members in groups.items()
        }


def is_named(name: str, wanted: str) -> bool:
    """Whether a parameter name matches a parameter, a module, or a pattern.

    Args:
        name: The parameter's name.
        wanted: A parameter, a module, or a pattern of `fnmatch`.

    Returns:
        True if the name matches.

    >>> [is_named("layers.0.weight", wanted) for wanted in ("layers", "*.weight", "layer")]
    [True, True, False]
    """
    return name.startswith(f"{wanted}.") or fnmatchcase(name, wanted)


def _copy(source: torch.Tensor, target: torch.Tensor) -> None:
    """Copy a parameter's tensor; transposed ones in parts that stay in the cache."""
    if source.ndim == 3 and source.stride(0) == 1:
        size = max(1, _PART // source.shape[2])
        for some, part in zip(source.split(size, 1), target.split(size, 1), strict=True):
            part.copy_(some)
    else:
        target.copy_(source)


def _filter(available: Mapping[str, torch.Tensor], params: ParameterFilter) -> list[str]:
    trainable = {name: tensor for name, tensor in available.items() if tensor.requires_grad}
    if params is None and available and not trainable:
        reason = "every parameter is frozen (requires_grad=False)"
        remedy = "Name the parameters to use with params=[...]."
        raise ArgumentError("model", f"{len(available)} parameters", reason, remedy)
    return choose_names(params, available, trainable)


def choose_names(
    params: ParameterFilter,
    available: Mapping[str, torch.Tensor],
    trained: Mapping[str, torch.Tensor],
) -> list[str]:
    """Return the names of the parameters that match a filter, in order.

    Args:
        params: None for all trained ones; a name, a pattern or a predicate, which choose among
            those; or a list of names, which may be of any entry. A module in it stands for its
            trained ones.
        available: All entries.
        trained: The weights.

    Raises:
        ArgumentError: A name in the list matches no entry or module.
    """
    if params is None:
        return list(trained)
    if isinstance(params, str):
        return [name for name in trained if is_named(name, params)]
    if callable(params):
        return [name for name, tensor in trained.items() if params(name, tensor)]
    wanted = chosen_names("params", params)
    chosen: set[str] = set()
    unknown: list[str] = []
    for name in wanted:
        members = [other for other in trained if other.startswith(f"{name}.")]
        if isinstance(name, str) and name in available:
            chosen.add(name)
        elif members:
            chosen.update(members)
        else:
            unknown.append(name)
    if unknown:
        reason = "the model does not have a parameter or module of that name"
        raise ArgumentError("params", unknown, reason, f"The model has: {listing(available)}.")
    return [name for name in available if name in chosen]


def omitted_of_model(model: nn.Module) -> dict[str, str]:
    """Return the entries of a model's state dict that are not parameters, with the reason.

    The others are the coordinates of `ParameterSpace.of_model`: trainable, tied ones once.
    """
    firsts = {id(parameter): name for name, parameter in model.named_parameters()}
    omitted: dict[str, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        first = firsts.get(id(tensor))
        if first is None:
            omitted[name] = "buffer"
        elif first != name:
            omitted[name] = f"tied to {first}"
        elif not tensor.requires_grad:
            omitted[name] = "frozen"
    return omitted


def omitted_of_state(
    state: Mapping[str, torch.Tensor], earlier: Mapping[str, torch.Tensor] | None = None
) -> dict[str, str]:
    """Return the entries of a state dict that clearly are not parameters, with the reason.

    A state dict marks neither buffers nor frozen parameters. Recognized are: entries that are not
    floating-point, statistics of normalisation layers, and copies of other entries.

    Args:
        state: Named tensors.
        earlier: The same entries earlier in the training: copies are equal there too.
    """
    omitted: dict[str, str] = {}
    groups, before = copies_of(state), None if earlier is None else copies_of(earlier)
    for name, tensor in state.items():
        same = groups[name] if before is None else [n for n in groups[name] if n in before[name]]
        if not tensor.is_floating_point():
            omitted[name] = "not floating-point"
        elif name.endswith(_STATISTICS):
            omitted[name] = "statistic of a normalisation layer"
        elif same[0] != name:
            omitted[name] = f"copy of {same[0]}"
    return omitted


def copies_of(state: Mapping[str, torch.Tensor], *, by_values: bool = True) -> dict[str, list[str]]:
    """Return tied parameters: for every entry, the names with the same memory or values.

    Tied parameters appear under several names in a state dict, and as copies in a file. Entries
    that are constant (new biases and scales) are equal without being copies.

    Args:
        state: Named tensors.
        by_values: Whether equal values make copies. Not for the tensors of a model: the layers of
            a new `nn.TransformerEncoder` are equal and not tied.

    Returns:
        By name, the names of its group.
    """
    groups: dict[object, list[str]] = {}
    for name, tensor in state.items():
        key: object = name
        if tensor.numel():
            key = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.shape)
        if by_values and tensor.numel() > 1 and tensor.is_floating_point():
            low, high = torch.aminmax(tensor.detach())
            if bool(low < high):
                key = (tensor.shape, tensor.dtype, float(low), float(high))
        while by_values and key in groups and not _is_same(state[groups[key][0]], tensor):
            key = (key, "other values")
        groups.setdefault(key, []).append(name)
    return {name: group for group in groups.values() for name in group}


def _is_same(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first is second or first.data_ptr() == second.data_ptr() or torch.equal(first, second)


def check_mask(mask: Mask, available: Mapping[str, torch.Tensor], owner: str) -> None:
    """Raise unless a mask's names and shapes match the parameters it is for."""
    checks.mask("mask", mask)
    for name, entry in mask.items():
        if name not in available:
            reason = f"the {owner} does not have a parameter of that name"
            raise ArgumentError("mask", name, reason, f"The {owner} has: {listing(available)}.")
        if entry.shape != available[name].shape:
            reason = f"parameter {name!r} has shape {tuple(available[name].shape)}"
            remedy = "Build the mask from a state of this architecture."
            raise ArgumentError("mask", tuple(entry.shape), reason, remedy)


def listing(available: Mapping[str, object], limit: int = 12) -> str:
    """Return the first names of parameters and how many remain, for a message."""
    names = list(available)
    return ", ".join(names[:limit]) + (
        f" and {len(names) - limit} more" if len(names) > limit else ""
    )
