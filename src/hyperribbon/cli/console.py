"""Terminal progress: live bars, or plain lines when output is not a terminal."""

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
    """On Ctrl-C, explain how to resume and exit with status 130."""
    try:
        yield
    except KeyboardInterrupt:
        Console(stderr=True).print(
            "Interrupted. Finished work is kept; run the same command again to resume."
        )
        raise typer.Exit(130) from None


class ConsoleProgress(AbstractContextManager["ConsoleProgress"]):
    """Progress display on the terminal.

    On a terminal, each task has a bar that disappears when it finishes; otherwise a line is printed
    every ten seconds.

    Args:
        console: Console to print to.
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
        """Start the display."""
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the display."""
        if self._live is not None:
            self._live.stop()

    def start(self, label: str, total: int) -> Any:
        """Start a task."""
        if self._live is not None:
            return self._live.add_task(label, total=total)
        return _Work(label, total, last_line=time.monotonic())

    def advance(self, handle: Any, count: int = 1) -> None:
        """Report completed units."""
        if self._live is not None:
            self._live.advance(handle, count)
            return
        handle.done += count
        now = time.monotonic()
        if now - handle.last_line > _SECONDS_BETWEEN_LINES:
            handle.last_line = now
            self._console.print(f"  {handle.label}: {handle.done} of {handle.total}", markup=False)

    def finish(self, handle: Any) -> None:
        """Mark a task as finished."""
        if self._live is not None:
            self._live.remove_task(handle)
