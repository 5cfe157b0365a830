"""Every experiment runs at preset smoke, draws something, and judges what can come out two ways."""

import dataclasses
import warnings

import numpy as np
import pytest

from hyperribbon.experiments import all_experiments
from hyperribbon.experiments import run as run_one

CONVERTED = ("ribbons",)
"""Papers whose claims are all stated with their quotes before anything is measured."""

EXPLAINED = {}
"""Claims that no perturbation of a result can turn, by id, with the reason they are kept."""


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("store")


@pytest.mark.parametrize("id", all_experiments())
def test_smoke(id, store):
    run = run_one(id, preset="smoke", out=store)
    assert run.is_complete
    claims = run.load_claims()
    assert claims
    assert len({claim.id for claim in claims}) == len(claims)
    for claim in claims:
        assert claim.id.startswith(f"{id}/")
        assert claim.reading and claim.place
        assert np.isfinite(claim.measured) or claim.verdict in ("undecided", "not comparable")
    for kind in ("png", "svg"):
        figures = list(run.figures.glob(f"*.{kind}"))
        assert figures and all(figure.stat().st_size > 2000 for figure in figures)


def stated(id):
    return id.split("/")[0] in CONVERTED or all_experiments()[id].ledger is not None


@pytest.mark.parametrize("id", [id for id in all_experiments() if stated(id)])
def test_each_verdict_can_come_out_either_way(id, store):
    experiment = all_experiments()[id]
    assert experiment.ledger is not None, "its claims are not stated"
    result = experiment.result(run_one(id, preset="smoke", out=store).load_result())
    outcomes = {claim.id: set() for claim in experiment.claims(result)}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for changed in [result, *perturbed(result)]:
            for claim in judged(experiment, changed):
                if np.isfinite(claim.measured):
                    low, high = claim.expected.low, claim.expected.high
                    outcomes[claim.id].add(low <= claim.measured <= high)
    stuck = {name for name, seen in outcomes.items() if len(seen) == 1}
    assert stuck == {name for name in EXPLAINED if name.startswith(f"{id}/")}


def judged(experiment, result):
    try:
        return experiment.claims(result)
    except (ArithmeticError, IndexError, KeyError, ValueError):  # no such result can occur
        return []


def perturbed(result):
    """Yield results with one field scaled, shuffled, turned round or noisy, the others as found."""
    rng = np.random.default_rng(0)
    for field in dataclasses.fields(result):
        value = getattr(result, field.name)
        if isinstance(value, bool):
            yield dataclasses.replace(result, **{field.name: not value})
            continue
        try:
            array = np.asarray(value, dtype=float)
        except (TypeError, ValueError):
            continue
        spread = np.abs(array).max(initial=0) + 1
        for other in (
            1.3 * array,
            array / 1.3,
            10 * array,
            array / 10,
            -array,
            array + 1,
            array + 0.3 * spread * rng.standard_normal(array.shape),
            rng.permutation(array.ravel()).reshape(array.shape),
            np.flip(array),
            array + spread * (rng.random(array.shape) < 0.2),
        ):
            given = other if isinstance(value, np.ndarray) else other.tolist()
            yield dataclasses.replace(
                result, **{field.name: type(value)(given) if np.isscalar(value) else given}
            )
