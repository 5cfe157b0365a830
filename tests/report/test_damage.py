"""A damaged file of a stored run is one line of the report; everything else is shown."""

import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

import hyperribbon as hr
from hyperribbon.application.report import write_report, writing
from hyperribbon.papers.experiments import run

KINDS = ("inspection", "comparison", "experiment", "recording")
WRONG = {
    ".json": ["[]", "7", "null", '"text"', "{}", '{"title": [], "parts": {"a": 1}}', "[{}]"],
    ".csv": ["", "\0", '"' * 7, "a,b\n" + "1," * 9],
}
NESTED = "[" * 50_000
HOSTILE = [{"a": [1]}, [[]], 7, None, "<script>alert(1)</script>", "x" * 100_000, "\ud800", "\0"]


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch):
    """Leave plotly's 4 MB out of the pages."""
    monkeypatch.setattr(writing, "_plotly", lambda: "")


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Return a store with a run of every kind."""
    folder = tmp_path_factory.mktemp("store")
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(40, 3, generator=generator), torch.randint(0, 2, (40,), generator=generator)
    models = [hr.training.mlp((3, 4, 2), seed=seed) for seed in (0, 1)]
    loss, quiet = torch.nn.CrossEntropyLoss(), Console(quiet=True)
    hr.inspect(models[0], loss, data, budget=3, k=3, console=quiet).save(folder / "inspection")
    found = hr.compare(*models, loss=loss, data=data, samples=40, groups=4)
    found.save(folder / "comparison")
    run("ribbons/fig4", preset="smoke", out=folder / "runs")
    for chart in sorted((folder / "inspection" / "figures").glob("*.plotly.json"))[1:]:
        for file in chart.parent.glob(chart.name.removesuffix("plotly.json") + "*"):
            file.unlink()  # one figure stands for all
    (made,) = (folder / "runs").glob("ribbons*")
    shutil.move(made, folder / "experiment")
    trajectory = hr.Trajectory.create(folder / "recording")
    for step in range(5):
        predictions = np.full((4, 3), 1 / 3) + 0.01 * step * np.eye(4, 3)
        trajectory.append(step, metrics={"loss": 1 / (step + 1)}, predictions=predictions)
    return folder


def files_of(stored, kind):
    return sorted(p.relative_to(stored) for p in (stored / kind).rglob("*") if p.is_file())


def damage(path):
    """Yield the name of every kind of damage, having done it to a file."""
    content = path.read_bytes()
    yield "empty", path.write_bytes(b"")
    yield "truncated", path.write_bytes(content[: len(content) // 2])
    yield "flipped", path.write_bytes(bytes(255 - b for b in content))
    for text in (*WRONG.get(path.suffix, [b"\x00\xff".decode("latin1")]), NESTED):
        yield f"wrong {text[:20]!r}", path.write_text(text)
    path.unlink()
    yield "deleted", None
    path.mkdir()
    yield "folder", None
    path.rmdir()
    path.symlink_to(path.name)
    yield "loop", None
    path.unlink()
    os.mkfifo(path)
    yield "pipe", None


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_file_in_turn(stored, tmp_path, kind):
    neighbour = tmp_path / "store" / "neighbour"
    shutil.copytree(stored / "experiment", neighbour)
    title = json.loads((neighbour / "run.json").read_text())["title"]
    signal.alarm(120)  # a report that waits for a pipe would wait for ever
    for file in files_of(stored, kind):
        for what, _ in damage(copy_of(stored, file, tmp_path)):
            shown = write_report([tmp_path / "store"], tmp_path / "report.html").read_text()
            assert title in shown, (file, what)
    signal.alarm(0)


def copy_of(stored, file, folder) -> Path:
    """Return a file in a fresh copy of its run."""
    kind = file.parts[0]
    shutil.rmtree(folder / "store" / kind, ignore_errors=True)
    shutil.copytree(stored / kind, folder / "store" / kind)
    return folder / "store" / file


def places(tree, path=()):
    """Yield the path to every value of nested plain values."""
    yield path
    items = tree.items() if isinstance(tree, dict) else enumerate(tree[:2])
    for key, value in items if isinstance(tree, dict | list) else ():
        yield from places(value, (*path, key)) if isinstance(value, dict | list) else [(*path, key)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["inspection", "experiment"])
def test_every_value_in_turn(stored, tmp_path, kind):
    """Titles, numbers and lists of any other type."""
    neighbour = tmp_path / "store" / "neighbour"
    shutil.copytree(stored / "experiment", neighbour)
    title = json.loads((neighbour / "run.json").read_text())["title"]
    rng = np.random.default_rng(0)
    for file in files_of(stored, kind):
        if file.suffixes[-2:] != [".json"]:
            continue
        path = copy_of(stored, file, tmp_path)
        shutil.rmtree(path.parent / "figures", ignore_errors=True)
        content = path.read_text()
        found = [place for place in places(json.loads(content)) if place]
        for place in (
            found if len(found) < 60 else [found[i] for i in rng.permutation(len(found))[:60]]
        ):
            tree = json.loads(content)
            *way, last = place
            holder = tree
            for key in way:
                holder = holder[key]
            holder[last] = HOSTILE[rng.integers(len(HOSTILE))]
            path.write_text(json.dumps(tree))
            shown = write_report([tmp_path / "store"], tmp_path / "report.html").read_text()
            assert title in shown, (file, place, holder[last])
