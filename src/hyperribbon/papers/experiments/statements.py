"""The papers' statements, fixed before anything is measured, and the claims judged by them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from hyperribbon.core.checks import ArgumentError, check_choice
from hyperribbon.core.claims import ORIGINS, Band, Claim
from hyperribbon.papers.experiments.judging import (
    Comparison,
    Measurements,
    Observed,
    decide,
    estimate,
    exact,
    over_seeds,
)

__all__ = [
    "Band",
    "Ledger",
    "Statement",
    "at_scale",
    "estimate",
    "exact",
    "observe",
    "over_seeds",
    "says",
]

_LONGEST_QUOTE = 400


@dataclass(frozen=True)
class Statement:
    """A sentence of a paper and the band it is judged by, fixed before anything is measured.

    Attributes:
        name: Short name, the end of the claim's id.
        quote: The paper's words; empty for an observation of ours.
        place: Where they stand.
        reading: What is taken from them, in one sentence.
        band: What is expected, with its origin.
        setting: Where it is judged and why that is the paper's setting.
        needs: The scale a verdict needs; empty when any scale will do.
        compare: "run", "mean" or "prediction"; see `decide`.
        changed: When and why band or measure were changed after a run was seen.
    """

    name: str
    quote: str
    place: str
    reading: str
    band: Band
    setting: str = ""
    needs: str = ""
    compare: Comparison = "run"
    changed: str = ""

    @property
    def kind(self) -> str:
        """Return "claim", or "observation" for what the paper does not say."""
        return "claim" if self.quote else "observation"


def says(
    name: str,
    place: str,
    quote: str,
    reading: str,
    band: Band,
    *,
    setting: str,
    needs: str = "",
    compare: Comparison = "run",
    changed: str = "",
) -> Statement:
    """Return a statement of the paper; every part of it must be there.

    Args:
        name: Short name, the end of the claim's id.
        place: Where the paper says it.
        quote: The paper's own words, a sentence or a part of one.
        reading: What is taken from them, in one sentence.
        band: What is expected.
        setting: Where it is judged and why that is the paper's setting.
        needs: The scale a verdict needs, such as "the full data and converged training".
        compare: "run" when the sentence is about any single run, "mean" about an average,
            "prediction" when the paper prints the number of one run.
        changed: When and why band or measure were changed after a run was seen.

    Raises:
        ArgumentError: A part is empty, the quote is long, or the origin is not one of the four.
    """
    parts = {"name": name, "place": place, "quote": quote, "reading": reading, "setting": setting}
    _check_parts(name, parts)
    check_choice("origin", band.origin, ORIGINS)
    if len(quote) > _LONGEST_QUOTE:
        raise ArgumentError("quote", quote, f"it has {len(quote)} characters", "Shorten the quote.")
    return Statement(name, quote, place, reading, band, setting, needs, compare, changed)


def observe(
    name: str,
    place: str,
    reading: str,
    band: Band,
    *,
    needs: str = "",
    compare: Comparison = "run",
    changed: str = "",
) -> Statement:
    """Return a statement that the paper does not make; it is listed apart, see `says`.

    Raises:
        ArgumentError: A part is empty, or the origin is "printed".
    """
    _check_parts(name, {"name": name, "place": place, "reading": reading})
    check_choice("origin", band.origin, ORIGINS[1:])
    return Statement(name, "", place, reading, band, "", needs, compare, changed)


def at_scale(needs: str, *statements: Statement) -> tuple[Statement, ...]:
    """Return statements that all need the same scale for a verdict, such as "5,000 images"."""
    return tuple(dataclasses.replace(statement, needs=needs) for statement in statements)


class Ledger:
    """The statements of one experiment, by which its results are judged.

    Args:
        id: The experiment.
        *statements: What is judged in it, made by `says` and `observe`.

    Raises:
        ArgumentError: Two statements have the same name.
    """

    def __init__(self, id: str, *statements: Statement) -> None:
        self.id = id
        self.statements = {statement.name: statement for statement in statements}
        if len(self.statements) < len(statements):
            names = [statement.name for statement in statements]
            raise ArgumentError("statements", names, "a name occurs twice", "Rename one.")

    def judge(self, measured: Measurements) -> list[Claim]:
        """Judge every statement of the ledger: return its claim.

        A statement without a measurement is not comparable, and must name the scale it needs.

        Raises:
            ArgumentError: A measurement has no statement, or a statement that any scale could
                decide has no measurement.
        """
        for name in measured:
            check_choice("measured", name, tuple(self.statements))
        return [self._claim(s, measured.get(s.name)) for s in self.statements.values()]

    def comparisons(self) -> dict[str, Comparison]:
        """Return how each statement is compared, by its id."""
        return {f"{self.id}/{s.name}": s.compare for s in self.statements.values()}

    def _claim(self, statement: Statement, measured: Observed | None) -> Claim:
        if measured is None:
            measured = over_seeds([float("nan")], "not measured in this run", comparable=False)
        if not measured.comparable and not statement.needs:
            raise ArgumentError(
                "measured",
                statement.name,
                "it is not comparable, and the statement does not name the scale it needs",
                "Give the statement `needs`.",
            )
        judged = decide(measured, statement.band, statement.compare)
        return Claim(
            id=f"{self.id}/{statement.name}",
            paper=self.id.split("/")[0],
            place=statement.place,
            quote=statement.quote,
            reading=statement.reading,
            setting=statement.setting,
            expected=statement.band,
            measured=judged.measured,
            uncertainty=judged.uncertainty,
            interval=judged.interval,
            seeds=measured.values,
            verdict=judged.verdict if measured.comparable else "not comparable",
            why="; ".join(filter(None, (measured.why, judged.note))),
            needs=statement.needs,
            changed=statement.changed,
            kind=statement.kind,
        )


def with_settings(
    claims: list[Claim], changed: Mapping[str, object], heading: str = "Changed"
) -> list[Claim]:
    """Return the claims of statements whose setting begins with what differs from it."""
    if not changed:
        return claims
    text = f"{heading}: " + ", ".join(f"{name} = {value}" for name, value in changed.items()) + ". "
    return [dataclasses.replace(claim, setting=text + claim.setting) for claim in claims]


def _check_parts(name: str, parts: Mapping[str, str]) -> None:
    for part, text in parts.items():
        if not text.strip():
            raise ArgumentError(
                part, text, f"the statement {name!r} lacks it", "Say it, or use `observe`."
            )
