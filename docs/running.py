"""The code of a page, run when the pages are built: what it prints and the figures it draws.

After a block of Python, `<!-- prints -->` becomes what the block printed, and
`<!-- draws: what is seen -->` the figure that is called `figure` then. All blocks of a page share
their names. Results are kept by the page's code and the library's source, in `.cache/pages`.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from html import escape
from pathlib import Path
from typing import Any

import matplotlib as mpl

from hyperribbon.plots import STYLE

__all__ = ["put_results", "run_page"]

ROOT = Path(__file__).parents[1]
_PIECE = re.compile(
    r"^```python\n(?P<code>.*?)^```$|^<!-- (?P<ask>prints|draws)(?:: (?P<words>[^\n]*?))? -->$",
    re.S | re.M,
)
_PLACE = '<div class="drawn">{}</div>'


def run_page(markdown: str, name: str, cache: Path | None = None) -> tuple[str, list[str]]:
    """Return a page with what its code printed, places for its figures, and the figures.

    Args:
        markdown: The page.
        name: What it is called in errors.
        cache: Folder in which results are kept; none when not given.

    Raises:
        RuntimeError: A block failed, or a figure was asked for where there is none.
    """
    pieces = list(_PIECE.finditer(markdown))
    if not any(piece["ask"] for piece in pieces):
        return markdown, []
    kept = None if cache is None else cache / f"{_key(pieces)}.json"
    if kept is not None and kept.exists():
        results = json.loads(kept.read_text(encoding="utf-8"))
    else:
        results = _run(pieces, name)
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(results), encoding="utf-8")
    figures = [text for kind, text in results if kind == "draws"]
    answers, drawn = iter(results), iter(range(len(figures)))

    def put(piece: re.Match[str]) -> str:
        if not piece["ask"]:
            return piece[0]
        kind, text = next(answers)
        if kind == "draws":
            return _PLACE.format(next(drawn))
        return f"``` {{ .text .printed }}\n{text.rstrip()}\n```"

    return _PIECE.sub(put, markdown), figures


def put_results(page: str, figures: list[str]) -> str:
    """Return the HTML of a page with its figures in their places."""
    for index, figure in enumerate(figures):
        page = page.replace(_PLACE.format(index), f'<div class="drawn">{figure}</div>')
    return page


def _key(pieces: list[re.Match[str]]) -> str:
    """Return a name for what the results depend on."""
    found = hashlib.sha256("\0".join(piece[0] for piece in pieces).encode())
    for path in sorted((ROOT / "src").rglob("*.py")):
        found.update(path.read_bytes())
    found.update(Path(__file__).read_bytes())
    return found.hexdigest()[:24]


def _run(pieces: list[re.Match[str]], name: str) -> list[tuple[str, str]]:
    """Run the blocks of a page in order and return what was asked for."""
    scope: dict[str, Any] = {"__name__": "__docs__"}
    results, printed = [], ""
    with _elsewhere(), mpl.rc_context(STYLE):
        for piece in pieces:
            if piece["ask"] == "prints":
                results.append(("prints", printed))
            elif piece["ask"] == "draws":
                if "figure" not in scope:
                    raise RuntimeError(f"{name}: no block before {piece[0]} makes a `figure`")
                salt = f"{name}-{len(results)}"
                results.append(("draws", _svg(scope.pop("figure"), salt, piece["words"] or "")))
            else:
                stream = io.StringIO()
                try:
                    with redirect_stdout(stream):
                        exec(compile(piece["code"], name, "exec", dont_inherit=True), scope)
                except Exception as error:
                    raise RuntimeError(f"{name}: a block failed: {error!r}") from error
                printed = stream.getvalue()
    return results


@contextmanager
def _elsewhere() -> Iterator[None]:
    """Work in a folder of its own."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(here)


def _svg(figure: Any, salt: str, words: str) -> str:
    """Return a figure as a drawing whose black parts have the colour of the text around it."""
    stream = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": salt}):
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    drawing = stream.getvalue()
    drawing = drawing[drawing.index("<svg") :]
    drawing = re.sub(r"<metadata>.*?</metadata>", "", drawing, flags=re.S)
    drawing = drawing.replace("#000000", "currentColor").replace("#262626", "currentColor")
    width = float(figure.get_size_inches()[0])
    label = escape(words, quote=True)
    root, rest = drawing.split(">", 1)
    root = re.sub(r'\b(width|height)="[^"]*" ?', "", root)
    named = f'<svg role="img" aria-label="{label}" fill="currentColor" style="--inches:{width:g}"'
    return root.replace("<svg", named) + ">" + rest
