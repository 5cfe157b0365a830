"""A record as bytes: one line with its values and a checksum, then its arrays.

The line is the record as JSON, a tab and a checksum of that JSON; then follow the bytes of the
arrays, one after the other, and a line end:

    {"index": 0, "step": 0, …, "arrays": {"predictions": ["<f4", [50, 10], "9f…"]}}⇥5d41…
    ‹2000 bytes›
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.store.atomic import digest_of

__all__ = ["Damage", "Frame", "damaged", "encode_frame", "parse_frame", "scan_block"]

_LONGEST_LINE = 64 * 2**20
_BEGINNING = b'{"index": '
_KINDS = "biufc"
_KIND = re.compile(rf"[<>|][{_KINDS}]\d+")


Stored = tuple[np.dtype[Any], tuple[int, ...], str, int]
"""Type, shape, checksum and place of an array."""


@dataclass(frozen=True)
class Frame:
    """One whole record in a block.

    Attributes:
        content: The record's plain values.
        block: The file.
        start: Where the frame begins in it.
        end: Where the next one begins.
        digest: Checksum of its line.
        arrays: Type, shape, checksum and place of every array, by name.
    """

    content: dict[str, Any]
    block: Path
    start: int
    end: int
    digest: str
    arrays: dict[str, Stored]

    def read(self, name: str) -> np.ndarray:
        """Return one array.

        Raises:
            ArgumentError: Its checksum is wrong.
        """  # noqa: DOC501 - damaged() returns an ArgumentError
        if name not in self.arrays:
            raise damaged(self.block.parent.parent, f"record {self.content['index']} has no {name}")
        dtype, shape, digest, place = self.arrays[name]
        with open(self.block, "rb") as file:
            file.seek(place)
            content = file.read(_size(dtype, shape))
        if digest_of(content) != digest:
            where = f"record {self.content['index']} ({name}) in {self.block.name}"
            raise damaged(self.block.parent.parent, f"{where} has a wrong checksum")
        return np.ndarray(shape, dtype, content).copy()

    def value(self, name: str) -> np.ndarray:
        """Return an array, or a metric that is one number and stands in the line itself."""
        numbers = self.content.get("numbers", {})
        metric = name.removeprefix("metrics/")
        return np.array(numbers[metric], float) if metric in numbers else self.read(name)

    def is_whole(self) -> bool:
        """Return whether every array agrees with its checksum."""
        try:
            for name in self.arrays:
                self.read(name)
        except ArgumentError:
            return False
        return True


@dataclass(frozen=True)
class Damage:
    """A part of a block that is not a complete frame."""

    block: Path
    start: int
    end: int


def damaged(folder: Path, what: str) -> ArgumentError:
    """Return the error for a damaged folder, with the remedy."""
    remedy = f"Verify it with: hyperribbon check {folder}; keep the intact records with --repair."
    return ArgumentError("folder", str(folder), f"it is damaged: {what}", remedy)


def scan_block(block: Path) -> Iterator[Frame | Damage]:
    """Yield the frames of a block in order, and the stretches between that are none.

    Lines are verified; arrays are only when they are read.
    """
    size = block.stat().st_size
    with open(block, "rb") as file:
        start = 0
        while start < size:
            file.seek(start)
            frame = parse_frame(block, start, file.readline(_LONGEST_LINE), size)
            if frame is not None:
                file.seek(frame.end - 1)
                if file.read(1) == b"\n":
                    yield frame
                    start = frame.end
                    continue
            file.seek(start)
            rest = file.read()
            place = 0
            while (place := rest.find(_BEGINNING, place + 1)) >= 0:
                file.seek(start + place)
                if (
                    parse_frame(block, start + place, file.readline(_LONGEST_LINE), size)
                    is not None
                ):
                    break
            end = size if place < 0 else start + place
            yield Damage(block, start, end)
            start = end


def encode_frame(index: int, content: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return the frame of a record."""
    described: dict[str, list[Any]] = {}
    payload: list[bytes] = []
    for name, array in arrays.items():
        if array.dtype.kind not in _KINDS:
            raise ArgumentError(name, array, "expected numbers", "Convert it first.")
        payload.append(np.ascontiguousarray(array).tobytes())
        described[name] = [array.dtype.str, list(array.shape), digest_of(payload[-1])]
    text = json.dumps({"index": index, **content, "arrays": described})
    line = f"{text}\t{digest_of(text.encode())}\n"
    return b"".join([line.encode(), *payload, b"\n"])


def parse_frame(block: Path, start: int, line: bytes, size: int) -> Frame | None:
    """Return the frame that a line begins, if it is whole up to its arrays' length."""
    text, tab, digest = line.rpartition(b"\t")
    if not tab or not digest.endswith(b"\n") or digest_of(text).encode() != digest[:-1]:
        return None
    try:
        content = json.loads(text)
        arrays: dict[str, Stored] = {}
        place = start + len(line)
        for name, (kind, shape, checksum) in content.pop("arrays").items():
            is_shape = all(type(length) is int and length >= 0 for length in shape)
            if not is_shape or not _KIND.fullmatch(kind):
                return None
            dtype = np.dtype(kind)
            arrays[name] = (dtype, tuple(shape), checksum, place)
            place += _size(dtype, shape)
        content["predictions"] = "predictions" in arrays
        numbers = content.get("numbers", {}).values()
        is_record = type(content["index"]) is int and all(type(n) is float for n in numbers)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    if not is_record or place + 1 > size:
        return None
    return Frame(content, block, start, place + 1, digest[:-1].decode(), arrays)


def _size(dtype: np.dtype, shape: Sequence[int]) -> int:
    total = dtype.itemsize
    for length in shape:
        total *= int(length)
    return total
