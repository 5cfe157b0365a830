"""`hyperribbon demo`: train, inspect, reproduce and report in a few minutes."""

from __future__ import annotations

import time
from math import inf
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from hyperribbon.application.cli.shell import Seconds, as_options

WIDTHS = (784, 256, 256, 256, 10)
FIGURES = ("ribbons/fig4", "linear_networks/fig1-left", "fluctuations/fig5b")
_RATE, _BATCH = 0.1, 64


def demo(
    out: Annotated[Path, typer.Option(help="Output folder.")] = Path("demo"),
    epochs: Annotated[int, typer.Option(help="Epochs of training.")] = 10,
    seconds: Seconds = 60.0,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
) -> None:
    """Train a network on 4,000 digits, inspect it, reproduce three figures, write a report.

    Example: `hyperribbon demo --out demo`
    """
    from hyperribbon.application.report import write_report
    from hyperribbon.core.store import ensure_folder

    began = time.monotonic()
    console = Console()
    ensure_folder("--out", out)
    found = train_and_inspect(out, epochs, seconds, seed, console)
    _reproduce(out / "runs", seed, console)
    folders = [out / name for name in ("inspection", "training", "runs")]
    page = write_report(folders, out / "report.html", title="hyperribbon demo")
    console.print(found.rendered(words=as_options), highlight=False)
    minutes = (time.monotonic() - began) / 60
    console.print(f"\nDone in {minutes:.1f} minutes. Open {page} in a browser.", markup=False)
    following = "inspect mymodel:make (your own model), hyperribbon list (the papers' figures)."
    console.print(f"Next: hyperribbon {following}", markup=False, highlight=False)


def train_and_inspect(out: Path, epochs: int, seconds: float, seed: int, console: Console):
    """Train the demo's network with a recorder; return its inspection, both kept in a folder."""
    from torch import nn

    from hyperribbon.application.inspection import inspect
    from hyperribbon.core.data import load_data
    from hyperribbon.papers.training import mlp, train
    from hyperribbon.recording import Recorder

    data, test = load_data("mnist5k", "train"), load_data("mnist5k", "test")
    network = "-".join(str(width) for width in WIDTHS)
    console.print(f"[bold]1[/] Training {network} on {len(data.inputs):,} digits, {epochs} epochs")
    model = mlp(WIDTHS, seed=seed)
    options: dict[str, Any] = {"measure": "sharpness", "max_overhead": inf}  # it is a short one
    recorder = Recorder(out / "training", "0.25ep", probe=test.inputs[:200], **options)
    loss = nn.CrossEntropyLoss()
    shared: dict[str, Any] = {"batch_size": _BATCH, "seed": seed}
    training = {"epochs": epochs, "lr": _RATE, "recorder": recorder, "test": test}
    result = train(model, loss, data, **training, **shared)
    recorder.close()
    console.print("[bold]2[/] Inspecting it")
    trained = {"initial": result.initial, "trajectory": recorder.trajectory, "optimizer": _RATE}
    found = inspect(model, loss, data, **trained, **shared, budget=seconds, console=console)
    found.save(out / "inspection")
    return found


def _reproduce(store: Path, seed: int, console: Console) -> None:
    from hyperribbon.papers.experiments import run

    console.print(f"[bold]3[/] Reproducing {', '.join(FIGURES)} (preset smoke)")
    for id in FIGURES:
        run(id, preset="smoke", out=store, seed=seed)
