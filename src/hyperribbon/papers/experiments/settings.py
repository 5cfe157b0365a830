"""Settings of an experiment changed by hand: from text, from a mapping, and back to words."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from hyperribbon.core.checks import ArgumentError


def change_config(config: Any, changes: Mapping[str, Any] | Any) -> Any:
    """Return a configuration with some settings changed.

    Args:
        config: The configuration of a preset, a dataclass.
        changes: New values by name, or another configuration of the same class.

    Raises:
        ArgumentError: There is no such setting; near names are given.
    """
    if isinstance(changes, type(config)):
        return changes
    if not isinstance(changes, Mapping):
        reason = "it is neither settings by name nor a configuration of this experiment"
        raise ArgumentError("config", changes, reason, "Give config={'name': value}.")
    names = [field.name for field in dataclasses.fields(config)]
    for name in changes:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1) or names
            raise ArgumentError(
                "config", name, "the experiment has no such setting", f"Use {', '.join(near)}."
            )
    return dataclasses.replace(config, **changes)


def read_changes(texts: Sequence[str], config: Any) -> dict[str, Any]:
    """Read changes of settings written as name=value, each value of the setting's kind.

    >>> @dataclasses.dataclass
    ... class Config:
    ...     depth: int = 2
    ...     shares: tuple = (0.1, 0.5)
    >>> read_changes(["depth=3", "shares=0.2,0.4"], Config())
    {'depth': 3, 'shares': (0.2, 0.4)}

    Raises:
        ArgumentError: A text has no "=", or its value is not of the setting's kind.
    """
    changes = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ArgumentError("--set", text, "it has no =", "Write it as depth=3.")
        change_config(config, {name: None})
        changes[name] = _read(name, value, getattr(config, name))
    return changes


def _read(name: str, text: str, present: Any) -> Any:
    if isinstance(present, tuple):
        kind = present[0] if present else ""
        return tuple(_read(name, part.strip(), kind) for part in text.split(",") if part.strip())
    if isinstance(present, bool):
        present, readings = "true or false", {"true": True, "false": False}
        if text.lower() in readings:
            return readings[text.lower()]
    elif isinstance(present, int | float):
        for kind in (int, float) if isinstance(present, int) else (float,):
            try:
                return kind(text)
            except ValueError:
                continue
    else:
        return text
    raise ArgumentError("--set", f"{name}={text}", f"{text!r} is no such value", f"Now {present}.")


def changed_settings(preset: Any, config: Any) -> dict[str, Any]:
    """Return the settings that differ between a preset and the configuration that was run."""
    return {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(preset)
        if getattr(config, field.name) != getattr(preset, field.name)
    }
