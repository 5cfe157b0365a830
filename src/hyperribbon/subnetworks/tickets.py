"""Winning tickets: iterative pruning with rewinding, and its controls."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hyperribbon.core import ArgumentError, Mask, derive_seed, torch_generator
from hyperribbon.core.checks import (
    as_number,
    check_absent,
    check_choice,
    check_fraction,
    count,
    function,
    iterable,
    tensor,
    torch_module,
    validate,
)
from hyperribbon.core.parameters import copies_of
from hyperribbon.core.result import Result
from hyperribbon.subnetworks.evaluation import Metric
from hyperribbon.subnetworks.operations import Initializer, prune, redraw
from hyperribbon.subnetworks.selection import rank
from hyperribbon.subnetworks.states import (
    State,
    check_same_architecture,
    eligible_names,
    state_of,
)
from hyperribbon.subnetworks.torch_pruning import to_torch_prune

if TYPE_CHECKING:
    import pandas as pd

BRANCHES = ("random", "reinitialized")


@dataclass(frozen=True)
class TicketLevel:
    """One level of iterative pruning.

    Attributes:
        kept: Fraction of entries that remain.
        ticket: Metric after training the ticket from the rewound weights.
        branches: Metric of the controls at the same sparsity, by name: "random" keeps as many
            entries of every parameter, chosen at random; "reinitialized" keeps the ticket's
            entries but starts from a new draw.
    """

    kept: float
    ticket: float
    branches: dict[str, float]


@dataclass(frozen=True)
class Ticket(Result, plot="plot_columns"):
    """A sub-network found by iterative pruning.

    Attributes:
        pruned: The removed entries.
        start: The state to train from: the rewound weights, pruned entries zero.
        final: The state after the last training.
        levels: One entry per level, the dense network first.
    """

    pruned: Mask
    start: dict[str, torch.Tensor]
    final: dict[str, torch.Tensor]
    levels: tuple[TicketLevel, ...]

    def to_frame(self) -> pd.DataFrame:
        """Return the metric of the ticket and of its controls, one row per level."""
        import pandas as pd

        return pd.DataFrame(
            [
                {"kept": level.kept, "ticket": level.ticket, **level.branches}
                for level in self.levels
            ]
        )

    def _headline(self) -> str:
        first, last = self.levels[0], self.levels[-1]
        scores = f"metric {last.ticket:.4g}, dense {first.ticket:.4g}"
        return f"{last.kept:.1%} of the weights kept; {scores}; {len(self.levels) - 1} levels"


@validate(model=torch_module, train=function, metric=function, levels=count)
def find_ticket(
    model: nn.Module,
    train: Callable[[nn.Module], object],
    metric: Metric,
    *,
    initial: State | None = None,
    rewind: State | None = None,
    levels: int = 5,
    fraction: float = 0.2,
    criterion: str = "magnitude",
    scope: str = "global",
    include: str = "weights",
    branches: Sequence[str] = BRANCHES,
    initializer: Initializer | None = None,
    seed: int = 0,
) -> Ticket:
    """Find a sub-network by iterative pruning with rewinding.

    Every level trains the surviving entries from the rewound weights, then removes the share
    `fraction` of them with the smallest score. Implements Sec. 3.3 of [subnetworks], and with
    criterion="change" the comparison its Sec. 3.4 proposes.

    Args:
        model: The architecture; not modified.
        train: Trains the module it is given in place, with any loop. It receives a copy in which
            `torch.nn.utils.prune` holds the removed entries at zero.
        metric: A function of a state dict: one number, or one per sample, of which the mean is
            taken.
        initial: The initial state; by default the model's weights.
        rewind: The state that survivors are reset to: the initial state by default, or the dense
            network's weights at an early step (one entry of a `Trajectory`), which deep networks
            need.
        levels: Number of pruning rounds.
        fraction: Fraction of survivors removed at each level.
        criterion: "magnitude" |θ| or "change" |θ − θ_rewind| after training.
        scope: "global" or "layer".
        include: "weights", or "all" for biases and normalisation parameters too.
        branches: Controls to train at every level: "random", "reinitialized", both or none.
        initializer: Source of new starts for the branch "reinitialized", as in `rerandomize`; by
            default the start, shuffled within each parameter.
        seed: Seed of the controls.

    Returns:
        The ticket with the metric of every level and branch.
    """
    check_choice("criterion", criterion, ("magnitude", "change"))
    check_fraction("fraction", fraction)
    for branch in iterable("branches", branches):
        check_choice("branches", branch, BRANCHES)
    if "reinitialized" not in branches:
        check_absent("initializer", initializer, 'only the branch "reinitialized" uses it')
    given = state_of("initial", model if initial is None else initial)
    start = _copy(model, given)
    rewound = start if rewind is None else state_of("rewind", rewind)
    check_same_architecture(start, rewound, list(start))
    rewound = _copy(model, rewound)

    trained = _train(model, rewound, None, train)
    value = _value(metric, trained)
    records = [TicketLevel(1.0, value, dict.fromkeys(branches, value))]
    pruned: Mask | None = None
    how = {"scope": scope, "include": include, "model": model}
    for level in range(1, levels + 1):
        share = 1.0 - (1.0 - fraction) ** level
        pruned = _prune_further(trained, rewound, pruned, share, criterion, **how)
        trained = _train(model, rewound, pruned, train)
        controls = {}
        for branch in branches:
            stream = derive_seed(seed, branch, level)
            if branch == "random":
                control = _train(model, rewound, _shuffle(pruned, stream), train)
            else:
                drawn = _redraw(model, start, initializer, stream, list(pruned))
                control = _train(model, drawn, pruned, train)
            controls[branch] = _value(metric, control)
        records.append(TicketLevel(1.0 - pruned.fraction, _value(metric, trained), controls))
    assert pruned is not None
    return Ticket(pruned, prune(rewound, pruned), trained, tuple(records))


def _train(
    model: nn.Module, start: State, pruned: Mask | None, train: Callable[[nn.Module], object]
) -> dict[str, torch.Tensor]:
    network = copy.deepcopy(model)
    network.load_state_dict(start)
    if pruned is not None:
        to_torch_prune(network, pruned)
    train(network)
    return _copy(model, state_of("model", network))


def _copy(model: nn.Module, state: State) -> dict[str, torch.Tensor]:
    """Return a copy in which the model's tied parameters share their memory."""
    aliases = copies_of(state_of("model", model))
    first = {name: aliases.get(name, [name])[0] for name in state}
    copies = {name: state[name].clone() for name in dict.fromkeys(first.values())}
    return {name: copies[first[name]] for name in state}


