"""Figures of a run as data the page carries."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from hyperribbon.report.parts import Picture

__all__ = ["data_uri", "stored_pictures"]

_LARGE_SVG = 400_000
"""Above this many bytes a PNG of the same figure is preferred, if it is smaller."""


def data_uri(kind: str, content: bytes) -> str:
    """Return a data URI; kind is "svg" or "png".

    >>> data_uri("png", b"abc")
    'data:image/png;base64,YWJj'
    """
    media = "image/svg+xml" if kind == "svg" else "image/png"
    return f"data:{media};base64,{base64.b64encode(content).decode()}"


def stored_pictures(folder: Path) -> list[Picture]:
    """Return a run's figures: name.svg, name.png and name.plotly.json belong together.

    Args:
        folder: The run's figures.
    """
    names: dict[str, dict[str, Path]] = {}
    home = folder.resolve()
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if not path.resolve().is_relative_to(home):
            continue  # a link to a file that the run does not hold
        for ending in (".plotly.json", ".svg", ".png"):
            if path.name.endswith(ending) and not path.name.startswith("."):
                names.setdefault(path.name.removesuffix(ending), {})[ending] = path
    pictures = []
    for name, files in names.items():
        chart = files.get(".plotly.json")
        title = "" if name == "figure" else name.replace("_", " ").replace("-", " ")
        pictures.append(Picture(name, title, _static(files), _chart(chart)))
    return pictures


def _chart(path: Path | None) -> str | None:
    """Return a stored plotly figure as JSON; None where it is not one."""
    if path is None:
        return None
    try:
        content = json.loads(path.read_text())
        is_figure = isinstance(content["data"], list) and isinstance(content["layout"], dict)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return json.dumps(content) if is_figure else None


def _static(files: dict[str, Path]) -> str | None:
    sizes = {ending: path.stat().st_size for ending, path in files.items()}
    svg, png = sizes.get(".svg"), sizes.get(".png")
    if svg is not None and (png is None or svg <= max(_LARGE_SVG, png)):
        return data_uri("svg", files[".svg"].read_bytes())
    return None if png is None else data_uri("png", files[".png"].read_bytes())
