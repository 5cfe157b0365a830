"""Readers of the IDX and CIFAR binary formats, plain or gzip-compressed."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np

from hyperribbon.core.checks import ArgumentError

__all__ = ["find_file", "read_cifar", "read_idx"]

_IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_CIFAR_RECORD = 1 + 3 * 32 * 32


def find_file(folder: Path, stem: str) -> Path | None:
    """Return folder/stem or folder/stem.gz, whichever exists."""
    for name in (stem, f"{stem}.gz"):
        if (folder / name).is_file():
            return folder / name
    return None


def read_idx(path: Path) -> np.ndarray:
    """Read an IDX file (the format of MNIST).

    Returns:
        The array, in the shape that the header says.

    Raises:
        ArgumentError: The file is damaged, truncated or of another format.
    """  # noqa: DOC501 - _damaged() returns an ArgumentError
    content = _read(path)
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _IDX_TYPES:
        raise _damaged(path, "it does not begin like an IDX file")
    dtype, dimensions = np.dtype(_IDX_TYPES[content[2]]), content[3]
    header = 4 + 4 * dimensions
    if len(content) < header:
        raise _damaged(path, "its header is cut off")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", dimensions, offset=4))
    expected = header + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if len(content) != expected:
        raise _damaged(path, f"it holds {len(content)} bytes where its header says {expected}")
    return np.frombuffer(content, dtype, offset=header).reshape(shape)


def read_cifar(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read a CIFAR-10 binary batch.

    Returns:
        Images (n, 3, 32, 32) uint8 and labels (n,) uint8.

    Raises:
        ArgumentError: The file is damaged, truncated or holds labels above 9.
    """  # noqa: DOC501 - _damaged() returns an ArgumentError
    content = _read(path)
    if not content or len(content) % _CIFAR_RECORD:
        raise _damaged(
            path, f"its {len(content)} bytes are not a whole number of {_CIFAR_RECORD}-byte records"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, _CIFAR_RECORD)
    labels = records[:, 0]
    if labels.max() > 9:
        raise _damaged(path, f"it holds label {labels.max()}, and CIFAR-10 has labels 0 to 9")
    return records[:, 1:].reshape(-1, 3, 32, 32), labels


def _read(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _damaged(path, f"it cannot be decompressed ({error})") from None


def _damaged(path: Path, reason: str) -> ArgumentError:
    return ArgumentError("file", str(path), reason, "It is damaged or truncated: fetch it again.")
