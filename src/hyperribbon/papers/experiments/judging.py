"""From measurements to verdicts: intervals over seeds, prediction intervals, stability."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy import stats

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.claims import Band, Claim, Verdict

LEVEL = 0.95
Comparison = Literal["run", "mean", "prediction"]
_FEWEST_FOR_PREDICTION = 5
_ONE_SEED = "one seed: its scatter is not known"


@dataclass(frozen=True)
class Observed:
    """A number to judge, how certain it is, and whether it can be compared with the paper.

    Attributes:
        values: The number from each seed, or one.
        error: Standard error of a single number; 0 when exact, None when it comes from the seeds.
        freedom: Degrees of freedom behind `error`.
        why: What decides the verdict.
        comparable: Whether the run has the scale that the statement needs.
        settings: Whether the values belong to settings between which the paper does not decide.
    """

    values: tuple[float, ...]
    error: float | None
    freedom: float
    why: str
    comparable: bool
    settings: bool = False


Measurements = Mapping[str, Observed]
"""What was measured for each statement, by its name."""


def exact(value: Any, why: str = "", *, comparable: bool = True) -> Observed:
    """Return a number to judge without uncertainty: a closed form, or a count."""
    return Observed((float(value),), 0.0, math.inf, why, bool(comparable))


def over_seeds(values: Any, why: str = "", *, comparable: bool = True) -> Observed:
    """Return a number to judge over seeds; a single one stays undecided."""
    numbers = tuple(float(value) for value in np.atleast_1d(np.asarray(values, dtype=float)))
    if not numbers:
        raise ArgumentError("values", values, "there is no value", "Give one number per seed.")
    return Observed(numbers, None, len(numbers) - 1, why, bool(comparable))


def estimate(
    value: Any, error: Any, why: str = "", *, freedom: float = math.inf, comparable: bool = True
) -> Observed:
    """Return a measurement to judge: a number with a standard error from its own run.

    Args:
        value: The number.
        error: Its standard error.
        why: What decides the verdict.
        freedom: Degrees of freedom of the error, for Student's interval.
        comparable: Whether the run has the scale that the statement needs.
    """
    return Observed((float(value),), float(error), freedom, why, bool(comparable))


def over_settings(values: Any, why: str = "", *, comparable: bool = True) -> Observed:
    """Return numbers to judge over settings that the paper leaves open, declared beforehand."""
    return dataclasses.replace(over_seeds(values, why, comparable=comparable), settings=True)


@dataclass(frozen=True)
class Judgement:
    """The verdict of judging a measurement, with its interval and what it lacks."""

    verdict: Verdict
    measured: float
    uncertainty: float
    interval: tuple[float, float]
    note: str = ""


def decide(
    measured: Observed, band: Band, compare: Comparison = "run", level: float = LEVEL
) -> Judgement:
    """Judge a measurement: compare it with the band.

    Over n seeds with mean m and standard deviation s, the interval is Student's,

        m ± t·s/√n,   or for a number printed from one run   m ± t·s·√(1 + 1/n),

    with t the quantile at n − 1 degrees of freedom. The statement holds when the interval lies in
    the band (for a band around an equality this is the equivalence test), fails when it lies
    outside, and is undecided when it straddles an edge. It is undecided as well when some seeds
    alone lie in the band and others do not, unless the statement is about a mean. A number printed
    from one run holds when the prediction interval reaches it, and is undecided when there are
    fewer than five seeds or the interval is wider than the number is large.

    Over settings that the paper leaves open the interval is the range: the statement holds when it
    does in every setting, fails when it does in none, and is undecided otherwise.

    Args:
        measured: The number or numbers.
        band: What is expected.
        compare: "run" (the sentence is about any single run), "mean" (about an average over runs)
            or "prediction" (the paper prints the number of one run).
        level: Of the interval.
    """
    values = np.array(measured.values)
    mean, count = float(values.mean()), len(values)
    if measured.error is not None:
        spread = stats.t.ppf((1 + level) / 2, measured.freedom) * measured.error
        interval = (mean - float(spread), mean + float(spread))
        return Judgement(band.verdict(*interval), mean, measured.error, interval)
    if count == 1 or not np.isfinite(values).all():
        note = _ONE_SEED if count == 1 else "a seed gave no number"
        return Judgement("undecided", mean, math.nan, (math.nan, math.nan), note)
    if measured.settings:
        interval = (float(values.min()), float(values.max()))
        inside = int(((values >= band.low) & (values <= band.high)).sum())
        verdict = "holds" if inside == count else "undecided" if inside else "fails"
        note = f"in the band in {inside} of {count} settings"
        return Judgement(verdict, mean, math.nan, interval, note)
    deviation = float(values.std(ddof=1))
    error, quantile = deviation / math.sqrt(count), stats.t.ppf((1 + level) / 2, count - 1)
    if compare == "prediction":
        spread = float(quantile) * deviation * math.sqrt(1 + 1 / count)
        return _judge_prediction(band, mean, error, (mean - spread, mean + spread), count)
    spread = float(quantile) * error
    interval = (mean - spread, mean + spread)
    verdict = band.verdict(*interval)
    inside = int(((values >= band.low) & (values <= band.high)).sum())
    if compare == "run" and 0 < inside < count:
        note = f"the seeds disagree: {inside} of {count} lie in the band"
        return Judgement("undecided", mean, error, interval, note)
    note = _seeds_needed(band, mean, deviation) if verdict == "undecided" else ""
    return Judgement(verdict, mean, error, interval, note)


def _judge_prediction(
    band: Band, mean: float, error: float, interval: tuple[float, float], count: int
) -> Judgement:
    low, high = interval
    if count < _FEWEST_FOR_PREDICTION:
        note = f"a prediction interval needs {_FEWEST_FOR_PREDICTION} seeds"
        return Judgement("undecided", mean, error, interval, note)
    if high < band.low or low > band.high:
        return Judgement("fails", mean, error, interval)
    if high - low > abs(band.low + band.high) / 2:
        note = "the prediction interval is wider than the printed number is large"
        return Judgement("undecided", mean, error, interval, note)
    return Judgement("holds", mean, error, interval)


def _seeds_needed(band: Band, mean: float, deviation: float) -> str:
    """Describe how many more seeds would decide a claim that is judged undecided."""
    distance = min(abs(mean - edge) for edge in (band.low, band.high) if math.isfinite(edge))
    if distance == 0:
        return "the mean lies on an edge of the band"
    seeds = math.ceil((stats.norm.ppf((1 + LEVEL) / 2) * deviation / distance) ** 2) + 2
    return f"would need about {seeds} seeds"


def wants_seeds(claim: Claim, compare: Comparison = "run") -> bool:
    """Judge whether more seeds could decide a claim: its interval straddles an edge of the band.

    Seeds that disagree will not agree again, and a prediction interval does not shrink to nothing.
    """
    if claim.verdict != "undecided" or claim.exact or not np.isfinite(claim.seeds).all():
        return False
    return compare == "mean" or (compare == "run" and len(set(claim.by_seed)) == 1)


def combine(
    runs: Sequence[Sequence[Claim]], comparisons: Mapping[str, Comparison], level: float = LEVEL
) -> list[Claim]:
    """Judge each claim anew over several runs of an experiment, one value for each.

    Args:
        runs: The claims of each run.
        comparisons: How a claim is compared, by id; "run" where it is not named.
        level: Of the intervals.
    """
    if len(runs) == 1:
        return list(runs[0])
    found = []
    for id in dict.fromkeys(claim.id for run in runs for claim in run):
        same = [claim for run in runs for claim in run if claim.id == id]
        first, values = same[0], tuple(claim.measured for claim in same)
        if all(claim.exact for claim in same) and np.ptp(values) == 0:
            found.append(first)
            continue
        compare = comparisons.get(id, "run")
        over, judged_values = over_seeds, values
        if math.isnan(first.uncertainty) and math.isfinite(first.interval[0]):  # of settings
            over, judged_values = over_settings, np.mean([claim.seeds for claim in same], axis=0)
        judged = decide(over(judged_values), first.expected, compare, level)
        alone = decide(over(first.seeds), first.expected, compare).note
        why = first.why.removesuffix(alone).removesuffix("; ")  # what it lacked, it has now
        incomparable = any(claim.verdict == "not comparable" for claim in same)
        found.append(
            dataclasses.replace(
                first,
                measured=judged.measured,
                uncertainty=judged.uncertainty,
                interval=judged.interval,
                seeds=tuple(judged_values),
                verdict="not comparable" if incomparable else judged.verdict,
                why="; ".join(filter(None, (judged.note, f"first seed: {why}"))),
            )
        )
    return found


def at_smoke(claims: Iterable[Claim]) -> list[Claim]:
    """Judge claims as the smallest preset may: it proves the path, not the paper."""
    return [
        dataclasses.replace(claim, verdict="not comparable") if claim.needs else claim
        for claim in claims
    ]
