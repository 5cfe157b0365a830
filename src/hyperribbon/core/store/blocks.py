"""Records in blocks: many a file, each with its index and checksums, added by one write and sync.

A block is a file of frames. A frame is one line, the record as JSON, a tab and a checksum of that
JSON; then the bytes of the record's arrays one after the other; then a line end:

    {"index": 0, "step": 0, …, "arrays": {"predictions": ["<f4", [50, 10], "9f…"]}}⇥5d41…
    ‹2000 bytes›

A frame that is not whole at the end of the last block is what a killed or failed write left: it was
never reported as written and does not count. Anywhere else it is damage, which is said.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.store.atomic import digest_of, sync, writing

__all__ = [
    "BlockLog",
    "Damage",
    "Frame",
    "block_files",
    "damaged",
    "first_index",
    "scan_block",
    "write_log",
]

_MOST_RECORDS = 256
_MOST_BYTES = 32 * 2**20
_LONGEST_LINE = 64 * 2**20
_BEGINNING = b'{"index": '
_KINDS = "biufc"
_KIND = re.compile(rf"[<>|][{_KINDS}]\d+")


@dataclass(frozen=True)
class Frame:
    """One whole record in a block.

    Attributes:
        content: The record's plain values.
        block: The file.
        start: Where the frame begins in it.
        end: Where the next one begins.
        arrays: Type, shape, checksum and place of every array, by name.
    """

    content: dict[str, Any]
    block: Path
    start: int
    end: int
    arrays: dict[str, tuple[np.dtype, tuple[int, ...], str, int]]

    def read(self, name: str) -> np.ndarray:
        """Return one array.

        Raises:
            ArgumentError: Its checksum is wrong.
        """
        if name not in self.arrays:
            raise damaged(self.block.parent.parent, f"record {self.content['index']} has no {name}")
        dtype, shape, digest, place = self.arrays[name]
        with open(self.block, "rb") as file:
            file.seek(place)
            content = file.read(_size(dtype, shape))
        if digest_of(content) != digest:
            where = f"record {self.content['index']} ({name}) in {self.block.name}"
            raise damaged(self.block.parent.parent, f"{where} has a wrong checksum")
        return np.frombuffer(content, dtype).reshape(shape).copy()

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
    """A stretch of a block that is no whole frame."""

    block: Path
    start: int
    end: int


def damaged(folder: Path, what: str) -> ArgumentError:
    """Return the error that says what is damaged in a folder, and what to do."""
    return ArgumentError(
        "folder",
        str(folder),
        f"it is damaged: {what}",
        f"See what is whole with: hyperribbon check {folder}; keep that with --repair.",
    )


def scan_block(block: Path) -> Iterator[Frame | Damage]:
    """Yield the frames of a block in order, and the stretches between that are none.

    Lines are verified; arrays are only when they are read.
    """
    size = block.stat().st_size
    with open(block, "rb") as file:
        start = 0
        while start < size:
            file.seek(start)
            frame = _parse(block, start, file.readline(_LONGEST_LINE), size)
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
                if _parse(block, start + place, file.readline(_LONGEST_LINE), size) is not None:
                    break
            end = size if place < 0 else start + place
            yield Damage(block, start, end)
            start = end


class BlockLog:
    """The records of a trajectory, in a folder of blocks.

    Args:
        folder: The folder of the blocks; `block-000256.bin` begins with record 256.

    Raises:
        ArgumentError: A record is missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.frames: list[Frame] = []
        blocks = block_files(folder)
        for block in blocks:
            self._take(block, is_last=block == blocks[-1])

    def _take(self, block: Path, *, is_last: bool) -> None:
        if first_index(block) != len(self.frames):
            raise self._damaged(f"record {len(self.frames)} is missing before {block.name}")
        found = list(scan_block(block))
        if is_last and found and not _counts(found[-1]):
            found.pop()
        for frame in found:
            if isinstance(frame, Damage):
                raise self._damaged(f"record {len(self.frames)} in {block.name} is not whole")
            if frame.content["index"] != len(self.frames):
                raise self._damaged(f"record {len(self.frames)} in {block.name} is missing")
            self.frames.append(frame)

    def _damaged(self, what: str) -> ArgumentError:
        return damaged(self.folder.parent, what)

    def append(self, content: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Add a record; when this returns it is on disk and whole.

        Raises:
            ArgumentError: Another process has changed the records since they were read.
            OSError: It could not be written; the records are as before.
        """
        block, start = self._next_place()
        data = encode(len(self.frames), content, arrays)
        is_new = not block.exists()
        handle = os.open(block, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._clear_tail(handle, start)
            try:
                _write_at(handle, start, data)
                os.fsync(handle)
                if is_new:
                    sync(self.folder)
                frame = _parse(block, start, data[: data.index(b"\n") + 1], start + len(data))
                assert frame is not None
                self.frames.append(frame)
            except BaseException:
                os.ftruncate(handle, start)
                raise
        finally:
            os.close(handle)

    def truncate(self, count: int) -> None:
        """Forget all records but the first ones, the last first: a kill leaves a whole log."""
        for block in reversed(block_files(self.folder)):
            first = first_index(block)
            if first >= count:
                block.unlink()
                sync(self.folder)
            elif len(self.frames) > count:
                handle = os.open(block, os.O_RDWR)
                try:
                    os.ftruncate(handle, self.frames[count].start)
                    os.fsync(handle)
                finally:
                    os.close(handle)
            del self.frames[max(first, count) :]

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.frames)

    def content(self, index: int) -> dict[str, Any]:
        """Return the plain values of a record."""
        return self.frames[index].content

    def rows(self, indices: Sequence[int], name: str) -> np.ndarray:
        """Return one array of several records, (len(indices), ...)."""
        return np.stack([self.frames[index].value(name) for index in indices])

    def agrees_with_disk(self) -> bool:
        """Return whether the records on disk are still those that were read."""
        now = BlockLog(self.folder).frames
        return len(now) == len(self.frames) and (not now or now[-1] == self.frames[-1])

    def _next_place(self) -> tuple[Path, int]:
        number = len(self.frames)
        if not number:
            return block_name(self.folder, 0), 0
        last = self.frames[-1]
        if number - first_index(last.block) < _MOST_RECORDS and last.end < _MOST_BYTES:
            return last.block, last.end
        return block_name(self.folder, number), 0

    def _clear_tail(self, handle: int, start: int) -> None:
        size = os.fstat(handle).st_size
        if size == start:
            return
        if size < start or not self.agrees_with_disk():
            raise ArgumentError(
                "folder",
                str(self.folder.parent),
                "another process has changed its records meanwhile",
                "Open it again; one process at a time may write.",
            )
        os.ftruncate(handle, start)


def write_log(
    folder: Path, records: Iterable[tuple[Mapping[str, Any], Mapping[str, np.ndarray]]]
) -> int:
    """Write many records as blocks, one sync a block; return how many there are."""
    batch: list[bytes] = []
    first = count = size = 0

    def close_block() -> None:
        with writing(block_name(folder, first)) as temporary, open(temporary, "wb") as file:
            file.writelines(batch)

    for content, arrays in records:
        if len(batch) == _MOST_RECORDS or size >= _MOST_BYTES:
            close_block()
            batch, first, size = [], count, 0
        batch.append(encode(count, content, arrays))
        size += len(batch[-1])
        count += 1
    if batch:
        close_block()
    return count


def encode(index: int, content: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return the frame of a record."""
    described, payload = {}, []
    for name, array in arrays.items():
        if array.dtype.kind not in _KINDS:
            raise ArgumentError(name, array, "it does not hold numbers", "Convert it first.")
        payload.append(np.ascontiguousarray(array).tobytes())
        described[name] = [array.dtype.str, list(array.shape), digest_of(payload[-1])]
    text = json.dumps({"index": index, **content, "arrays": described})
    line = f"{text}\t{digest_of(text.encode())}\n"
    return b"".join([line.encode(), *payload, b"\n"])


def block_files(folder: Path) -> list[Path]:
    """Return the blocks of a folder, in order."""
    return sorted(folder.glob("block-[0-9]*.bin"), key=first_index)


def block_name(folder: Path, first: int) -> Path:
    """Return the name of the block that begins with a record."""
    return folder / f"block-{first:06d}.bin"


def first_index(block: Path) -> int:
    """Return the number of the record that a block begins with."""
    digits = block.stem.removeprefix("block-")
    return int(digits) if digits.isdecimal() else -1


def _counts(end: Frame | Damage) -> bool:
    """Return whether the end of the last block is a record, not what a killed write left."""
    return isinstance(end, Frame) and end.is_whole()


def _parse(block: Path, start: int, line: bytes, size: int) -> Frame | None:
    """Return the frame that a line begins, if it is whole up to its arrays' length."""
    text, tab, digest = line.rpartition(b"\t")
    if not tab or not digest.endswith(b"\n") or digest_of(text).encode() != digest[:-1]:
        return None
    try:
        content = json.loads(text)
        arrays, place = {}, start + len(line)
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
    return Frame(content, block, start, place + 1, arrays)


def _size(dtype: np.dtype, shape: Sequence[int]) -> int:
    total = dtype.itemsize
    for length in shape:
        total *= int(length)
    return total


def _write_at(handle: int, place: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(handle, view, place)
        view, place = view[written:], place + written
