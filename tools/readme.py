"""Run the example of README.md, and put what it prints and its picture into the page.

`make docs` calls it, so that the page shows what the present version does.
"""

from __future__ import annotations

import io
import os
import re
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

from hyperribbon.application.inspection import Inspection
from hyperribbon.application.inspection.answers.pictures import draw_answers

ROOT = Path(__file__).parents[1]
EXAMPLE = re.compile(r"```python\n(?P<code>.*?)```\n\n```text\n(?P<printed>.*?)```\n", re.S)


def run_example(text: str) -> tuple[str, Inspection]:
    """Return what the first example of the page prints, and its inspection."""
    found = EXAMPLE.search(text)
    assert found is not None, "the page has no example followed by what it prints"
    printed, names = io.StringIO(), {}
    home = os.getcwd()
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(printed):
        os.chdir(folder)  # where its report goes
        os.environ["COLUMNS"] = "100"
        try:
            exec(found["code"], names)
        finally:
            os.chdir(home)
    lines = [line.rstrip() for line in printed.getvalue().splitlines()]
    return "\n".join(lines) + "\n", names["found"]


def main() -> None:
    """Rewrite the page and its picture."""
    page = ROOT / "README.md"
    text = page.read_text(encoding="utf-8")
    printed, found = run_example(text)
    start, end = EXAMPLE.search(text).span("printed")  # type: ignore[union-attr]
    page.write_text(text[:start] + printed + text[end:], encoding="utf-8")
    figure = draw_answers(found.answers(), found.parts, found.config)
    figure.savefig(ROOT / "docs" / "images" / "answers.png", dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main()