def _redraw(
    model: nn.Module, start: State, initializer: Initializer | None, seed: int, names: list[str]
) -> dict[str, torch.Tensor]:
    """Return the initial state with its trained parameters redrawn."""
    trained = eligible_names(model, "all")
    source = {name: start[name] for name in trained} if initializer is None else initializer
    fresh = redraw(source, seed=seed, names=names)
    aliases = copies_of(start)
    drawn = {alias: fresh[name] for name in trained if name in fresh for alias in aliases[name]}
    return {**start, **drawn}


def _prune_further(
    trained: State, rewound: State, pruned: Mask | None, share: float, criterion: str, **how: Any
) -> Mask:
    """Return the mask of removed entries, including those removed before."""
    ranking = rank(trained, rewound, criterion=criterion, **how)
    if pruned is None:
        return ranking.select(share)
    gone_first = {
        name: torch.where(pruned[name], torch.full_like(score, -1.0), score)
        for name, score in ranking.scores.items()
    }
    return rank(trained, criterion=gone_first, **how).select(share)


def _shuffle(mask: Mask, seed: int) -> Mask:
    """Return a random mask with as many selected entries in every parameter."""
    generator = torch_generator(seed, "shuffled")
    shuffled = {}
    for name, entry in mask.items():
        order = torch.randperm(entry.numel(), generator=generator, device="cpu")
        shuffled[name] = entry.reshape(-1)[order].reshape(entry.shape)
    return Mask(shuffled)


def _value(metric: Metric, state: State) -> float:
    found = metric(state)
    if isinstance(found, torch.Tensor):
        found = tensor("metric", found).double().mean()
    value = as_number("metric", found)
    if value != value:
        reason = "it is NaN after training"
        raise ArgumentError("metric", value, reason, "Lower the learning rate.")
    return value
