"""Names of rich, whose import draws from Python's global generator; the generator is put back."""

import random

_state = random.getstate()

from rich.console import Console  # noqa: E402 - styles with links take random numbers
from rich.progress import (  # noqa: E402
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

random.setstate(_state)

__all__ = ["BarColumn", "Console", "Progress", "TaskID", "TextColumn", "TimeElapsedColumn"]
