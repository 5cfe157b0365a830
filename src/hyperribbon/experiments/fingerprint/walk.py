"""A function's fingerprint: its code, what it calls of a person's own code, and the data it reads.

Two functions with the same fingerprint give the same results on the same item, as far as code can
say. Followed are the functions, classes and modules of the person (everything that is neither
installed, nor Python's, nor hyperribbon's), with defaults, closures and the globals that are read.
Installed packages count by version.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import inspect
import logging
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta
from fractions import Fraction
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch

from hyperribbon.core.checks import ArgumentError
from hyperribbon.experiments.fingerprint.own_code import (
    file_of,
    globals_read,
    import_closure,
    is_own,
)

__all__ = ["fingerprint"]

_PACKAGES = ("hyperribbon", "torch", "numpy", "scipy", "scikit-learn")
_PLAIN = (int, float, complex, str, bytes, type(None), type(...), range, slice, Fraction)
_NAMED = (PurePath, date, time, timedelta, np.dtype, torch.dtype, torch.device)
_MOST_OBJECTS = 200_000


def fingerprint(function: Callable[..., Any]) -> str:
    """Return hexadecimal digits that change with the code and the data a function depends on.

    Args:
        function: A function, a method, a `functools.partial`, or an object that can be called.

    Raises:
        ArgumentError: It reads something whose content cannot be told, such as a random generator
            or an open file.
    """
    walk = _Walk(getattr(function, "__name__", type(function).__name__))
    walk.add("python", *sys.version_info[:2], *(f"{name} {_version(name)}" for name in _PACKAGES))
    walk.visit(function, "")
    return walk.hexdigest()


class _Walk:
    """Feeds a hash with everything that is reached."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._hash = hashlib.blake2b(digest_size=16)
        self._seen: dict[int, int] = {}
        self._alive: list[Any] = []  # so that no id is used twice

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def add(self, *tokens: object) -> None:
        for token in tokens:
            content = token if isinstance(token, bytes) else str(token).encode()
            self._hash.update(b"%d:" % len(content) + content)

    def visit(self, value: Any, where: str) -> None:
        """Add a value and what it is made of; `where` says how it was reached."""
        if isinstance(value, _PLAIN) and not isinstance(value, enum.Enum):
            self.add(type(value).__name__, repr(value))
            return
        if id(value) in self._seen:
            self.add("seen", self._seen[id(value)])
            return
        self._seen[id(value)] = len(self._seen)
        self._alive.append(value)
        if len(self._seen) > _MOST_OBJECTS:
            raise self._refusal(where, value, "it holds too many objects")
        visit = self._visitor(value)
        if visit is None:
            raise self._refusal(where, value, "its content cannot be told")
        visit(value, where)

    def _visitor(self, value: Any) -> Callable[[Any, str], None] | None:
        for kinds, visit in (
            (types.FunctionType, self._function),
            (types.CodeType, self._code),
            (type, self._class),
            (types.ModuleType, self._module),
            (types.MethodType, self._method),
            (functools.partial, self._partial),
            ((staticmethod, classmethod, property, functools.cached_property), self._descriptor),
            (torch.Tensor, self._tensor),
            (np.ndarray, self._array),
            (np.generic, lambda v, w: self._array(np.asarray(v), w)),
            (Mapping, self._mapping),
            ((list, tuple), self._sequence),
            ((set, frozenset), self._set),
            (enum.Enum, lambda v, w: self.add(type(v).__qualname__, v.name, repr(v.value))),
            (_NAMED, lambda v, w: self.add(type(v).__name__, str(v))),
            (re.Pattern, lambda v, w: self.add(v.pattern, v.flags)),
            (logging.Logger, lambda v, w: self.add("logger")),
        ):
            if isinstance(value, kinds):
                return visit
        if hasattr(value, "__wrapped__"):
            return lambda v, w: self.visit(v.__wrapped__, w)
        if _is_named(value):
            return lambda v, w: self.add(getattr(v, "__module__", ""), v.__qualname__)
        if type(value).__module__ == typing.__name__ or isinstance(value, types.GenericAlias):
            return lambda v, w: self.add(repr(v))
        if is_dataclass(value):
            return self._dataclass
        return self._instance if hasattr(value, "__dict__") and _is_plain_object(value) else None

    def _function(self, function: types.FunctionType, where: str) -> None:
        self.add("function", function.__qualname__)
        if not is_own(function.__module__, file_of(function)):
            self.add(function.__module__)
            return
        name = f"{where}{function.__name__}"
        self.visit(function.__code__, name)
        self.visit(function.__defaults__, f"a default of {name}")
        self.visit(function.__kwdefaults__, f"a default of {name}")
        for variable, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            try:
                content = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
            self.visit(content, f"{variable}, from around {name}")
        for path, value in globals_read(function.__code__, function.__globals__):
            self.add(path)
            self.visit(value, f"the global {path} of {name}, ")

    def _code(self, code: types.CodeType, where: str) -> None:
        self.add(code.co_code, *code.co_names, *code.co_varnames, *code.co_freevars)
        self.add(code.co_argcount, code.co_kwonlyargcount, code.co_flags)
        for constant in code.co_consts:
            self.visit(constant, where)

    def _class(self, kind: type, where: str) -> None:
        self.add("class", kind.__qualname__)
        if not is_own(kind.__module__, file_of(kind)):
            self.add(kind.__module__)
            return
        for base in kind.__bases__:
            self.visit(base, where)
        for name, value in sorted(vars(kind).items()):
            if name not in _NOT_CONTENT and not isinstance(value, _SLOTS):
                self.add(name)
                self.visit(value, f"{kind.__name__}.{name}, ")

    def _module(self, module: types.ModuleType, where: str) -> None:
        file = file_of(module)
        self.add("module", module.__name__)
        if is_own(module.__name__, file):
            self._source(module.__name__)

    def _source(self, name: str) -> None:
        """Add the source of a person's module and of those it imports."""
        for found, file in sorted(import_closure(name).items()):
            self.add(found, Path(file).read_bytes())

    def _method(self, method: types.MethodType, where: str) -> None:
        self.visit(method.__func__, where)
        self.visit(method.__self__, f"{where}self, ")

    def _partial(self, partial: functools.partial, where: str) -> None:
        self.visit(partial.func, where)
        self.visit(partial.args, f"{where}an argument of the partial, ")
        self.visit(partial.keywords, f"{where}an argument of the partial, ")

    def _descriptor(self, value: Any, where: str) -> None:
        self.add(type(value).__name__)
        for name in ("__func__", "fget", "fset", "fdel", "func"):
            if getattr(value, name, None) is not None:
                self.visit(getattr(value, name), where)

    def _tensor(self, tensor: torch.Tensor, where: str) -> None:
        plain = tensor.detach().cpu().contiguous()
        self.add("tensor", plain.dtype, tuple(plain.shape))
        self.add(plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b"")

    def _array(self, array: np.ndarray, where: str) -> None:
        if array.dtype.hasobject:
            raise self._refusal(where, array, "it is an array of objects")
        self.add("array", array.dtype.str, array.shape, np.ascontiguousarray(array).tobytes())

    def _mapping(self, mapping: Mapping[Any, Any], where: str) -> None:
        self.add(type(mapping).__name__, len(mapping))
        for key, value in mapping.items():
            self.visit(key, where)
            self.visit(value, f"{where}[{key!r}], ")

    def _sequence(self, values: list[Any] | tuple[Any, ...], where: str) -> None:
        self.add(type(values).__name__, len(values))
        for value in values:
            self.visit(value, where)

    def _set(self, values: set[Any] | frozenset[Any], where: str) -> None:
        parts = []
        for value in values:
            part = _Walk(self._name)
            part.visit(value, where)
            parts.append(part.hexdigest())
        self.add("set", *sorted(parts))

    def _dataclass(self, value: Any, where: str) -> None:
        self.visit(type(value), where)
        for field in fields(value):
            self.add(field.name)
            self.visit(getattr(value, field.name, None), f"{where}{field.name}, ")

    def _instance(self, value: Any, where: str) -> None:
        self.visit(type(value), where)
        if _belongs_to_package(value):
            return
        for name, content in sorted(vars(value).items()):
            self.add(name)
            self.visit(content, f"{where}{name}, ")

    def _refusal(self, where: str, value: Any, reason: str) -> ArgumentError:
        place = where.rstrip(", ") or "it"
        return ArgumentError(
            "function",
            self._name,
            f"it cannot be told whether it has changed: {place} is a "
            f"{type(value).__module__}.{type(value).__qualname__}, and {reason}",
            'Make that inside the function, or name the function\'s state yourself: version="1".',
        )


