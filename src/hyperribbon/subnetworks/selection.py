"""Select entries by score, order, scope, and an exact count."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from hyperribbon.core import ArgumentError, Mask, ParameterFilter, torch_generator
from hyperribbon.core.checks import (
    as_number,
    check_absent,
    check_choice,
    check_finite,
    check_fraction,
    mapping,
    validate,
)
from hyperribbon.core.devices.tensors import host_array
from hyperribbon.core.result import Brief
from hyperribbon.subnetworks.shrinking import SHARES, UnitRanking
from hyperribbon.subnetworks.states import (
    State,
    check_same_architecture,
    eligible_names,
    layer_of,
    state_of,
)
from hyperribbon.subnetworks.units import KINDS, find_units

CRITERIA = ("magnitude", "change", "random")
Scores = Mapping[str, torch.Tensor]
Criterion = str | Scores | Callable[[Any], Scores]


@dataclass(frozen=True)
class Ranking(Brief):
    """A ranking of entries, from which masks of any size are taken.

    A fraction p of n entries is the whole number nearest to p·n, halves rounded up. Equal scores
    are taken in the order of the state: parameter by parameter, each row by row. So masks of
    growing fraction are nested.

    Attributes:
        scores: The score of every entry, by parameter name.
        groups: For each scope group, its parameter names and the flat indices of its entries
            (over the group's parameters joined), first selected first.
    """

    scores: Mapping[str, torch.Tensor]
    groups: tuple[tuple[tuple[str, ...], torch.Tensor], ...]

    @property
    def size(self) -> int:
        """Number of weights that the selection ranks."""
        return sum(len(order) for _, order in self.groups)

    def select(self, fraction: float) -> Mask:
        """Return the selection of the first `fraction` of every scope group."""
        check_fraction("fraction", fraction)
        entries = {}
        for names, order in self.groups:
            chosen = torch.zeros(len(order), dtype=torch.bool, device="cpu")
            chosen[order[: math.floor(fraction * len(order) + 0.5)]] = True
            sizes = [self.scores[name].numel() for name in names]
            for name, piece in zip(names, chosen.split(sizes), strict=True):
                entries[name] = piece.reshape(self.scores[name].shape)
        return Mask({name: entries[name] for name in self.scores})

    def between(self, low: float, high: float) -> Mask:
        """Return the selection low ≤ score ≤ high, as in Algorithm 1 of [subnetworks]."""
        for name, value in (("low", low), ("high", high)):
            if math.isnan(as_number(name, value)):
                raise ArgumentError(name, value, "it is not a number", "Give a threshold.")
        low, high = float(low), float(high)
        if low > high:
            reason = f"the upper threshold is below the lower one, {low}"
            raise ArgumentError("high", high, reason, "Give the larger threshold last.")
        return Mask({name: (score >= low) & (score <= high) for name, score in self.scores.items()})


@validate()
def rank(
    final: nn.Module | State,
    initial: nn.Module | State | None = None,
    *,
    criterion: Criterion = "magnitude",
    order: str = "smallest",
    scope: str = "global",
    include: str = "weights",
    params: ParameterFilter = None,
    frozen: bool = False,
    model: nn.Module | None = None,
    seed: int = 0,
) -> Ranking:
    """Rank the entries of a state for selection.

    Raises an ArgumentError when the states do not match, a name does not exist, a choice is
    unknown, or a score is not finite.

    Args:
        final: The trained network: a module or a state dict.
        initial: Its start; needed by the criterion "change".
        criterion: "magnitude" |θ|; "change" |θ − θ⁰|; "random"; or scores of your own by parameter
            name, such as those of `gradient_saliency`, `fisher_saliency` and `hessian_saliency`; or
            a function of `final` that returns such scores.
        order: "smallest" or "largest" scores first.
        scope: "global" ranks all entries together, "layer" each layer (the module that owns the
            parameters) by itself.
        include: "weights" for tensors of two or more dimensions, "all" for biases and
            normalisation parameters too.
        params: Restrict to a name pattern, a list of names, or a predicate on (name, tensor).
        frozen: Whether parameters that are not trained (requires_grad=False) count too.
        model: The module that `final` is a state of. It says which entries are trained parameters;
            without it, buffers and frozen layers are inferred from values, see `eligible_names`.
        seed: Seed of the criterion "random".

    Returns:
        The ranking; `.select(fraction)` and `.between(low, high)` return masks.
    """
    check_choice("order", order, ("smallest", "largest"))
    check_choice("scope", scope, ("global", "layer"))
    state = state_of("final", final)
    if callable(criterion):
        criterion = mapping("criterion", criterion(final))
    names = eligible_names(final, include, params, model=model, initial=initial, frozen=frozen)
    scores = _scores(state, initial, names, criterion, seed)
    members: dict[str, list[str]] = {}
    for name in names:
        members.setdefault(layer_of(name) if scope == "layer" else "", []).append(name)
    groups = []
    for group in members.values():
        flat = torch.cat([scores[name].reshape(-1) for name in group])
        signed = flat if order == "smallest" else -flat
        groups.append(
            (tuple(group), torch.from_numpy(np.argsort(host_array(signed), kind="stable")))
        )
    return Ranking(scores, tuple(groups))


@validate()
def select(
    final: nn.Module | State,
    initial: nn.Module | State | None = None,
    *,
    fraction: float | None = None,
    between: tuple[float, float] | None = None,
    criterion: Criterion = "magnitude",
    order: str = "smallest",
    scope: str = "global",
    include: str = "weights",
    params: ParameterFilter = None,
    frozen: bool = False,
    model: nn.Module | None = None,
    granularity: str = "weight",
    of: str = "units",
    seed: int = 0,
) -> Mask:
    """Return the selection of entries by a criterion, a mask.

    Give either `fraction` (an exact share: the whole number of entries nearest to fraction·n,
    halves up; equal scores in the order of the state) or `between` (all entries whose score lies in
    the closed interval, whatever their number). Implements the selections of Algorithms 1 and 2 of
    [subnetworks].

    Args:
        final: The trained network: a module or a state dict.
        initial: Its start; needed by the criterion "change".
        fraction: Share of the entries to select, of all together or of each layer (`scope`).
        between: Lowest and highest score to select.
        criterion: "magnitude", "change", "random", scores by parameter name, or a function of
            `final` that returns such scores.
        order: "smallest" or "largest" scores first.
        scope: "global" or "layer".
        include: "weights", or "all" for biases and normalisation parameters too.
        params: Restrict to a name pattern, a list of names, or a predicate on (name, tensor).
        frozen: Whether parameters that are not trained (requires_grad=False) count too.
        model: The module that `final` is a state of. It says which entries are trained parameters;
            without it, buffers and frozen layers are inferred from values, see `eligible_names`.
        granularity: "weight"; or "channel", "head" or "unit" for channels and neurons, attention
            heads, or both, see `rank_units`; every layer keeps one.
        of: What `fraction` is a share of, for channels and heads: "units", or "parameters" or
            "file" for the share of the model's parameters or of its file (with buffers, names and
            shapes) that `shrink` removes. A share of the units is not one of the model: embeddings,
            and the width that residual branches share, stay whole.
        seed: Seed of the criterion "random".

    Raises:
        ArgumentError: Not exactly one of `fraction` and `between` is given, or as in `rank`.

    >>> state = {"weight": torch.tensor([[3.0, -1.0], [2.0, 0.5]])}
    >>> select(state, fraction=0.5)["weight"]
    tensor([[False,  True],
            [False,  True]])
    """
    check_choice("granularity", granularity, ("weight", *KINDS))
    if (fraction is None) == (between is None):
        reason = "expected exactly one of fraction and between"
        remedy = "Give fraction=0.8 or between=(0.0, 0.05)."
        raise ArgumentError("fraction", fraction, reason, remedy)
    if fraction is not None:
        check_fraction("fraction", fraction)
    else:
        check_only_of_fractions(order, scope)
    check_choice("of", of, SHARES)
    if granularity == "weight":
        check_absent("of", None if of == "units" else of, "single weights are selected")
    how = {"criterion": criterion, "order": order, "scope": scope, "include": include}
    own = {"params": params, "frozen": frozen, "seed": seed}
    if granularity != "weight":
        reason = "a share of the channels or heads is selected"
        check_absent("between", between, reason, "Give fraction=.")
        check_absent("include", None if include == "weights" else include, reason)
        module: Any = final if model is None else model
        chosen = {"criterion": criterion, "order": order, "scope": scope, **own}
        return rank_units(module, initial, kind=granularity, **chosen).select(fraction or 0.0, of)
    ranking = rank(final, initial, model=model, **how, **own)
    if between is None:
        return ranking.select(fraction or 0.0)
    try:
        return ranking.between(*between)
    except (ArgumentError, TypeError) as error:
        reason = error.reason if isinstance(error, ArgumentError) else "expected a pair of numbers"
        remedy = "Give (lowest, highest), such as between=(0.0, 0.05)."
        raise ArgumentError("between", between, reason, remedy) from None


@validate()
def rank_units(
    model: nn.Module,
    initial: nn.Module | State | None = None,
    *,
    kind: str = "channel",
    criterion: Criterion = "magnitude",
    order: str = "smallest",
    scope: str = "global",
    params: ParameterFilter = None,
    frozen: bool = False,
    seed: int = 0,
) -> UnitRanking:
    """Rank the channels, neurons or attention heads of a network, for their selection.

    Args:
        model: The network; its units are those of `find_units`.
        initial: The initial state, for the criterion "change".
        kind: "channel" for channels and neurons, "head", or "unit" for all of them.
        criterion: As in `rank`. A unit's score is the root mean square of the |θ| or |θ − θ⁰| of
            all its entries, divided by the mean over the units of its layer; for scores of your
            own it is their sum.
        order: "smallest" or "largest" scores first.
        scope: "global" ranks all units together, "layer" takes the same share of every layer.
        params: Restrict to units that these parameters make, see `rank`.
        frozen: Whether units with parameters that are not trained count too.
        seed: Seed of the criterion "random".

    Returns:
        The ranking; `.select(fraction)` returns masks.

    Raises:
        ArgumentError: No unit can be removed, or as for `rank`.
    """
    check_choice("kind", kind, tuple(KINDS))
    check_choice("order", order, ("smallest", "largest"))
    check_choice("scope", scope, ("global", "layer"))
    if not isinstance(model, nn.Module):
        reason = "channels and heads are found in a module"
        raise ArgumentError("model", model, reason, "Give the model, not its state dict.")
    module, state = model, state_of("model", model)
    if callable(criterion):
        criterion = mapping("criterion", criterion(model))
    units = find_units(module)
    parameters = dict(module.named_parameters())
    chosen = set(eligible_names(module, "all", params, frozen=frozen))
    trained = set(eligible_names(module, "all", frozen=frozen))
    makers = {(axis.name, axis.axis) for axis in units.axes if not axis.reads}
    eligible = []
    for unit in units.of_kind(kind):
        places = [place for place in units.families[unit] if place[0] in parameters]
        made = [name for name, axis in places if (name, axis) in makers]
        if chosen.intersection(made) and all(name in trained for name, _ in places):
            eligible.append(unit)
    if not eligible:
        listed = "; ".join(f"{n}: {why}" for n, why in list(units.whole.items())[:3])
        reason = f"no {kind} of the model can be removed" + (f" ({listed})" if listed else "")
        remedy = "See hr.subnetworks.find_units(model), or use granularity='weight'."
        raise ArgumentError("kind", kind, reason, remedy)
    names = sorted({name for unit in eligible for name, _ in units.families[unit]} & trained)
    entries = _scores(state, initial, names, criterion, seed)
    is_size = isinstance(criterion, str) and criterion != "random"
    scores = units.scores(entries, is_size=is_size)
    sign = 1.0 if order == "smallest" else -1.0
    members: dict[Any, list[int]] = {}
    for unit in sorted(eligible, key=lambda unit: sign * scores[unit]):
        members.setdefault(units.families[unit], []).append(unit)
    kept = {own[-1] for own in members.values()}
    # By layer, the same share of each comes first; else all are sorted together.
    places = {u: (i + 1) / len(own) for own in members.values() for i, u in enumerate(own)}
    key = places.__getitem__ if scope == "layer" else lambda unit: sign * scores[unit]
    ranked = sorted((unit for unit in eligible if unit not in kept), key=key)
    return UnitRanking(module, units, (*ranked, *sorted(kept)), scores)


def check_only_of_fractions(order: str, scope: str) -> None:
    """Raise if an order or a scope is given for a selection by thresholds."""
    reason = "all entries between the thresholds are selected"
    check_absent("order", None if order == "smallest" else order, reason)
    check_absent("scope", None if scope == "global" else scope, reason)


def _scores(
    final: State,
    initial: nn.Module | State | None,
    names: Iterable[str],
    criterion: Criterion,
    seed: int,
) -> dict[str, torch.Tensor]:
    names = list(names)
    if isinstance(criterion, Mapping):
        missing = [
            name
            for name in names
            if name not in criterion or criterion[name].shape != final[name].shape
        ]
        if missing:
            reason = "it has no scores of the right shape for these parameters"
            remedy = "Give a tensor of scores for each, or restrict params."
            raise ArgumentError("criterion", missing, reason, remedy)
        scores = {name: criterion[name].detach() for name in names}
    elif check_choice("criterion", criterion, CRITERIA) == "magnitude":
        scores = {name: final[name].abs() for name in names}
    elif criterion == "change":
        if initial is None:
            reason = "the criterion 'change' needs the initial state"
            remedy = "Give the state the training started from, or criterion='magnitude'."
            raise ArgumentError("initial", None, reason, remedy)
        start = state_of("initial", initial)
        check_same_architecture(final, start, names)
        scores = {name: (final[name] - start[name].to(final[name])).abs() for name in names}
    else:
        generator = torch_generator(seed, "select")
        scores = {
            name: torch.rand(
                final[name].shape, generator=generator, dtype=torch.float64, device="cpu"
            )
            for name in names
        }
    return {
        name: check_finite(f"final (scores of {name!r})", s.cpu()) for name, s in scores.items()
    }
