"""Progress on the terminal: a live display, or plain lines when nobody watches one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as LiveProgress

__all__ = ["ConsoleProgress", "keeping_finished_work"]

_SECONDS_BETWEEN_LINES = 10.0


@dataclass
class _Work:
    label: str
    total: int
    done: int = 0
    last_line: float = 0.0


@contextmanager
def keeping_finished_work() -> Iterator[None]:
    """Turn Ctrl-C into a message that says how to go on, and exit status 130."""
    try:
        yield
    except KeyboardInterrupt:
        Console(stderr=True).print(
            "Stopped. What is finished is kept: run the same command to go on."
        )
        raise typer.Exit(130) from None


class ConsoleProgress(AbstractContextManager["ConsoleProgress"]):
    """Shows how far the work is.

    On a terminal each piece of work has a bar that goes away when it is finished; elsewhere a line
    is printed every ten seconds.

    Args:
        console: Where to show it.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = None
        if console.is_terminal:
            self._live = LiveProgress(
                TextColumn("  {task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=console,
                transient=True,
            )

    def __enter__(self) -> ConsoleProgress:
        """Begin the display."""
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the display."""
        if self._live is not None:
            self._live.stop()

    def start(self, label: str, total: int) -> Any:
        """Announce a piece of work."""
        if self._live is not None:
            return self._live.add_task(label, total=total)
        return _Work(label, total, last_line=time.monotonic())

    def advance(self, handle: Any, count: int = 1) -> None:
        """Report finished units."""
        if self._live is not None:
            self._live.advance(handle, count)
            return
        handle.done += count
        now = time.monotonic()
        if now - handle.last_line > _SECONDS_BETWEEN_LINES:
            handle.last_line = now
            self._console.print(f"  {handle.label}: {handle.done} of {handle.total}", markup=False)

    def finish(self, handle: Any) -> None:
        """Report the end of the piece."""
        if self._live is not None:
            self._live.remove_task(handle)
