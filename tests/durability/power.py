"""A disk that can lose its power: what was synced survives, what was not may or may not.

The model is that of POSIX at its least generous. The content of a file is safe from its last
fsync, the names in a folder from the folder's last fsync. Of what came after, every file may have
its old content, the new one, a part of it, or zeros; every name its old meaning or the new one.
Beyond POSIX, a file of no more than one sector that is overwritten in place is the old or the new.
"""

from __future__ import annotations

import os
import random
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Names = dict[str, int]
SECTOR = 512


@dataclass
class Moment:
    """The disk at one moment: files and folders by inode, as they are safe and as they look."""

    safe_files: dict[int, bytes]
    safe_names: dict[int, Names]
    files: dict[int, bytes]
    names: dict[int, Names]
    reported: Any = None


@dataclass
class Disk:
    """Watches a folder: every fsync is a moment at which the power could fail.

    Args:
        root: The folder; its own name is safe.
    """

    root: Path
    moments: list[Moment] = field(default_factory=list)
    reported: Any = None

    def __enter__(self) -> Disk:
        self._safe_files: dict[int, bytes] = {}
        self._safe_names: dict[int, Names] = {}
        self._held: dict[int, int] = {}
        self._fsync = os.fsync
        os.fsync = self._synced
        return self

    def __exit__(self, *_: object) -> None:
        os.fsync = self._fsync
        for handle in self._held.values():
            os.close(handle)

    def report(self, number: Any) -> None:
        """Note what the program calls written, from now on."""
        self.reported = number

    def _synced(self, handle: int) -> None:
        self._note()  # before anything of this call is safe
        self._fsync(handle)
        about = os.fstat(handle)
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if not path.is_relative_to(self.root):
            return
        self._hold(path)
        if stat.S_ISDIR(about.st_mode):
            self._safe_names[about.st_ino] = self._names_in(path)
        else:
            self._safe_files[about.st_ino] = path.read_bytes()
        self._note()

    def _note(self) -> None:
        files, names = {}, {}
        for place, _, inside in os.walk(self.root):
            names[os.stat(place).st_ino] = self._names_in(Path(place))
            for name in inside:
                path = Path(place, name)
                files[path.stat().st_ino] = path.read_bytes()
        self.moments.append(
            Moment(dict(self._safe_files), dict(self._safe_names), files, names, self.reported)
        )

    def _names_in(self, folder: Path) -> Names:
        return {path.name: self._hold(path) for path in folder.iterdir()}

    def _hold(self, path: Path) -> int:
        """Keep an inode from being used again."""
        number = path.stat().st_ino
        if number not in self._held:
            self._held[number] = os.open(path, os.O_RDONLY)
        return number

    def after_power_loss(self, moment: Moment, target: Path, rng: random.Random | None) -> None:
        """Write what is on the disk when the power comes back.

        Args:
            moment: When it failed.
            target: Where to write.
            rng: Decides what else survived; None for nothing but what was synced.
        """
        self._write(moment, self.root.stat().st_ino, target, rng)

    def _write(self, moment: Moment, inode: int, path: Path, rng: random.Random | None) -> None:
        safe, now = moment.safe_names.get(inode, {}), moment.names.get(inode, {})
        path.mkdir(exist_ok=True)
        for name in sorted({*safe, *now}):
            chosen = safe.get(name) if rng is None else rng.choice([safe, now]).get(name)
            if chosen is None:
                continue
            if chosen in moment.names or chosen in moment.safe_names:
                self._write(moment, chosen, path / name, rng)
            else:
                (path / name).write_bytes(self._content(moment, chosen, rng))

    @staticmethod
    def _content(moment: Moment, inode: int, rng: random.Random | None) -> bytes:
        safe = moment.safe_files.get(inode, b"")
        now = moment.files.get(inode, safe)
        if rng is None or now == safe:
            return safe
        if len(now) == len(safe) <= SECTOR:  # overwritten in place
            return rng.choice([safe, now])
        common = safe if now.startswith(safe) else b""
        part = now[: rng.randrange(len(common), len(now) + 1)] if now else b""
        zeros = common + bytes(len(now) - len(common))
        return rng.choice([safe, now, part, zeros])
