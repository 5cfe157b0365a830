"""The fingerprint of a function: a hash of the code and the data that its results depend on.

Code is the source of the function's module and of the project's modules that it imports, and what
is in memory of the functions and classes it names, since a notebook has no source; comments and
docstrings do not count. A module is the project's own unless it is Python's, installed, or
hyperribbon's; of hyperribbon the experiments count. Other code counts by its version. Data are
defaults, closures and named globals.
"""

from __future__ import annotations

import ast
import hashlib
import random
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copyreg import dispatch_table
from importlib.util import find_spec, resolve_name
from itertools import accumulate
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.store import describe_environment

_PLAIN = (int, float, complex, str, bytes, type(None), type(...))
_DATA = (*_PLAIN, list, tuple, dict, set, frozenset, np.ndarray, torch.Tensor)
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
_HAS_DOCSTRING = 0x4000000  # a flag of code, from Python 3.13 on
_PYTHON = Path(sysconfig.get_path("stdlib")).resolve()


def fingerprint(*functions: Callable[..., Any]) -> str:
    """Return a fingerprint: digits that change with the code and data functions depend on.

    Raises:
        ArgumentError: They depend on something that cannot be hashed, such as a random
            generator, a lock or an open file.
    """
    digest = hashlib.blake2b(digest_size=16)
    versions = [sys.version_info[:2], describe_environment(0)["packages"]]
    seen: dict[int, tuple[int, Any]] = {}
    try:
        for piece in _content([versions, functions], seen):
            digest.update(b"%d:" % len(piece) + piece)
    except (TypeError, RuntimeError) as error:
        name = getattr(functions[0], "__name__", type(functions[0]).__name__)
        reason = f"it depends on something that cannot be hashed ({error})"
        remedy = 'Create that inside the function, or name the version of the code: version="1".'
        raise ArgumentError("function", name, reason, remedy) from None
    found = [value for _, value in seen.values()]
    modules = {value.__name__ for value in found if isinstance(value, ModuleType)}
    modules |= {value.__module__ or "" for value in found if isinstance(value, FunctionType | type)}
    for module, source in _sources(modules):
        digest.update(b"%s:%d:" % (module.encode(), len(source)) + source)
    return digest.hexdigest()


def _content(value: Any, seen: dict[int, tuple[int, Any]]) -> Iterator[bytes]:
    """Yield the content of a value as bytes for a fingerprint."""
    yield type(value).__qualname__.encode()
    if isinstance(value, _PLAIN):
        yield value if isinstance(value, bytes) else repr(value).encode()
    elif id(value) in seen:
        yield b"%d" % seen[id(value)][0]
    else:
        if not isinstance(value, tuple | CodeType):  # equal ones may be one object, or two
            seen[id(value)] = (len(seen), value)
        parts = _parts(value)
        yield b"%d" % len(parts)
        for part in parts:
            yield from _content(part, seen)


def _parts(value: Any) -> Sequence[Any]:
    match value:
        case list() | tuple():
            return value
        case Mapping():
            return [*value.items()]
        case set() | frozenset():
            return sorted(value, key=repr)
        case torch.Tensor():
            bits = value.detach().cpu().reshape(-1).view(torch.uint8)
            return [str(value.dtype), *value.shape, bits.numpy()]
        case CodeType():
            return [value.co_code, _constants(value), value.co_names, value.co_varnames]
        case ModuleType():
            return [value.__name__]
        case FunctionType() | type():
            members = _members(value) if _is_own(value.__module__ or "") else ()
            return [value.__module__, value.__qualname__, *members]
    if hasattr(value, "__wrapped__"):  # a cache: its entries do not count
        return [value.__wrapped__]
    home = sys.modules.get(type(value).__module__)
    if home and not _is_own(home.__name__) and any(v is value for v in vars(home).values()):
        return [home.__name__]  # an object that its package holds, such as scipy.stats.chi2
    if isinstance(value, _GENERATORS):
        raise TypeError(f"{type(value).__name__} draws other numbers each time")
    reduce = dispatch_table.get(type(value), lambda value: value.__reduce_ex__(4))  # as pickle does
    reduced = reduce(value)
    if isinstance(reduced, str):
        return [reduced]
    return [[*part] if isinstance(part, Iterator) else part for part in reduced]


def _members(value: FunctionType | type) -> Iterator[Any]:
    """Yield what the fingerprint of a function or class depends on: defaults, variables, bases."""
    if isinstance(value, type):
        yield value.__bases__
        for name, member in vars(value).items():
            for inner in ("fget", "func", "__wrapped__"):  # of properties and class methods
                member = getattr(member, inner, member)
            is_data = isinstance(member, _DATA) and not name.startswith("__")
            if is_data or isinstance(member, FunctionType | type):
                yield name, member
        return
    code, variables = value.__code__, value.__globals__
    yield from (code, value.__defaults__, value.__kwdefaults__)
    for name, cell in zip(code.co_freevars, value.__closure__ or (), strict=True):
        if cell != CellType():  # an empty one: the variable is not assigned yet
            yield name, cell.cell_contents
    for name in sorted(_names(code) & variables.keys()):
        yield name, variables[name]


def _constants(code: CodeType) -> tuple[Any, ...]:
    """Return the constants of a fingerprinted function without its docstring, the first of them."""
    if sys.version_info >= (3, 13):
        documented = bool(code.co_flags & _HAS_DOCSTRING)
    else:  # a function without one has None in that place
        documented = not code.co_name.startswith("<")
    return (None, *code.co_consts[1:]) if documented else code.co_consts


def _names(code: CodeType) -> set[str]:
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return {*code.co_names}.union(*inner)


def _sources(modules: Iterable[str]) -> list[tuple[str, bytes]]:
    """Return the sources that a fingerprint covers: the project's modules and their imports."""
    found: dict[str, bytes] = {}
    waiting = [*modules]
    while waiting:
        name = waiting.pop()
        file = _file(name)
        if name not in found and file is not None and _is_own(name):
            found[name] = file.read_bytes()
            if file.suffix == ".py":
                tree = ast.parse(found[name])
                package = name if file.name == "__init__.py" else name.rpartition(".")[0]
                package = getattr(sys.modules.get(name), "__package__", package)  # python -m study
                waiting += _imports(tree, package)
                found[name] = ast.dump(_WithoutText().visit(tree)).encode()
    return sorted(found.items())


class _WithoutText(ast.NodeTransformer):
    """Removes the docstrings of a fingerprinted source: statements that are only a text."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if is_text else node


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    """Yield the modules that a fingerprinted source imports, and their packages."""
    for node in ast.walk(tree):
        base = ""
        if isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package) + "."
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                yield from accumulate(f"{base}{alias.name}".split("."), "{}.{}".format)


def _file(module: str) -> Path | None:
    file = getattr(sys.modules.get(module), "__file__", None)
    if module not in sys.modules:
        try:
            spec = find_spec(module)
        except (ImportError, ValueError, AttributeError):  # a name that is not a module
            return None
        file = spec.origin if spec is not None and spec.has_location else None
    return Path(file).resolve() if file is not None and Path(file).is_file() else None


def _is_own(module: str) -> bool:
    if module.partition(".")[0] == "hyperribbon":
        return module.startswith("hyperribbon.papers.experiments.")
    file = _file(module)
    if file is None or module == "__main__":  # a notebook, a script, or compiled from text
        return module not in sys.builtin_module_names
    installed = {"site-packages", "dist-packages"}.intersection(file.parts)
    return not installed and not file.is_relative_to(_PYTHON)
