"""Argument checks of public functions by name, and checks that results are finite."""

from __future__ import annotations

import functools
import inspect
import os
import re
import traceback
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
    is_tensor,
)
from hyperribbon.core.devices.ambient import outside_inference_mode
from hyperribbon.core.devices.tensors import tensor_of

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
    "iterable",
    "list_of",
    "mapping",
    "matrices",
    "matrix",
    "torch_module",
    "names",
    "number",
    "numbers",
    "operator",
    "optional",
    "path",
    "positive",
    "row",
    "seed_number",
    "square",
    "tensor",
    "text",
    "whole",
    "wholes",
    "zero_or_more",
]

F = TypeVar("F", bound=Callable[..., Any])
Check = Callable[[str, Any], Any]
"""From an argument's name and value to the value as it is used, or an ArgumentError."""

_MOST = 2**53  # integers that doubles count to
_LARGEST = 1e150  # numbers whose squares are finite
_PARTS = {"targets": ("data",), "inputs": ("data",), "data": ("inputs", "probe")}
"""Arguments that a part, or what it is called inside, belongs to."""


def checked(*, allow_nan: bool = False, **checks: Check) -> Callable[[F], F]:
    """Return a decorator that checks arguments by name and that the result is finite.

    Each named argument is replaced by what its check returns; None passes where it is the default.
    An ArgumentError of an inner function is made to name the argument that was given here. Every
    other exception passes as it was raised.

    Args:
        allow_nan: Whether the result may hold NaN and infinity.
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
                with outside_inference_mode():
                    result = call(*bound.args, **bound.kwargs)
            except ArgumentError as error:
                _rename(error, signature, bound.arguments)
                raise
            if not (allow_nan or _is_finite(result)):
                raise _not_finite(bound.arguments)
            return result

        return guarded  # type: ignore[return-value]

    return decorate


def _rename(error: ArgumentError, signature: inspect.Signature, given: dict[str, Any]) -> None:
    """Let a message of an inner function name the argument that the user gave."""
    own = {getattr(value, "__code__", None) for value in given.values()}
    if any(frame.f_code in own for frame, _ in traceback.walk_tb(error.__traceback__)):
        return  # errors of the user's own functions keep their names
    words = re.findall(r"\w+", error.argument)
    if any(word in given and given[word] is error.value for word in words):
        return
    shared = isinstance(error.value, int | None)  # equal values that are one object anyway
    for name, value in () if shared else given.items():
        within = value if isinstance(value, list | tuple) else ()
        places = [f"[{place}]" for place, entry in enumerate(within) if entry is error.value]
        if value is error.value or places:
            error.rename(name + "".join(places[:1]))
            return
    takes = signature.parameters
    parts = [part for part in _PARTS.get(error.argument, ()) if part in takes]
    if parts and not any(word in takes for word in words):
        error.rename(f"{parts[0]} ({error.argument})")


def _not_finite(given: dict[str, Any]) -> ArgumentError:
    shown = {name: _brief(value) for name, value in given.items() if name not in ("self", "cls")}
    remedy = "Some values are too large or too small: check them."
    return ArgumentError(", ".join(shown), shown, "the result is not finite", remedy)


def _brief(value: Any) -> Any:
    if hasattr(value, "shape"):
        return f"shape {tuple(value.shape)}"
    return (
        value
        if isinstance(value, str | bytes | int | float | complex | tuple | list | dict | None)
        else type(value).__name__
    )


def _is_finite(result: Any) -> bool:
    if isinstance(result, list | tuple):
        return all(_is_finite(entry) for entry in result)
    if isinstance(result, float | np.floating):
        return bool(np.isfinite(result))
    if isinstance(result, np.ndarray) and result.dtype.kind in "fc":
        return bool(np.isfinite(result).all())
    return True


def number(argument: str, value: Any) -> float:
    """Return a finite real number whose square is finite."""
    found = as_number(argument, value)
    if not abs(found) <= _LARGEST:
        reason = f"expected a finite number, at most {_LARGEST:g}"
        raise ArgumentError(argument, value, reason, "Give a smaller number.")
    return found


def positive(argument: str, value: Any) -> float:
    """Return a number above zero."""
    return number(argument, check_positive(argument, value))


def zero_or_more(argument: str, value: Any) -> float:
    """Return a number that is not negative."""
    return number(argument, check_positive(argument, value, zero=True))


def count(argument: str, value: Any) -> int:
    """Return a whole number from 1 that numbers in double precision can count to."""
    return check_positive_int(argument, value, maximum=_MOST)


def whole(argument: str, value: Any) -> int:
    """Return a whole number from 0."""
    found = check_positive(argument, value, zero=True)
    if not found.is_integer() or found > _MOST:
        raise ArgumentError(argument, value, "expected an integer, 0 or more", "Give an integer.")
    return int(found)


fraction: Check = check_fraction
"""Return a number from 0 to 1."""


array: Check = check_array
"""Return finite numbers of any shape."""


numbers: Check = functools.partial(check_array, ndim=(0, 1))
"""Return a finite number or a vector of them."""


row: Check = functools.partial(check_array, ndim=1)
"""Return a vector (n,) of finite numbers."""


matrix: Check = functools.partial(check_array, ndim=2)
"""Return a matrix of finite numbers."""


def square(argument: str, value: Any) -> np.ndarray:
    """Return a square matrix of finite numbers."""
    found = check_array(argument, value, ndim=2)
    if found.shape[0] != found.shape[1]:
        raise ArgumentError(argument, found, "expected a square matrix", "Give a matrix (n, n).")
    return found


def iterable(argument: str, value: Any) -> Iterable[Any]:
    """Return entries in order: a list or any other iterable, but not a str or a dict."""
    listed = isinstance(value, Iterable) and not isinstance(value, str | bytes | dict)
    if not listed or not getattr(value, "ndim", 1):
        raise ArgumentError(argument, value, "expected a list", "Give a list or a tuple.")
    return value


def list_of(check: Check) -> Check:
    """Return the check of a list, each entry of which passes a check.

    Args:
        check: The check of an entry.
    """
    return lambda argument, value: [
        check(f"{argument}[{index}]", entry)
        for index, entry in enumerate(iterable(argument, value))
    ]


def matrices(argument: str, value: Any) -> list[np.ndarray]:
    """Return several matrices of finite numbers."""
    found = list_of(matrix)(argument, value)
    if not found:
        raise ArgumentError(argument, value, "it is empty", "Give at least one matrix.")
    return found


def function(argument: str, value: Any) -> Callable[..., Any]:
    """Return something that can be called."""
    if not callable(value):
        raise ArgumentError(argument, value, "expected a function", "Give something callable.")
    return value


def flag(argument: str, value: Any) -> bool:
    """Return True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ArgumentError(argument, value, "expected True or False", "Give a bool.")
    return bool(value)


