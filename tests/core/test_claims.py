import json
import math

import pytest

from hyperribbon.core import ArgumentError, Band, Claim


def judged(measured, uncertainty=0.0, band=None):
    return Claim.judge(
        "ribbons/fig4/x",
        place="Fig. 4",
        statement="x is about one",
        expected=band or Band(0.9, 1.1, "paper"),
        measured=measured,
        uncertainty=uncertainty,
        why="because",
    )


@pytest.mark.parametrize(
    ("measured", "uncertainty", "verdict"),
    [
        (1.0, 0.0, "holds"),
        (1.0, 0.04, "holds"),
        (1.0, 0.06, "undecided"),
        (1.15, 0.0, "fails"),
        (1.15, 0.03, "undecided"),
        (1.3, 0.03, "fails"),
        (math.nan, 0.0, "undecided"),
        (1.0, math.inf, "undecided"),
    ],
)
def test_the_verdict_follows_from_two_standard_errors(measured, uncertainty, verdict):
    assert judged(measured, uncertainty).verdict == verdict


@pytest.mark.parametrize("measured", [1.0, math.nan])
def test_json_round_trip(measured):
    claim = judged(measured, band=Band.at_most(2.0, "closed form"))
    text = json.dumps(claim.to_json(), allow_nan=False)
    again = Claim.from_json(json.loads(text))
    assert again.to_json() == claim.to_json()
    assert again.paper == "ribbons"
    assert again.expected.low == -math.inf


def test_json_has_the_agreed_keys():
    keys = (
        "id paper place quote reading setting expected origin measured uncertainty interval "
        "seeds verdict why needs changed kind"
    ).split()
    assert list(judged(1.0).to_json()) == keys


def test_a_band_that_ends_before_it_begins_is_refused():
    with pytest.raises(ArgumentError, match="before it begins"):
        Band(2, 1, "paper")
    with pytest.raises(ArgumentError, match="origin"):
        Band(0, 1, "hearsay")
