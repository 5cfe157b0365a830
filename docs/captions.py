"""Figures of a paper beside their captions: one row per sentence, with claims' verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def caption_lines(
    paper: str, figures: Sequence[Mapping[str, Any]], stored: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Return the lines of a page that compare the drawn figures with the printed captions.

    Args:
        paper: Key of the paper.
        figures: Figures of `papers/<paper>.captions.toml`: the printed name, the experiment, and
            for each sentence of the caption its words, the pictures that show it, what they show,
            where they differ, and the claims that judge it.
        stored: Stored runs by experiment, with their claims.
    """
    lines = [
        *("", "## Captions, line by line", ""),
        "Every sentence of every caption beside the pictures drawn for it: what they show, and how "
        "they differ from the printed figure. Verdicts are those of the stored runs.",
    ]
    for figure in figures:
        id = f"{paper}/{figure['experiment']}"
        verdicts = {
            claim["id"].rpartition("/")[2]: claim["verdict"]
            for claim in stored.get(id, {}).get("claims", [])
        }
        lines += ["", f"### {figure['name']}", ""]
        lines += ["| the caption | what is drawn | differs |", "|---|---|---|"]
        for row in figure["sentence"]:
            links = [f"[{name}](../gallery/{id}-{name}.png)" for name in row.get("pictures", [])]
            judged = [f"`{name}` {verdicts.get(name, 'not run')}" for name in row.get("claims", [])]
            cells = [row["caption"], row["shown"], row.get("differs", "no")]
            cells[1] += f" ({', '.join(links)})" if links else ""
            cells[2] += f". Claims: {', '.join(judged)}" if judged else ""
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return lines
