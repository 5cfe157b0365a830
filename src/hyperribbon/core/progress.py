"""Progress bars for terminals and notebooks; silent elsewhere."""

from __future__ import annotations

import random
import time
from html import escape
from typing import Any

_state = random.getstate()  # importing rich draws from Python's global generator

from rich.console import Console  # noqa: E402
from rich.progress import (  # noqa: E402
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

random.setstate(_state)

__all__ = ["Console", "progress_bar"]

_BETWEEN = 0.2  # seconds between notebook updates


def progress_bar(console: Console) -> Progress:
    """Return a progress display that disappears when finished.

    Args:
        console: Console to print to; a quiet one shows nothing.
    """
    if console.is_jupyter and not console.quiet:
        return _InNotebook()
    return Progress(
        TextColumn("  {task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


class _InNotebook(Progress):
    """Progress display for notebooks; rich would need widgets."""

    def __init__(self) -> None:
        super().__init__(disable=True)
        self._place: Any = None
        self._shown = 0.0

    def start(self) -> None:
        """Create the progress display below the notebook cell."""
        import IPython.display

        display: Any = IPython.display
        self._place = display.display(display.HTML(""), display_id=True)

    def stop(self) -> None:
        """Clear the progress bar in a notebook."""
        from IPython.display import HTML

        if self._place is not None:
            self._place.update(HTML(""))

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        """Advance the progress bar of a task by finished units."""
        super().advance(task_id, advance)
        self.refresh()

    def update(self, task_id: TaskID, **fields: Any) -> None:
        """Update the progress of a task."""
        super().update(task_id, **fields)
        self.refresh()

    def refresh(self) -> None:
        """Redraw the progress of all tasks."""
        if self._place is None or time.monotonic() < self._shown + _BETWEEN:
            return
        from IPython.display import HTML

        self._shown = time.monotonic()
        lines = [
            f'<div><progress value="{task.completed}" max="{task.total or 1}"></progress> '
            f"{escape(task.description)} · {task.elapsed or 0:.0f} s</div>"
            for task in self.tasks
        ]
        self._place.update(HTML("".join(lines)))
