"""Hostile calls of every public function: see `fuzz.py`."""

import random

import numpy as np
import pytest

from errors.calling import Call
from errors.calls import CALLS
from errors.fuzz import Attempt, attempts, fuzz, outcome

SLOW = ("explore", "_run", "inspect", "_compare", "train_ensemble")


def test_hostile_calls_are_refused_or_answered():
    names = [name for name in CALLS if not name.endswith(SLOW)]
    calls, wrong = fuzz(2000, 2001, names=names)
    assert not wrong, "\n".join(wrong)
    assert calls == 2000


@pytest.mark.slow
def test_twenty_thousand_hostile_calls():
    calls, wrong = fuzz(20_000, 2002)
    assert not wrong, "\n".join(wrong)
    assert calls == 20_000


def careless(x, flag=True):
    """Return what a function without any checks would."""
    return float(np.asarray(x).sum()) if flag else None


@pytest.mark.parametrize(
    ("argument", "label", "problem"),
    [
        ("x", "masked entries", "accepted"),
        ("x", "NaN entry", "not finite"),
        ("x", "texts", "raw"),
        ("flag", "flag 'no'", "accepted"),
    ],
)
def test_careless_functions_are_found(argument, label, problem):
    call = Call(careless, {"x": np.array([1.0, 4.0]), "flag": True})
    kind = {"x": None, "flag": "bool"}[argument]
    found = attempts(call.arguments[argument], kind, random.Random(0))
    attempt = next(a for a in found if a.label == label)
    assert outcome(call, {argument: attempt}, call).startswith(problem)


def test_another_result_is_found():
    call = Call(lambda x: float(isinstance(x, list)), {"x": np.ones(2)}, "form")
    attempt = Attempt("list", [1.0, 1.0], "same")
    assert outcome(call, {"x": attempt}, call).startswith("another result")
