"""The number of seeds: fixed, or as many as decide the claims within the time of a preset."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from hyperribbon.core.checks import ArgumentError, check_positive_int
from hyperribbon.core.claims import Claim
from hyperribbon.core.store import load_tree, save_tree
from hyperribbon.papers.experiments.judging import LEVEL, Comparison, wants_seeds

AUTO = "auto"
SECONDS = {"smoke": 20.0, "laptop": 180.0, "paper": 3600.0}
"""Beyond its first five seeds, a sequential run begins no look that would end after this."""

_FIRST, _GROWTH = 5, 1.5
_MOST = 10_000


def check_seeds(seeds: Any) -> int | Literal["auto"]:
    """Return a number of seeds, or "auto".

    Raises:
        ArgumentError: It is neither a positive whole number nor "auto".
    """
    if isinstance(seeds, str):
        if seeds == AUTO:
            return AUTO
        if not seeds.isdecimal():
            raise ArgumentError("seeds", seeds, "expected a number", 'Give a number, or "auto".')
        seeds = int(seeds)
    return check_positive_int("seeds", seeds, maximum=_MOST)


def looks() -> Iterator[int]:
    """Yield the numbers of seeds after which a sequential run looks at its claims.

    >>> from itertools import islice
    >>> list(islice(looks(), 5))
    [5, 8, 12, 18, 27]
    """
    count = _FIRST
    while True:
        yield count
        count = math.ceil(count * _GROWTH)


def level_at(look: int) -> float:
    """Return the confidence level of a look of a sequential run over seeds, counted from 1.

    Looking again and again would find a band by chance. The looks share the error of one interval,

        1 − level(j) = (1 − 0.95)·6/(π²j²),   which sums to 0.05 over all j,

    so that by the union bound a claim is decided wrongly in at most 5% of sequential runs.

    >>> round(level_at(1), 4), round(1 - sum(1 - level_at(j) for j in range(1, 10_000)), 4)
    (0.9696, 0.95)
    """
    return 1 - (1 - LEVEL) * 6 / (math.pi * look) ** 2


def run_seeds(
    compute: Callable[[int], Any],
    judge: Callable[[list[Any], float], list[Claim]],
    seeds: int | Literal["auto"],
    first: int,
    parts: Path,
    seconds: float,
    comparisons: Mapping[str, Comparison],
) -> tuple[list[Any], float]:
    """Return the results of the seeds and the level of the intervals they are judged at.

    Each seed's result is kept on disk when it is done. With "auto" the rule is fixed before the
    run: two seeds show whether anything is random; then the claims are judged after 5, 8, 12, 18, …
    seeds, with intervals of level `level_at`, until each claim is decided or its seeds disagree, or
    until the next look would exceed the time.

    Args:
        compute: From a seed to its result, a tree.
        judge: From results and a level to the claims.
        seeds: How many, or "auto".
        first: The first seed.
        parts: Folder for the results of single seeds.
        seconds: What a sequential run may take beyond its first five seeds.
        comparisons: How each claim is compared, by id.
    """
    trees: list[Any] = []

    def reach(count: int) -> None:
        for seed in range(first + len(trees), first + count):
            file = parts / f"seed-{seed}.safetensors"
            if not file.exists():
                save_tree(file, compute(seed))
            trees.append(load_tree(file))

    if seeds != AUTO:
        reach(seeds)
        return trees, LEVEL
    started = time.monotonic()
    reach(2)
    if all(claim.exact for claim in judge(trees, LEVEL)):
        return trees, LEVEL
    level = LEVEL
    for look, count in enumerate(looks(), start=1):
        spent = time.monotonic() - started
        if look > 1 and spent * count / len(trees) > seconds:
            break
        reach(count)
        level = level_at(look)
        if not any(wants_seeds(c, comparisons.get(c.id, "run")) for c in judge(trees, level)):
            break
    return trees, level
