"""Data sets of the paper: sub-sampled by class, whitened, and reduced to their moments."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from hyperribbon.core.data import LabelledData, load_data
from hyperribbon.core.data.sources import DATA_VARIABLE
from hyperribbon.core.store import load_tree, save_tree
from hyperribbon.papers.experiments import kit
from hyperribbon.theory.linear_networks.moments import Moments

BUNDLED = ("mnist5k",)
FULL = ("mnist", "fashion_mnist", "cifar10")
SMOKE = ("digits",)
NAMES = {
    "digits": "digits",
    "mnist5k": "MNIST (5,000)",
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
}

SPLITS = {"digits": "all", "mnist5k": "all"}
_FILE = "moments.safetensors"
_EMPTY = 1e-14  # variance over the largest below which a direction counts as empty


def fitting_samples(data: str, share: float, samples: int) -> int:
    """Return how many images the data can have, at most `samples`, with a share of class 0."""
    available, others = _count_classes(data, os.environ.get(DATA_VARIABLE))
    while samples - others * int((1 - share) / others * samples + 1e-9) > available:
        samples -= 1
    return samples


@cache
def _count_classes(data: str, _folder: str | None) -> tuple[int, int]:
    """Return the number of images in class 0 of a data set, and of other classes."""
    targets = load_data(data, SPLITS.get(data, "train")).targets
    return int((targets == 0).sum()), int(targets.max())


def subsample(data: str, share: float, samples: int, seed: int) -> LabelledData:
    """Return data: flat images, a share of class 0 and equal shares of the other classes.

    As in App. C of [linear_networks], with the factor 1/9 that its formula omits.

    Raises:
        ArgumentError: A class has too few images; see `fitting_samples`.
    """
    split = SPLITS.get(data, "train")
    others = _count_classes(data, os.environ.get(DATA_VARIABLE))[1]
    shares = [share] + [(1 - share) / others] * others
    return load_data(data, split, limit=samples, proportions=shares, seed=seed).flat()


def white_data(item: kit.Item) -> tuple[LabelledData, np.ndarray]:
    """Return the data sub-sample that an item names, and its white inputs (rank, n).

    The same inputs as `core.data.whiten` gives, up to a rotation.
    """
    data, X, scales, vectors, wide = _principal_axes(item)
    return data, np.sqrt(X.shape[1]) * vectors.T if wide else (vectors / scales).T @ X


def _principal_axes(
    item: kit.Item,
) -> tuple[LabelledData, np.ndarray, np.ndarray, np.ndarray, bool]:
    """Return a sub-sample of the data, its inputs (d, n), their scales and axes, and whether n < d.

    The axes are those of the smaller Gram matrix: of the samples where n < d. Its eigenvalues are
    many times faster than a singular value decomposition, and precise enough here: the directions
    that images leave empty have variances some 1e-17 of the largest, the others 1e-11 or more.
    """
    data = subsample(item["data"], item["share"], item["samples"], item["data_seed"])
    X = data.inputs.double().numpy().T
    samples = X.shape[1]
    wide = samples < len(X)
    variances, vectors = np.linalg.eigh((X.T @ X if wide else X @ X.T) / samples)
    present = variances > _EMPTY * variances[-1]
    return data, X, np.sqrt(variances[present]), vectors[:, present], wide


def one_hot(data: LabelledData) -> np.ndarray:
    """Return the data's labels as one-hot columns (classes, n)."""
    return np.eye(data.classes)[data.targets.numpy()].T


def data_items(config: Any, context: kit.Context) -> list[dict[str, Any]]:
    """Return one item for each data set and share, its moments prepared in a shared folder.

    Where class 0 has too few images, the progress label and the facts of `read_moments` state how
    many images are used.
    """
    items = []
    for data in config.data:
        for share in config.shares:
            samples = fitting_samples(data, share, config.samples)
            item = {"data": data, "share": share, "samples": samples, "data_seed": context.seed}
            fewer = "" if samples == config.samples else f" ({samples} of {config.samples} images)"
            label = f"moments of {NAMES[data]}, {share:g}{fewer}"
            folder = context.shared_folder(_prepare, item, label)
            items.append({**item, "folder": str(folder)})
    return items


def _prepare(folder: Path, item: kit.Item) -> None:
    save_tree(folder / _FILE, moments_of(item))


def moments_of(item: kit.Item) -> dict[str, Any]:
    """Return the moments of white data and labels of the sub-sample that an item names."""
    data, X, scales, vectors, wide = _principal_axes(item)
    labels = one_hot(data)
    samples = labels.shape[1]
    cross = labels @ vectors / np.sqrt(samples) if wide else (labels @ X.T / samples) @ vectors
    return {
        "cross": cross if wide else cross / scales,
        "scales": scales,
        "dropped": data.inputs.shape[1] - len(scales),
        "samples": samples,
        "proportions": labels.mean(axis=1),
    }


def read_moments(item: kit.Item, *, white: bool = True) -> tuple[Moments, dict[str, Any]]:
    """Return the moments of an item's data, and facts about them.

    Raw inputs are given on their principal axes, which changes neither training nor curvature: the
    loss and the random starts do not know one direction of input space from another.
    """
    facts = load_tree(Path(item["folder"]) / _FILE)
    return to_moments(facts, white=white), facts


def to_moments(facts: Mapping[str, Any], *, white: bool) -> Moments:
    """Return the data's moments that `moments_of` found, of white inputs or of raw ones."""
    cross, scales = facts["cross"], facts["scales"]
    if white:
        return Moments(np.ones(len(scales)), cross, 1.0)
    empty = ((0, 0), (0, facts["dropped"]))
    variances = np.pad(scales**2, (0, facts["dropped"]))
    return Moments(variances, np.pad(cross * scales, empty), 1.0)
