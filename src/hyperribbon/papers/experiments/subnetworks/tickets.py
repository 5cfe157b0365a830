"""Sec. 3.3 of [subnetworks]: winning tickets by magnitude and by change, with controls."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from torch import nn

from hyperribbon.core import derive_seed
from hyperribbon.core.data import load_data
from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.subnetworks import _runs
from hyperribbon.papers.training import all_convolutional, mlp, train
from hyperribbon.subnetworks import find_ticket, metric_of

TITLE = "Lottery tickets by magnitude and by change"

_CRITERIA = ("magnitude", "change")
_BRANCHES = ("random", "reinitialized")
_CHANCE = 0.2
"""Accuracies up to here are those of networks that have not trained."""
_CONTROLS = (
    "where the controls do not train at all (accuracy up to 0.2) the comparison says nothing"
)


def make_statements(setting: str, needs: str, moved: str = "", judged: str = "") -> Any:
    """Return the statements on winning tickets in a network.

    Args:
        setting: What was trained.
        needs: What would decide them.
        moved: What has changed in the first of them.
        judged: What has changed in the second.
    """
    says = partial(kit.says, setting=f"{setting}; {_CONTROLS}", needs=needs)
    return (
        says(
            "matches",
            "Sec. 3.3.1",
            "there exists a much smaller and sparser sub-network (a winning ticket) that can be "
            "re-trained to achieve performance comparable to the original network after pruning "
            "and re-initialization",
            "A ticket by magnitude with about 10% of the weights trains to within 0.01 of the "
            "accuracy of the whole network (share and margin are ours).",
            kit.Band.at_least(-0.01, "words"),
            changed=moved,
        ),
        says(
            "start-matters",
            "Sec. 3.3.1",
            "If the sub-network is re-initialized with a different sample from the same "
            "distribution, it no longer demonstrates the high performance observed with the "
            "original initialization.",
            "Drawn anew, the ticket by magnitude trains to a lower accuracy, at the smallest share "
            "of the weights at which every control trains above 0.2.",
            kit.Band.at_least(0.0, "words"),
            changed=judged,
        ),
        kit.observe(
            "change-against-magnitude",
            "Sec. 3.4",
            "The sparsest tickets by change are at most 0.01 less accurate than those by "
            "magnitude, a comparison that the thesis proposes.",
            kit.Band.at_least(-0.01, "words"),
        ),
    )


STATEMENTS = make_statements(
    "iterative pruning of the thesis' network, which itself trains no ticket",
    "all 60,000 MNIST digits, and a share of the weights at which the controls train above chance",
    "2026-11-17: judged on 4,000 digits before",
    "2026-11-18: before, at the sparsest ticket, whose control does not train at all",
)


class Config(kit.Frozen):
    """Setting of the search for winning tickets."""

    data: str = "mnist5k"  # data set
    limit: int = 0  # training images; 0 for all
    network: str = "perceptron"  # or "convolutional"
    widths: tuple[int, ...] = (784, 256, 256, 256, 10)  # layer sizes of the perceptron
    epochs: int = 10  # passes over the data at every level
    lr: float = 0.02  # learning rate (momentum 0.9)
    batch_size: int = 128  # minibatch size
    levels: int = 6  # prunings
    fraction: float = 0.5  # share of the survivors removed at each level
    seeds: int = 3  # independent starts


PRESETS = kit.presets(
    Config(),
    smoke=Config(
        limit=300,
        widths=(784, 32, 32, 10),
        epochs=3,
        lr=0.05,
        batch_size=32,
        levels=2,
        fraction=0.7,
        seeds=1,
    ),
    paper=Config(epochs=30, levels=10, fraction=0.4, seeds=5),
)
PRESETS_WITH_DATA = {
    **PRESETS,
    "laptop": Config(data="mnist", epochs=3, levels=3, seeds=5),
    "paper": Config(data="mnist", epochs=30, levels=10, fraction=0.4, seeds=5),
}


class Result(kit.Frozen):
    """Test accuracy of tickets and random sub-networks by level of pruning."""

    kept: np.ndarray  # (levels + 1,), share of the weights kept
    ticket: dict[str, np.ndarray]  # {criterion: (seeds, levels + 1)}
    # {criterion: (seeds, levels + 1)}, as many weights of each layer kept at random
    random: dict[str, np.ndarray]
    # {criterion: (seeds, levels + 1)}, the ticket's weights from a new start
    reinitialized: dict[str, np.ndarray]
    source: str  # what was trained
    full: bool  # whether on all images of MNIST or CIFAR-10


def compute(config: Config, context: kit.Context) -> Result:
    """Find tickets with both criteria from every start."""
    seeds = [derive_seed(context.seed, "ticket", number) for number in range(config.seeds)]
    items = [
        {**vars(config), "criterion": criterion, "seed": seed}
        for criterion in _CRITERIA
        for seed in seeds
    ]
    measured = iter(context.map(_ticket, items, "tickets"))
    found = {criterion: [next(measured) for _ in range(config.seeds)] for criterion in _CRITERIA}
    branches = {
        name: {c: np.array([one[name] for one in rows]) for c, rows in found.items()}
        for name in ("ticket", *_BRANCHES)
    }
    images = config.limit or len(load_data(config.data).targets)
    return Result(
        kept=found["magnitude"][0]["kept"],
        **branches,
        source=f"{config.seeds} starts, {images:,} images of {config.data}, {config.epochs} epochs "
        "per level",
        full=config.data in ("mnist", "cifar10") and not config.limit,
    )


def _ticket(item: kit.Item) -> dict[str, np.ndarray]:
    training, test = (
        load_data(item["data"], limit=item["limit"] or None),
        load_data(item["data"], "test"),
    )
    if item["network"] == "perceptron":
        training, test = training.flat(), test.flat()
    make = partial(_model, item, tuple(training.inputs.shape[1:]))
    model = make(derive_seed(item["seed"], "start"))
    ticket = find_ticket(
        model,
        partial(_train, item=item, data=training),
        metric_of(model, test),
        levels=item["levels"],
        fraction=item["fraction"],
        criterion=item["criterion"],
        branches=_BRANCHES,
        initializer=make,
        seed=item["seed"],
    )
    return {str(name): column.to_numpy(dtype=float) for name, column in ticket.to_frame().items()}


def _model(item: kit.Item, shape: tuple[int, ...], seed: int) -> nn.Module:
    if item["network"] == "perceptron":
        return mlp(item["widths"], "relu", seed, init="kaiming")
    return all_convolutional(shape, 10, seed)  # type: ignore[arg-type]


def _train(network: nn.Module, item: kit.Item, data: Any) -> None:
    train(
        network,
        nn.functional.cross_entropy,
        data,
        epochs=item["epochs"],
        lr=item["lr"],
        momentum=0.9,
        batch_size=item["batch_size"],
        seed=derive_seed(item["seed"], "batches"),
    )


def plot(result: Result) -> kit.Figure:
    """Draw the tickets' accuracy against the share kept, one panel per criterion."""
    figure, axes = kit.new_figure(1, 2, width="full", ratio=0.75, sharey=True)
    for axis, criterion in zip(axes, _CRITERIA, strict=True):
        for color, values, label in (
            (kit.COLORS[0], result.ticket, "ticket"),
            (kit.COLORS[2], result.reinitialized, "ticket, new start"),
            (kit.COLORS[1], result.random, "random weights"),
        ):
            _runs.draw_band(
                axis, result.kept, values[criterion], color=color, marker="o", ms=3, label=label
            )
        axis.set(xscale="log", xlabel="share of the weights kept")
        axis.invert_xaxis()
        axis.set_title(f"pruned by {criterion}")
    axes[0].set_ylabel("test accuracy after training")
    axes[0].legend(loc="lower left")
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure lottery tickets by magnitude, and compare the two criteria."""
    sparse = int(np.argmin(np.abs(result.kept - 0.1)))
    ticket, controls = result.ticket["magnitude"], result.reinitialized["magnitude"]
    trains = np.flatnonzero((controls.min(0) > _CHANCE) & (result.kept < 1))
    level = int(trains[-1]) if len(trains) else -1
    last = f"at {result.kept[-1]:.1%} of the weights"
    return {
        "matches": kit.over_seeds(
            ticket[:, sparse] - ticket[:, 0],
            f"difference of the accuracies, {result.kept[sparse]:.0%} kept; {result.source}",
            comparable=result.full,
        ),
        "start-matters": kit.over_seeds(
            (ticket - controls)[:, level],
            f"ticket minus the same weights from a new start, whose accuracy is "
            f"{controls[:, level].mean():.3f}, at {result.kept[level]:.1%} of the weights; "
            f"{result.source}",
            comparable=result.full and len(trains) > 0,
        ),
        "change-against-magnitude": kit.over_seeds(
            result.ticket["change"][:, -1] - ticket[:, -1], f"{last}; {result.source}"
        ),
    }
