"""Argument checks whose messages give the argument, value, reason and remedy.

`validate` checks the arguments of a public function by name:

    @validate(folder=path, seeds=list_of(seed_number))
    def train(folder, seeds): ...
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import numpy as np

from hyperribbon.core.devices.modes import outside_inference_mode

if TYPE_CHECKING:
    import torch

Array = TypeVar("Array", np.ndarray, "torch.Tensor")


class ArgumentError(ValueError):
    """Exception for an invalid argument: its name, its value, the reason, the remedy.

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
        """Replace the argument's name in a failed check by the one the caller used."""
        self.argument = argument
        self.args = (f"{argument}={_short(self.value)}: {self.reason}. {self.remedy}",)

    def __reduce__(self) -> tuple[type, tuple[str, Any, str, str]]:
        """Let the error of a failed check pass between processes."""
        return (type(self), (self.argument, _Shown(_short(self.value)), self.reason, self.remedy))


class _Shown(str):
    """A value in an argument's error message that is already the text to show."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class ProcessGroupError(RuntimeError):
    """Exception: a process of the group has ended or does not respond."""


class MissingExtraError(ImportError):
    """Exception: an optional dependency is not installed; names the extra."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        self.package, self.extra, self.purpose = package, extra, purpose
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed. "
            f"Install it with: pip install 'hyperribbon[{extra}]'"
        )

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        """Let the error of a failed check for an extra pass between processes."""
        return (type(self), (self.package, self.extra, self.purpose))


def _short(value: Any, limit: int = 80) -> str:
    if is_tensor(value):
        return f"tensor of shape {tuple(value.shape)}, {value.dtype}, {value.device}"
    if isinstance(value, np.ndarray):
        return f"array of shape {value.shape}, {value.dtype}"
    if isinstance(value, str) and os.sep in value:
        limit = 400  # the reader wants to open that file
    if isinstance(value, tuple | list) and value and is_tensor(value[0]):
        return f"{type(value).__name__} of {len(value)}, the first a {_short(value[0])}"
    if isinstance(value, Mapping) and value and is_tensor(next(iter(value.values()))):
        return f"{type(value).__name__} with {', '.join(map(str, value))}"[:limit]
    text = repr(value)
    if " object at 0x" in text or text.startswith(("<function ", "<bound method ")):
        text = getattr(value, "__qualname__", type(value).__name__).split("<locals>.")[-1]
    return text if len(text) <= limit else text[: limit - 1] + "…"


def check_absent(argument: str, value: Any, reason: str, remedy: str = "Omit it.") -> None:
    """Check that an argument is absent which would have no effect."""
    if value is not None:
        raise ArgumentError(argument, value, reason, remedy)


def check_choice(argument: str, value: object, choices: Collection[str]) -> str:
    """Check an argument: return `value` if it is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        listed = ", ".join(repr(c) for c in choices)
        raise ArgumentError(argument, value, "it is not a known choice", f"Use one of {listed}.")
    return value


def check_positive(argument: str, value: float, *, zero: bool = False) -> float:
    """Check an argument: return a float if it is finite and positive (or zero, when allowed)."""
    number = as_number(argument, value)
    if not np.isfinite(number) or number < 0 or (number == 0 and not zero):
        bound = "zero or more" if zero else "greater than zero"
        raise ArgumentError(
            argument, value, f"expected a finite number {bound}", f"Give a value {bound}."
        )
    return number


def check_positive_int(argument: str, value: int, *, maximum: int | None = None) -> int:
    """Check an argument: return an int from 1 to `maximum`."""
    number = as_number(argument, value)
    limit = "" if maximum is None else f" and at most {maximum}"
    if not number.is_integer() or number < 1 or (maximum is not None and number > maximum):
        reason = f"expected an integer, at least 1{limit}"
        remedy = f"Give a whole number from 1{'' if maximum is None else f' to {maximum}'}."
        raise ArgumentError(argument, value, reason, remedy)
    return int(number)


def check_fraction(argument: str, value: float) -> float:
    """Check an argument: return a float in [0, 1]."""
    number = as_number(argument, value)
    if not 0.0 <= number <= 1.0:
        raise ArgumentError(
            argument, value, "expected a fraction between 0 and 1", "Give 0.8 for 80 percent."
        )
    return number


def check_finite(argument: str, value: Array) -> Array:
    """Check an argument: return `value` if it holds no NaN and no infinity."""
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
    """Return an argument, checked to be an array of finite doubles with a number of axes.

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
    value = _on_host(argument, value)
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
    largest = float(np.abs(check_finite(argument, array)).max(initial=0.0))
    if largest > _LARGEST:
        reason = f"its largest entry is {largest:.3g}, and squares must be finite"
        raise ArgumentError(argument, array, reason, f"Give numbers up to {_LARGEST:g}.")
    return array


