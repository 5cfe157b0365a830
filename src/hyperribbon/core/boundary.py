"""The boundary of a public function: arguments are checked, what goes wrong is translated once."""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np

from hyperribbon.core.checks import (
    ArgumentError,
    as_number,
    check_array,
    check_fraction,
    check_positive,
    check_positive_int,
    is_array,
    is_listed,
)
from hyperribbon.core.devices.ambient import outside_inference_mode

__all__ = [
    "Check",
    "array",
    "checked",
    "count",
    "flag",
    "flag_or_text",
    "fraction",
    "function",
    "image",
    "instance",
    "mapping",
    "matrices",
    "matrix",
    "names",
    "number",
    "numbers",
    "optional",
    "own_function",
    "path",
    "positive",
    "row",
    "seed_number",
    "square",
    "text",
    "translated",
    "whole",
    "wholes",
    "zero_or_more",
]

F = TypeVar("F", bound=Callable[..., Any])
Check = Callable[[str, Any], Any]
"""From an argument's name and value to the value as it is used, or an ArgumentError."""

_MOST = 2**53
_PLAIN: tuple[type, ...] = (str, bytes, int, float, complex, tuple, list, dict)
_LISTS: tuple[type, ...] = (list, tuple, set)
_PATHS: tuple[type, ...] = (str, os.PathLike)
_MAPPINGS: tuple[type, ...] = (Mapping,)
_ITERABLES: tuple[type, ...] = (Iterable,)
_FLOATING: tuple[type, ...] = (float, np.floating)
_YES_OR_NO: tuple[type, ...] = (bool, np.bool_)
_WHOLE: tuple[type, ...] = (int, np.integer)
_RAW = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
    Warning,
    np.linalg.LinAlgError,
)
_FOREIGN = ("builtins", "matplotlib", "numpy", "pandas", "plotly", "scipy", "sklearn", "torch")
_PARTS = {"targets": "data", "data": "inputs"}  # what messages name that is in an argument
_OWN = "_raised_by_a_persons_function"


def checked(**checks: Check) -> Callable[[F], F]:
    """Return a decorator that checks arguments by name and translates whatever else goes wrong.

    Each named argument is replaced by what its check returns; None passes where it is the default.
    An exception of Python, numpy or torch then says that the arguments do not go together, with the
    cause attached, and a result that is not finite says so instead of being returned. Exceptions
    of hyperribbon, those of classes from elsewhere, those of an `own_function`, of what is not yet
    fitted and of a device that is out of memory pass as they are. A message of an inner function
    is made to name the argument that was given here.

    Args:
        **checks: The check of each argument.
    """
    return _boundary(checks, finite=True)


def translated(**checks: Check) -> Callable[[F], F]:
    """Return the decorator of `checked` for functions whose results may well hold NaN.

    Args:
        **checks: The check of each argument.
    """
    return _boundary(checks, finite=False)


def _boundary(checks: dict[str, Check], *, finite: bool) -> Callable[[F], F]:
    def decorate(call: F) -> F:
        signature = inspect.signature(call)

        @functools.wraps(call)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            for name, check in checks.items():
                if name in bound.arguments:
                    value, default = bound.arguments[name], signature.parameters[name].default
                    if value is not None or default is not None:
                        bound.arguments[name] = check(name, value)
            try:
                with outside_inference_mode():
                    result = call(*bound.args, **bound.kwargs)
            except ArgumentError as error:
                _rename(error, signature, bound.arguments)
                raise
            except _RAW as error:
                if not _is_raw(error):
                    raise
                reason = f"they do not go together ({str(error) or type(error).__name__})"
                raise _mismatch(call, bound.arguments, reason) from error
            if finite and not _is_finite(result):
                raise _mismatch(call, bound.arguments, "they lead to numbers that are not finite")
            return result

        return guarded  # type: ignore[return-value]

    return decorate


