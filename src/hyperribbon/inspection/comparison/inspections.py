"""Two inspections side by side: the numbers that both have of equally many samples."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import hypot, nan
from pathlib import Path
from typing import Any

from hyperribbon.core.checks import ArgumentError
from hyperribbon.inspection.comparison.differences import Difference
from hyperribbon.inspection.comparison.result import Comparison
from hyperribbon.inspection.engine.findings import Inspection
from hyperribbon.inspection.engine.sampling import groups_for

__all__ = ["compare_inspections", "is_inspection"]

_FILE = "inspection.json"
_DERIVED = ("bound", "gradient", "rank50")
"""Statistics of which a difference says nothing by itself."""
_BEFORE = {"mode": "eval"}
"""What inspections that do not say it were measured with."""


@dataclass(frozen=True)
class _Stored:
    """What is compared of an inspection.

    Attributes:
        statistics: Numbers by name and samples, "sharpness@64": key, name, value, error, certainty.
        config: The request.
    """

    statistics: Mapping[str, Mapping[str, Any]]
    config: Mapping[str, Any]


def is_inspection(given: Any) -> bool:
    """Whether something is an inspection, or the folder of a stored one."""
    if isinstance(given, Inspection):
        return True
    return isinstance(given, str | Path) and (Path(given) / _FILE).is_file()


def compare_inspections(a: Any, b: Any, names: tuple[str, str]) -> Comparison:
    """Return the differences of what two inspections have in common.

    Each statistic is taken on the most samples that both have it of, which are the same samples
    where data and seed are. The two standard errors over samples are added in squares, as if the
    samples were different ones: too wide where a sample does the same to both. Groups of samples
    and the adaptive sharpness are not known of inspections, so neither is called flatter.

    Raises:
        ArgumentError: One of them is not an Inspection, or they have no statistic in common.
    """
    first, second = _stored("a", a), _stored("b", b)
    for key in ("seed", "loss", "mode"):
        ours, theirs = (side.config.get(key, _BEFORE.get(key)) for side in (first, second))
        if ours != theirs:
            reason = f"the other was inspected with {key}={ours}"
            remedy = f"Inspect both with the same {key}, or compare the models themselves."
            raise ArgumentError("b", f"{key}={theirs}", reason, remedy)
    common: dict[str, int] = {}
    for name in first.statistics.keys() & second.statistics.keys():
        key, _, samples = name.partition("@")
        if key not in _DERIVED:
            common[key] = max(common.get(key, 0), int(samples))
    if not common:
        reason = "the two have no statistic of as many samples"
        remedy = "Inspect both on the same data, with enough time."
        raise ArgumentError("b", sorted(second.statistics)[:5], reason, remedy)
    order = [name.partition("@")[0] for name in first.statistics]
    found = tuple(
        _difference(first.statistics[f"{key}@{n}"], second.statistics[f"{key}@{n}"], n)
        for key, n in sorted(common.items(), key=lambda entry: order.index(entry[0]))
    )
    most = max(common.values())
    notes = [_finer(side, name, common) for side, name in zip((first, second), names, strict=True)]
    totals = [side.config.get("total") for side in (first, second)]
    if None not in totals and totals[0] != totals[1]:
        each = " and ".join(f"{total:,}" for total in totals)
        notes.append(f"The data hold {each} samples, so the two are not of the same ones.")
    note = (
        "These are inspections: both are taken to be of the same data, errors are added as if "
        "samples were not the same, and no scale-invariant sharpness is known. "
        "hr.compare(model_a, model_b, loss, data) measures all that."
    )
    told = (note, *filter(None, notes))
    return Comparison(names, found, (), f"up to {most:,} samples", False, told)


def _finer(side: _Stored, name: str, common: Mapping[str, int]) -> str:
    """Say which statistics one of the two has on more samples than both have, or ""."""
    finer: dict[str, int] = {}
    for place in side.statistics:
        key, _, samples = place.partition("@")
        if int(samples) > common.get(key, int(samples)):
            finer[key] = max(finer.get(key, 0), int(samples))
    if not finer:
        return ""
    told = ", ".join(f"{key} of {samples:,}" for key, samples in finer.items())
    return f"{name} alone has numbers of more samples, which are not compared: {told}."


def _stored(argument: str, given: Any) -> _Stored:
    if isinstance(given, Inspection):
        return _Stored({name: vars(q) for name, q in given.statistics.items()}, given.config)
    if not is_inspection(given):
        shown = given if isinstance(given, str | Path) else type(given).__name__
        reason = "expected an Inspection, as for the other argument"
        raise ArgumentError(argument, shown, reason, "Give two inspections, or two models.")
    folder = Path(given)
    try:
        found = json.loads((folder / _FILE).read_text())["statistics"]
        config = json.loads((folder / "run.json").read_text())["config"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        remedy = "Store the inspection again."
        raise ArgumentError(argument, str(folder), f"it is damaged ({error})", remedy) from None
    return _Stored(found, config)


def _difference(a: Mapping[str, Any], b: Mapping[str, Any], samples: int) -> Difference:
    """Return one statistic of both; without errors over samples its standard error is not known."""
    known = all("standard error over samples" in entry["certainty"] for entry in (a, b))
    errors = [nan if entry["error"] is None else entry["error"] for entry in (a, b)]
    first, second = (nan if entry["value"] is None else entry["value"] for entry in (a, b))
    name = a["name"][0].lower() + a["name"][1:]
    stderr, freedom = hypot(*errors) if known else nan, groups_for(samples) - 1
    name = f"{name}, {samples:,} samples"
    return Difference(a["key"], name, first, second, (), 0.0, stderr, freedom)
