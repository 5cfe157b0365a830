"""What options and results become, without running anything."""

import pytest
from torch import nn

from hyperribbon.application.cli.models import _optimizer
from hyperribbon.application.cli.papers import _count_verdicts, _time
from hyperribbon.core import ArgumentError, Band
from hyperribbon.papers.experiments.statements import Ledger, exact, observe, says


def test_a_rate_with_momentum_is_sgd_with_both():
    model = nn.Linear(2, 1)
    plain = {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0}
    assert _optimizer(model, "sgd", None, **plain) == 0.1
    (group,) = _optimizer(model, "sgd", None, **plain | {"momentum": 0.9}).param_groups
    assert (group["lr"], group["momentum"]) == (0.1, 0.9)
    for momentum in (-0.1, 1.0):
        with pytest.raises(ArgumentError, match=r"--momentum.*between 0 and 1"):
            _optimizer(model, "sgd", None, **plain | {"momentum": momentum})


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.5, "0.5 s"), (59, "59 s"), (90, "1.5 min"), (7200, "2 h"), (172_800, "2 days")],
)
def test_a_time_is_told_in_its_unit(seconds, text):
    assert _time(seconds) == text


def test_claims_are_counted_by_origin_and_observations_apart():
    band = Band(0, 1, "words")
    ledger = Ledger(
        "ribbons/fig4",
        says("a", "Fig. 4", "so", "so", band, setting="as printed"),
        says("b", "Fig. 4", "so", "so", Band(0, 1, "printed"), setting="as printed"),
        says("c", "Fig. 4", "so", "so", band, setting="as printed"),
        observe("d", "Fig. 4", "so", band),
    )
    claims = ledger.judge({"a": exact(0.5), "b": exact(0.5), "c": exact(2.0), "d": exact(0.5)})
    assert _count_verdicts(claims).splitlines() == [
        "3 claims",
        "  printed: 1 holds",
        "  words: 1 holds, 1 fails",
        "  apart: 1 observation or regression",
    ]
