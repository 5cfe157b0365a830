"""The append-only log of a trajectory's records: blocks of records with checksums.

A block is a file of frames, one after the other. A frame is one record: a line with its values as
JSON, a tab and a checksum of that JSON; then the bytes of its arrays, one after the other, and a
line end:

    {"index": 0, "step": 0, …, "arrays": {"predictions": ["<f4", [50, 10], "9f…"]}}⇥5d41…
    ‹2000 bytes›

The file `count` has the number of records that were reported as written, and a checksum of it: more
may have been written, fewer cannot be there without damage. An incomplete frame after those is what
a killed or failed write left, and does not count. Its 16 bytes are overwritten in place and not
synced: that a disk loses power leaves the old number or the new one, since it writes whole sectors.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.store.atomic import digest_of, open_regular, sync, write_bytes

COUNT = "count"
"""File with the number of records that were reported as written."""
_MOST_OLDER = 1 << 24
_BLOCK_RECORDS = 256
_BLOCK_BYTES = 32 * 2**20
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
        """Return one array of a record in the log, read from its block.

        Raises:
            ArgumentError: Its checksum is wrong.
        """  # noqa: DOC501 - damage_error() returns an ArgumentError
        if name not in self.arrays:
            raise damage_error(
                self.block.parent.parent, f"record {self.content['index']} has no {name}"
            )
        dtype, shape, digest, place = self.arrays[name]
        with open_regular(self.block) as file:
            file.seek(place)
            content = file.read(_size(dtype, shape))
        if digest_of(content) != digest:
            where = f"record {self.content['index']} ({name}) in {self.block.name}"
            raise damage_error(self.block.parent.parent, f"{where} has a wrong checksum")
        return np.ndarray(shape, dtype, content).copy()

    def value(self, name: str) -> np.ndarray:
        """Return an array of a record in the log, or a metric stored in the frame's line."""
        numbers = self.content.get("numbers", {})
        metric = name.removeprefix("metrics/")
        return np.array(numbers[metric], float) if metric in numbers else self.read(name)

    def is_whole(self) -> bool:
        """Return whether every array of a record in the log agrees with its checksum."""
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


def damage_error(folder: Path, what: str) -> ArgumentError:
    """Return the error for a damaged record log, with the remedy."""
    remedy = f"Verify it with: hyperribbon check {folder}; keep the intact records with --repair."
    return ArgumentError("folder", str(folder), f"it is damaged: {what}", remedy)


def scan_block(block: Path) -> Iterator[Frame | Damage]:
    """Yield the frames of a record log's block in order, and the stretches that are none.

    Lines are verified; arrays are only when they are read.
    """
    size = block.stat().st_size
    with open_regular(block) as file:
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
    """Return the frame of a record as the log stores it."""
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
    """Return the frame that a line of the record log begins, if it is whole."""
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