_NOT_CONTENT = {
    *("__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "_abc_impl"),
    *("__abstractmethods__", "__firstlineno__", "__static_attributes__", "__parameters__"),
    *("__orig_bases__", "__annotate__", "__annotate_func__", "__annotations_cache__"),
    *("__dataclass_fields__", "__dataclass_params__", "__match_args__"),
}
_SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType)


def _is_named(value: Any) -> bool:
    """Return whether a value is a function that is not written in Python."""
    builtin = inspect.isbuiltin(value) or inspect.ismethoddescriptor(value)
    return hasattr(value, "__qualname__") and (builtin or isinstance(value, np.ufunc))


def _belongs_to_package(value: Any) -> bool:
    """Return whether an object is one that an installed package holds, such as scipy.stats.chi2."""
    kind = type(value)
    if is_own(kind.__module__, file_of(kind)):
        return False
    package = kind.__module__.split(".")[0]
    modules = [m for n, m in list(sys.modules.items()) if n.split(".")[0] == package and m]
    return any(held is value for module in modules for held in list(vars(module).values()))


def _is_plain_object(value: Any) -> bool:
    """Return whether an object is all in its __dict__: its classes are written in Python."""
    return all(not _has_hidden_state(kind) for kind in type(value).__mro__[:-1])


def _has_hidden_state(kind: type) -> bool:
    heap_type = 1 << 9
    return not kind.__flags__ & heap_type or ("__slots__" in vars(kind) and bool(kind.__slots__))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