def flag_or_text(argument: str, value: Any) -> bool | str:
    """Return True, False, or a str whose choices are checked elsewhere."""
    return value if isinstance(value, str) else flag(argument, value)


def text(argument: str, value: Any) -> str:
    """Return a str."""
    if not isinstance(value, str):
        raise ArgumentError(argument, value, "expected a str", "Give a string.")
    return value


def names(argument: str, value: Any) -> Any:
    """Return a pattern, a list of names, or a function that chooses parameters."""
    if isinstance(value, str) or callable(value):
        return value
    try:
        return list_of(text)(argument, value)
    except ArgumentError:
        reason = "expected a pattern, a list of names or a function"
        remedy = 'Give "layer1.*" or ["layer1.weight"].'
        raise ArgumentError(argument, value, reason, remedy) from None


def torch_module(argument: str, value: Any) -> Any:
    """Return a torch module."""
    from torch import nn

    return instance(nn.Module, "Give a torch.nn.Module.")(argument, value)


def operator(argument: str, value: Any) -> Any:
    """Return a square operator, matrix or tensor: anything with a shape (P, P) and `@`."""
    shape = tuple(getattr(value, "shape", ()))
    if len(shape) != 2 or shape[0] != shape[1] or not hasattr(value, "__matmul__"):
        remedy = "Give an operator, a matrix or a tensor of shape (P, P)."
        raise ArgumentError(argument, value, "expected a square operator", remedy)
    return value


def tensor(argument: str, value: Any) -> Any:
    """Return real numbers of any shape as a tensor; a tensor stays as it is."""
    if is_tensor(value) and not value.is_complex():
        return value
    check_array(argument, value, empty=True)
    return tensor_of(value)


def mapping(argument: str, value: Any) -> Mapping[Any, Any]:
    """Return values by name."""
    if not isinstance(value, Mapping):
        raise ArgumentError(argument, value, "expected a dict", "Give values by name.")
    return value


def path(argument: str, value: Any) -> str | os.PathLike[str]:
    """Return a path of the file system."""
    if not isinstance(value, str | os.PathLike) or not str(value) or "\0" in str(value):
        raise ArgumentError(argument, value, "expected a path", "Give a str or a pathlib.Path.")
    return value


def seed_number(argument: str, value: Any) -> int:
    """Return a seed."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise ArgumentError(argument, value, "expected an integer, 0 or more", "Give seed=0.")
    return int(value)


def wholes(argument: str, value: Any) -> np.ndarray:
    """Return a row of whole numbers from 0."""
    found = check_array(argument, value, ndim=1)
    if (found < 0).any() or (found != np.floor(found)).any() or found.max() > _MOST:
        raise ArgumentError(argument, value, "expected integers, 0 or more", "Give [0, 10, 100].")
    return found.astype(np.int64)


def image(argument: str, value: Any) -> tuple[int, ...]:
    """Return the shape (channels, height, width) of an image."""
    found = wholes(argument, value)
    if len(found) != 3 or not found.all():
        raise ArgumentError(argument, value, "expected (channels, height, width)", "Give 3 sizes.")
    return tuple(int(size) for size in found)


def optional(check: Check) -> Check:
    """Return the check of an argument that may be None though that is not its default.

    Args:
        check: The check of other values.
    """
    return lambda argument, value: None if value is None else check(argument, value)


def instance(kind: type, remedy: str) -> Check:
    """Return the check that a value is of a class.

    Args:
        kind: The class.
        remedy: Where to get one.
    """

    def check(argument: str, value: Any) -> Any:
        if not isinstance(value, kind):
            raise ArgumentError(argument, value, f"expected an instance of {kind.__name__}", remedy)
        return value

    return check
