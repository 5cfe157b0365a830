"""Data sets of the paper: sub-sampled by class, whitened, and boiled down to their moments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hyperribbon.core.data import LabelledData, load_data
from hyperribbon.core.linear_moments import Moments
from hyperribbon.core.store import load_tree, save_tree
from hyperribbon.experiments.context import Context

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

_SPLITS = {"digits": "all", "mnist5k": "all"}
_FILE = "moments.safetensors"
_EMPTY = 1e-14  # variance over the largest below which a direction counts as empty


def subsample(data: str, share: float, samples: int, seed: int) -> LabelledData:
    """Return flat images with a share of class 0 and equal shares of the other classes.

    As in App. C of [linear_networks], with the ninth that its formula leaves out. When class 0 is
    too small for `samples` images at that share, as many are taken as it allows.
    """
    split = _SPLITS.get(data, "train")
    targets = load_data(data, split).targets
    classes = int(targets.max()) + 1
    other = (1 - share) / (classes - 1)
    available = int((targets == 0).sum())
    while samples - (classes - 1) * int(other * samples + 1e-9) > available:
        samples -= 1
    shares = [share] + [other] * (classes - 1)
    return load_data(data, split, limit=samples, proportions=shares, seed=seed).flat()


def white_data(item: Mapping[str, Any]) -> tuple[LabelledData, np.ndarray, np.ndarray]:
    """Return the sub-sample that an item names, its white inputs (rank, n), and their raw scales.

    The same inputs as `core.data.whiten` gives, up to a rotation, from an eigendecomposition of
    the smaller Gram matrix. That is many times faster than a singular value decomposition, and
    precise enough here: the directions that images leave empty have variances some 1e-17 of the
    largest, the others 1e-11 or more.
    """
    data = subsample(item["data"], item["share"], item["samples"], item["data_seed"])
    X = data.inputs.double().numpy().T
    samples = X.shape[1]
    wide = samples < len(X)
    variances, vectors = np.linalg.eigh((X.T @ X if wide else X @ X.T) / samples)
    present = variances > _EMPTY * variances[-1]
    scales = np.sqrt(variances[present])
    vectors = vectors[:, present]
    return data, np.sqrt(samples) * vectors.T if wide else (vectors / scales).T @ X, scales


def one_hot(data: LabelledData) -> np.ndarray:
    """Return labels as columns (classes, n)."""
    return np.eye(data.classes)[data.targets.numpy()].T


def data_items(config: Any, context: Context) -> list[dict[str, Any]]:
    """Return one item for each data set and share, its moments prepared in a shared folder."""
    items = []
    for data in config.data:
        for share in config.shares:
            item = {
                "data": data,
                "share": share,
                "samples": config.samples,
                "data_seed": context.seed,
            }
            folder = context.shared_folder(_prepare, item, f"moments of {NAMES[data]}, {share:g}")
            items.append({**item, "folder": str(folder)})
    return items


def _prepare(folder: Path, item: Mapping[str, Any]) -> None:
    data, white, scales = white_data(item)
    labels = one_hot(data)
    samples = labels.shape[1]
    tree = {
        "cross": labels @ white.T / samples,
        "scales": scales,
        "dropped": data.inputs.shape[1] - len(scales),
        "samples": samples,
        "proportions": labels.mean(axis=1),
    }
    save_tree(folder / _FILE, tree)


def read_moments(item: Mapping[str, Any], *, white: bool = True) -> tuple[Moments, dict[str, Any]]:
    """Return the moments of an item's data, and facts about them.

    Raw inputs are given on their principal axes, which changes neither training nor curvature: the
    loss and the random starts do not know one direction of input space from another.
    """
    facts = load_tree(Path(item["folder"]) / _FILE)
    cross, scales = facts["cross"], facts["scales"]
    if white:
        return Moments(np.ones(len(scales)), cross, 1.0), facts
    empty = ((0, 0), (0, facts["dropped"]))
    variances = np.pad(scales**2, (0, facts["dropped"]))
    return Moments(variances, np.pad(cross * scales, empty), 1.0), facts
