"""Formulas as drawings: TeX becomes SVG when the pages are built, so that they need no script."""

from __future__ import annotations

import html
import re

from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.textpath import TextPath

__all__ = ["draw_formulas"]

_DISPLAYED = re.compile(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', re.S)
_INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.S)
_SIZE = 17.0
_SPELLINGS = (
    (r"(\\t?frac)\s*(\w)\s*(\w)", r"\1{\2}{\3}"),
    (r"\\frac", r"\\dfrac"),
    (r"\\tfrac", r"\\frac"),
    (r"\\sqrt\s+(\w)", r"\\sqrt{\1}"),
    (r"\\le(?![a-z])", r"\\leq"),
    (r"\\ge(?![a-z])", r"\\geq"),
    (r"\\[lr]Vert", r"\\Vert"),
    (r"\\[lr]vert", r"|"),
    (r"\\[Bb]ig[lr]?/", "/"),
    (r"\\[Bb]igl?(?=[(\[|])", r"\\left"),
    (r"\\[Bb]igr?(?=[)\]|])", r"\\right"),
    (r"\\textstyle", ""),
)
"""What TeX allows and matplotlib's parser does not, with a spelling that both know."""
_COMMANDS = {Path.MOVETO: "M", Path.LINETO: "L", Path.CURVE3: "Q", Path.CURVE4: "C"}


def draw_formulas(page: str) -> str:
    """Return a page in which every formula is an inline drawing with its TeX as its name."""
    page = _DISPLAYED.sub(lambda m: f'<p class="formula">{_svg(m[1])}</p>', page)
    return _INLINE.sub(lambda m: _svg(m[1]), page)


def _svg(tex: str) -> str:
    tex = " ".join(html.unescape(tex).split())
    spelled = tex
    for pattern, replacement in _SPELLINGS:
        spelled = re.sub(pattern, replacement, spelled)
    font = FontProperties(family="DejaVu Sans", math_fontfamily="stix")
    path = TextPath((0, 0), f"${spelled}$", size=_SIZE, prop=font)
    (left, low), (right, high) = path.get_extents().get_points()
    commands = []
    for points, code in path.iter_segments(curves=True):
        flipped = [n if i % 2 == 0 else -n for i, n in enumerate(points)]
        numbers = " ".join(f"{n:.2f}" for n in flipped)
        commands.append("Z" if code == Path.CLOSEPOLY else f"{_COMMANDS[code]}{numbers}")
    width, height = right - left + 2, high - low + 2
    label = html.escape(tex, quote=True)
    return (
        f'<svg class="formula" role="img" aria-label="{label}" width="{width:.1f}" '
        f'height="{height:.1f}" viewBox="{left - 1:.1f} {-high - 1:.1f} {width:.1f} {height:.1f}">'
        f'<title>{label}</title><path fill="currentColor" d="{"".join(commands)}"/></svg>'
    )
