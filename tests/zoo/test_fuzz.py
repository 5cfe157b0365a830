"""Random networks and losses: right, or refused where that is allowed.

To run one again: HYPERRIBBON_FUZZ_SEED=123 pytest tests/zoo/test_fuzz.py -m slow
"""

from __future__ import annotations

import os
import time
from collections import defaultdict

import pytest
import torch

from zoo.fuzz_cases import Case, Failure, examine, random_case

QUICK = range(10)

pytestmark = pytest.mark.filterwarnings("ignore")  # the networks' own


def told(case: Case, failures: list[Failure]) -> str:
    """Return what to read and to run when a case fails."""
    lines = [f"{f.kind}: {f.where}: {f.detail}" for f in failures]
    way = f"form={case.form} memory={case.memory} half={case.half}"
    return "\n".join([f"seed {case.seed}: {way}", case.description, *lines])


@pytest.mark.parametrize("seed", QUICK)
def test_random_network(seed):
    case = random_case(seed)
    failures = examine(case)
    assert not failures, told(case, failures)


def test_a_wrong_answer_is_noticed():
    case = random_case(next(seed for seed in range(100) if not random_case(seed).may_be_refused))
    other = case.entry.build()
    with torch.no_grad():
        for parameter in other.model.parameters():
            parameter.mul_(1 + 1e-5)
    assert {failure.kind for failure in examine(case, other)} == {"wrong"}


@pytest.mark.slow
def test_many_random_networks():
    """Take seeds until the time is up; then tell every kind of failure once, with its seeds."""
    if "HYPERRIBBON_FUZZ_SEED" in os.environ:
        case = random_case(int(os.environ["HYPERRIBBON_FUZZ_SEED"]))
        failures = examine(case)
        assert not failures, told(case, failures)
        return
    end = time.monotonic() + float(os.environ.get("HYPERRIBBON_FUZZ_SECONDS", "600"))
    seed = int(os.environ.get("HYPERRIBBON_FUZZ_START", "100"))
    examples: dict[tuple[str, ...], str] = {}
    seeds: dict[tuple[str, ...], list[int]] = defaultdict(list)
    tried = 0
    while time.monotonic() < end:
        case = random_case(seed)
        failures = examine(case)
        for failure in failures:
            kind = (failure.kind, failure.where, failure.signature())
            seeds[kind].append(seed)
            shortest = examples.get(kind)
            if shortest is None or len(case.description) < len(shortest):
                examples[kind] = told(case, failures)
        seed, tried = seed + 1, tried + 1
    report = [
        f"{kind}: {len(found)} of {tried}, seeds {found[:12]}\n{examples[kind]}"
        for kind, found in seeds.items()
    ]
    assert not report, "\n\n".join(report)