class RecordLog:
    """The records of a trajectory, in a folder of blocks.

    Args:
        folder: The folder of the blocks; `block-000256.bin` begins with record 256.

    Raises:
        ArgumentError: A record is missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.frames: list[Frame] = []
        self._reported = read_count(folder) or 0
        blocks = block_files(folder)
        for block in blocks:
            self._read(block, is_last=block == blocks[-1])
        if len(self) < self._reported:
            lost = self._reported - len(self)
            raise self._damage_error(f"the last {lost} of {self._reported} records are missing")

    def _read(self, block: Path, *, is_last: bool) -> None:
        if first_index(block) != len(self.frames):
            raise self._damage_error(f"record {len(self.frames)} is missing before {block.name}")
        found = list(scan_block(block))
        # The end of the last block may be what a killed write left: then it is no record.
        if is_last and found and not (isinstance(found[-1], Frame) and found[-1].is_whole()):
            found.pop()
        for frame in found:
            if isinstance(frame, Damage):
                raise self._damage_error(f"record {len(self.frames)} in {block.name} is not whole")
            if frame.content["index"] != len(self.frames):
                raise self._damage_error(f"record {len(self.frames)} in {block.name} is missing")
            self.frames.append(frame)

    def _damage_error(self, what: str) -> ArgumentError:
        return damage_error(self.folder.parent, what)

    def append(self, content: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Add a record to the log; when this returns it is on disk and whole."""
        self.extend([(content, arrays)])

    def extend(self, records: Sequence[tuple[Mapping[str, Any], Mapping[str, np.ndarray]]]) -> None:
        """Add records to the log, with one sync per block; when this returns they are on disk.

        Raises an ArgumentError when another process has changed the records since they were read,
        and an OSError when they could not be written; then the records are as before, or as many of
        the first ones are added as filled a block.
        """
        while records:
            block, start = self._next_place()
            number = len(self.frames)
            room = _BLOCK_RECORDS - (number - first_index(block))
            frames: list[bytes] = []
            while len(frames) < min(room, len(records)) and sum(map(len, frames)) < _BLOCK_BYTES:
                frames.append(encode_frame(number + len(frames), *records[len(frames)]))
            self._write_frames(block, start, frames)
            records = records[len(frames) :]

    def _write_frames(self, block: Path, start: int, frames: Sequence[bytes]) -> None:
        """Put records' frames at the end of a log's block, all or none."""
        is_new = not block.exists()
        handle = os.open(block, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._clear_tail(handle, start)
            try:
                _write_at(handle, start, b"".join(frames))
                os.fsync(handle)
                if is_new:
                    sync(self.folder)
            except BaseException:
                os.ftruncate(handle, start)
                raise
        finally:
            os.close(handle)
        for data in frames:
            frame = parse_frame(block, start, data[: data.index(b"\n") + 1], start + len(data))
            assert frame is not None
            self.frames.append(frame)
            start = frame.end
        write_count(self.folder, len(self.frames))

    def truncate(self, count: int) -> None:
        """Forget all records of the log but the first, last ones first: a kill leaves it whole."""
        write_count(self.folder, count)
        sync(self.folder / COUNT)
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
        """Return the number of records in the log."""
        return len(self.frames)

    def content(self, index: int) -> dict[str, Any]:
        """Return the JSON values that the log stores for a record."""
        return self.frames[index].content

    def rows(self, indices: Sequence[int], name: str) -> np.ndarray:
        """Return one array of several records in the log, (len(indices), ...)."""
        return np.stack([self.frames[index].value(name) for index in indices])

    def agrees_with_disk(self) -> bool:
        """Return whether the log's records on disk are still those that were read."""
        now = [frame.digest for frame in RecordLog(self.folder).frames]
        return now == [frame.digest for frame in self.frames]

    def _next_place(self) -> tuple[Path, int]:
        number = len(self.frames)
        if not number:
            return block_name(self.folder, 0), 0
        last = self.frames[-1]
        if number - first_index(last.block) < _BLOCK_RECORDS and last.end < _BLOCK_BYTES:
            return last.block, last.end
        return block_name(self.folder, number), 0

    def _clear_tail(self, handle: int, start: int) -> None:
        size = os.fstat(handle).st_size
        if size == start:
            return
        if size < start or not self.agrees_with_disk():
            reason = "another process has changed its records meanwhile"
            remedy = "Open it again; one process at a time may write."
            raise ArgumentError("folder", str(self.folder.parent), reason, remedy)
        os.ftruncate(handle, start)


def block_files(folder: Path) -> list[Path]:
    """Return a record log's blocks, in order."""
    return sorted(folder.glob("block-[0-9]*.bin"), key=first_index)


def block_name(folder: Path, first: int) -> Path:
    """Return the name of the record log's block that begins with a record."""
    return folder / f"block-{first:06d}.bin"


def write_count(folder: Path, count: int) -> None:
    """Note beside a record log how many records are on disk."""
    path, content = folder / COUNT, _encode_count(count)
    if not path.exists() or path.stat().st_size != len(content):
        write_bytes(path, content)
        return
    handle = os.open(path, os.O_WRONLY)
    try:
        _write_at(handle, 0, content)
    finally:
        os.close(handle)


def read_count(folder: Path) -> int | None:
    """Return how many records the log was reported to hold; None where the file is missing.

    Raises:
        ArgumentError: It is damaged.
    """  # noqa: DOC501 - damage_error() returns an ArgumentError
    path, content = folder / COUNT, b""
    if not os.path.lexists(path):
        return None
    for wait in (0.0, 0.01):  # another process may be writing it
        time.sleep(wait)
        with suppress(OSError), open_regular(path) as file:
            content = file.read(_MOST_OLDER)
        count = int.from_bytes(content[:8], "little")
        if not path.is_symlink() and content == _encode_count(count):
            return count
    if content and not content.strip(b"\0"):  # older ones have a zero for every record
        return len(content)
    raise damage_error(folder.parent, f"{folder.name}/{COUNT} does not count records")


def _encode_count(count: int) -> bytes:
    number = count.to_bytes(8, "little")
    return number + bytes.fromhex(digest_of(number))


def first_index(block: Path) -> int:
    """Return the number of the record that a block of the log begins with."""
    digits = block.stem.removeprefix("block-")
    return int(digits) if digits.isdecimal() else -1


def _write_at(handle: int, place: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(handle, view, place)
        view, place = view[written:], place + written
