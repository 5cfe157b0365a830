"""Bad inputs at the boundary of public functions: an ArgumentError that names the argument."""

import inspect
import re
import traceback

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hyperribbon as hr
from errors.calls import BAD, CALLS
from hyperribbon.core.checks import ArgumentError, matrix, positive, validate
from hyperribbon.papers.experiments.sweeping import SweepWarning
from hyperribbon.papers.training import DivergenceError
from hyperribbon.recording import RecordingWarning

CALLED = (
    "params",
    "layers",
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
    "weights",
)
"""Arguments that are functions: what the user's own function raises passes as it is."""

DOCUMENTED = (DivergenceError, RecordingWarning, SweepWarning)
"""Other documented errors and warnings, for values that are numbers but cannot be used."""


def finite(result):
    if isinstance(result, tuple | list):
        return all(finite(entry) for entry in result)
    if isinstance(result, float | np.floating):
        return np.isfinite(result)
    if isinstance(result, np.ndarray) and result.dtype.kind == "f":
        return np.isfinite(result).all()
    return True


def is_of_the_model(error):
    """Whether the user's model or loss raised it, of data that it cannot take."""
    frames = traceback.extract_tb(error.__traceback__)
    return any("/torch/nn/modules/" in frame.filename for frame in frames)


def attempt(call, changed):
    """Call with bad arguments; a refusal names an argument of the call, a reason and a remedy."""
    try:
        with np.errstate(all="ignore"):  # results that overflow are refused
            result = call(**changed)
    except ArgumentError as error:
        assert set(re.findall(r"\w+", error.argument)) & call.names, f"{call.name}: {error}"
        assert error.reason and error.remedy
    except DOCUMENTED:
        pass
    except (RuntimeError, IndexError) as error:
        if not is_of_the_model(error):
            raise
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

PLOTS = {name for name in hr.plots.__all__ if name.startswith("plot_")}
"""They take a result; what is none is tried in tests/plots/test_results.py."""


def test_every_public_function_is_tried():
    tried = {inspect.unwrap(call.function) for call in CALLS.values()}
    listed = dict(public_functions(hr, "hr"))
    missing = {name.rsplit(".", 1)[1] for name, entry in listed.items() if entry not in tried}
    assert missing - PLOTS == UNTRIED | WRAPPED


def is_good(call, argument, label):
    """Whether a value that is bad elsewhere is no bad input here."""
    if argument in CALLED and label == "function":
        return True
    good, bad = call.arguments[argument], BAD[label]
    plain = isinstance(good, int | float | str) and type(good) is type(bad)
    return good is bad or (plain and good == bad)


@pytest.mark.parametrize("name", CALLS)
def test_bad_inputs_give_one_message(name):
    call = CALLS[name]
    for argument in call.arguments:
        for label in BAD:
            if not is_good(call, argument, label):
                attempt(call, {argument: BAD[label]})


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(sorted(CALLS)),
    labels=st.lists(st.sampled_from(sorted(BAD)), min_size=2, max_size=4),
    data=st.data(),
)
def test_several_bad_inputs_give_one_message_too(name, labels, data):
    call = CALLS[name]
    drawn = [(data.draw(st.sampled_from(sorted(call.arguments))), label) for label in labels]
    attempt(call, {a: BAD[label] for a, label in drawn if not is_good(call, a, label)})


@validate(X=matrix, rate=positive)
def ratio(X, rate, Y=None):
    """Divide, in ways that may go wrong."""
    return X / rate if Y is None else X @ Y


def test_other_errors_pass_as_they_were_raised():
    with pytest.raises(ValueError, match="matmul") as found:
        ratio(np.ones((2, 2)), 1.0, np.ones((3, 3)))
    assert type(found.value) is ValueError
    assert found.value.__cause__ is None


def test_a_wrong_signature_is_a_type_error():
    with pytest.raises(TypeError, match="missing a required argument: 'rate'"):
        ratio(np.ones((2, 2)))
    with pytest.raises(TypeError, match="unexpected keyword argument 'speed'"):
        ratio(np.ones((2, 2)), 1.0, speed=2)


def test_results_that_are_not_finite_are_refused():
    message = r"X, rate=.*shape \(2, 2\).*the result is not finite"
    with np.errstate(over="ignore"), pytest.raises(ArgumentError, match=message):
        ratio(np.full((2, 2), 1e140), 1e-300)


def test_arguments_arrive_converted_and_None_passes_where_it_is_the_default():
    assert ratio([[1, 2]], np.float32(2)).tolist() == [[0.5, 1.0]]
    assert ratio(torch.ones(1, 2), 2.0).dtype == np.float64
    with pytest.raises(ArgumentError, match="X"):
        ratio(None, 1.0)
    assert ratio.__doc__ and ratio.__wrapped__


@validate()
def outer(table, level=2, make=None, other=None):
    """Pass arguments on under other names."""
    if make is not None:
        return make(table)
    return ratio(table, level, other)


def test_an_inner_error_names_the_argument_that_was_given():
    with pytest.raises(ArgumentError, match=r"^table="):
        outer(np.ones(2))
    with pytest.raises(ArgumentError, match=r"^level="):
        outer(np.ones((2, 2)), -1.5)


def test_an_error_of_the_users_function_keeps_its_name():
    def make(table):
        raise ArgumentError("size", table, "it is wrong", "Change it.")

    with pytest.raises(ArgumentError, match=r"^size="):
        outer(np.ones((2, 2)), make=make)


@pytest.mark.parametrize("value", [None, 2, True])
def test_equal_constants_are_not_taken_for_an_argument(value):
    @validate()
    def call(level=2, other=None, flag=True):
        raise ArgumentError("size", value, "it is wrong", "Change it.")

    with pytest.raises(ArgumentError, match=r"^size="):
        call(2, None, True)
