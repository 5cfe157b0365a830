"""The ledger page: every claim of every paper, with filters, and the errors found in print."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from html import escape
from typing import Any

from hyperribbon.core.claims import ORIGINS, VERDICTS, Band, Claim

_INTRODUCTION = """# The ledger

Every statement of the four papers that was tested: the paper's own words, how hyperribbon reads
them, the setting in which they were judged, and the result. Each expected band has an origin:
**printed** (a number or an inequality in the paper), **words** (hyperribbon's threshold for a word
such as "slightly"), **closed form**, or **regression** (an earlier measurement by hyperribbon, not
a verdict on the paper). The verdict follows from a 95% interval: inside the band the claim
*holds*, outside it *fails*; if the interval crosses an edge, or seeds disagree, it is *undecided*.
A single run of unknown variance is also *undecided*, however far from the edge. Where the paper
prints the number of a single run, the interval is a prediction interval for one more run, and the
claim *holds* if it contains the printed number. Where the paper leaves settings open, the interval
is the range over those declared beforehand: the claim *holds* in all of them, *fails* in none, and
is *undecided* where only some show it. A claim that is *not comparable* states the
scale that would decide it. To use other settings and seeds, see
[run an experiment your way](howto/own-settings.md).
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
    lines += ["## Errors found in print", ""]
    for entry in papers.values():
        lines += [f"### {entry['title']}", "", "| where | correction |", "|---|---|"]
        lines += [
            f"| {slip['place']} | {slip['text'].replace('|', chr(92) + '|')} |"
            for slip in entry["slips"]
        ]
        lines.append("")
    return "\n".join(lines) + "\n"


def _counts(claims: Any) -> str:
    """Return the table of verdicts by origin."""
    counted = Counter((claim.expected.origin, claim.verdict) for claim in claims)
    origins = [o for o in ORIGINS if any(counted[o, verdict] for verdict in VERDICTS)]
    lines = ["| origin | " + " | ".join(VERDICTS) + " |", "|---|" + "---|" * len(VERDICTS)]
    lines += [
        f"| {origin} | " + " | ".join(str(counted[origin, verdict]) for verdict in VERDICTS) + " |"
        for origin in origins
    ]
    return "\n".join(lines) + "\n"


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
    numbers = any(map(math.isfinite, claim.seeds))
    seeds = ", ".join(
        f"{value:.4g} {'✓' if good else '✗'}" if math.isfinite(value) else "not finite"
        for value, good in zip(claim.seeds, claim.by_seed, strict=True)
    )
    parts = {
        "The paper": f"“{claim.quote}” ({claim.place})" if claim.quote else claim.place,
        "Reading": claim.reading,
        "Judged in": claim.setting,
        "Band": f"{_band(claim.expected)} ({claim.expected.origin})",
        "Measured": "exact: " + seeds if claim.exact else _measured(claim),
        "By seed": "" if claim.exact or not numbers else _one_run(claim) or seeds,
        "Why": claim.why,
        "A verdict needs": claim.needs,
        "Changed": claim.changed,
    }
    words = "".join(f"<dt>{t}</dt><dd>{escape(text)}</dd>" for t, text in parts.items() if text)
    runs = f"{run['seeds']} seeds" if run["seeds"] > 1 else "one run"
    picture = f'<p><a href="../gallery/{experiment}/">Figure and run</a> '
    picture += f"(preset {run['preset']}, {runs})</p>"
    return (
        f'<details data-paper="{claim.paper}" data-verdict="{claim.verdict}" '
        f'data-origin="{claim.expected.origin}"><summary><b class="{claim.verdict}">'
        f"{claim.verdict}</b> {escape(claim.reading)} <code>{escape(experiment)}/{escape(name)}"
        f"</code></summary><dl>{words}</dl>{picture if run['figures'] else ''}</details>"
    )


def _band(band: Band) -> str:
    if math.isinf(band.low):
        return f"at most {band.high:.4g}"
    if math.isinf(band.high):
        return f"at least {band.low:.4g}"
    return f"{band.low:.4g}" + (f" to {band.high:.4g}" if band.high > band.low else "")


def _one_run(claim: Claim) -> str:
    """Return a note on a single run that estimates its own uncertainty from repetitions inside."""
    if len(claim.seeds) > 1 or not math.isfinite(claim.uncertainty):
        return ""
    return f"one run, whose own standard error is {claim.uncertainty:.2g} (see Why)"


def _measured(claim: Claim) -> str:
    low, high = claim.interval
    if not math.isfinite(claim.measured):
        return "not finite"
    if not math.isfinite(low + high):
        return f"{claim.measured:.4g}, no interval"
    return f"{claim.measured:.4g}, 95% interval {low:.4g} to {high:.4g}"
