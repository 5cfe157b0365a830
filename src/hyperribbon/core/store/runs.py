"""A store of runs: one folder per configuration, named by its hash."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock, Timeout

from hyperribbon.core import html
from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.claims import Claim
from hyperribbon.core.store.atomic import (
    clear_leftovers,
    ensure_folder,
    make_folder,
    read_json,
    write_json,
)
from hyperribbon.core.store.manifest import MANIFEST, Manifest, list_files, read_manifest
from hyperribbon.core.store.trees import load_tree, save_tree, tree_frame

if TYPE_CHECKING:
    import pandas as pd


def config_hash(*parts: Any) -> str:
    """Return the hash of a run's configuration: twelve hexadecimal digits.

    >>> config_hash({"a": 1, "b": 2}) == config_hash({"b": 2, "a": 1})
    True
    """
    text = json.dumps([_plain(part) for part in parts], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def git_commit() -> str:
    """Return the git commit to store with a run, "-dirty" where files were changed; else ""."""
    command = ["git", "--no-optional-locks", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=2, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip()


def describe_environment(seed: int) -> dict[str, Any]:
    """Return a run's environment: versions, commit, cores and seed, as needed to repeat it."""
    import torch

    packages = {}
    for name in ("hyperribbon", "torch", "numpy", "scipy", "scikit-learn"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = "not installed"
    return {
        "python": sys.version.split()[0],
        "packages": packages,
        "commit": git_commit(),
        "platform": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "seed": seed,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """The files of one stored run: result, figures, claims and manifest."""

    path: Path

    @property
    def parts(self) -> Path:
        """Folder of finished pieces of a run that is not finished."""
        return self.path / "parts"

    @property
    def figures(self) -> Path:
        """Folder of a stored run's figures."""
        return self.path / "figures"

    @property
    def info(self) -> dict[str, Any]:
        """Id, title, preset, configuration and environment of the run."""
        return read_json(self.path / "run.json")

    @property
    def is_complete(self) -> bool:
        """Whether a stored run has results, figures and claims (the manifest is written last)."""
        try:
            manifest = read_manifest(self.path)
            if manifest is not None:
                return manifest.state == "finished"
            is_older = not self.info.get("has_manifest")
        except (OSError, ValueError):
            return False
        return is_older and (self.path / "claims.json").is_file()

    @property
    def has_result(self) -> bool:
        """Whether the run's result is stored."""
        return (self.path / "result.safetensors").is_file()

    def save_result(self, result: Any) -> None:
        """Store the result of the run."""
        save_tree(self.path / "result.safetensors", result)

    def load_result(self) -> Any:
        """Return the stored result of the run as a tree."""
        return load_tree(self.path / "result.safetensors")

    def to_frame(self) -> pd.DataFrame:
        """Return every number behind a stored run's figures: name, index in its array, value."""
        return tree_frame(self.load_result())

    def save_claims(self, claims: list[Claim]) -> None:
        """Store the claims and the manifest; this completes the run."""
        self.save_info(has_manifest=False)
        write_json(self.path / "claims.json", [claim.to_json() for claim in claims])
        paths = [self.path / "claims.json", self.path / "result.safetensors"]
        paths += self.figures.iterdir() if self.figures.is_dir() else []
        names = [path.relative_to(self.path).as_posix() for path in paths if path.is_file()]
        Manifest("run", files=list_files(self.path, names)).write(self.path)
        self.save_info(has_manifest=True)  # from now on a missing manifest is damage

    def save_info(self, **info: Any) -> None:
        """Add to the description of the run."""
        write_json(self.path / "run.json", {**self.info, **info}, checksum=True)

    def reset(self) -> None:
        """Delete the result and the claims of the run."""
        self.save_info(has_manifest=False)
        for name in (MANIFEST, "claims.json", "result.safetensors"):
            (self.path / name).unlink(missing_ok=True)

    def load_claims(self) -> list[Claim]:
        """Return the stored claims of the run."""
        return [Claim.from_json(record) for record in read_json(self.path / "claims.json")]

    def _repr_html_(self) -> str:
        """Show the first figure and the claims of the run, in a notebook."""
        pictures = [
            html.image("png", path.read_bytes(), path.stem)
            for path in sorted(self.figures.glob("*.png"))[:1]
        ]
        claims = self.load_claims() if self.is_complete else []
        rows = [(c.verdict, c.place, c.reading, html.number(c.measured)) for c in claims]
        table = html.table(("verdict", "place", "claim", "measured"), rows) if rows else ""
        title = str(self.info.get("title", self.path.name))
        return html.card(title, html.note(str(self.path)), "<br/>", *pictures, table)

    @contextmanager
    def lock(self) -> Generator[None]:
        """Hold the run for this process; the lock vanishes with the process that holds it."""
        lock = FileLock(self.path / ".lock", mode=0o644)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            reason = "another process is computing this run"
            remedy = "Wait for it, or choose another --out folder."
            raise ArgumentError("out", str(self.path), reason, remedy) from None
        try:
            for folder in (self.path, self.parts, self.figures):
                clear_leftovers(folder)
            yield
        finally:
            lock.release()


class Store:
    """A folder of runs, each named by its configuration's hash.

    Args:
        folder: The store's folder; created if missing.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = ensure_folder("out", Path(folder))

    def run(self, id: str, config: Any, seed: int, **info: Any) -> RunFolder:
        """Return the folder of a run, making it if it is new.

        Args:
            id: What is run, such as "ribbons/fig4".
            config: Its configuration, a dataclass or a dict of plain values.
            seed: Its seed.
            **info: Further plain values to record (title, preset, …); of these only `code`,
                `seeds` and `sequential` are part of the hash.
        """
        several = [info[name] for name in ("seeds", "sequential") if name in info]
        digest = config_hash(id, config, seed, info.get("code", ""), *several)
        run = RunFolder(self.folder / f"{id.replace('/', '_')}-{digest}")
        if not (run.path / "run.json").is_file():
            for folder in (run.path, run.parts, run.figures):
                make_folder(folder)
            write_json(
                run.path / "run.json",
                {
                    "id": id,
                    **_plain(info),
                    "config": _plain(config),
                    "environment": describe_environment(seed),
                },
                checksum=True,
            )
        return run

    def runs(self) -> list[RunFolder]:
        """Return every run of the store, by name."""
        return [RunFolder(path.parent) for path in sorted(self.folder.glob("*/run.json"))]

    @property
    def shared(self) -> Path:
        """Folder of computations that several of a store's runs share."""
        return ensure_folder("out", self.folder / "shared")


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, np.generic):
        return _plain(value.item())
    raise ArgumentError(
        "config",
        value,
        "a configuration may contain plain values only",
        "Use numbers, strings, tuples.",
    )
