"""Argument checks whose messages give the argument, value, reason and remedy."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import numpy as np

if TYPE_CHECKING:
    import torch

__all__ = [
    "ArgumentError",
    "MissingExtraError",
    "ProcessGroupError",
    "check_absent",
    "check_array",
    "check_choice",
    "check_finite",
    "check_fraction",
    "check_positive",
    "check_positive_int",
    "check_shape",
    "as_number",
    "is_tensor",
]

Array = TypeVar("Array", np.ndarray, "torch.Tensor")


class ArgumentError(ValueError):
    """An invalid argument.

    Args:
        argument: Name of the argument or option.
        value: The value received (shortened in the message).
        reason: Why it cannot be used.
        remedy: What to do instead.
    """

    def __init__(self, argument: str, value: Any, reason: str, remedy: str) -> None:
        self.value = value
        self.reason = reason
        self.remedy = remedy
        self.rename(argument)

    def rename(self, argument: str) -> None:
        """Replace the argument's name by the one the caller used."""
        self.argument = argument
        self.args = (f"{argument}={_short(self.value)}: {self.reason}. {self.remedy}",)

    def __reduce__(self) -> tuple[type, tuple[str, Any, str, str]]:
        """Survive the trip back from a worker process."""
        return (type(self), (self.argument, _Shown(_short(self.value)), self.reason, self.remedy))


class _Shown(str):
    """A value that is already the text to show."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class ProcessGroupError(RuntimeError):
    """A process of the group has ended or does not respond."""


class MissingExtraError(ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        self.package, self.extra, self.purpose = package, extra, purpose
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed. "
            f"Install it with: pip install 'hyperribbon[{extra}]'"
        )

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        """Survive the trip back from a worker process."""
        return (type(self), (self.package, self.extra, self.purpose))


def _short(value: Any, limit: int = 80) -> str:
    if is_tensor(value):
        return f"tensor of shape {tuple(value.shape)}, {value.dtype}, {value.device}"
    if isinstance(value, np.ndarray):
        return f"array of shape {value.shape}, {value.dtype}"
    if isinstance(value, str) and os.sep in value:
        limit = 400  # the reader wants to open that file
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def check_absent(argument: str, value: Any, reason: str, remedy: str = "Omit it.") -> None:
    """Raise if an argument is given that would have no effect."""
    if value is not None:
        raise ArgumentError(argument, value, reason, remedy)


def check_choice(argument: str, value: object, choices: Collection[str]) -> str:
    """Return `value` if it is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        listed = ", ".join(repr(c) for c in choices)
        raise ArgumentError(argument, value, "it is not a known choice", f"Use one of {listed}.")
    return value


def check_positive(argument: str, value: float, *, zero: bool = False) -> float:
    """Return `value` as a float if it is finite and positive (or zero, when allowed)."""
    number = as_number(argument, value)
    if not np.isfinite(number) or number < 0 or (number == 0 and not zero):
        bound = "zero or more" if zero else "greater than zero"
        raise ArgumentError(
            argument, value, f"expected a finite number {bound}", f"Give a value {bound}."
        )
    return number


def check_positive_int(argument: str, value: int, *, maximum: int | None = None) -> int:
    """Return `value` as an int if it is a whole number from 1 to `maximum`."""
    number = as_number(argument, value)
    limit = "" if maximum is None else f" and at most {maximum}"
    if not number.is_integer() or number < 1 or (maximum is not None and number > maximum):
        reason = f"expected an integer, at least 1{limit}"
        remedy = f"Give a whole number from 1{'' if maximum is None else f' to {maximum}'}."
        raise ArgumentError(argument, value, reason, remedy)
    return int(number)


def check_fraction(argument: str, value: float) -> float:
    """Return `value` as a float if it lies in [0, 1]."""
    number = as_number(argument, value)
    if not 0.0 <= number <= 1.0:
        raise ArgumentError(
            argument, value, "expected a fraction between 0 and 1", "Give 0.8 for 80 percent."
        )
    return number


def check_finite(argument: str, value: Array) -> Array:
    """Return `value` if it holds no NaN and no infinity."""
    given: Any = value
    finite = given.isfinite() if is_tensor(given) else np.isfinite(given)
    if not bool(finite.all()):
        reason = f"{int((~finite).sum())} of its entries are NaN or infinite"
        raise ArgumentError(argument, value, reason, "Remove or replace them first.")
    return value


def check_array(
    argument: str,
    value: Any,
    *,
    ndim: int | tuple[int, ...] | None = None,
    empty: bool = False,
    remedy: str = "",
) -> np.ndarray:
    """Return `value` as an array of finite doubles with a number of axes.

    Args:
        argument: Name to use in the message.
        value: A number, a nested list, an array or a tensor.
        ndim: The number of axes it must have, or those it may have; None for any.
        empty: Whether it may hold nothing.
        remedy: What to do instead; by default, to give what is expected.

    Raises:
        ArgumentError: It is not an array of real numbers, has other axes, is empty, or holds NaN
            or infinity.
    """  # noqa: DOC501 - the TypeError is caught
    kinds = {0: "a real number", 1: "a row (n,) of numbers", 2: "a matrix (n, m) of numbers"}
    axes = (ndim,) if isinstance(ndim, int) else ndim
    wanted = " or ".join(kinds.get(n, f"an array of {n} axes") for n in axes or ())
    wanted = wanted or "an array of real numbers"
    remedy = remedy or f"Give {wanted}."
    if is_tensor(value):
        from hyperribbon.core.devices.tensors import host_array

        value = host_array(value)
    try:
        array = np.asarray(value)
        if np.iscomplexobj(array) or array.dtype.kind not in "biuf":
            raise TypeError
        array = array.astype(float, copy=False)
    except (TypeError, ValueError):
        raise ArgumentError(argument, value, f"expected {wanted}", remedy) from None
    if axes is not None and array.ndim not in axes:
        raise ArgumentError(argument, array, f"expected {wanted}", remedy)
    if not empty and not array.size:
        raise ArgumentError(argument, array, "it is empty", remedy)
    return check_finite(argument, array)


def as_number(argument: str, value: Any) -> float:
    """Return `value` as a float, whatever it is, if it is one number."""
    try:
        if np.ndim(value):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError(argument, value, "expected a number", "Give a number.") from None


def check_shape(
    argument: str, value: Array, shape: tuple[int, ...], reason: str, *, broadcast: bool = False
) -> Array:
    """Return `value` if it has a shape, or broadcasts to it.

    Args:
        argument: Name to use in the message.
        value: An array or a tensor.
        shape: The shape it must have.
        reason: Why, such as the shape of another argument.
        broadcast: Whether it is enough that numpy broadcasts it to that shape.

    Raises:
        ArgumentError: It has another shape.
    """
    found = tuple(value.shape)
    pairs = zip(found[::-1], shape[::-1], strict=False)
    fits = len(found) <= len(shape) and all(size in (1, wanted) for size, wanted in pairs)
    if found != shape and not (broadcast and fits):
        raise ArgumentError(argument, value, reason, f"Give an array of shape {shape}.")
    return value


def is_tensor(value: Any) -> TypeGuard[torch.Tensor]:
    """Whether something is a tensor, without importing torch: who has one has imported it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)
