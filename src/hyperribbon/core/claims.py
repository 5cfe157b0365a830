"""Claims of the papers: interpretation, measurement, and verdict."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any, Literal

from hyperribbon.core import html
from hyperribbon.core.checks import ArgumentError, check_choice

Verdict = Literal["holds", "fails", "undecided", "not comparable"]
VERDICTS = ("holds", "fails", "undecided", "not comparable")
ORIGINS = ("printed", "words", "closed form", "regression")
KINDS = ("claim", "observation")


@dataclass(frozen=True)
class Band:
    """The expected interval of a claim and its origin.

    Attributes:
        low: Lower edge; −inf for none.
        high: Upper edge; inf for none.
        origin: "printed" (a number or an inequality in the paper), "words" (a threshold put to
            words such as "slightly"), "closed form", or "regression" (an earlier measurement of
            hyperribbon itself, which says nothing about the paper).
    """

    low: float
    high: float
    origin: str

    def __post_init__(self) -> None:
        check_choice("origin", self.origin, ORIGINS)
        for edge in ("low", "high"):
            if not isinstance(getattr(self, edge), Real):
                raise ArgumentError(edge, getattr(self, edge), "expected a number", "Give a float.")
        if not self.low <= self.high:
            raise ArgumentError(
                "low",
                self.low,
                f"the upper edge, {self.high}, is below the lower one",
                "Swap them.",
            )

    @classmethod
    def around(cls, value: float, origin: str, *, rtol: float = 0.0, atol: float = 0.0) -> Band:
        """Return the band of a claim value ± (rtol·|value| + atol)."""
        margin = rtol * abs(value) + atol
        return cls(value - margin, value + margin, origin)

    @classmethod
    def at_least(cls, value: float, origin: str) -> Band:
        """Return the band [value, ∞) of a claim."""
        return cls(value, math.inf, origin)

    @classmethod
    def at_most(cls, value: float, origin: str) -> Band:
        """Return the band (−∞, value] of a claim."""
        return cls(-math.inf, value, origin)

    def verdict(self, low: float, high: float) -> Verdict:
        """Return a claim's verdict for an interval: inside holds, outside fails, else undecided.

        For a band around an equality, an interval that lies inside is an equivalence test.

        >>> Band(0.9, 1.1, "words").verdict(0.95, 1.2)
        'undecided'
        """
        if math.isfinite(low) and math.isfinite(high):
            if self.low <= low and high <= self.high:
                return "holds"
            if high < self.low or low > self.high:
                return "fails"
        return "undecided"


@dataclass(frozen=True)
class Claim:
    """A statement of a paper with its measurement.

    Attributes:
        id: Experiment id and a short name, "ribbons/fig4/bound".
        paper: Key of the paper: ribbons, subnetworks, fluctuations, linear_networks.
        place: Where the paper says it: "Fig. 4", "Eq. (9)", "Sec. 3.2".
        quote: The paper's own words; empty for an observation.
        reading: What is taken from them, in one sentence.
        setting: Where it is judged, and why that is the paper's setting.
        expected: The band, with its origin.
        measured: The measured number.
        uncertainty: One standard error of `measured`; 0 for an exact number.
        interval: The 95% interval that the band is compared with.
        seeds: The number from each seed; one entry when it is exact or comes from one run.
        verdict: "holds", "fails", "undecided" or "not comparable" (at this scale).
        why: What decides the verdict, or is responsible for a failure.
        needs: The scale that a verdict needs; empty when any scale will do.
        changed: When and why the band or the measure was changed after a run was seen.
        kind: "claim", or "observation" for what the paper does not say.
    """

    id: str
    paper: str
    place: str
    quote: str
    reading: str
    setting: str
    expected: Band
    measured: float
    uncertainty: float
    interval: tuple[float, float]
    seeds: tuple[float, ...]
    verdict: Verdict
    why: str
    needs: str = ""
    changed: str = ""
    kind: str = "claim"

    def __post_init__(self) -> None:
        check_choice("verdict", self.verdict, VERDICTS)
        check_choice("kind", self.kind, KINDS)

    @property
    def exact(self) -> bool:
        """Whether the number of a claim has no uncertainty and no seed."""
        return self.uncertainty == 0 and len(self.seeds) == 1

    @property
    def on_the_paper(self) -> bool:
        """Whether a claim's verdict is one on the paper: no observation, no regression of ours."""
        return self.kind == "claim" and self.expected.origin != "regression"

    @property
    def by_seed(self) -> tuple[bool, ...]:
        """Whether the number of each seed, by itself, lies in the claim's band."""
        return tuple(self.expected.low <= value <= self.expected.high for value in self.seeds)

    def to_json(self) -> dict[str, Any]:
        """Return the claim as plain values; numbers that are not finite become None."""
        record: dict[str, Any] = {}
        for name, value in asdict(self).items():
            if name == "expected":
                band = {"low": _finite(value["low"]), "high": _finite(value["high"])}
                record |= {"expected": band, "origin": value["origin"]}
            elif name in ("measured", "uncertainty", "interval", "seeds"):
                record[name] = _finite(value)
            else:
                record[name] = value
        return record

    def _repr_html_(self) -> str:
        """Show the claim beside its measurement, in a notebook."""
        low, high = self.expected.low, self.expected.high
        band = " to ".join("any" if math.isinf(edge) else html.number(edge) for edge in (low, high))
        error = f" ± {html.number(self.uncertainty, 2)}" if self.uncertainty else ""
        rows = [
            ("says", f"“{self.quote}”" if self.quote else "nothing: an observation"),
            ("read as", self.reading),
            ("expected", f"{band} ({self.expected.origin})"),
            ("measured", html.number(self.measured) + error),
            ("why", self.why),
        ]
        return html.card(f"{self.verdict}: {self.id}", html.note(self.place), html.table((), rows))

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Claim:
        """Return the claim that `to_json` wrote."""
        fields = {key: value for key, value in record.items() if key not in ("origin", "expected")}
        low, high = record["expected"]["low"], record["expected"]["high"]
        fields["expected"] = Band(
            -math.inf if low is None else low, math.inf if high is None else high, record["origin"]
        )
        for key in ("measured", "uncertainty"):
            fields[key] = _number(record[key])
        for key in ("interval", "seeds"):
            fields[key] = tuple(_number(value) for value in record[key])
        return cls(**fields)


def _finite(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_finite(number) for number in value]
    return float(value) if math.isfinite(value) else None


def _number(value: float | None) -> float:
    return math.nan if value is None else value
