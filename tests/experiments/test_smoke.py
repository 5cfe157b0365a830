"""Every experiment runs at preset smoke, draws something, and judges what can come out two ways."""

import dataclasses
import warnings

import numpy as np
import pytest

from hyperribbon.papers.experiments import all_experiments, runner
from hyperribbon.papers.experiments import run as run_one
from hyperribbon.plots.style import STYLE

EXPLAINED = {
    "fluctuations/nonlinear/psi-four": "never judged: the sentence is of another paper's setting",
    "subnetworks/chapter4/one-setting": "of all statements at once; one at a time changes",
    "ribbons/thesis/geometric": "of all five spectra, two of which bend; one at a time changes",
}
"""Claims that no perturbation of a result can turn, by id, with the reason they are kept."""

FACTORS = (1e-6, 0.1, 0.3, 1 / 1.3, 0.9, 0.95, 0.98, 1.02, 1.05, 1.1, 1.3, 3, 10)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("store")


@pytest.mark.parametrize("id", all_experiments())
def test_smoke(id, store, monkeypatch):
    """Figures are drawn once, coarsely; test_engine.py has both formats."""
    monkeypatch.setattr(runner, "FORMATS", {"png": {"Software": None}})
    monkeypatch.setitem(STYLE, "savefig.dpi", 100)
    run = run_one(id, preset="smoke", out=store)
    assert run.is_complete
    claims = run.load_claims()
    assert claims
    assert len({claim.id for claim in claims}) == len(claims)
    for claim in claims:
        assert claim.id.startswith(f"{id}/")
        assert claim.reading and claim.place
        assert np.isfinite(claim.measured) or claim.verdict in ("undecided", "not comparable")
    figures = list(run.figures.glob("*.png"))
    assert figures and all(figure.stat().st_size > 2000 for figure in figures)


@pytest.mark.parametrize("id", all_experiments())
def test_each_verdict_can_come_out_either_way(id, store):
    experiment = all_experiments()[id]
    result = experiment.result(run_one(id, preset="smoke", out=store).load_result())
    outcomes = {claim.id: set() for claim in experiment.claims(result)}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for changed in [result, *perturbed(result)]:
            for claim in judged(experiment, changed):
                if np.isfinite(claim.measured):
                    edges = (claim.expected.low, np.nextafter(claim.expected.high, np.inf))
                    outcomes[claim.id].add(int(np.digitize(claim.measured, edges)))
    stuck = {name for name, seen in outcomes.items() if len(seen) == 1}
    assert stuck == {name for name in EXPLAINED if name.startswith(f"{id}/")}


def judged(experiment, result):
    try:
        return experiment.claims(result)
    except (ArithmeticError, IndexError, KeyError, TypeError, ValueError):
        return []  # no such result can occur


def perturbed(result):
    """Yield results with one field scaled, shuffled, noisy or another's, the rest as found."""
    rng = np.random.default_rng(0)
    values = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    for name, value in values.items():
        if isinstance(value, list) and value and isinstance(value[0], np.ndarray):
            others = zip(*(changed(array, rng) for array in value), strict=True)
            yield from (dataclasses.replace(result, **{name: list(other)}) for other in others)
        elif isinstance(value, dict):
            others = changed_entries(value, rng)
            yield from (dataclasses.replace(result, **{name: other}) for other in others)
        elif isinstance(value, int | float | np.ndarray) and not isinstance(value, bool):
            for other in changed(np.asarray(value, dtype=float), rng):
                given = other if name in arrays else type(value)(other.item())
                yield dataclasses.replace(result, **{name: given})
    for name, array in arrays.items():
        for other in arrays.values():
            if other is not array and other.shape == array.shape:
                yield dataclasses.replace(result, **{name: other})


def changed_entries(table, rng):
    """Yield a table, of tables perhaps, with one of its arrays wrong; names stay."""
    for key, value in table.items():
        if isinstance(value, list) and isinstance(value[0], str):
            continue
        others = changed_entries(value, rng) if isinstance(value, dict) else changed(value, rng)
        yield from ({**table, key: other} for other in others)


def changed(array, rng):
    """Return an array in several wrong ways."""
    spread = np.abs(array).max(initial=0) + 1
    noise = 0.3 * spread * rng.standard_normal(array.shape)
    filling = rng.standard_normal(array.shape)
    return [
        *(factor * array for factor in FACTORS),
        -array,
        array + 1,
        array + noise,
        array - noise,
        rng.permutation(array.ravel()).reshape(array.shape),
        np.flip(array),
        array + spread * (rng.random(array.shape) < 0.2),
        *(np.where(np.isnan(array), values, array) for values in (-filling, filling)),
    ]
