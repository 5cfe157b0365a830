"""Networks of many architectures trained on one task, with predictions along the way."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from hyperribbon.core.data import load_data
from hyperribbon.papers.experiments.kit import Item
from hyperribbon.papers.simulation import scattering_features
from hyperribbon.papers.training import linear, make_architecture, train_ensemble

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
    "nesterov": {"optimizer": "sgd", "lr": 0.02, "momentum": 0.9, "nesterov": True},
    "adam": {"optimizer": "adam", "lr": 2e-3},
    "adam, decay, shifts": {"optimizer": "adam", "lr": 2e-3, "weight_decay": 1e-4},
    "sgd": {"optimizer": "sgd", "lr": 0.1},
}


def load_task(item: Item) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return standardised images, labels and the indices of the samples that models are read on.

    These are training samples, a fixed draw from all classes.
    """
    data = load_data(item["data"], split="train", limit=item["samples"])
    images = (data.inputs - data.inputs.mean()) / data.inputs.std()
    order = np.random.default_rng(0).permutation(len(images))
    return images, data.targets, torch.from_numpy(np.sort(order[: item["probe"]]))


def train_architecture(item: Item) -> dict[str, Any]:
    """Train one architecture by one recipe from several seeds.

    Predictions are recorded often, and of each training the snapshots are kept that lie evenly
    along its path.

    Returns:
        "logs": (seeds, snapshots, samples, classes), log-probabilities; "steps": (seeds,
        snapshots); "accuracy": (seeds,), on the training samples that models are read on.
    """
    images, labels, probe = load_task(item)
    name, classes = item["architecture"], int(labels.max()) + 1
    inputs = images
    if name in LINEAR:
        layers = LINEAR[name]
        inputs = scattering_features(images, layers=layers) if layers else images.flatten(1)
        inputs = inputs - inputs.mean(dim=0)
        largest = torch.linalg.matrix_norm(inputs, ord=2) ** 2 / len(inputs)
        inputs = inputs * (item["linear_eigenvalue"] / largest).sqrt()
    recipe = item["recipe"]
    shape = (images.shape[1], images.shape[2], images.shape[3])

    def make(seed: int) -> torch.nn.Module:
        if name in LINEAR:
            return linear(inputs[0].numel(), classes, seed)
        return make_architecture(name, shape, classes, seed)

    steps = item["epochs"] * -(-len(images) // item["batch_size"])
    ensemble = train_ensemble(
        make,
        cross_entropy,
        (inputs, labels),
        seeds=item["seeds"],
        epochs=item["epochs"],
        batch_size=item["batch_size"],
        probe=inputs[probe],
        every=_recorded_steps(steps, 4 * item["snapshots"]).tolist(),
        augment=_shift if "shifts" in recipe and inputs.ndim == 4 and name not in LINEAR else None,
        **RECIPES[recipe],
    )
    paths = [np.asarray(member.predictions, dtype=np.float32) for member in ensemble]
    kept = [even_snapshots(path, item["snapshots"]) for path in paths]
    logs = np.stack([path[rows] for path, rows in zip(paths, kept, strict=True)])
    right = logs[:, -1].argmax(axis=2) == labels[probe].numpy()
    times = np.asarray(ensemble[0].steps)
    return {
        "logs": logs,
        "steps": np.stack([times[rows] for rows in kept]),
        "accuracy": right.mean(axis=1),
    }


def _recorded_steps(steps: int, count: int) -> np.ndarray:
    """Return steps to record at, half of them evenly and half evenly in the logarithm."""
    even, log = np.linspace(1, steps, count // 2), np.geomspace(1, steps, count // 2)
    return np.unique(np.concatenate([even, log]).round().astype(int))


def even_snapshots(logs: np.ndarray, count: int) -> np.ndarray:
    """Return the rows of a path (T, samples, classes) that lie evenly along it: (count,).

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
    """Move the whole batch by up to two pixels."""
    moves = torch.randint(-2, 3, (2,), generator=generator, device="cpu").tolist()
    return images.roll(moves, dims=(-2, -1))
