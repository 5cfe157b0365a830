"""The runs that the pages show: no number is judged twice, no run is older than its statements."""

import json
from collections import defaultdict
from pathlib import Path

import pytest

from hyperribbon.papers.experiments import all_experiments

RUNS = Path(__file__).parents[2] / "docs" / "runs"
STORED = {
    json.loads(path.read_text())["id"]: json.loads((path.parent / "claims.json").read_text())
    for path in sorted(RUNS.glob("*/run.json"))
}
PAPERS = ("linear_networks", "ribbons")
"""The papers whose runs must be as new as their statements."""

TWICE = {
    frozenset(
        {"subnetworks/fig3.6/prune-magnitude-wins-0.8", "subnetworks/fig3.6/prune-consistent"}
    )
}
"""Pairs of claims that share their numbers all the same."""


def repeated(claims):
    """Return the sets of claims with the same numbers; counts and exact ones do not count."""
    found = defaultdict(set)
    for claim in claims:
        values = tuple(claim["seeds"])
        if len(set(values)) > 1 and None not in values:
            found[values].add(claim["id"])
    return {frozenset(ids) for ids in found.values() if len(ids) > 1}


def test_no_claim_repeats_the_numbers_of_another():
    assert repeated(claim for claims in STORED.values() for claim in claims) <= TWICE


def test_repeated_numbers_are_found():
    one = {"id": "a", "seeds": [0.1, 0.2]}
    assert repeated([one, {**one, "id": "b"}, {"id": "c", "seeds": [0.1, 0.3]}]) == {
        frozenset("ab")
    }


def stale(claims, statements):
    """Return the names of stored claims that are not what the code would judge now."""
    names = {claim["id"].rpartition("/")[2]: claim for claim in claims}
    found = set(names) ^ set(statements)
    for name in set(names) & set(statements):
        claim, now = names[name], statements[name]
        band = {"low": claim["expected"]["low"], "high": claim["expected"]["high"]}
        expected = {
            key: value if abs(value) < float("inf") else None
            for key, value in (("low", now.band.low), ("high", now.band.high))
        }
        same = all(claim[key] == getattr(now, key) for key in ("quote", "reading", "place"))
        if not same or band != expected or not claim["setting"].endswith(now.setting):
            found.add(name)
    return found


@pytest.mark.parametrize("id", [id for id in all_experiments() if id.startswith(PAPERS)])
def test_stored_runs_were_judged_by_the_present_statements(id):
    assert stale(STORED[id], all_experiments()[id].ledger.statements) == set()


def test_a_changed_statement_is_found():
    id = "linear_networks/counts"
    statements = all_experiments()[id].ledger.statements
    changed = [{**STORED[id][0], "reading": "Another."}, *STORED[id][1:]]
    assert stale(changed, statements) == {STORED[id][0]["id"].rpartition("/")[2]}
    assert stale(STORED[id][1:], statements) != set()
