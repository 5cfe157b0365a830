"""Bad inputs at the boundary of public functions: one clear message each, never a raw exception."""

import contextlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from errors.calls import BAD, CALLS
from hyperribbon.core.boundary import checked, matrix, positive
from hyperribbon.core.checks import ArgumentError
from hyperribbon.experiments.sweeping import SweepWarning
from hyperribbon.training import DivergenceError, RecordingWarning

CALLED = ("params", "measure", "initializer", "loss", "metric", "block", "gradient",
          "hessian_product", "train", "make", "augment", "on_epoch", "on_step", "on_member",
          "function", "predictions", "log", "forward", "optimizer", "schedule",
          "operators")  # fmt: skip
"""Arguments that are functions: what a person's own function raises is his."""

DOCUMENTED = (DivergenceError, RecordingWarning, SweepWarning)
"""What is said beside an ArgumentError, of values that are numbers but lead nowhere."""


def finite(result):
    if isinstance(result, tuple | list):
        return all(finite(entry) for entry in result)
    if isinstance(result, float | np.floating):
        return np.isfinite(result)
    if isinstance(result, np.ndarray) and result.dtype.kind == "f":
        return np.isfinite(result).all()
    return True


def attempt(call, argument, label):
    """Call with one bad argument; return the message, or nothing when it was accepted."""
    try:
        result = call(**{argument: BAD[label]})
    except ArgumentError as error:
        assert error.argument and error.reason and error.remedy
        return str(error)
    except DOCUMENTED as error:
        return str(error)
    assert finite(result), f"{call.name}({argument}={label}) returned {result}"
    return ""


@pytest.mark.parametrize("name", CALLS)
def test_good_calls_are_accepted(name):
    CALLS[name]()


PLACES = [(name, argument) for name, call in CALLS.items() for argument in call.arguments]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(place=st.sampled_from(PLACES), label=st.sampled_from(sorted(BAD)))
def test_bad_inputs_give_one_message(place, label):
    name, argument = place
    if not (argument in CALLED and label == "function"):
        attempt(CALLS[name], argument, label)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(sorted(CALLS)),
    labels=st.lists(st.sampled_from(sorted(BAD)), min_size=2, max_size=4),
    data=st.data(),
)
def test_several_bad_inputs_give_one_message_too(name, labels, data):
    call = CALLS[name]
    changed = {}
    for label in labels:
        argument = data.draw(st.sampled_from(sorted(call.arguments)))
        if not (argument in CALLED and label == "function"):
            changed[argument] = BAD[label]
    with contextlib.suppress(ArgumentError, *DOCUMENTED):
        assert finite(call(**changed))


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_every_bad_input_in_every_place(name):
    for argument in CALLS[name].arguments:
        for label in BAD:
            if not (argument in CALLED and label == "function"):
                attempt(CALLS[name], argument, label)


@checked(X=matrix, rate=positive)
def ratio(X, rate, Y=None):
    """Divide, in ways that may go wrong."""
    return X / rate if Y is None else X @ Y


def test_the_cause_is_kept_and_shapes_are_told():
    with pytest.raises(ArgumentError, match=r"shape \(2, 2\).*do not go together") as found:
        ratio(np.ones((2, 2)), 1.0, np.ones((3, 3)))
    assert isinstance(found.value.__cause__, ValueError)


def test_results_that_are_not_finite_are_refused():
    with np.errstate(over="ignore"), pytest.raises(ArgumentError, match="not finite"):
        ratio(np.full((2, 2), 1e300), 1e-300)


def test_arguments_arrive_converted_and_None_passes_where_it_is_the_default():
    assert ratio([[1, 2]], "2").tolist() == [[0.5, 1.0]]
    assert ratio(torch.ones(1, 2), 2.0).dtype == np.float64
    with pytest.raises(ArgumentError, match="X"):
        ratio(None, 1.0)
    assert ratio.__doc__ and ratio.__wrapped__
