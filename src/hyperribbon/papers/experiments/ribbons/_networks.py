"""Networks of many architectures trained on one task, with predictions along the way."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from hyperribbon.core.data import load_data
from hyperribbon.papers.experiments.kit import Item
from hyperribbon.papers.simulation import scattering_features
from hyperribbon.papers.training import linear, make_architecture, train

LINEAR = {"linear": 0, "scattering-1": 1, "scattering-2": 2}
"""Linear models and the layers of the scattering transform they are trained on."""

ARCHITECTURES = (
    *LINEAR,
    "fully_connected",
    "all_convolutional",
    "conv_mixer",
    "vision_transformer",
    "wide_resnet",
)

RECIPES: dict[str, dict[str, Any]] = {
    "nesterov": {"optimizer": "sgd", "lr": 0.01, "momentum": 0.9, "nesterov": True},
    "adam": {"optimizer": "adam", "lr": 2e-3},
    "adam, decay, shifts": {"optimizer": "adam", "lr": 2e-3, "weight_decay": 1e-4},
}
"""Optimiser, rate, weight decay and augmentation; training goes on until every image is right."""

_GROWTH = 1.06  # of the step from one record to the next


def load_task(item: Item) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Load the task that ribbons' networks are trained on: images, labels, and samples to read.

    These are training samples, a fixed draw from all classes.
    """
    data = load_data(item["data"], split="train", limit=item["samples"])
    images = (data.inputs - data.inputs.mean()) / data.inputs.std()
    order = np.random.default_rng(0).permutation(len(images))
    return images, data.targets, torch.from_numpy(np.sort(order[: item["probe"]]))


def train_architecture(item: Item) -> dict[str, Any]:
    """Train networks of one architecture by one recipe from several seeds, each until it fits.

    Predictions are recorded at steps that grow geometrically, and of each training the snapshots
    are kept that lie evenly along its path. The learning rate falls to a tenth over the second half
    of the epochs allowed.

    Returns:
        "logs": (snapshots, samples, classes) for each seed, log-probabilities; "epochs": (seeds,),
        passes taken; "accuracy": (seeds,), on all training images.
    """
    images, labels, probe = load_task(item)
    name, classes, recipe = item["architecture"], int(labels.max()) + 1, item["recipe"]
    inputs, shape = images, (images.shape[1], images.shape[2], images.shape[3])
    if name in LINEAR:
        layers = LINEAR[name]
        inputs = scattering_features(images, layers=layers) if layers else images.flatten(1)
        inputs = inputs - inputs.mean(dim=0)
        largest = torch.linalg.matrix_norm(inputs, ord=2) ** 2 / len(inputs)
        inputs = inputs * (item["linear_eigenvalue"] / largest).sqrt()
    length = -(-len(images) // item["batch_size"])
    logs, epochs, accuracy = [], [], []
    for seed in item["seeds"]:
        if name in LINEAR:
            model = linear(inputs[0].numel(), classes, seed)
        else:
            model = make_architecture(name, shape, classes, seed, width=item["width"])
        path = _Path(inputs, labels, probe)
        path.record(0, model)
        result = train(
            model,
            cross_entropy,
            (inputs, labels),
            epochs=item["epochs"],
            batch_size=item["batch_size"],
            seed=seed,
            schedule=partial(_rate, item["epochs"]),
            augment=_shift if "shifts" in recipe and name not in LINEAR else None,
            on_step=path.record,
            **RECIPES[recipe],
        )
        path.record(result.steps, model, last=True)
        found = np.stack(path.logs)
        logs.append(found[even_snapshots(found, item["snapshots"])])
        epochs.append(result.steps / length)
        accuracy.append(path.accuracy)
    return {"logs": logs, "epochs": np.array(epochs), "accuracy": np.array(accuracy)}


class _Path:
    """Predictions along one training, which ends when they are all right."""

    def __init__(self, inputs: torch.Tensor, labels: torch.Tensor, probe: torch.Tensor) -> None:
        self.inputs, self.labels, self.probe = inputs, labels, probe
        self.logs: list[np.ndarray] = []
        self.accuracy, self._due, self._seen = 0.0, 0.0, -1

    def record(self, step: int, model: torch.nn.Module, last: bool = False) -> bool:
        """Keep a network's predictions if it is time, and return whether all of them are right."""
        if step == self._seen or not (last or step >= self._due):
            return False
        self._seen, self._due = step, max(step + 1, _GROWTH * step)
        with torch.no_grad():
            found = model(self.inputs).log_softmax(dim=1)
        self.accuracy = float((found.argmax(dim=1) == self.labels).double().mean())
        self.logs.append(found[self.probe].numpy())
        return self.accuracy == 1


def _rate(epochs: int, epoch: int) -> float:
    """Return the ribbons' networks' learning rate over its start: 1, then down to a tenth."""
    return 0.1 ** max(0.0, 2 * epoch / epochs - 1)


def even_snapshots(logs: np.ndarray, count: int) -> np.ndarray:
    """Return the rows of a network's path (T, samples, classes) that lie evenly along it.

    The length of the path is the sum of √D between successive records, D the Bhattacharyya
    distance. First and last record are always kept.
    """
    overlaps = np.exp((logs[1:] + logs[:-1]) / 2).sum(axis=2)
    distances = np.maximum(-np.log(np.maximum(overlaps, 1e-30)).mean(axis=1), 0)
    length = np.concatenate([[0.0], np.cumsum(np.sqrt(distances))])
    if length[-1] == 0:
        length = np.arange(len(logs), dtype=float)
    wanted = np.linspace(0, length[-1], min(count, len(logs)))
    rows = np.searchsorted(length, wanted - 1e-12 * length[-1])
    # A long step between two records would be chosen again and again: move on to the next.
    rows = np.maximum.accumulate(np.maximum(rows, np.arange(len(rows))))
    room = len(logs) - len(rows) + np.arange(len(rows))
    for index in range(1, len(rows)):
        rows[index] = max(rows[index], rows[index - 1] + 1)
    return np.minimum(rows, room)


def _shift(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Augment a network's images: move the whole batch by up to two pixels."""
    moves = torch.randint(-2, 3, (2,), generator=generator, device="cpu").tolist()
    return images.roll(moves, dims=(-2, -1))
