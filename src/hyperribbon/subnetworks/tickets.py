"""Winning tickets: iterative pruning with rewinding, and its controls."""

from __future__ import annotations

import copy
import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from hyperribbon.core import (
    ArgumentError,
    Mask,
    ParameterFilter,
    checks,
    derive_seed,
    torch_generator,
)
from hyperribbon.core.checks import as_number, check_absent, check_choice, check_fraction, validate
from hyperribbon.core.devices.modes import preserve_random_state
from hyperribbon.core.mask import safetensors_path
from hyperribbon.core.parameters import copies_of
from hyperribbon.core.result import Result
from hyperribbon.core.states import load_state, save_state
from hyperribbon.core.store import (
    clear_leftovers,
    config_hash,
    ensure_folder,
    list_new_files,
    make_folder,
)
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
SCHEDULES = ("iterative", "cubic", "one-shot")
_METRIC = "/metric"  # in files of states, whose own names have no slash


@dataclass(frozen=True)
class TicketLevel:
    """One level of iterative pruning in the search for a ticket.

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

    def save(self, path: str | Path) -> None:
        """Write the ticket to a .safetensors file."""
        parts = {"pruned": self.pruned, "start": self.start, "final": self.final}
        tensors = {f"{part}/{n}": t for part, own in parts.items() for n, t in own.items()}
        levels = json.dumps([vars(level) for level in self.levels]).encode()
        tensors["levels"] = torch.frombuffer(bytearray(levels), dtype=torch.uint8)
        save_state(safetensors_path(path), tensors)

    @classmethod
    def load(cls, path: str | Path) -> Ticket:
        """Read a ticket that `save` wrote, bit for bit."""
        tensors = load_state(safetensors_path(path))
        try:
            levels = json.loads(bytes(tensors.pop("levels").tolist()))
            parts: dict[str, dict[str, torch.Tensor]] = {"pruned": {}, "start": {}, "final": {}}
            for name, tensor in tensors.items():
                part, _, own = name.partition("/")
                parts[part][own] = tensor
            found = tuple(TicketLevel(**level) for level in levels)
            return cls(Mask(parts["pruned"]), parts["start"], parts["final"], found)
        except (KeyError, ValueError, TypeError) as error:
            reason = f"it is not the file of a ticket ({error})"
            raise ArgumentError("path", str(path), reason, "Give a file of Ticket.save.") from None

    def _headline(self) -> str:
        first, last = self.levels[0], self.levels[-1]
        scores = f"metric {last.ticket:.4g}, dense {first.ticket:.4g}"
        return f"{last.kept:.1%} of the weights kept; {scores}; {len(self.levels) - 1} levels"


@validate(
    model=checks.torch_module,
    train=checks.function,
    metric=checks.function,
    levels=checks.count,
    score=checks.optional(checks.function),
    folder=checks.optional(checks.path),
)
def find_ticket(
    model: nn.Module,
    train: Callable[[nn.Module], object],
    metric: Metric,
    *,
    initial: State | None = None,
    rewind: State | None = None,
    levels: int = 5,
    fraction: float = 0.2,
    schedule: str = "iterative",
    criterion: str = "magnitude",
    score: Callable[[nn.Module], Mapping[str, torch.Tensor]] | None = None,
    scope: str = "global",
    include: str = "weights",
    params: ParameterFilter = None,
    branches: Sequence[str] = BRANCHES,
    initializer: Initializer | None = None,
    folder: str | Path | None = None,
    seed: int = 0,
) -> Ticket:
    """Find a winning ticket by iterative pruning with rewinding.

    Every level trains the surviving entries from the rewound weights, then removes the share
    `fraction` of them with the smallest score. Each training starts with random states of torch,
    numpy and Python that follow from `seed`, so that a search that was killed and is resumed from
    its `folder` finds the same ticket to the bit, if `train` is deterministic. Implements
    Sec. 3.3 of [subnetworks], and with criterion="change" the comparison its Sec. 3.4 proposes.

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
        schedule: How the share removed grows to s = 1 − (1 − fraction)^levels. "iterative" removes
            the same fraction of the survivors at each level l; "cubic" has s·(1 − (1 − l/levels)³)
            removed after level l; "one-shot" removes s at once, in a single level.
        criterion: "magnitude" |θ| or "change" |θ − θ_rewind| after training.
        score: A function of the trained network that returns scores by parameter name, such as
            `lambda net: gradient_saliency(net, loss, data)`, in place of `criterion`.
        scope: "global" or "layer".
        include: "weights", or "all" for biases and normalisation parameters too.
        params: Restrict pruning to a name pattern, a list of names, or a predicate.
        branches: Controls to train at every level: "random", "reinitialized", both or none.
        initializer: Source of new starts for the branch "reinitialized", as in `rerandomize`; by
            default the start, shuffled within each parameter.
        folder: Where every finished training is kept: the same call continues there after it was
            killed. Calls with other settings or weights do not share trainings.
        seed: Seed of the controls, and of the random states that trainings start with.

    Returns:
        The ticket with the metric of every level and branch.
    """
    from hyperribbon.core.progress import Console, progress_bar

    check_choice("criterion", criterion, ("magnitude", "change"))
    check_choice("schedule", schedule, SCHEDULES)
    check_fraction("fraction", fraction)
    for branch in checks.iterable("branches", branches):
        check_choice("branches", branch, BRANCHES)
    if "reinitialized" not in branches:
        check_absent("initializer", initializer, 'only the branch "reinitialized" uses it')
    given = state_of("initial", model if initial is None else initial)
    start = _copy(model, given)
    rewound = start if rewind is None else state_of("rewind", rewind)
    check_same_architecture(start, rewound, list(start))
    rewound = _copy(model, rewound)

    settings = {"levels": levels, "fraction": fraction, "schedule": schedule, "scope": scope}
    settings |= {"criterion": criterion, "score": score is not None, "include": include}
    settings |= {"branches": list(branches), "seed": seed, "start": _digest(start)}
    settings["rewind"] = _digest(rewound)
    settings["params"] = eligible_names(model, include, params)
    shares = _shares(schedule, fraction, levels)
    with progress_bar(Console(stderr=True)) as progress:
        task = progress.add_task("trainings", total=1 + len(shares) * (1 + len(branches)))
        place = None if folder is None else Path(folder)
        run = _Trainings(
            model, train, metric, seed, place, settings, lambda: progress.advance(task)
        )
        trained, value = run("dense", rewound, None)
        records = [TicketLevel(1.0, value, dict.fromkeys(branches, value))]
        pruned: Mask | None = None
        how = {"scope": scope, "include": include, "model": model, "params": params}
        for level, share in enumerate(shares, 1):
            chosen: Any = criterion if score is None else score(_network(model, trained))
            pruned = _prune_further(trained, rewound, pruned, share, chosen, **how)
            trained, value = run(f"level-{level}", rewound, pruned)
            controls = {}
            for branch in branches:
                stream, name = derive_seed(seed, branch, level), f"level-{level}-{branch}"
                if branch == "random":
                    controls[branch] = run(name, rewound, _shuffle(pruned, stream))[1]
                else:
                    drawn = _redraw(model, start, initializer, stream, list(pruned))
                    controls[branch] = run(name, drawn, pruned)[1]
            records.append(TicketLevel(1.0 - pruned.fraction, value, controls))
    assert pruned is not None
    return Ticket(pruned, prune(rewound, pruned), trained, tuple(records))


def _shares(schedule: str, fraction: float, levels: int) -> list[float]:
    """Return the share of entries that a ticket's search removes after every level."""
    last = 1.0 - (1.0 - fraction) ** levels
    if schedule == "one-shot":
        return [last]
    if schedule == "cubic":
        return [last * (1.0 - (1.0 - level / levels) ** 3) for level in range(1, levels + 1)]
    return [1.0 - (1.0 - fraction) ** level for level in range(1, levels + 1)]


