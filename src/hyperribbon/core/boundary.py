"""The boundary of a public function: arguments are checked, what goes wrong is translated once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np

from hyperribbon.core.checks import (
    ArgumentError,
    check_array,
    check_fraction,
    check_positive,
    check_positive_int,
    check_real,
)

__all__ = [
    "Check",
    "array",
    "checked",
    "count",
    "fraction",
    "function",
    "instance",
    "matrices",
    "matrix",
    "number",
    "numbers",
    "positive",
    "row",
    "square",
    "whole",
    "zero_or_more",
]

F = TypeVar("F", bound=Callable[..., Any])
Check = Callable[[str, Any], Any]
"""From an argument's name and value to the value as it is used, or an ArgumentError."""

_MOST = 2**53
_RAW = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
    Warning,
    np.linalg.LinAlgError,
)


def checked(**checks: Check) -> Callable[[F], F]:
    """Return a decorator that checks arguments by name and translates whatever else goes wrong.

    Each named argument is replaced by what its check returns; None passes where it is the default.
    An exception that is not an ArgumentError then says that the arguments do not go together, with
    the cause attached, and a result that is not finite says so instead of being returned.

    Args:
        **checks: The check of each argument.
    """

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
                result = call(*bound.args, **bound.kwargs)
            except ArgumentError:
                raise
            except _RAW as error:
                reason = f"they do not go together ({error})"
                raise _mismatch(call, bound.arguments, reason) from error
            if not _is_finite(result):
                raise _mismatch(call, bound.arguments, "they lead to numbers that are not finite")
            return result

        return guarded  # type: ignore[return-value]

    return decorate


def _mismatch(call: Callable[..., Any], given: dict[str, Any], reason: str) -> ArgumentError:
    shown = {
        name: f"shape {value.shape}" if isinstance(value, np.ndarray) else value
        for name, value in given.items()
        if name not in ("self", "cls")
    }
    remedy = f"Compare them with help({call.__module__.rpartition('.')[0]}.{call.__name__})."
    return ArgumentError(", ".join(shown), shown, reason, remedy)


def _is_finite(result: Any) -> bool:
    if isinstance(result, tuple | list):
        return all(_is_finite(entry) for entry in result)
    if isinstance(result, float | np.floating):
        return bool(np.isfinite(result))
    if isinstance(result, np.ndarray) and result.dtype.kind in "fc":
        return bool(np.isfinite(result).all())
    return True


def number(argument: str, value: Any) -> float:
    """Return a finite real number."""
    return check_real(argument, value)


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
    if not found.is_integer():
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
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | dict):
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
