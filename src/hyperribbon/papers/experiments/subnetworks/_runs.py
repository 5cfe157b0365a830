"""The recorded training runs that all figures of [subnetworks] share, one for every seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import nn

from hyperribbon.core import derive_seed
from hyperribbon.core.data import LabelledData, load_data
from hyperribbon.papers.experiments.judging import Observed, over_seeds
from hyperribbon.papers.experiments.kit import Context, Frozen, Item
from hyperribbon.papers.experiments.statements import says
from hyperribbon.papers.training import mlp, train
from hyperribbon.recording import Recorder
from hyperribbon.recording.trajectory import Trajectory

LAYERS = ("Hidden 1", "Hidden 2", "Hidden 3", "Output")
SCALE = "the paper's training: all 60,000 MNIST digits for 100 epochs"
"""What a verdict on a trained network of the paper needs."""
TRAINING = (
    "the printed network, batch, epochs and schedule on all of MNIST; the start is Gaussian with "
    "sd 0.05 (Table A.1); rate 0.01 and momentum 0.9 are not printed and match Tables A.1 and A.2"
)
"""Where statements about the trained networks are judged."""
says_trained = partial(says, setting=TRAINING, needs=SCALE)


class TrainingConfig(Frozen):
    """The paper's setting; what its text leaves open is chosen to match Tables A.1 and A.2."""

    # "mnist" (60,000 + 10,000 images) or "mnist5k" (4,000 + 1,000), inputs in [0, 1]
    data: str = "mnist5k"
    limit: int = 0  # use this many training images; 0 for all
    widths: tuple[int, ...] = (784, 256, 256, 256, 10)  # layer sizes
    init: float | str = 0.05  # standard deviation of the Gaussian start (biases zero), or "lecun"
    epochs: int = 100  # passes over the data
    lr: float = 0.01  # learning rate
    momentum: float = 0.9  # of SGD
    batch_size: int = 128  # minibatch size
    decay: float = 0.2  # factor of the rate at each milestone
    milestones: tuple[int, ...] = (30, 60, 90)  # epochs at which the rate falls
    seeds: int = 6  # number of independent runs


C = TypeVar("C", bound=TrainingConfig)

_SMOKE: dict[str, Any] = {
    "limit": 500,
    "widths": (784, 24, 24, 24, 10),
    "init": "lecun",
    "epochs": 4,
    "lr": 0.05,
    "batch_size": 32,
    "milestones": (3,),
    "seeds": 2,
}


def presets(
    kind: type[C],
    *,
    smoke: Mapping[str, Any] | None = None,
    laptop: Mapping[str, Any] | None = None,
    paper: Mapping[str, Any] | None = None,
    laptop_with_data: Mapping[str, Any] | None = None,
) -> tuple[dict[str, C], dict[str, C]]:
    """Return the runs' presets on the bundled digits and those on full MNIST.

    Args:
        kind: The experiment's Config.
        smoke: What differs from the common setting.
        laptop: The same.
        paper: The same.
        laptop_with_data: What differs further on full MNIST.
    """
    own = {"smoke": smoke or {}, "laptop": laptop or {}, "paper": paper or {}}
    base = {"smoke": _SMOKE, "laptop": {}, "paper": {}}
    bundled = {name: kind(**{**base[name], **own[name]}) for name in own}
    own["laptop"] = {**own["laptop"], **(laptop_with_data or {})}
    full = {name: kind(**{**base[name], **own[name], "data": "mnist"}) for name in own}
    return bundled, full


class Run(Frozen):
    """One recorded training run of [subnetworks]."""

    model: nn.Module  # the architecture (with the final weights)
    initial: dict[str, torch.Tensor]  # state before training
    final: dict[str, torch.Tensor]  # state after it
    trajectory: Trajectory  # weights after every epoch

    def at_epoch(self, epoch: int) -> dict[str, torch.Tensor]:
        """Return the state of a training run of [subnetworks] after an epoch; 0 is the start."""
        return self.trajectory.weights(int(np.abs(self.trajectory.epochs - epoch).argmin()))


class OfRuns(Frozen):
    """A result of the recorded runs of [subnetworks]."""

    source: str  # what was trained
    full: bool  # whether as in the paper, on all of MNIST

    def by_run(self, values: Any, why: str) -> Observed:
        """Return one number for each run; comparable with the paper where the training is."""
        return over_seeds(values, f"{why}; {self.source}", comparable=self.full)


def origin(config: TrainingConfig) -> dict[str, Any]:
    """Return the fields of `OfRuns`; full means runs with the paper's data, network and epochs."""
    images = config.limit or {"mnist": 60_000, "mnist5k": 4_000}[config.data]
    source = f"{config.seeds} seed{'s' if config.seeds > 1 else ''}, {images:,} MNIST digits"
    open_settings = {"lr": config.lr, "momentum": config.momentum, "seeds": config.seeds}
    printed = TrainingConfig(data="mnist", **open_settings)
    full = all(getattr(config, name) == value for name, value in vars(printed).items())
    return {"source": source, "full": full}


