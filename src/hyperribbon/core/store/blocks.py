"""Record blocks: many records per file with checksums, appended by one write and sync.

A block is a file of frames, one after the other (see `frames`). A frame that is not whole at the
end of the last block is what a killed or failed write left: it was never reported as written and
does not count. Anywhere else it is damage, which is said.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.store.atomic import sync, writing
from hyperribbon.core.store.frames import (
    Damage,
    Frame,
    damaged,
    encode_frame,
    parse_frame,
    scan_block,
)

__all__ = [
    "BlockLog",
    "block_files",
    "first_index",
    "write_log",
]

_MOST_RECORDS = 256
_MOST_BYTES = 32 * 2**20


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
        # The end of the last block may be what a killed write left: then it is no record.
        if is_last and found and not (isinstance(found[-1], Frame) and found[-1].is_whole()):
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
        """Add a record; when this returns it is on disk and whole."""
        self.extend([(content, arrays)])

    def extend(self, records: Sequence[tuple[Mapping[str, Any], Mapping[str, np.ndarray]]]) -> None:
        """Add records, with one sync a block; when this returns they are on disk and whole.

        Raises an ArgumentError when another process has changed the records since they were read,
        and an OSError when they could not be written; then the records are as before, or as many of
        the first ones are added as filled a block.
        """
        while records:
            block, start = self._next_place()
            number = len(self.frames)
            room = _MOST_RECORDS - (number - first_index(block))
            frames: list[bytes] = []
            while len(frames) < min(room, len(records)) and sum(map(len, frames)) < _MOST_BYTES:
                frames.append(encode_frame(number + len(frames), *records[len(frames)]))
            self._write_frames(block, start, frames)
            records = records[len(frames) :]

    def _write_frames(self, block: Path, start: int, frames: Sequence[bytes]) -> None:
        """Put frames at the end of a block, all or none."""
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
        """Return the JSON values stored for a record."""
        return self.frames[index].content

    def rows(self, indices: Sequence[int], name: str) -> np.ndarray:
        """Return one array of several records, (len(indices), ...)."""
        return np.stack([self.frames[index].value(name) for index in indices])

    def agrees_with_disk(self) -> bool:
        """Return whether the records on disk are still those that were read."""
        now = [frame.digest for frame in BlockLog(self.folder).frames]
        return now == [frame.digest for frame in self.frames]

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
            reason = "another process has changed its records meanwhile"
            remedy = "Open it again; one process at a time may write."
            raise ArgumentError("folder", str(self.folder.parent), reason, remedy)
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
        batch.append(encode_frame(count, content, arrays))
        size += len(batch[-1])
        count += 1
    if batch:
        close_block()
    return count


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


def _write_at(handle: int, place: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(handle, view, place)
        view, place = view[written:], place + written