class _Trainings:
    """Runs trainings, each with random states of its own; a folder keeps the finished ones."""

    def __init__(
        self,
        model: nn.Module,
        train: Callable[[nn.Module], object],
        metric: Metric,
        seed: int,
        folder: Path | None,
        settings: dict[str, Any],
        done: Callable[[], object],
    ) -> None:
        self._model, self._train, self._metric, self._done = model, train, metric, done
        self._seed, self._folder = seed, folder
        if folder is None:
            return
        self._folder = make_folder(ensure_folder("folder", folder) / config_hash(settings))
        clear_leftovers(self._folder)
        list_new_files(self._folder, "ticket")

    def __call__(
        self, name: str, start: State, pruned: Mask | None
    ) -> tuple[dict[str, torch.Tensor], float]:
        """Train for a ticket: return the trained state and its metric."""
        found = self._trained(name, start, pruned)
        self._done()
        return found

    def _trained(
        self, name: str, start: State, pruned: Mask | None
    ) -> tuple[dict[str, torch.Tensor], float]:
        file = None if self._folder is None else self._folder / f"{name}.safetensors"
        if file is not None and file.is_file():
            stored = load_state(file)
            value = float(stored.pop(_METRIC))
            like = state_of("model", self._model)
            stored = {n: tensor.to(like[n].device) for n, tensor in stored.items()}
            return _copy(self._model, stored), value
        network = _network(self._model, start)
        if pruned is not None:
            to_torch_prune(network, pruned)
        with preserve_random_state():
            _seed_everything(derive_seed(self._seed, "train", name))
            self._train(network)
        trained = _copy(self._model, state_of("model", network))
        value = _value(self._metric, trained)
        if file is not None and self._folder is not None:
            number = torch.tensor(value, dtype=torch.float64, device="cpu")
            save_state(file, {**trained, _METRIC: number})
            list_new_files(self._folder, "ticket")
        return trained, value