def run_items(config: TrainingConfig, context: Context, **changes: Any) -> list[dict[str, Any]]:
    """Return one item for each seed that says all about its run."""
    common = {field.name: getattr(config, field.name) for field in fields(TrainingConfig)}
    del common["seeds"]
    seeds = [derive_seed(context.seed, "run", number) for number in range(config.seeds)]
    return [{**common, "seed": seed, **changes} for seed in seeds]


def train_runs(config: TrainingConfig, context: Context, **changes: Any) -> list[dict[str, Any]]:
    """Train the runs of every seed unless done; return items for `load_run` in any process."""
    return train_items(run_items(config, context, **changes), context)


def train_items(items: list[dict[str, Any]], context: Context) -> list[dict[str, Any]]:
    """Train the runs that the items name, side by side, unless that is done."""
    folders = context.shared_folders(_train, items, "training")
    return [{**item, "folder": str(folder)} for item, folder in zip(items, folders, strict=True)]


def load_run(item: Item) -> Run:
    """Open a run that `train_runs` named."""
    trajectory = Trajectory.open(item["folder"])
    model = _model(item)
    final = trajectory.weights(len(trajectory) - 1)
    model.load_state_dict(final)
    return Run(model, trajectory.weights(0), final, trajectory)


def train_data(item: Item, limit: int | None = None) -> LabelledData:
    """Return the training images of a run, or a fixed sub-sample of them."""
    data = _data(item["data"], "train", item["limit"])
    if limit is None or limit >= len(data.targets):
        return data
    generator = torch.Generator("cpu").manual_seed(limit)
    chosen = torch.randperm(len(data.targets), generator=generator, device="cpu")[:limit]
    return LabelledData(data.inputs[chosen], data.targets[chosen])


def test_data(item: Item) -> LabelledData:
    """Return the test images of a run."""
    return _data(item["data"], "test", 0)


def fresh_model(item: Item, seed: int) -> nn.Module:
    """Return the runs' architecture with weights drawn anew from the same initialiser."""
    return mlp(item["widths"], "relu", seed, init=item["init"])


def _model(item: Item) -> nn.Module:
    return fresh_model(item, derive_seed(item["seed"], "start"))


def _train(folder: Path, item: Item) -> None:
    train(
        _model(item),
        nn.functional.cross_entropy,
        train_data(item),
        epochs=item["epochs"],
        lr=item["lr"],
        momentum=item["momentum"],
        batch_size=item["batch_size"],
        schedule={epoch: item["decay"] for epoch in item["milestones"]},  # noqa: C420
        seed=derive_seed(item["seed"], "batches"),
        recorder=Recorder(folder, every="1ep"),
        test=test_data(item),
    )


@lru_cache(maxsize=4)
def _data(name: str, split: str, limit: int) -> LabelledData:
    return load_data(name, split, limit=limit or None).flat()


def mean_and_error(values: Any) -> tuple[Any, Any]:
    """Return mean and standard error over runs (seeds, first axis); 0 for the error of one."""
    array = np.asarray(values, dtype=float)
    count = len(array)
    error = array.std(0, ddof=1) / np.sqrt(count) if count > 1 else np.zeros(array.shape[1:])
    return array.mean(0), error


def draw_band(axis: Axes, x: np.ndarray, values: np.ndarray, **style: Any) -> None:
    """Draw the mean over runs (seeds, first axis) with their range."""
    mean, _ = mean_and_error(values)
    (line,) = axis.plot(x, mean, **style)
    if len(values) > 1:
        low, high = np.min(values, axis=0), np.max(values, axis=0)
        axis.fill_between(x, low, high, color=line.get_color(), alpha=0.2, lw=0)


def draw_layer_bars(
    axis: Axes, values: np.ndarray, *, color: str, baseline: float, ylabel: str = "test accuracy"
) -> None:
    """Draw one bar per layer, with a point for each run, beside the trained network's."""
    mean, _ = mean_and_error(values)
    layers = np.arange(1, len(mean) + 1)
    axis.bar(layers, mean, color=color, alpha=0.6, width=0.6)
    for row in values:
        axis.plot(layers, row, "o", color="black", ms=2.5)
    axis.axhline(baseline, color="0.4", ls="--", lw=1)
    axis.text(len(mean) + 0.45, baseline + 0.01, "trained", ha="right", va="bottom", fontsize=8)
    for layer, value in enumerate(mean, 1):
        height = 0.02 if value > 0.3 else values[:, layer - 1].max() + 0.03
        axis.text(layer, height, f"{value:.2f}", ha="center", va="bottom", fontsize=8)
    axis.set(xlabel="layer", ylabel=ylabel, ylim=(0, 1.1), xticks=layers)