def check_readable(argument: str, value: Any) -> None:
    """Check an argument: raise if its numbers cannot be read, or some of them are masked.

    Meta tensors do not have any, sparse and quantised ones are stored otherwise, and numpy drops
    the mask of a masked array without a word.

    Raises:
        ArgumentError: It is one of these.
    """
    if is_tensor(value):
        if value.is_meta:
            reason = "it is on the meta device and holds no numbers"
            raise ArgumentError(argument, value, reason, "Load the values first.")
        if value.layout is not sys.modules["torch"].strided or value.is_quantized:
            reason = f"its layout is {value.layout}, expected a dense tensor"
            remedy = "Call .dequantize()." if value.is_quantized else "Call .to_dense()."
            raise ArgumentError(argument, value, reason, remedy)
    _check_unmasked(argument, value)


def _check_unmasked(argument: str, value: Any) -> None:
    """Check that no entry of an argument is masked, in lists and tuples too."""
    if isinstance(value, list | tuple):
        for entry in value:
            _check_unmasked(argument, entry)
    elif isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        reason = f"{int(np.ma.count_masked(value))} of its entries are masked"
        raise ArgumentError(argument, value, reason, "Remove them, or fill them with .filled(0).")


def _on_host(argument: str, value: Any) -> Any:
    """Return a checked argument's tensors, in lists too, as arrays on the host."""
    if isinstance(value, list | tuple) and not all(isinstance(v, int | float) for v in value):
        return [_on_host(argument, entry) for entry in value]
    check_readable(argument, value)
    if not is_tensor(value):
        return value
    from hyperribbon.core.devices.tensors import host_array

    return host_array(value)


def as_number(argument: str, value: Any) -> float:
    """Check an argument: return a float, whatever `value` is, if it is one number."""
    check_readable(argument, value)
    try:
        if isinstance(value, str | bytes) or np.ndim(value.detach() if is_tensor(value) else value):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError(argument, value, "expected a number", "Give a number.") from None


def check_shape(
    argument: str, value: Array, shape: tuple[int, ...], reason: str, *, broadcast: bool = False
) -> Array:
    """Return a checked argument if it has a shape, or broadcasts to it.

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
    """Check whether something is a tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


F = TypeVar("F", bound=Callable[..., Any])
Check = Callable[[str, Any], Any]
"""From an argument's name and value to the value as it is used, or an ArgumentError."""

_MOST = 2**53  # integers that doubles count to
_LARGEST = 1e150  # numbers whose squares are finite
_MEASURED = 1e-3  # of the largest entry: how far measured matrices are from their symmetries
_PARTS = {
    "targets": ("data",),
    "inputs": ("data",),
    "data": ("inputs", "probe"),
    "P": ("X", "paths"),
    "series": ("trajectory", "projections"),
    "params": ("model", "final"),
    "final": ("model",),
    "op": ("model", "H", "operators"),
    "C": ("data",),
    "states": ("final",),
    "state": ("model",),
    "eigenvalues": ("grams",),
    "loss": ("model",),
    "config": ("grid",),
    "initial": ("initializer",),
    "likelihood": ("function",),
}
"""Arguments that a part, or what it is called inside, belongs to."""


def validate(*, allow_nan: bool = False, **checks: Check) -> Callable[[F], F]:
    """Return a decorator that checks arguments by name, and that the result is finite.

    Flags (annotated as bool), seeds and masks are checked without being named. Each argument is
    replaced by what its check returns; None passes where it is the default. An ArgumentError of an
    inner function is made to name the argument that was given here. Every
    other exception passes as it was raised.

    Args:
        allow_nan: Whether the result may hold NaN and infinity.
        **checks: The check of each argument.
    """

    def decorate(call: F) -> F:
        signature = inspect.signature(call)
        every = _usual_checks(signature) | checks

        @functools.wraps(call)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            for name, value in bound.arguments.items():
                _check_unmasked(name, value)
            for name, check in every.items():
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


def _usual_checks(signature: inspect.Signature) -> dict[str, Check]:
    """Return the checks of arguments whose name or annotation says what they are."""
    by_name: dict[str, Check] = {"seed": seed_number, "mask": mask}
    by_kind: dict[Any, Check] = {"bool": flag, "bool | None": flag}
    found = {name: by_kind.get(p.annotation) for name, p in signature.parameters.items()}
    named = {name: by_name.get(name) for name in found}
    return {name: check for name in found if (check := found[name] or named[name])}


