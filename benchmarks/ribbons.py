"""Phase diagrams and Bhattacharyya distances against the plain ways."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch

from benchmarks.harness import Contender, Limit, Measure, Race
from hyperribbon.manifold import bhattacharyya
from hyperribbon.theory.ribbons import Ribbon, dimensions_of, phase_diagram

RATIO = 3.0


def grid(n: int, every: int) -> SimpleNamespace:
    """Return every so many of the diagram's 120 times up to 10,000 and 100 slopes up to 1."""
    return SimpleNamespace(
        n=n,
        steps=np.round(np.geomspace(1, 10_000, 120)).astype(int)[every // 2 :: every],
        slopes=np.linspace(0.02, 1.0, 100)[every // 2 :: every],
    )


def ours(work: SimpleNamespace) -> np.ndarray:
    return phase_diagram(work.n, work.steps, work.slopes, RATIO).dimensions


def loop_over_time(work: SimpleNamespace) -> np.ndarray:
    """Sum the series of Eq. (5) step by step with matrix products, then diagonalise."""
    found = np.zeros((len(work.slopes), len(work.steps)), dtype=int)
    for row, slope in enumerate(work.slopes):
        eigenvalues = np.exp(-slope * np.arange(work.n))
        K, y = np.diag(eigenvalues), RATIO * np.sqrt(eigenvalues)
        decay = np.eye(work.n) - K
        for column, steps in enumerate(work.steps):
            moment, total = K + np.outer(y, y), np.zeros_like(K)
            residual, mean = y.copy(), np.zeros_like(y)
            for _ in range(steps):
                total += moment
                mean += residual
                moment = decay @ moment @ decay
                residual = decay @ residual
            found[row, column] = count(total / steps - np.outer(mean, mean) / steps**2)
    return found


def dense_closed_form(work: SimpleNamespace) -> np.ndarray:
    """Build the whole matrix of the closed form and diagonalise it."""
    return np.array(
        [
            [count(Ribbon.exponential(work.n, c, sigma_star=RATIO, steps=T).P) for T in work.steps]
            for c in work.slopes
        ]
    )


def count(P: np.ndarray) -> int:
    return dimensions_of(np.linalg.eigvalsh(P))


def largest_difference(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(np.asarray(one) - np.asarray(other)).max())


def models() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.softmax(2 * torch.randn(600, 2000, 10, generator=generator), dim=2)


def product_and_log(P: torch.Tensor, samples: int = 50) -> torch.Tensor:
    """Batched products of square roots, a logarithm of every affinity, a sum in float64."""
    roots = P.sqrt().transpose(0, 1).contiguous()
    total = torch.zeros(len(P), len(P), dtype=torch.float64)
    for some in roots.split(samples):
        total -= torch.log(torch.bmm(some, some.transpose(1, 2))).sum(dim=0)
    return total / P.shape[1]


def whole_diagram() -> list[Limit]:
    import time

    begin = time.perf_counter()
    ours(grid(50, 1))
    return [Limit("n = 50, 120 × 100 points", time.perf_counter() - begin, unit="s")]


ROWS = [
    Race(
        name="phase diagram, n = 50 (every tenth time and slope)",
        work=lambda: grid(50, 10),
        ours=Contender(ours),
        peers={"products over T": Contender(loop_over_time, repeats=1)},
        difference=largest_difference,
        tolerance=0,
        targets={"products over T": 100},
        repeats=5,
    ),
    Race(
        name="phase diagram, n = 500 (every tenth time and slope)",
        work=lambda: grid(500, 10),
        ours=Contender(ours),
        peers={"dense eigenvalues": Contender(dense_closed_form, repeats=2)},
        difference=largest_difference,
        tolerance=0,
        targets={"dense eigenvalues": 10},
        repeats=5,
    ),
    Race(
        name="Bhattacharyya, 600 models × 2000 samples × 10 classes",
        work=models,
        ours=Contender(lambda P: bhattacharyya(P)),
        peers={"product and log": Contender(product_and_log)},
        difference=largest_difference,
        tolerance=1e-6,
        targets={"product and log": 10},
        repeats=5,
    ),
    Measure(name="whole phase diagram", run=whole_diagram),
]