def _is_raw(error: Exception) -> bool:
    """Whether an exception is of no class that says what to do, and of nobody's own function."""
    kind = type(error)
    if hasattr(error, _OWN) or kind.__name__ in ("OutOfMemoryError", "NotFittedError"):
        return False
    return kind.__module__.partition(".")[0] in _FOREIGN


def _rename(error: ArgumentError, signature: inspect.Signature, given: dict[str, Any]) -> None:
    """Let a message of an inner function speak of the argument that a person gave."""
    takes = signature.parameters
    known = any(word in takes for word in re.findall(r"\w+", error.argument))
    if known or hasattr(error, _OWN):
        return
    for name, value in given.items():
        within = value if is_listed(value) else ()
        places = [number for number, entry in enumerate(within) if entry is error.value]
        if value is error.value or places:
            error.rename(f"{name}[{places[0]}]" if places else name)
            return
    whole = _PARTS.get(error.argument)
    if whole in takes:
        error.rename(f"{whole} ({error.argument})")


def _mismatch(call: Callable[..., Any], given: dict[str, Any], reason: str) -> ArgumentError:
    shown = {name: _brief(value) for name, value in given.items() if name not in ("self", "cls")}
    place = call.__module__.split(".")
    room = ".".join(place[: 2 if len(place) < 4 else 3])
    remedy = f"Compare them with help({room}.{call.__qualname__.removesuffix('.__init__')})."
    return ArgumentError(", ".join(shown), shown, reason, remedy)


def _brief(value: Any) -> Any:
    if hasattr(value, "shape"):
        return f"shape {tuple(value.shape)}"
    plain = isinstance(value, _PLAIN)
    return value if value is None or plain else type(value).__name__


def _is_finite(result: Any) -> bool:
    if is_listed(result):
        return all(_is_finite(entry) for entry in result)
    if isinstance(result, _FLOATING):
        return bool(np.isfinite(result))
    if is_array(result) and result.dtype.kind in "fc":
        return bool(np.isfinite(result).all())
    return True


def number(argument: str, value: Any) -> float:
    """Return a finite real number."""
    found = as_number(argument, value)
    if not np.isfinite(found):
        raise ArgumentError(argument, value, "it is not finite", "Give a finite number.")
    return found


def positive(argument: str, value: Any) -> float:
    """Return a finite number above zero."""
    return check_positive(argument, value)


def zero_or_more(argument: str, value: Any) -> float:
    """Return a finite number that is not negative."""
    return check_positive(argument, value, zero=True)


def count(argument: str, value: Any) -> int:
    """Return a whole number from 1 that numbers in double precision can count to."""
    return check_positive_int(argument, value, maximum=_MOST)


def whole(argument: str, value: Any) -> int:
    """Return a whole number from 0."""
    found = check_positive(argument, value, zero=True)
    if not found.is_integer() or found > _MOST:
        raise ArgumentError(argument, value, "it is not a whole number", "Give one from 0.")
    return int(found)


def fraction(argument: str, value: Any) -> float:
    """Return a number from 0 to 1."""
    return check_fraction(argument, value)


def array(argument: str, value: Any) -> np.ndarray:
    """Return finite numbers of any shape."""
    return check_array(argument, value)


def numbers(argument: str, value: Any) -> np.ndarray:
    """Return one finite number or a row of them."""
    return check_array(argument, value, ndim=(0, 1))


def row(argument: str, value: Any) -> np.ndarray:
    """Return a row (n,) of finite numbers."""
    return check_array(argument, value, ndim=1)


def matrix(argument: str, value: Any) -> np.ndarray:
    """Return a matrix of finite numbers."""
    return check_array(argument, value, ndim=2)


def square(argument: str, value: Any) -> np.ndarray:
    """Return a square matrix of finite numbers."""
    found = check_array(argument, value, ndim=2)
    if found.shape[0] != found.shape[1]:
        raise ArgumentError(argument, found, "it must be square", "Give a matrix (n, n).")
    return found


