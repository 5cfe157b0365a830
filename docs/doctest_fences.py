"""Show the doctests of a docstring as code in the reference."""

from __future__ import annotations

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"(?:^[ \t]*(?:>>>|\.\.\.) ?.*\n(?:^(?![ \t]*$).*\n?)*)+", re.M)


class DoctestFences(griffe.Extension):
    """Puts a fence around every run of doctest lines and their output."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of an object."""
        if obj.docstring is not None and ">>>" in obj.docstring.value:
            text = obj.docstring.value.rstrip() + "\n"
            obj.docstring.value = _DOCTEST.sub(
                lambda found: f"```pycon\n{found.group(0).rstrip()}\n```\n", text
            )
