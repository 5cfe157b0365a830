"""Bad inputs at the boundary of public functions: one clear message each, never a raw exception."""

import inspect
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hyperribbon as hr
from errors.calls import BAD, CALLS
from hyperribbon.core.boundary import checked, matrix, positive
from hyperribbon.core.checks import ArgumentError
from hyperribbon.experiments.sweeping import SweepWarning
from hyperribbon.recording import RecordingWarning
from hyperribbon.training import DivergenceError

CALLED = (
    "params",
    "measure",
    "initializer",
    "loss",
    "metric",
    "block",
    "gradient",
    "hessian_product",
    "train",
    "make",
    "augment",
    "on_epoch",
    "on_step",
    "on_member",
    "function",
    "predictions",
    "log",
    "forward",
    "optimizer",
    "schedule",
    "operators",
    "should_stop",
)
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


def attempt(call, changed):
    """Call with bad arguments; a refusal names an argument of the call, a reason and a remedy."""
    try:
        result = call(**changed)
    except ArgumentError as error:
        assert set(re.findall(r"\w+", error.argument)) & call.names, f"{call.name}: {error}"
        assert error.reason and error.remedy
    except DOCUMENTED:
        pass
    else:
        assert finite(result), f"{call.name} of {list(changed)} returned {result}"


@pytest.mark.parametrize("name", CALLS)
def test_good_calls_are_accepted(name):
    CALLS[name]()


def public_functions(room, where):
    """Yield the public functions, with their places, of a room and of those inside it."""
    for name in room.__all__:
        entry = getattr(room, name)
        if inspect.ismodule(entry) and entry.__name__.startswith("hyperribbon."):
            yield from public_functions(entry, f"{where}.{name}")
        elif inspect.isfunction(entry):
            yield f"{where}.{name}", inspect.unwrap(entry)


UNTRIED = {"unsharded", "unwrapped"}
"""Public functions without a call: they are of models spread over processes."""

WRAPPED = {
    "compare",
    "chain_batches",
    "train",
    "run",
    "run_experiments",
    "write_report",
    "sweep",
    "to_torch_prune",
    "explore",
}
"""Those that are tried inside a function of the tests, which gives them a folder or a new model."""


def test_every_public_function_is_tried():
    tried = {inspect.unwrap(call.function) for call in CALLS.values()}
    listed = dict(public_functions(hr, "hr"))
    missing = {name.rsplit(".", 1)[1] for name, entry in listed.items() if entry not in tried}
    assert missing == UNTRIED | WRAPPED


PLACES = [(name, argument) for name, call in CALLS.items() for argument in call.arguments]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(place=st.sampled_from(PLACES), label=st.sampled_from(sorted(BAD)))
def test_bad_inputs_give_one_message(place, label):
    name, argument = place
    if not (argument in CALLED and label == "function"):
        attempt(CALLS[name], {argument: BAD[label]})


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
    attempt(call, changed)


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_every_bad_input_in_every_place(name):
    for argument in CALLS[name].arguments:
        for label in BAD:
            if not (argument in CALLED and label == "function"):
                attempt(CALLS[name], {argument: BAD[label]})


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
