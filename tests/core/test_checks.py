import math
import pickle

import numpy as np
import pytest
import torch

from hyperribbon.core import ArgumentError, MissingExtraError
from hyperribbon.core.checks import (
    check_choice,
    check_finite,
    check_fraction,
    check_positive,
    check_positive_int,
    validate,
)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: check_choice("color", "blue", ("red", "green")), ("color='blue'", "'red'")),
        (lambda: check_positive("lr", -1.0), ("lr=-1.0", "greater than zero")),
        (lambda: check_positive("lr", math.nan), ("lr=nan", "finite")),
        (lambda: check_positive("lr", "fast"), ("lr='fast'", "expected a number")),
        (lambda: check_positive_int("k", 2.5), ("k=2.5", "whole number")),
        (lambda: check_positive_int("k", 0), ("k=0", "at least 1")),
        (lambda: check_positive_int("k", 9, maximum=8), ("k=9", "at most 8")),
        (lambda: check_positive_int("k", math.nan), ("k=nan", "whole number")),
        (lambda: check_fraction("fraction", 1.2), ("fraction=1.2", "between 0 and 1")),
        (lambda: check_finite("x", np.array([1, np.nan])), ("shape (2,)", "1 of its entries")),
        (lambda: check_finite("x", torch.tensor([math.inf])), ("shape (1,)", "infinite")),
    ],
)
def test_messages_name_argument_value_and_reason(call, words):
    with pytest.raises(ArgumentError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)
    assert caught.value.remedy in str(caught.value)


def test_good_values_pass_through():
    assert check_choice("c", "red", ("red",)) == "red"
    assert check_positive("x", 0, zero=True) == 0
    assert check_positive_int("k", 8, maximum=8) == 8
    assert check_fraction("p", 1) == 1
    x = torch.ones(3)
    assert check_finite("x", x) is x


@pytest.mark.parametrize(
    "error", [ArgumentError("a", 1, "bad", "Fix it."), MissingExtraError("dash", "explore", "It")]
)
def test_errors_survive_the_trip_from_a_worker_process(error):
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)


def test_paths_are_not_shortened():
    path = "/" + "/".join(["folder"] * 30)
    assert path in str(ArgumentError("file", path, "it is damaged", "Fetch it again."))


def test_an_error_about_an_entry_of_a_list_names_its_place():
    def take(state):
        raise ArgumentError("state", state, "it is empty", "Fill it.")

    @validate()
    def take_second(states):
        take(states[1])

    with pytest.raises(ArgumentError, match=r"^states\[1\]=\{\}: it is empty"):
        take_second([{"a": 1}, {}])


def test_values_in_messages_are_short():
    def own_loss():
        pass

    for value, shown in (
        ((torch.ones(2, 3), torch.ones(2)), "a=tuple of 2, the first a tensor of shape (2, 3)"),
        ({"x": torch.ones(2), "y": torch.ones(2)}, "a=dict with x, y:"),
        (own_loss, "a=own_loss:"),
        (object(), "a=object:"),
    ):
        assert str(ArgumentError("a", value, "bad", "Fix it.")).startswith(shown)
