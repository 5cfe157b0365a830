"""Phase diagrams and Bhattacharyya distances against the plain ways."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection
from types import SimpleNamespace

import numpy as np
import torch

from benchmarks.harness import Contender, Limit, Measure, Race
from hyperribbon.manifold import bhattacharyya
from hyperribbon.theory.ribbons import Ribbon, dimensions_of, phase_diagram

RATIO = 3.0


def grid(n: int) -> SimpleNamespace:
    """Return the diagram's 120 times up to 10,000 and 100 slopes up to 1."""
    return SimpleNamespace(
        n=n,
        steps=np.round(np.geomspace(1, 10_000, 120)).astype(int),
        slopes=np.linspace(0.02, 1.0, 100),
    )


def ours(work: SimpleNamespace) -> np.ndarray:
    return phase_diagram(work.n, work.steps, work.slopes, RATIO).dimensions


def loop_over_time(n: int, slope: float, times: Collection[int]) -> list[int]:
    """Sum the series of Eq. (5) step by step with matrix products; diagonalise at given times."""
    eigenvalues = np.exp(-slope * np.arange(n))
    K, y = np.diag(eigenvalues), RATIO * np.sqrt(eigenvalues)
    decay = np.eye(n) - K
    moment, total = K + np.outer(y, y), np.zeros_like(K)
    residual, mean, found = y.copy(), np.zeros_like(y), {}
    for step in range(1, max(times) + 1):
        total += moment
        mean += residual
        moment = decay @ moment @ decay
        residual = decay @ residual
        if step in times:
            found[step] = count(total / step - np.outer(mean, mean) / step**2)
    return [found[time] for time in times]


def dense_point(n: int, slope: float, time: int) -> int:
    """Build the whole matrix of the closed form and diagonalise it."""
    return count(Ribbon.exponential(n, slope, sigma_star=RATIO, steps=time).P)


def against(n: int, points: int, peer: Callable[[int, float, int], int]) -> tuple[float, float]:
    """Return seconds of our whole diagram and of a peer's, from points drawn evenly from it."""
    work = grid(n)
    found = ours(work)
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        ours(work)
        times.append(time.perf_counter() - begin)
    rng = np.random.default_rng(0)
    drawn = [divmod(int(p), 120) for p in rng.choice(found.size, points, replace=False)]
    begin = time.perf_counter()
    answers = [peer(n, float(work.slopes[c]), int(work.steps[T])) for c, T in drawn]
    spent = (time.perf_counter() - begin) / points * found.size
    if answers != [found[point] for point in drawn]:
        raise ValueError("dimensions differ")
    return statistics.median(times), spent


def small_diagram() -> list[Limit]:
    mine, theirs = against(50, 400, lambda n, slope, time: loop_over_time(n, slope, (time,))[0])
    return [
        Limit("ours, 120 × 100 points", mine, unit="s"),
        Limit("products over T, whole grid from 400 random points", theirs, unit="s"),
        Limit("products over T, times ours", theirs / mine, low=100),
    ]


def large_diagram() -> list[Limit]:
    mine, theirs = against(500, 400, dense_point)
    return [
        Limit("ours, 120 × 100 points", mine, unit="s"),
        Limit("dense eigenvalues, whole grid from 400 random points", theirs, unit="s"),
        Limit("dense eigenvalues, times ours", theirs / mine, low=10),
    ]


def one_loop_a_slope(work: SimpleNamespace) -> np.ndarray:
    """Loop over T once for each slope and read all times off on the way."""
    times = tuple(dict.fromkeys(work.steps.tolist()))
    rows = [dict(zip(times, loop_over_time(work.n, c, times), strict=True)) for c in work.slopes]
    return np.array([[row[step] for step in work.steps] for row in rows])


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


ROWS = [
    Measure(name="phase diagram, n = 50", run=small_diagram),
    Measure(name="phase diagram, n = 500", run=large_diagram),
    Race(
        name="phase diagram, n = 50, whole grid",
        work=lambda: grid(50),
        ours=Contender(ours),
        peers={"products over T, one loop a slope": Contender(one_loop_a_slope, repeats=0)},
        difference=largest_difference,
        tolerance=0,
        repeats=3,
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
]
