"""Which code is the person's own, what it reads, and what it imports."""

from __future__ import annotations

import ast
import dis
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any

__all__ = ["file_of", "globals_read", "import_closure", "is_own"]

_INSTALLED = tuple(
    str(Path(sysconfig.get_paths()[name]).resolve())
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_OWN_ROOM = "hyperribbon.experiments"


def globals_read(code: types.CodeType, names: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the globals that code reads, through the modules that hold them, and its imports."""
    instructions = list(dis.get_instructions(code))
    for place, instruction in enumerate(instructions):
        if instruction.opname == "IMPORT_NAME":
            level = instructions[place - 2].argval if place >= 2 else 0
            yield from _imported(instruction.argval, level, names)
        if instruction.opname not in ("LOAD_GLOBAL", "LOAD_NAME"):
            continue
        path = instruction.argval
        if path not in names:
            continue
        value = names[path]
        for further in instructions[place + 1 :]:
            if not isinstance(value, types.ModuleType) or not further.opname.startswith(
                ("LOAD_ATTR", "LOAD_METHOD")
            ):
                break
            if not hasattr(value, further.argval):
                break
            if not is_own(value.__name__, file_of(value)):
                value = None  # an installed package counts by its version
                break
            value, path = getattr(value, further.argval), f"{path}.{further.argval}"
        yield path, value
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from globals_read(constant, names)


def _imported(name: str, level: Any, names: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    if isinstance(level, int) and level > 0:
        name = resolve_name("." * level + name, names.get("__package__") or "")
    for found, file in sorted(import_closure(name).items()):
        yield found, Path(file).read_bytes()


def _module_file(name: str) -> str | None:
    try:
        spec = find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None
    return spec.origin if spec is not None and spec.has_location else None


def import_closure(name: str) -> dict[str, str]:
    """Return the person's modules that importing a module reads, with their files."""
    found: dict[str, str] = {}
    waiting = [name]
    while waiting:
        module = waiting.pop()
        file = _module_file(module)
        if module in found or not is_own(module, file) or file is None:
            continue
        found[module] = file
        if file.endswith(".py"):
            is_package = Path(file).name == "__init__.py"
            package = module if is_package else module.rpartition(".")[0]
            waiting += _imports_of(Path(file).read_text(), package)
    return found


def _imports_of(source: str, package: str) -> list[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = resolve_name("." * node.level + base, package) if package else base
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return [name for name in names if name]


def is_own(module: str | None, file: str | None) -> bool:
    """Return whether code is the person's: not Python's, not installed, not the library's."""
    module = module or ""
    if module.split(".")[0] == "hyperribbon":
        return module.startswith(f"{_OWN_ROOM}.")
    if file is None:
        return module not in sys.builtin_module_names and module == "__main__"
    resolved = str(Path(file).resolve())
    if "site-packages" in resolved or "dist-packages" in resolved or file.startswith("<frozen"):
        return False
    return not resolved.startswith(_INSTALLED)


def file_of(value: Any) -> str | None:
    """Return the file that a function, class or module was written in, if there is one."""
    if isinstance(value, types.FunctionType):
        return value.__code__.co_filename
    if isinstance(value, types.ModuleType):
        return getattr(value, "__file__", None)
    module = sys.modules.get(getattr(value, "__module__", ""))
    return getattr(module, "__file__", None)
