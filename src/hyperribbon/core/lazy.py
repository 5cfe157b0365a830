"""Lazy loading of a package's public names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_attributes(
    package: str, names_by_module: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package whose names load on first use (lazily).

    Args:
        package: Its `__name__`.
        names_by_module: Public names by the module of the package that holds them.

    >>> find, _ = lazy_attributes("hyperribbon.core", {"claims": ["Band"]})
    >>> find("Band").__module__
    'hyperribbon.core.claims'
    """
    homes = {name: module for module, names in names_by_module.items() for name in names}

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return find, lambda: sorted(homes)
