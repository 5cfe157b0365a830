"""Hessian products and eigenpairs with one process and with two, and what each of them keeps."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.harness import Limit, Measure
from hyperribbon.operators import GGN, Hessian
from hyperribbon.spectra import eigsh

SAMPLES = 2000
PAIRS = 10
VECTORS = 60
REPEATS = 5


def convolutional() -> nn.Module:
    """Return a network of 272,586 weights on images of 16 × 16."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GELU(),
        nn.AvgPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.GELU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 512),
        nn.GELU(),
        nn.Linear(512, 10),
    )


def wide() -> nn.Module:
    """Return a network of about 2 million weights, for which the basis is what takes memory."""
    return nn.Sequential(
        nn.Linear(256, 1200), nn.Tanh(), nn.Linear(1200, 1400), nn.Tanh(), nn.Linear(1400, 10)
    )


def samples(count: int, rank: int, size: int, flat: bool = False) -> tuple:
    """Return a rank's share of random images with labels."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, 1, 16, 16, generator=generator)
    labels = inputs.flatten(1)[:, :10].argmax(1)
    rows = slice(count * rank // size, count * (rank + 1) // size)
    return inputs[rows].flatten(1) if flat else inputs[rows], labels[rows]


def median_time(function: Any) -> float:
    """Return the median seconds of a call, after one that warms up."""
    function()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def measure_here(kind: str, rank: int, size: int) -> dict[str, float]:
    """Measure on this rank."""
    group = True if size > 1 else None
    torch.manual_seed(0)
    loss = nn.CrossEntropyLoss()
    if kind == "times":
        model, data = convolutional(), samples(SAMPLES, rank, size)
        operator = Hessian(model, loss, data, memory=2 * 2**30, process_group=group)
        vector = torch.ones(operator.shape[0])
        gram = GGN(model, loss, samples(600, rank, size), process_group=group)
        start = time.perf_counter()
        spectrum = eigsh(operator, PAIRS, method="lanczos")
        seconds = time.perf_counter() - start
        return {
            "eigsh": seconds,
            "top": float(spectrum.eigenvalues[0]),
            "matvecs": spectrum.matvecs,
            "product": median_time(lambda: operator @ vector),
            "gram": median_time(gram.gram),
        }
    model = wide()
    data = samples(64, rank, size, flat=True)
    operator = Hessian(model, loss, data, process_group=group)
    operator @ torch.ones(operator.shape[0])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    eigsh(
        operator,
        3,
        method="lanczos",
        basis=VECTORS,
        max_matvecs=VECTORS + 2,
        tol=1e-12,
        storage="memory",
        eigenvectors="sharded",
    )
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"weights": float(operator.shape[0]), "rise": float(after - before)}


def on_ranks(kind: str, size: int) -> dict[str, float]:
    """Return what rank 0 measures in a group of `size` processes, one thread each."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(size),
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.distributed", kind],
            env=environment | {"RANK": str(rank)},
            cwd=Path(__file__).parents[1],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    answers = [rank.communicate()[0] for rank in ranks]
    return json.loads(answers[0].splitlines()[-1])


def scaling() -> list[Limit]:
    one, two = (on_ranks("times", size) for size in (1, 2))
    limits = [
        Limit("Hessian product, one process", one["product"], unit="s"),
        Limit("Hessian product, two processes", two["product"], unit="s"),
        Limit("Hessian product, speed-up", one["product"] / two["product"], low=1.6),
        Limit("eigsh, one process", one["eigsh"], unit="s"),
        Limit("eigsh, two processes", two["eigsh"], unit="s"),
        Limit("eigsh, speed-up", one["eigsh"] / two["eigsh"], low=1.5),
        Limit("eigsh, products of one process", one["matvecs"]),
        Limit("eigsh, products of two processes", two["matvecs"]),
        Limit("Gram matrix, one process", one["gram"], unit="s"),
        Limit("Gram matrix, two processes", two["gram"], unit="s"),
        Limit("Gram matrix, speed-up", one["gram"] / two["gram"], low=1.4),
        Limit("top eigenvalue, difference", abs(two["top"] / one["top"] - 1), high=1e-5),
    ]
    return limits


def memory() -> list[Limit]:
    found = {size: on_ranks("memory", size) for size in (1, 2, 4)}
    basis = 2 * VECTORS * found[1]["weights"] * 4 / 1e9
    rises = {size: answer["rise"] / 1e9 for size, answer in found.items()}
    return [
        Limit("weights", found[1]["weights"]),
        Limit("basis and images, whole", basis, unit="GB"),
        *(Limit(f"eigsh, rise of rank 0 of {n}", rise, unit="GB") for n, rise in rises.items()),
        Limit("rise with two over one", rises[2] / rises[1], high=0.6),
        Limit("rise with four over one", rises[4] / rises[1], high=0.35),
    ]


ROWS = [
    Measure(name="two processes", run=scaling),
    Measure(name="memory of a rank", run=memory),
]


def main(kind: str) -> None:
    """Measure as one rank of a group, and print what rank 0 found."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    if size > 1:
        dist.init_process_group("gloo", timeout=timedelta(seconds=300))
    found = measure_here(kind, rank, size)
    if rank == 0:
        print(json.dumps(found), flush=True)
    if size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
