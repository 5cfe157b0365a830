"""Lazy loading of a package's public names."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy_attributes(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package with lazy names: loaded on first use.

    The names are those that the package imports for type checkers, under `if TYPE_CHECKING:`.

    Args:
        package: Its `__name__`.

    >>> find, _ = lazy_attributes("hyperribbon.core")
    >>> find("Band").__module__
    'hyperribbon.core.claims'
    """
    module = sys.modules[package]
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    blocks = [block.body for block in tree.body if isinstance(block, ast.If)]
    imports = [node for body in blocks for node in body if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: str(node.module) for node in imports for alias in node.names}

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if homes[name] == package:
            return import_module(f"{package}.{name}")
        value = getattr(__import__(homes[name], fromlist=[name]), name)
        setattr(module, name, value)
        return value

    return find, lambda: sorted(homes)
