"""Figures of a run as data the page carries."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

from hyperribbon.application.report.page import DAMAGE, Picture

_LARGE_SVG = 400_000
"""Above this many bytes a PNG of the same figure is preferred, if it is smaller."""


def data_uri(kind: str, content: bytes) -> str:
    """Return the data URI of an image; kind is "svg" or "png".

    >>> data_uri("png", b"abc")
    'data:image/png;base64,YWJj'
    """
    media = "image/svg+xml" if kind == "svg" else "image/png"
    return f"data:{media};base64,{base64.b64encode(content).decode()}"


def stored_pictures(folder: Path) -> list[Picture]:
    """Return a run's images for the report: name.svg, name.png and name.plotly.json.

    Args:
        folder: The run's figures.
    """
    names: dict[str, dict[str, Path]] = {}
    home = os.path.realpath(folder)
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if not path.is_file() or not Path(os.path.realpath(path)).is_relative_to(home):
            continue  # a folder, a pipe, or a link to a file outside the run
        for ending in (".plotly.json", ".svg", ".png"):
            if path.name.endswith(ending) and not path.name.startswith("."):
                names.setdefault(path.name.removesuffix(ending), {})[ending] = path
    return [_read_picture(name, files) for name, files in names.items()]


def _read_picture(name: str, files: dict[str, Path]) -> Picture:
    title = "" if name == "figure" else name.replace("_", " ").replace("-", " ")
    image, chart = _read_image(files), _read_chart(files.get(".plotly.json"))
    caption = "" if image or chart else "Damaged: the figure cannot be read."
    return Picture(name, title, image, chart, caption)


def _read_chart(path: Path | None) -> str | None:
    """Return a report image's plotly figure as JSON; None where it is not one."""
    if path is None:
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        is_figure = isinstance(content["data"], list) and isinstance(content["layout"], dict)
        return json.dumps(content) if is_figure else None
    except DAMAGE:
        return None


def _read_image(files: dict[str, Path]) -> str | None:
    """Return an SVG image as a data URI, or the PNG if much smaller or the SVG is damaged."""
    found = {}
    for kind, end in (("svg", b"</svg>"), ("png", b"IEND\xaeB`\x82")):
        path = files.get(f".{kind}")
        try:
            content = b"" if path is None else path.read_bytes()
        except OSError:
            continue
        if content.rstrip().endswith((end, b"/>")):
            found[kind] = content
    if "svg" in found and len(found["svg"]) <= max(_LARGE_SVG, len(found.get("png", b""))):
        return data_uri("svg", found["svg"])
    return data_uri("png", found["png"]) if "png" in found else None
