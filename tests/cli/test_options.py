"""What options and results become, without running anything."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from hyperribbon.application.cli.models import _optimizer
from hyperribbon.application.cli.papers import _count_verdicts, _time
from hyperribbon.core import ArgumentError, Band
from hyperribbon.papers.experiments.statements import Ledger, exact, observe, says
from hyperribbon.prediction.update_rules import update_rule


def test_a_rate_with_momentum_is_sgd_with_both():
    model = nn.Linear(2, 1)
    plain = {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0}
    assert _optimizer(model, "sgd", None, **plain) == 0.1
    (group,) = _optimizer(model, "sgd", None, **plain | {"momentum": 0.9}).param_groups
    assert (group["lr"], group["momentum"]) == (0.1, 0.9)
    for momentum in (-0.1, 1.0):
        with pytest.raises(ArgumentError, match=r"--momentum.*between 0 and 1"):
            _optimizer(model, "sgd", None, **plain | {"momentum": momentum})


def test_rmsprop_is_read_from_its_state(tmp_path):
    model = nn.Linear(2, 1)
    plain = {"lr": 0.01, "momentum": 0.5, "weight_decay": 0.0}
    with pytest.raises(ArgumentError, match=r"--optimizer-state.*RMSprop"):
        _optimizer(model, "rmsprop", None, **plain)
    trained = torch.optim.RMSprop(model.parameters(), lr=0.01, momentum=0.5)
    model(torch.ones(1, 2)).sum().backward()
    trained.step()
    torch.save(trained.state_dict(), tmp_path / "state.pt")
    found = _optimizer(model, "rmsprop", tmp_path / "state.pt", **plain)
    assert isinstance(found, torch.optim.RMSprop)
    rule, expected = (update_rule(o, model) for o in (found, trained))
    assert (rule.limit, rule.text) == (expected.limit, expected.text) and rule.limit == 3.0


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("reproduce linear_networks/fig1-", "fig1-left fig1-middle fig1-right"),
        ("inspect mymodel.py:make --optimizer a", "adam adamw"),
        ("list --paper s", "subnetworks"),
    ],
)
def test_the_shell_completes_options_and_experiments(typed, offered):
    words = f"hyperribbon {typed}"
    place = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    asked = {**os.environ, **place, "_HYPERRIBBON_COMPLETE": "complete_bash"}
    command = [Path(sys.executable).parent / "hyperribbon"]
    found = subprocess.run(command, env=asked, capture_output=True, text=True, check=True).stdout
    assert [name.rpartition("/")[2] for name in found.split()] == offered.split()


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
