"""Networks that the figures train: settings, items of work, training, and a row of panels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar

import numpy as np

from hyperribbon.core import derive_seed, numpy_generator
from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.linear_networks._data import (
    BUNDLED,
    FULL,
    NAMES,
    SMOKE,
    data_items,
)
from hyperribbon.papers.simulation import (
    HalvingSchedule,
    LinearRun,
    draw_linear_weights,
    train_linear,
)
from hyperribbon.theory.linear_networks.moments import Moments


class TrainingConfig(kit.Frozen):
    """Settings of the linear networks that the figures train."""

    data: tuple[str, ...] = BUNDLED  # data sets
    # shares of class 0; the other classes share the rest equally
    shares: tuple[float, ...] = (0.1,)
    samples: int = 5000  # images; fewer when class 0 has not enough of them
    depth: int = 4  # number of layers
    width: int = 64  # width of the hidden layers
    start: str = "kaiming_uniform"  # how the weights start, see `draw_linear_weights`
    scale: float = 0.0  # singular values of a balanced start; 0 where the start has no scale
    lr: float = 0.01  # learning rate at the start
    epochs: int = 10_000  # epochs of full-batch gradient descent


AnyConfig = TypeVar("AnyConfig", bound=TrainingConfig)


def presets(
    laptop: AnyConfig, smoke: Mapping[str, Any], paper: Mapping[str, Any]
) -> dict[str, AnyConfig]:
    """Return the presets of training linear networks on bundled data.

    Args:
        laptop: The laptop preset.
        smoke: What is smaller in the smoke preset, which uses 1,500 small digits.
        paper: What is larger in the paper preset.
    """
    small = {"data": SMOKE, "samples": 1500, **smoke}
    return {"smoke": replace(laptop, **small), "laptop": laptop, "paper": replace(laptop, **paper)}


def with_data(bundled: dict[str, AnyConfig]) -> dict[str, AnyConfig]:
    """Return the presets for training linear networks on the three full data sets."""
    return {
        name: config if name == "smoke" else replace(config, data=FULL)
        for name, config in bundled.items()
    }


def training_items(config: TrainingConfig, context: kit.Context, repeats: int = 1) -> list[dict]:
    """Return one training of a linear network for each data set, share and start."""
    setting = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(config).items()
        if name not in ("data", "shares", "samples")
    }
    return [
        {**item, **setting, "seed": derive_seed(context.seed, "start", repeat)}
        for item in data_items(config, context)
        for repeat in range(repeats)
    ]


def train_item(
    item: kit.Item,
    moments: Moments,
    measure: Mapping[str, Callable[[list[np.ndarray]], Any]] | None = None,
    at: Iterable[int] = (),
) -> LinearRun:
    """Train the linear network of an item with the paper's schedule."""
    return train_linear(
        start_weights(item, *moments.cross.shape),
        moments,
        lr=item["lr"],
        epochs=item["epochs"],
        schedule=HalvingSchedule(),
        measure=measure,
        at=at,
    )


def train_and_record(
    item: kit.Item,
    moments: Moments,
    measure: Mapping[str, Callable[[list[np.ndarray]], Any]],
    at: Iterable[int],
) -> dict[str, Any]:
    """Train the linear network of an item; return the loss and the measurements at some epochs."""
    run = train_item(item, moments, measure, at)
    return {"epochs": run.epochs, "loss": run.losses[run.epochs], **run.measured}


def start_weights(item: kit.Item, outputs: int, inputs: int) -> list[np.ndarray]:
    """Return the layers from which the linear network of an item is trained."""
    return draw_linear_weights(
        [inputs, *[item["width"]] * (item["depth"] - 1), outputs],
        item["start"],
        generator=numpy_generator(item["seed"]),
        scale=item["scale"] or None,
    )


def squared_norm(layers: Sequence[np.ndarray]) -> float:
    """Return ‖θ‖², the sum of all squared weights of a linear network."""
    return sum(float((W**2).sum()) for W in layers)


def record_times(epochs: int, records: int) -> list[int]:
    """Return so many epochs of a linear network's training to record, denser early."""
    later = np.geomspace(min(30, epochs), epochs, records - 1)
    return sorted({0, *later.astype(int).tolist(), epochs})


def even_times(epochs: int, records: int) -> list[int]:
    """Return so many epochs of a linear network's training to record, evenly spaced."""
    return sorted({round(time) for time in np.linspace(0, epochs, records)})


def label_epochs(axis: Any, epochs: np.ndarray) -> None:
    """Set an axis of training epochs that begins at 0 and is logarithmic from 30 on."""
    axis.set_xscale("symlog", linthresh=30)
    axis.set_xlim(-3, 1.3 * epochs[-1])
    axis.set_xticks([0, *(t for t in (100, 1000, 10_000) if t <= epochs[-1])])
    axis.set_xlabel("epoch")


def panel_title(data: str, samples: np.ndarray | int) -> str:
    """Return a panel's title: the data set and how many images its networks are trained on."""
    most, least = int(np.max(samples)), int(np.min(samples))
    images = f"n = {most:,}" if most == least else f"n = {most:,} to {least:,}"
    return f"{NAMES[data]}, {images}"


def panels(
    data: list[str], samples: np.ndarray | None = None, *, sharey: bool = False
) -> tuple[kit.Figure, np.ndarray]:
    """Return a figure of linear networks' training with one panel per data set.

    Args:
        data: Names of the data sets, m.
        samples: (m, ...), images used; None to leave them out of the titles.
        sharey: Whether all panels have one scale.
    """
    several = len(data) > 1
    width, ratio = ("full", 0.95) if several else ("column", 0.75)
    figure, axes = kit.new_figure(
        1, len(data), width=width, ratio=ratio, squeeze=False, sharey=sharey
    )
    for row, (axis, name) in enumerate(zip(axes[0], data, strict=True)):
        title = NAMES[name] if samples is None else panel_title(name, samples[row])
        axis.set_title(title, fontsize=8)
    return figure, axes[0]
