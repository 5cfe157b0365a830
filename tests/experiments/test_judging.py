"""From measurements to verdicts: intervals, prediction, stability, completeness."""

import math

import pytest

from hyperribbon.core import ArgumentError, Band
from hyperribbon.papers.experiments.judging import at_smoke, combine, decide, over_settings
from hyperribbon.papers.experiments.statements import (
    Ledger,
    estimate,
    exact,
    observe,
    over_seeds,
    says,
)

BAND = Band(0.9, 1.1, "words")


def statement(**change):
    parts = {
        "name": "x",
        "place": "Fig. 1",
        "quote": "x is about one",
        "reading": "x is 1 ± 0.1",
        "band": BAND,
        "setting": "as printed",
        **change,
    }
    return says(**parts)


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [
        (exact(1.0), "holds"),
        (exact(1.2), "fails"),
        (exact(math.nan), "undecided"),
        (estimate(1.0, 0.04), "holds"),
        (estimate(1.0, 0.04, freedom=2), "undecided"),  # t = 4.3 with two degrees of freedom
        (over_seeds([1.0]), "undecided"),
        (over_seeds([0.99, 1.0, 1.01]), "holds"),
        (over_seeds([1.05, 1.0, 1.06]), "undecided"),  # inside, but the interval is not
        (over_seeds([1.2, 1.21, 1.22]), "fails"),
        (over_seeds([1.0, 1.0, 1.0, 1.2]), "undecided"),
        (over_seeds([1.0, math.nan]), "undecided"),
        (over_settings([0.9, 1.1]), "holds"),  # the range, not the interval of a mean
        (over_settings([1.0, 1.05, 1.2]), "undecided"),
        (over_settings([0.5, 1.5]), "fails"),  # on either side, in the band in none
    ],
)
def test_the_verdict_follows_from_the_interval_and_the_seeds(measured, verdict):
    assert decide(measured, BAND).verdict == verdict


def test_settings_are_judged_one_by_one_over_several_runs_too():
    ledger = Ledger("ribbons/fig4", statement())
    runs = [ledger.judge({"x": over_settings(values)}) for values in ([1.0, 1.3], [1.0, 1.1])]
    (claim,) = combine(runs, {})
    assert claim.verdict == "undecided" and claim.seeds == (1.0, pytest.approx(1.2))
    assert "1 of 2 settings" in claim.why
    (claim,) = combine([runs[1]] * 2, {})
    assert claim.verdict == "holds" and claim.interval == (1.0, 1.1)


def test_seeds_that_disagree_leave_a_claim_undecided_unless_it_is_about_a_mean():
    values = over_seeds([0.85, 1.15] * 20)
    assert "20 of 40" not in decide(values, BAND).note
    mixed = over_seeds([0.95, 1.15, 0.85, 1.05] * 10)
    assert decide(mixed, BAND).verdict == "undecided"
    assert "20 of 40" in decide(mixed, BAND).note
    assert decide(mixed, BAND, "mean").verdict == "holds"


def test_an_undecided_mean_says_how_many_seeds_it_needs():
    judged = decide(over_seeds([1.02, 1.08, 1.05, 1.09, 1.01]), BAND)
    assert judged.verdict == "holds"
    judged = decide(over_seeds([1.09, 1.0, 1.095, 1.05, 1.1]), BAND, "mean")
    assert judged.verdict == "undecided"
    assert judged.note.startswith("would need about")


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([0.6, 1.0, 1.4, 1.2, 0.8], "undecided"),  # wider than the number is large
        ([0.98, 1.0, 1.02, 1.01, 0.99], "holds"),
        ([1.38, 1.4, 1.42, 1.41, 1.39], "fails"),
        ([1.0, 1.01, 0.99], "undecided"),
    ],
)
def test_a_number_of_one_printed_run_is_met_by_a_prediction_interval(values, verdict):
    printed = Band.around(1.03, "printed", atol=0.005)
    assert decide(over_seeds(values), printed, "prediction").verdict == verdict


def test_several_runs_are_judged_by_their_scatter_and_exact_numbers_stay_exact():
    ledger = Ledger("ribbons/x", statement(), statement(name="y"))
    runs = [
        ledger.judge({"x": over_seeds([value]), "y": exact(1.0)}) for value in (0.98, 1.0, 1.02)
    ]
    assert runs[0][0].verdict == "undecided"
    x, y = combine(runs, ledger.comparisons())
    assert (x.verdict, x.seeds, x.exact) == ("holds", (0.98, 1.0, 1.02), False)
    assert "scatter" in runs[0][0].why and "scatter" not in x.why
    assert (y.verdict, y.seeds, y.exact) == ("holds", (1.0,), True)


def test_what_a_single_run_lacked_is_not_said_of_several():
    ledger = Ledger("ribbons/x", statement())
    wide = [ledger.judge({"x": over_seeds([0.8, 1.2], "a ratio")}) for _ in range(3)]
    near = [ledger.judge({"x": over_seeds([1.09, 1.0], "a ratio")}) for _ in range(3)]
    mixed = [ledger.judge({"x": over_seeds([1.0, 1.2], "a ratio")}) for _ in range(3)]
    for runs, lacked in ((wide, "would need"), (near, "would need"), (mixed, "disagree")):
        assert lacked in runs[0][0].why
        (claim,) = combine(runs, ledger.comparisons())
        assert lacked not in claim.why and claim.why.endswith("first seed: a ratio")


def test_a_statement_lacking_a_part_is_refused():
    for part in ("name", "place", "quote", "reading", "setting"):
        with pytest.raises(ArgumentError, match=part):
            statement(**{part: " "})
    with pytest.raises(ArgumentError, match="origin"):
        statement(band=Band(0, 1, "paper"))
    with pytest.raises(ArgumentError, match="origin"):
        observe("x", "Fig. 1", "x is one", Band(1, 1, "printed"))
    with pytest.raises(ArgumentError, match="twice"):
        Ledger("ribbons/x", statement(), statement())
    with pytest.raises(ArgumentError, match="measured"):
        Ledger("ribbons/x", statement()).judge({"z": exact(1.0)})


def test_what_is_not_measured_or_too_small_is_not_comparable_and_says_what_it_needs():
    needy = Ledger("ribbons/x", statement(needs="the full data"))
    (claim,) = needy.judge({})
    assert (claim.verdict, claim.needs) == ("not comparable", "the full data")
    (claim,) = needy.judge({"x": exact(1.0, comparable=False)})
    assert claim.verdict == "not comparable"
    assert at_smoke(needy.judge({"x": exact(1.0)}))[0].verdict == "not comparable"
    with pytest.raises(ArgumentError, match="needs"):
        Ledger("ribbons/x", statement()).judge({})


def test_observations_and_regressions_are_no_verdicts_on_a_paper():
    ledger = Ledger(
        "ribbons/x",
        statement(),
        observe("y", "Fig. 1", "y is one", BAND),
        statement(name="z", band=Band(1, 1, "regression")),
    )
    judged = ledger.judge(dict.fromkeys("xyz", exact(1.0)))
    assert [claim.on_the_paper for claim in judged] == [True, False, False]
    assert judged[1].kind == "observation"
