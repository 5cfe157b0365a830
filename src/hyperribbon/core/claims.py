"""A claim: what a paper says, what was measured, and the verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from hyperribbon.core.checks import ArgumentError, check_choice

__all__ = ["Band", "Claim", "Verdict"]

Verdict = Literal["holds", "fails", "undecided"]
_VERDICTS = ("holds", "fails", "undecided")
_SOURCES = ("paper", "closed form", "verification")


@dataclass(frozen=True)
class Band:
    """An interval a measurement is expected in, and where the expectation comes from.

    Attributes:
        low: Lower edge; −inf for none.
        high: Upper edge; inf for none.
        source: "paper", "closed form" or "verification".
    """

    low: float
    high: float
    source: str

    def __post_init__(self) -> None:
        check_choice("source", self.source, _SOURCES)
        if not self.low <= self.high:
            raise ArgumentError(
                "low", self.low, f"the band ends at {self.high}, before it begins", "Swap them."
            )

    @classmethod
    def around(cls, value: float, source: str, *, rtol: float = 0.0, atol: float = 0.0) -> Band:
        """Return the band value ± (rtol·|value| + atol)."""
        margin = rtol * abs(value) + atol
        return cls(value - margin, value + margin, source)

    @classmethod
    def at_least(cls, value: float, source: str) -> Band:
        """Return [value, ∞)."""
        return cls(value, math.inf, source)

    @classmethod
    def at_most(cls, value: float, source: str) -> Band:
        """Return (−∞, value]."""
        return cls(-math.inf, value, source)


@dataclass(frozen=True)
class Claim:
    """One statement of a paper beside its measurement.

    Attributes:
        id: Experiment id and a short name, "ribbons/fig4/bound".
        paper: Key of the paper: ribbons, subnetworks, fluctuations, linear_networks.
        place: Where the paper says it: "Fig. 4", "Eq. (9)", "Sec. 3.2".
        statement: The claim in our words, as the paper means it.
        expected: The band, with its source.
        measured: The measured number.
        uncertainty: One standard error of `measured`; 0 for a deterministic number.
        verdict: "holds", "fails" or "undecided".
        why: One line: what decides the verdict, or what is responsible for a failure.
    """

    id: str
    paper: str
    place: str
    statement: str
    expected: Band
    measured: float
    uncertainty: float
    verdict: Verdict
    why: str

    def __post_init__(self) -> None:
        check_choice("verdict", self.verdict, _VERDICTS)

    @classmethod
    def judge(
        cls,
        id: str,
        *,
        place: str,
        statement: str,
        expected: Band,
        measured: float,
        uncertainty: float = 0.0,
        why: str,
    ) -> Claim:
        """Return the claim with the verdict that the measurement gives.

        It holds when measured ± 2 standard errors lies inside the band, fails when that interval
        lies outside the band, and is undecided when it straddles an edge or is not finite.

        >>> Claim.judge("ribbons/fig4/x", place="Fig. 4", statement="x is about one",
        ...             expected=Band(0.9, 1.1, "paper"), measured=1.3, why="").verdict
        'fails'
        """
        measured, uncertainty = float(measured), float(uncertainty)
        low, high = measured - 2 * uncertainty, measured + 2 * uncertainty
        verdict: Verdict = "undecided"
        if math.isfinite(low) and math.isfinite(high):
            if expected.low <= low and high <= expected.high:
                verdict = "holds"
            elif high < expected.low or low > expected.high:
                verdict = "fails"
        paper = id.split("/")[0]
        return cls(id, paper, place, statement, expected, measured, uncertainty, verdict, why)

    def to_json(self) -> dict[str, Any]:
        """Return plain values; infinite edges and numbers that are not finite become None."""
        return {
            "id": self.id,
            "paper": self.paper,
            "place": self.place,
            "statement": self.statement,
            "expected": {
                "low": _finite(self.expected.low),
                "high": _finite(self.expected.high),
                "source": self.expected.source,
            },
            "measured": _finite(self.measured),
            "uncertainty": _finite(self.uncertainty),
            "verdict": self.verdict,
            "why": self.why,
        }

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Claim:
        """Return the claim that `to_json` wrote."""
        band = record["expected"]
        low = -math.inf if band["low"] is None else band["low"]
        high = math.inf if band["high"] is None else band["high"]
        numbers = {
            key: math.nan if record[key] is None else record[key]
            for key in ("measured", "uncertainty")
        }
        return cls(**{**record, **numbers, "expected": Band(low, high, band["source"])})


def _finite(number: float) -> float | None:
    return float(number) if math.isfinite(number) else None