def _rename(error: ArgumentError, signature: inspect.Signature, given: dict[str, Any]) -> None:
    """Let a failed check in an inner function name the argument that the user gave."""
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
    word = words[0] if words else ""
    parts = [part for part in _PARTS.get(word, ()) if part in takes]
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


def returned_array(argument: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Check what a function given as an argument returns: finite numbers."""
    try:
        return check_shape(argument, check_array(argument, value), shape, "")
    except ArgumentError:
        reason = f"it returned {_short(value)}, expected finite numbers of shape {shape}"
        raise ArgumentError(argument, "a function", reason, "Return such an array.") from None


def number(argument: str, value: Any) -> float:
    """Check an argument: a finite real number whose square is finite."""
    found = as_number(argument, value)
    if not abs(found) <= _LARGEST:
        reason = f"expected a finite number, at most {_LARGEST:g}"
        raise ArgumentError(argument, value, reason, "Give a smaller number.")
    return found


def positive(argument: str, value: Any) -> float:
    """Check an argument: a number above zero."""
    return number(argument, check_positive(argument, value))


def zero_or_more(argument: str, value: Any) -> float:
    """Check an argument: a number that is not negative."""
    return number(argument, check_positive(argument, value, zero=True))


def count(argument: str, value: Any) -> int:
    """Check an argument: a whole number from 1 that double precision can count to."""
    return check_positive_int(argument, value, maximum=_MOST)


def whole(argument: str, value: Any) -> int:
    """Check an argument: a whole number from 0."""
    found = check_positive(argument, value, zero=True)
    if not found.is_integer() or found > _MOST:
        raise ArgumentError(argument, value, "expected an integer, 0 or more", "Give an integer.")
    return int(found)


fraction: Check = check_fraction
"""Return a number from 0 to 1."""


array: Check = check_array
"""Return finite numbers of any shape."""


numbers: Check = functools.partial(check_array, ndim=(0, 1))
"""Return one finite number, or a vector of them."""


row: Check = functools.partial(check_array, ndim=1)
"""Return a vector (n,) of finite numbers."""


matrix: Check = functools.partial(check_array, ndim=2)
"""Return a matrix of finite numbers."""


def design(argument: str, value: Any) -> np.ndarray:
    """Check an argument: a matrix of finite numbers whose squares do not all vanish."""
    found = check_array(argument, value, ndim=2)
    largest = np.abs(found).max(initial=0.0)
    if 0 < largest < 1 / _LARGEST:
        reason = f"its largest entry is {largest:.3g}, and squares must not vanish"
        raise ArgumentError(argument, found, reason, f"Give numbers from {1 / _LARGEST:g}.")
    return found


def non_negative(
    argument: str, value: Any, ndim: int | tuple[int, ...] | None = None
) -> np.ndarray:
    """Check an argument: finite numbers of any shape, none of them negative."""
    found = check_array(argument, value, ndim=ndim)
    if (found < 0).any():
        reason = f"{int((found < 0).sum())} of its entries are negative"
        raise ArgumentError(argument, found, reason, "Give numbers that are zero or more.")
    return found


non_negative_row: Check = functools.partial(non_negative, ndim=1)
"""Return a vector (n,) of finite numbers that are not negative."""


non_negative_numbers: Check = functools.partial(non_negative, ndim=(0, 1))
"""Return one finite number, or a vector of them, not negative."""


def decay_rates(argument: str, value: Any, ndim: int | tuple[int, ...] | None = None) -> np.ndarray:
    """Check an argument: eigenvalues of a positive semidefinite matrix; rounding below 0 is 0."""
    found = check_array(argument, value, ndim=ndim)
    rounding = 1e-9 * np.abs(found).max(initial=0.0)
    return non_negative(argument, np.where((found < 0) & (found >= -rounding), 0.0, found))


def symmetric(argument: str, value: Any) -> np.ndarray:
    """Check an argument: a symmetric matrix, up to single precision."""
    found = square(argument, value)
    gap = float(np.abs(found - found.T).max())
    if gap > _MEASURED * np.abs(found).max():
        reason = f"expected a symmetric matrix; entries differ by up to {gap:.3g}"
        raise ArgumentError(argument, found, reason, "Check it, or give (A + A.T) / 2.")
    return found


def covariance(argument: str, value: Any) -> np.ndarray:
    """Check an argument: a symmetric positive semidefinite matrix, up to single precision."""
    found = symmetric(argument, value)
    lowest, largest = np.linalg.eigvalsh((found + found.T) / 2)[[0, -1]]
    if lowest < -_MEASURED * max(-lowest, largest):
        reason = f"it has the negative eigenvalue {lowest:.4g}, and a covariance does not have any"
        raise ArgumentError(argument, found, reason, "Give a positive semidefinite matrix.")
    return found


def square(argument: str, value: Any) -> np.ndarray:
    """Check an argument: a square matrix of finite numbers."""
    found = check_array(argument, value, ndim=2)
    if found.shape[0] != found.shape[1]:
        raise ArgumentError(argument, found, "expected a square matrix", "Give a matrix (n, n).")
    return found


def iterable(argument: str, value: Any) -> Iterable[Any]:
    """Check an argument: entries in order, but not a str or a dict; return a list."""
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
    """Check an argument: several matrices of finite numbers."""
    found = list_of(matrix)(argument, value)
    if not found:
        raise ArgumentError(argument, value, "it is empty", "Give at least one matrix.")
    return found


def function(argument: str, value: Any) -> Callable[..., Any]:
    """Check an argument: something that can be called."""
    if not callable(value):
        raise ArgumentError(argument, value, "expected a function", "Give something callable.")
    return value


def flag(argument: str, value: Any) -> bool:
    """Check an argument: True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ArgumentError(argument, value, "expected True or False", "Give a bool.")
    return bool(value)


def flag_or_text(argument: str, value: Any) -> bool | str:
    """Check an argument: True, False, or a str whose choices are checked elsewhere."""
    return value if isinstance(value, str) else flag(argument, value)


def text(argument: str, value: Any) -> str:
    """Check an argument: a str."""
    if not isinstance(value, str):
        raise ArgumentError(argument, value, "expected a str", "Give a string.")
    return value


def names(argument: str, value: Any) -> Any:
    """Check an argument that chooses parameters: a pattern, a list of names, or a function."""
    if isinstance(value, str) or callable(value):
        return value
    try:
        return list_of(text)(argument, value)
    except ArgumentError:
        reason = "expected a pattern, a list of names or a function"
        remedy = 'Give "layer1.*" or ["layer1.weight"].'
        raise ArgumentError(argument, value, reason, remedy) from None


def torch_module(argument: str, value: Any) -> Any:
    """Check an argument: a torch module."""
    from torch import nn

    return instance(nn.Module, "Give a torch.nn.Module.")(argument, value)


def operator(argument: str, value: Any) -> Any:
    """Check an argument: a square operator, anything with a shape (P, P) and `@`."""
    shape = tuple(getattr(value, "shape", ()))
    if len(shape) != 2 or shape[0] != shape[1] or not hasattr(value, "__matmul__"):
        remedy = "Give an operator, a matrix or a tensor of shape (P, P)."
        raise ArgumentError(argument, value, "expected a square operator", remedy)
    if getattr(value, "is_meta", False):
        check_readable(argument, value)
    return value


def tensor(argument: str, value: Any) -> Any:
    """Check an argument: real numbers of any shape; return them as a tensor."""
    check_readable(argument, value)
    if is_tensor(value) and not value.is_complex():
        return value
    from hyperribbon.core.devices.tensors import tensor_of

    check_array(argument, value, empty=True)
    return tensor_of(value)


def mapping(argument: str, value: Any) -> Mapping[Any, Any]:
    """Check an argument: values by name."""
    if not isinstance(value, Mapping):
        raise ArgumentError(argument, value, "expected a dict", "Give values by name.")
    return value


def path(argument: str, value: Any) -> str | os.PathLike[str]:
    """Check an argument: a path of the file system."""
    if not isinstance(value, str | os.PathLike) or not str(value) or "\0" in str(value):
        raise ArgumentError(argument, value, "expected a path", "Give a str or a pathlib.Path.")
    return value


def mask(argument: str, value: Any) -> Any:
    """Check an argument: a Mask."""
    from hyperribbon.core.mask import Mask

    if not isinstance(value, Mask):
        remedy = "Build one with hr.Mask or hr.select."
        raise ArgumentError(argument, value, "expected a Mask", remedy)
    return value


def seed_number(argument: str, value: Any) -> int:
    """Check an argument: a seed."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise ArgumentError(argument, value, "expected an integer, 0 or more", "Give seed=0.")
    return int(value)


def wholes(argument: str, value: Any) -> np.ndarray:
    """Check an argument: a row of whole numbers from 0."""
    found = check_array(argument, value, ndim=1)
    if (found < 0).any() or (found != np.floor(found)).any() or found.max() > _MOST:
        raise ArgumentError(argument, value, "expected integers, 0 or more", "Give [0, 10, 100].")
    return found.astype(np.int64)


def image(argument: str, value: Any) -> tuple[int, ...]:
    """Check an argument: the shape (channels, height, width) of an image."""
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