def matrices(argument: str, value: Any) -> list[np.ndarray]:
    """Return several matrices of finite numbers."""
    if not isinstance(value, _ITERABLES) or isinstance(value, str | bytes | dict):
        raise ArgumentError(argument, value, "it is not a list of matrices", "Give a list.")
    found = [check_array(f"{argument}[{i}]", entry, ndim=2) for i, entry in enumerate(value)]
    if not found:
        raise ArgumentError(argument, value, "it is empty", "Give at least one matrix.")
    return found


def function(argument: str, value: Any) -> Callable[..., Any]:
    """Return something that can be called."""
    if not callable(value):
        raise ArgumentError(argument, value, "it cannot be called", "Give a function.")
    return value


def own_function(argument: str, value: Any) -> Callable[..., Any]:
    """Return a person's own function; what it raises passes the boundary as it is."""
    function(argument, value)

    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return value(*args, **kwargs)
        except Exception as error:
            setattr(error, _OWN, True)
            raise

    return called


def flag(argument: str, value: Any) -> bool:
    """Return True or False."""
    if not isinstance(value, _YES_OR_NO):
        raise ArgumentError(argument, value, "it is not a yes or no", "Give True or False.")
    return bool(value)


def flag_or_text(argument: str, value: Any) -> bool | str:
    """Return True, False, or a text whose choices are checked elsewhere."""
    return value if isinstance(value, str) else flag(argument, value)


def text(argument: str, value: Any) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise ArgumentError(argument, value, "it is not a text", "Give a text.")
    return value


def names(argument: str, value: Any) -> Any:
    """Return a pattern, a list of names, or a function that chooses parameters."""
    listed = isinstance(value, _LISTS) and all(isinstance(n, str) for n in value)
    if not (isinstance(value, str) or callable(value) or listed):
        reason = "it is neither a pattern nor a list of names"
        raise ArgumentError(argument, value, reason, 'Give "layer1.*" or ["layer1.weight"].')
    return value


def mapping(argument: str, value: Any) -> Mapping[Any, Any]:
    """Return values by name."""
    if not isinstance(value, _MAPPINGS):
        raise ArgumentError(argument, value, "it is not a dict", "Give values by name.")
    return value


def path(argument: str, value: Any) -> str | os.PathLike[str]:
    """Return a path of the file system."""
    if not isinstance(value, _PATHS) or not str(value) or "\0" in str(value):
        raise ArgumentError(argument, value, "it is not a path", "Give a text or a pathlib.Path.")
    return value


def seed_number(argument: str, value: Any) -> int:
    """Return a seed."""
    if isinstance(value, bool) or not isinstance(value, _WHOLE) or value < 0:
        reason = "a seed is a whole number, zero or more"
        raise ArgumentError(argument, value, reason, "Give seed=0.")
    return int(value)


def wholes(argument: str, value: Any) -> np.ndarray:
    """Return a row of whole numbers from 0."""
    found = check_array(argument, value, ndim=1)
    if (found < 0).any() or (found != np.floor(found)).any() or found.max() > _MOST:
        reason = "they are not whole numbers from 0"
        raise ArgumentError(argument, value, reason, "Give a list such as [0, 10, 100].")
    return found.astype(np.int64)


def image(argument: str, value: Any) -> tuple[int, ...]:
    """Return the shape (channels, height, width) of an image."""
    found = wholes(argument, value)
    if len(found) != 3 or not found.all():
        reason = "it is not (channels, height, width)"
        raise ArgumentError(argument, value, reason, "Give a shape such as (1, 28, 28).")
    return tuple(int(size) for size in found)


def optional(check: Check) -> Check:
    """Return the check of an argument that may be None though that is not its default.

    Args:
        check: The check of other values.
    """
    return lambda argument, value: None if value is None else check(argument, value)


def instance(kind: type, way_out: str) -> Check:
    """Return the check that a value is of a class.

    Args:
        kind: The class.
        way_out: Where to get one.
    """

    def check(argument: str, value: Any) -> Any:
        if not isinstance(value, kind):
            raise ArgumentError(argument, value, f"it is not a {kind.__name__}", way_out)
        return value

    return check
