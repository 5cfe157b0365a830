"""How far a piece of work is: a bar on a terminal or in a notebook, nothing where nobody looks."""

from __future__ import annotations

import time
from html import escape
from typing import Any

from hyperribbon.core.rich_quietly import (
    BarColumn,
    Console,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

__all__ = ["progress_bar"]

_BETWEEN = 0.2  # seconds from one picture in a notebook to the next


def progress_bar(console: Console) -> Progress:
    """Return a progress display that goes away when it is over.

    Args:
        console: Where; a quiet one shows nothing.
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
    """The same in a notebook, by its own means: rich would ask for widgets."""

    def __init__(self) -> None:
        super().__init__(disable=True)
        self._place: Any = None
        self._shown = 0.0

    def start(self) -> None:
        """Take a place below the cell."""
        import IPython.display

        display: Any = IPython.display
        self._place = display.display(display.HTML(""), display_id=True)

    def stop(self) -> None:
        """Leave it empty."""
        from IPython.display import HTML

        if self._place is not None:
            self._place.update(HTML(""))

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        """Count finished units."""
        super().advance(task_id, advance)
        self.refresh()

    def update(self, task_id: TaskID, **fields: Any) -> None:
        """Change what is shown of a task."""
        super().update(task_id, **fields)
        self.refresh()

    def refresh(self) -> None:
        """Show where the tasks are."""
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
