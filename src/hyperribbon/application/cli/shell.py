"""What the commands share: advice in the words of a shell, and where results are written."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.store.atomic import ensure_folder

_NAMES = "budget|k|mode|seed|memory|batch_size|samples|groups|trajectory|initial|optimizer"
_CALLS = {
    "hr.compare(model_a, model_b, loss, data) measures all that.": (
        "Give a factory and two checkpoints to measure all that."
    ),
    "hr.prunable": "hyperribbon prune",
}
_KEYWORD = re.compile(rf"(?<![-\w])({_NAMES})=(?:('?)([\w.+-]*\w)\2)?")


Seconds = Annotated[float, typer.Option("--seconds", "--budget", help="Time budget in seconds.")]


def count(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is one.

    >>> count(1, "claim"), count(2, "observation or regression")
    ('1 claim', '2 observations or regressions')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun.replace(' or', 's or')}s"


def one_of(*choices: str) -> Callable[[], list[str]]:
    """Return what completes an option of a few choices in the shell."""
    return lambda: list(choices)


@contextmanager
def named(option: str) -> Generator[None]:
    """Name the option in the message of a failed check, in place of Python's argument."""
    try:
        yield
    except ArgumentError as error:
        error.rename(option)
        raise


def as_options(text: str) -> str:
    """Return a text with Python keywords and calls written as the shell's options and commands.

    >>> as_options("Skipped for time: spectra; budget=150 would include them. Use mode='eval'.")
    'Skipped for time: spectra; --budget 150 would include them. Use --mode eval.'
    >>> as_options("Pass batch_size= to compare yours.")
    'Pass --batch-size to compare yours.'
    >>> as_options("--budget=-3.0: expected a number")
    '--budget=-3.0: expected a number'
    >>> as_options("Check on held-out data with hr.prunable; retraining allows more.")
    'Check on held-out data with hyperribbon prune; retraining allows more.'
    """
    for call, command in _CALLS.items():
        text = text.replace(call, command)
    return _KEYWORD.sub(lambda m: f"--{m[1].replace('_', '-')} {m[3] or ''}".rstrip(), text)


def check_out(out: Path) -> tuple[Path | None, Path]:
    """Return for the shell's option --out the folder for results, if any, and the page.

    Raises:
        ArgumentError: It cannot be written to.
    """
    if out.suffix.lower() not in (".html", ".htm"):
        ensure_folder("--out", out)
        return out, out / "report.html"
    if out.is_dir():
        reason = "it is a folder whose name ends in .html"
        raise ArgumentError("--out", str(out), reason, "Choose another name.")
    ensure_folder("--out", out.parent)
    return None, out
