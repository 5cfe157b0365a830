import json
import math

import pytest

from hyperribbon.core import ArgumentError, Band, Claim

BAND = Band(0.9, 1.1, "words")


def judged(measured, band=BAND):
    return Claim(
        "ribbons/fig4/x",
        "ribbons",
        "Fig. 4",
        "x is about one",
        "x is 1 ± 0.1",
        "as printed",
        band,
        measured,
        0.0,
        (measured, measured),
        (measured,),
        band.verdict(measured, measured),
        "",
    )


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.0, 1.0, "holds"),
        (0.92, 1.08, "holds"),
        (0.88, 1.12, "undecided"),
        (1.15, 1.15, "fails"),
        (1.09, 1.21, "undecided"),
        (1.24, 1.36, "fails"),
        (math.nan, math.nan, "undecided"),
        (-math.inf, math.inf, "undecided"),
    ],
)
def test_the_verdict_follows_from_the_interval(low, high, verdict):
    assert BAND.verdict(low, high) == verdict


@pytest.mark.parametrize("measured", [1.0, math.nan])
def test_json_round_trip(measured):
    claim = judged(measured, band=Band.at_most(2.0, "closed form"))
    text = json.dumps(claim.to_json(), allow_nan=False)
    again = Claim.from_json(json.loads(text))
    assert again.to_json() == claim.to_json()
    assert again.paper == "ribbons"
    assert again.expected.low == -math.inf


def test_json_has_the_agreed_keys():
    keys = [
        "id",
        "paper",
        "place",
        "quote",
        "reading",
        "setting",
        "expected",
        "origin",
        "measured",
        "uncertainty",
        "interval",
        "seeds",
        "verdict",
        "why",
        "needs",
        "changed",
        "kind",
    ]
    assert list(judged(1.0).to_json()) == keys


def test_a_band_that_ends_before_it_begins_is_refused():
    with pytest.raises(ArgumentError, match="is below the lower one"):
        Band(2, 1, "words")
    with pytest.raises(ArgumentError, match="origin"):
        Band(0, 1, "hearsay")
