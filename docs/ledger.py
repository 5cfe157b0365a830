"""The ledger page: every claim of every paper, filtered and opened, and the slips in print."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from html import escape
from typing import Any

from hyperribbon.core.claims import ORIGINS, VERDICTS, Claim

_INTRODUCTION = """# The ledger

Every statement of the four papers that was put to a test: the paper's own words, what is taken
from them, where it was judged, and what came out. The band a number is expected in has an origin:
**printed** (a number or an inequality in the paper), **words** (a threshold that hyperribbon put
to words such as "slightly"), **closed form**, or **regression** (an earlier measurement of
hyperribbon, no verdict on the paper). Verdicts follow from a 95% interval: inside the band
*holds*, outside *fails*, across an edge or with seeds that disagree *undecided*; *not comparable*
says what scale would decide. Your own settings and seeds: [run an experiment your way](howto/own-
settings.md).
"""


def ledger_page(stored: Mapping[str, Any], papers: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page.

    Args:
        stored: Claims, preset and figures of the stored runs, by experiment.
        papers: Titles and slips of the papers, by key.
    """
    entries = [
        (Claim.from_json(record), run) for run in stored.values() for record in run["claims"]
    ]
    on_papers = [entry for entry in entries if entry[0].on_the_paper]
    apart = [entry for entry in entries if not entry[0].on_the_paper]
    lines = [_INTRODUCTION, _counts(claim for claim, _ in on_papers), "## Claims", ""]
    lines += ['<div class="ledger">', _filters(claim for claim, _ in on_papers)]
    lines += [_row(claim, run) for claim, run in on_papers]
    lines += ["</div>", "", "## Observations and regressions", ""]
    lines += ["What the papers do not say, and hyperribbon's own earlier numbers.", ""]
    lines += ['<div class="ledger">', *(_row(claim, run) for claim, run in apart), "</div>", ""]
    lines += ["## Slips found in print", ""]
    for entry in papers.values():
        lines += [f"### {entry['title']}", "", "| where | what it should be |", "|---|---|"]
        lines += [f"| {slip['place']} | {_cell(slip['text'])} |" for slip in entry["slips"]]
        lines.append("")
    return "\n".join(lines) + "\n"


def _counts(claims: Any) -> str:
    """Return the table of verdicts by origin."""
    counted = Counter((claim.expected.origin, claim.verdict) for claim in claims)
    origins = [o for o in dict.fromkeys((*ORIGINS, *(o for o, _ in counted))) if _total(counted, o)]
    lines = ["| origin | " + " | ".join(VERDICTS) + " |", "|---|" + "---|" * len(VERDICTS)]
    lines += [
        f"| {origin} | " + " | ".join(str(counted[origin, verdict]) for verdict in VERDICTS) + " |"
        for origin in origins
    ]
    return "\n".join(lines) + "\n"


def _total(counted: Counter[tuple[str, str]], origin: str) -> int:
    return sum(counted[origin, verdict] for verdict in VERDICTS)


def _filters(claims: Any) -> str:
    """Return a menu each for paper, verdict and origin."""
    found = list(claims)
    menus = {
        "paper": sorted({claim.paper for claim in found}),
        "verdict": [v for v in VERDICTS if any(claim.verdict == v for claim in found)],
        "origin": sorted({claim.expected.origin for claim in found}),
    }
    return "".join(
        f'<label>{name} <select data-by="{name}"><option value="">all</option>'
        + "".join(f"<option>{escape(value)}</option>" for value in values)
        + "</select></label> "
        for name, values in menus.items()
    )


def _row(claim: Claim, run: Mapping[str, Any]) -> str:
    experiment, _, name = claim.id.rpartition("/")
    band = " to ".join(f"{edge:.4g}" for edge in (claim.expected.low, claim.expected.high))
    seeds = ", ".join(
        f"{value:.4g} {'✓' if good else '✗'}"
        for value, good in zip(claim.seeds, claim.by_seed, strict=True)
    )
    parts = {
        "The paper": f"“{claim.quote}” ({claim.place})" if claim.quote else claim.place,
        "Reading": claim.reading,
        "Judged in": claim.setting,
        "Band": f"{band} ({claim.expected.origin})",
        "Measured": "exact: " + seeds if claim.exact else _measured(claim),
        "By seed": "" if claim.exact else seeds,
        "Why": claim.why,
        "A verdict needs": claim.needs,
        "Changed": claim.changed,
    }
    words = "".join(f"<dt>{t}</dt><dd>{escape(text)}</dd>" for t, text in parts.items() if text)
    picture = "".join(
        f'<p><a href="../gallery/{experiment}/">Figure and run</a> '
        f"(preset {run['preset']}, {run['seeds']} seed{'s' * (run['seeds'] > 1)})</p>"
        for _ in run["figures"][:1]
    )
    return (
        f'<details data-paper="{claim.paper}" data-verdict="{claim.verdict}" '
        f'data-origin="{claim.expected.origin}"><summary><b class="{claim.verdict}">'
        f"{claim.verdict}</b> {escape(claim.reading)} <code>{escape(experiment)}/{escape(name)}"
        f"</code></summary><dl>{words}</dl>{picture}</details>"
    )


def _measured(claim: Claim) -> str:
    low, high = claim.interval
    return f"{claim.measured:.4g}, 95% interval {low:.4g} to {high:.4g}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
