"""The ledger page: every claim of every paper, filtered and opened, and the slips in print."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from html import escape
from typing import Any

from hyperribbon.core.claims import ORIGINS, VERDICTS, Band, Claim

_INTRODUCTION = """# The ledger

Every statement of the four papers that was put to a test: the paper's own words, what is taken
from them, where it was judged, and what came out. The band a number is expected in has an origin:
**printed** (a number or an inequality in the paper), **words** (a threshold that hyperribbon put
to words such as "slightly"), **closed form**, or **regression** (an earlier measurement of
hyperribbon, no verdict on the paper). Verdicts follow from a 95% interval: inside the band
*holds*, outside *fails*, across an edge or with seeds that disagree *undecided*. A single run
whose scatter is not known is *undecided* as well, however far from the edge its number lies. Where
the paper prints the number of one of its runs, the interval is where one more run would fall, and
the statement *holds* when it reaches the printed number. *Not comparable* says what scale would
decide. Your own settings and seeds: [run an experiment your way](howto/own-settings.md).
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
    numbers = any(map(math.isfinite, claim.seeds))
    seeds = ", ".join(
        f"{value:.4g} {'✓' if good else '✗'}" if math.isfinite(value) else "no number"
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
    picture = "".join(
        f'<p><a href="../gallery/{experiment}/">Figure and run</a> '
        f"(preset {run['preset']}, {_runs(run['seeds'])})</p>"
        for _ in run["figures"][:1]
    )
    return (
        f'<details data-paper="{claim.paper}" data-verdict="{claim.verdict}" '
        f'data-origin="{claim.expected.origin}"><summary><b class="{claim.verdict}">'
        f"{claim.verdict}</b> {escape(claim.reading)} <code>{escape(experiment)}/{escape(name)}"
        f"</code></summary><dl>{words}</dl>{picture}</details>"
    )


def _band(band: Band) -> str:
    if math.isinf(band.low):
        return f"at most {band.high:.4g}"
    if math.isinf(band.high):
        return f"at least {band.low:.4g}"
    return f"{band.low:.4g}" + (f" to {band.high:.4g}" if band.high > band.low else "")


def _one_run(claim: Claim) -> str:
    """Say so where a single run told its own uncertainty, from what it repeats inside."""
    if len(claim.seeds) > 1 or not math.isfinite(claim.uncertainty):
        return ""
    return f"one run, its own standard error {claim.uncertainty:.2g}; what it repeats is under Why"


def _runs(count: int) -> str:
    return f"{count} seeds" if count > 1 else "one run"


def _measured(claim: Claim) -> str:
    low, high = claim.interval
    if not math.isfinite(claim.measured):
        return "no number"
    if not math.isfinite(low + high):
        return f"{claim.measured:.4g}, no interval"
    return f"{claim.measured:.4g}, 95% interval {low:.4g} to {high:.4g}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
