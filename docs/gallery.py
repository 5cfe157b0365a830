"""The gallery's first page: a thumbnail of every experiment with its verdicts."""

from __future__ import annotations

import io
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from PIL import Image

__all__ = ["gallery_page", "thumbnail"]

_SIZE = (400, 260)
_INTRODUCTION = """# Gallery

Every figure of the four papers as an experiment, drawn from a stored run, with verdicts on the
paper's claims. Click a picture for the experiment: what it shows, every claim with the measured
number, and the command that reproduces it. [The ledger](../ledger.md) lists all claims. You can
also run an experiment with [your own settings](../howto/own-settings.md).
"""


def gallery_page(papers: Mapping[str, str], cards: Mapping[str, list[dict[str, Any]]]) -> str:
    """Return the page.

    Args:
        papers: Titles by key.
        cards: For every paper its experiments: id, title, verdicts by name, whether it has a
            figure.
    """
    lines = [_INTRODUCTION]
    for paper, title in papers.items():
        lines += [f"## {title}", "", '<div class="gallery">']
        lines += [_card(card) for card in cards[paper]]
        lines += ["</div>", ""]
    return "\n".join(lines) + "\n"


def thumbnail(path: Path) -> bytes:
    """Return a figure as a thumbnail for its card."""
    with Image.open(path) as picture:
        small = picture.convert("RGB")
        small.thumbnail((2 * _SIZE[0], 2 * _SIZE[1]))
        stream = io.BytesIO()
        small.save(stream, "WEBP", quality=80)
    return stream.getvalue()


def _card(card: Mapping[str, Any]) -> str:
    name = card["id"].split("/")[1]
    picture = '<span class="none">no figure: a table of numbers</span>'
    if card["figure"]:
        picture = f'<img src="{escape(card["id"])}-small.webp" alt="" loading="lazy">'
    counts = " ".join(
        f'<b class="{escape(verdict.replace(" ", "-"))}">{count} {escape(verdict)}</b>'
        for verdict, count in card["verdicts"].items()
    )
    return (
        f'<a class="card" href="{escape(card["id"])}/">{picture}'
        f"<strong>{escape(card['title'])}</strong><small><code>{escape(name)}</code> {counts}"
        "</small></a>"
    )
