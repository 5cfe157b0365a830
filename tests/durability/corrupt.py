"""Corrupt one stored file at a time: `check` says so, never hangs or fails, and loses nothing.

Run as a script: python corrupt.py FOLDER MUTATIONS [SEED]
"""

from __future__ import annotations

import collections
import contextlib
import os
import random
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import nn

import hyperribbon as hr
from hyperribbon.core.store import Store, write_json
from hyperribbon.core.store.check import check_folder
from hyperribbon.papers.experiments import run
from hyperribbon.papers.experiments.costs import Meter
from hyperribbon.recording import Recorder
from hyperribbon.subnetworks import metric_of

UNLISTED = ("files", "tiles", "fluctuations", "partial/")
"""Files without a manifest: that one is missing, or is another whole file, nothing can tell."""

KINDS = ("flip", "cut", "empty", "delete", "garbage", "zeros", "twice", "gap", "longer", "other")
KINDS = (*KINDS, "folder", "pipe", "link", "deep")
SECONDS = 20


def build(folder: Path) -> None:
    """Store one result of every kind, finished and unfinished."""
    x = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    loss = nn.CrossEntropyLoss()
    for name in ("finished", "stopped"):
        recorder = Recorder(folder / "recordings" / name, "2it", probe=x[:3])
        recorder.attach(model, torch.optim.Adam(model.parameters()))
        for step in range(9):
            recorder.step(0.5 / (step + 1))
        recorder.close() if name == "finished" else recorder.release()
    hr.train_ensemble(
        lambda seed: nn.Linear(4, 2), loss, (x, y), seeds=[0], epochs=2, lr=0.1,
        folder=folder / "ensemble", together=False,
    )  # fmt: skip
    quiet = {"console": Console(quiet=True)}
    hr.inspect(model, loss, (x, y), budget=1, **quiet).save(folder / "inspection")
    other = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    hr.compare(model, other, loss=loss, data=(x, y), **quiet).save(folder / "comparison")
    run("ribbons/fig4", preset="smoke", out=folder / "runs")
    partial = Store(folder / "partial").run("ribbons/x", {"a": 1}, 0)
    partial.save_result({"x": np.arange(30.0)})
    hr.sweep(point, {"seed": range(4)}, out=folder / "sweep", version="1")
    with Meter(partial.parts / "cost.json") as meter:
        write_json(partial.parts / "cost.json", meter.cost(), checksum=True)
    build_kept(folder, model, other, loss, (x, y))


def build_kept(folder: Path, model: Any, other: Any, loss: Any, data: Any) -> None:
    """Store what calls with a folder keep, finished and unfinished, and single files."""
    quiet = {"console": Console(quiet=True)}
    parts = ("trace", "noise")
    hr.compare(model, other, loss, data, parts=parts, folder=folder / "measurements", **quiet)
    hr.prunable(model, loss, data, folder=folder / "pruning")

    def fit(net: nn.Module) -> None:
        hr.train(net, loss, data, epochs=1, lr=0.1)

    metric = metric_of(model, data)
    ticket = hr.find_ticket(model, fit, metric, levels=1, folder=folder / "search")
    (folder / "files").mkdir()
    ticket.save(folder / "files" / "ticket.safetensors")
    ticket.pruned.save(folder / "files" / "mask.safetensors")
    rows = np.random.default_rng(0).dirichlet(np.ones(2), (40, 6))
    hr.stream_inpca(rows, 2, streaming=hr.Streaming(folder=folder / "tiles", memory=2e5))
    batches = [(data[0][:16], data[1][:16]), (data[0][16:], data[1][16:])]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    hr.fluctuations(model, loss, batches, optimizer, steps=12, folder=folder / "fluctuations")

    for name, together in (("group", True), ("one", False)):
        with contextlib.suppress(KeyboardInterrupt):
            hr.train_ensemble(
                lambda seed: nn.Linear(4, 2), Stopping(loss, 4), data, seeds=[0, 1], epochs=6,
                lr=0.1, folder=folder / name, together=together,
            )  # fmt: skip


