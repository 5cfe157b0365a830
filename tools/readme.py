"""Make the pictures of the documentation, and what the example of README.md prints.

`make docs` calls it, so that the pages show what the present version does: the example's answers
(answers.png) and the first page of its report (report.png, with Chromium).
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


IMAGES = ROOT / "docs" / "images"
CHROMIUM = "/usr/bin/chromium"


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


def photograph(found: Inspection) -> None:
    """Save the first page of an inspection's report as a picture, where there is a browser."""
    if not Path(CHROMIUM).exists():
        print(f"{CHROMIUM} is not installed: report.png stays as it is")
        return
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1000, "height": 1150})
        page.goto(found.report(Path(folder) / "report.html").as_uri())
        page.wait_for_function("() => [...document.images].every(image => image.complete)")
        page.screenshot(path=IMAGES / "report.png")
        browser.close()


def main() -> None:
    """Rewrite the page and the pictures."""
    page = ROOT / "README.md"
    text = page.read_text(encoding="utf-8")
    printed, found = run_example(text)
    start, end = EXAMPLE.search(text).span("printed")  # type: ignore[union-attr]
    page.write_text(text[:start] + printed + text[end:], encoding="utf-8")
    figure = draw_answers(found.answers(), found.parts, found.config)
    figure.savefig(IMAGES / "answers.png", dpi=110, metadata={"Software": None})
    photograph(found)


if __name__ == "__main__":
    main()