def _network(model: nn.Module, state: State) -> nn.Module:
    network = copy.deepcopy(model)
    network.load_state_dict(state)
    return network


def _seed_everything(seed: int) -> None:
    """Set the global random states for a ticket's training; the caller gives them back."""
    torch.default_generator.manual_seed(seed)
    random.setstate(random.Random(seed).getstate())
    legacy = np.random.RandomState(seed % 2**32)
    np.random.set_state(legacy.get_state())  # noqa: NPY002


def _digest(state: State) -> str:
    total = hashlib.blake2b(digest_size=8)
    for name, entry in state.items():
        total.update(f"{name} {entry.dtype} {tuple(entry.shape)}".encode())
        total.update(entry.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def _copy(model: nn.Module, state: State) -> dict[str, torch.Tensor]:
    """Return a copy for a ticket in which the model's tied parameters share their memory."""
    aliases = copies_of(state_of("model", model), by_values=False)
    first = {name: aliases.get(name, [name])[0] for name in state}
    copies = {name: state[name].clone() for name in dict.fromkeys(first.values())}
    return {name: copies[first[name]] for name in state}


def _redraw(
    model: nn.Module, start: State, initializer: Initializer | None, seed: int, names: list[str]
) -> dict[str, torch.Tensor]:
    """Return the initial state of a ticket's control: trained parameters redrawn."""
    trained = eligible_names(model, "all")
    source = {name: start[name] for name in trained} if initializer is None else initializer
    fresh = redraw(source, seed=seed, names=names)
    aliases = copies_of(start, by_values=False)
    drawn = {alias: fresh[name] for name in trained if name in fresh for alias in aliases[name]}
    return {**start, **drawn}


def _prune_further(
    trained: State, rewound: State, pruned: Mask | None, share: float, criterion: Any, **how: Any
) -> Mask:
    """Return the mask of what a ticket's search has removed, earlier levels included."""
    ranking = rank(trained, rewound, criterion=criterion, **how)
    if pruned is None:
        return ranking.select(share)
    gone_first = {
        name: torch.where(pruned[name], torch.finfo(torch.float64).min, score.double())
        for name, score in ranking.scores.items()
    }
    return rank(trained, criterion=gone_first, **how).select(share)


def _shuffle(mask: Mask, seed: int) -> Mask:
    """Return a ticket's random control: as many selected entries in every parameter."""
    generator = torch_generator(seed, "shuffled")
    shuffled = {}
    for name, entry in mask.items():
        order = torch.randperm(entry.numel(), generator=generator, device="cpu")
        shuffled[name] = entry.reshape(-1)[order].reshape(entry.shape)
    return Mask(shuffled)


def _value(metric: Metric, state: State) -> float:
    found = metric(state)
    if isinstance(found, torch.Tensor):
        found = checks.tensor("metric", found).double().mean()
    value = as_number("metric", found)
    if not isfinite(value):
        reason = f"it is {value} after training"
        raise ArgumentError("metric", value, reason, "Lower the learning rate.")
    return value