class Stopping(nn.Module):
    """A loss that stops the program after some calls."""

    def __init__(self, loss: nn.Module, calls: int) -> None:
        super().__init__()
        self.loss, self.left = loss, calls

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return self.loss(outputs, targets)


def point(point: Any) -> Any:
    if point["seed"] == 3:
        raise ValueError("a point that fails")
    return {"values": np.arange(20.0) + point["seed"]}


def stored_files(folder: Path) -> list[Path]:
    """Return every stored file; locks and markers without content are none."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return [p for p in found if not p.name.endswith(".lock") and p.stat().st_size]


def corrupt(path: Path, others: list[Path], kind: str, rng: random.Random) -> bool:
    """Change a file; return whether that changed anything."""
    content = bytearray(before := path.read_bytes())
    place, length = rng.randrange(len(content)), rng.randrange(1, 60)
    if kind == "flip":
        content[place] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del content[place:]
    elif kind == "empty":
        content.clear()
    elif kind == "garbage":
        content[place : place + length] = rng.randbytes(length)
    elif kind == "zeros":
        content[place : place + length] = bytes(length)
    elif kind == "twice":
        content[place:place] = content[:length]
    elif kind == "gap":
        del content[place : place + length]
    elif kind == "longer":
        content += rng.randbytes(length)
    elif kind == "other":
        content[:] = rng.choice(others).read_bytes()
    elif kind == "deep":
        content[:] = b"[" * 200_000
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("/dev/zero")
    elif kind != "delete":
        path.write_bytes(content)
        return bytes(content) != before
    return True


def contents(folder: Path) -> collections.Counter[bytes]:
    """Return how often each content is stored, wherever."""
    return collections.Counter(
        path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()
    )


def attack(whole: Path, work: Path, mutations: int, seed: int) -> dict[str, list[str]]:
    """Corrupt copies of a folder; return what went wrong, by kind of failure."""
    files, rng = stored_files(whole), random.Random(seed)
    failures: dict[str, list[str]] = {"missed": [], "raised": [], "hung": [], "lost": []}
    number = 0
    while number < mutations:
        path, kind = rng.choice(files), KINDS[number % len(KINDS)]
        if kind in ("delete", "other") and str(path.relative_to(whole)).startswith(UNLISTED):
            continue
        shutil.rmtree(work, ignore_errors=True)
        top = path.relative_to(whole).parts[0]
        shutil.copytree(whole / top, work / top, symlinks=True)
        target = work / path.relative_to(whole)
        others = [
            work / p.relative_to(whole) for p in files if p.relative_to(whole).parts[0] == top
        ]
        if not corrupt(target, others, kind, rng):
            continue
        number += 1
        what = f"{path.relative_to(whole)}: {kind}"
        intact = contents(work)
        if target.is_file() and not target.is_symlink():
            intact[target.read_bytes()] -= 1
        signal.alarm(SECONDS)
        try:
            if check_folder(work).is_whole:
                failures["missed"].append(what)
            check_folder(work, repair=True)
        except TimeoutError:
            failures["hung"].append(what)
        except Exception as error:
            failures["raised"].append(f"{what}: {error!r}")
        signal.alarm(0)
        if target.is_fifo():
            target.unlink()
        lost = {c for c, n in (intact - contents(work)).items() if n and is_data(c)}
        if lost:
            failures["lost"].append(what)
    return failures


def is_data(content: bytes) -> bool:
    """Return whether a content is that of a result, not of a manifest, header or status."""
    return bool(content.strip(b"\0")) and b'"checksum": ' not in content


def stop(*_: object) -> None:
    raise TimeoutError


def main(folder: Path, mutations: int, seed: int = 0) -> dict[str, list[str]]:
    signal.signal(signal.SIGALRM, stop)
    build(folder / "whole")
    assert check_folder(folder / "whole").is_whole
    failures = attack(folder / "whole", folder / "work", mutations, seed)
    counts = {kind: len(found) for kind, found in failures.items()}
    print(f"{mutations} corruptions: {counts}")
    for kind, found in failures.items():
        for what in found[:40]:
            print(f"  {kind}: {what}")
    return failures


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0)
