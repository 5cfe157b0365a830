"""What a call is that bad inputs are tried in."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

_OPTIONS = ("params", "mask", "forward", "memory", "process_group")
"""What operators pass on to the risk."""


@dataclass(frozen=True)
class Call:
    """A function and arguments it accepts.

    Attributes:
        function: What is called.
        arguments: Those that bad ones are put in the place of.
        title: Name, where that of the function does not tell.
        others: Further arguments, which stay as they are.
    """

    function: Callable[..., Any]
    arguments: dict[str, Any]
    title: str = ""
    others: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Where the function is."""
        return self.title or f"{self.function.__module__}.{self.function.__qualname__}"

    @property
    def names(self) -> set[str]:
        """What a message may name: arguments of the call, or that the function takes."""
        taken = inspect.signature(self.function).parameters
        return {*self.arguments, *taken, *(_OPTIONS if "options" in taken else ())}

    def __call__(self, **changed: Any) -> Any:
        """Call with some of the arguments changed."""
        return self.function(**{**self.arguments, **changed}, **self.others)
