"""Products on the networks people have, in gradients, beside those of other libraries.

The unit is one `torch.autograd.grad` of the mean loss of the same network on the same batch. A
product of ours is timed at its default settings in its steady state. Beside it stands what it takes
to build the operator in a process that has done so before ("verified": the looks at model, loss and
data, the comparison with finite differences), to build it and multiply once, and to measure what
products take, which is done when it is asked for. Times are medians of ratios to a gradient taken
in the same turn, as the machine's own speed drifts. Every answer is
compared first with a double backward in double precision: a wrong one of ours is not timed, a wrong
one of a peer is marked as such, its time being the least that a right one would take.

Memory is the rise of resident memory in a process of its own, above the network and its data, after
a gradient of it, the heap's free pages given back before. Forecasts are held to a factor of 1.5 of
it where it is above 50 MB; below, the allocator's own pages are as large as what is forecast. On
one thread (OMP_NUM_THREADS=1) times are those of the processor, which hold on a busy machine too.
`python -m benchmarks --profile lstm` shows where the time of a row goes.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from rich.table import Table
from torch import nn

import hyperribbon as hr
from benchmarks.harness import Limit, Measure, is_quick, peak_memory, relative_difference
from benchmarks.models import NETWORKS
from benchmarks.products import (
    OURS,
    WAYS,
    Entry,
    clock,
    directions,
    exact_products,
    peak_of,
    peak_of_pairs,
    take_turns,
)

MB = 1e6
PAIRS = 10
VERIFIED = 2.0  # gradients in which an operator is to be built
FACTOR = 1.5  # between forecast and measured memory
FLOOR = 50.0  # MB below which the two are not compared
BUILT = 5  # times that an operator is built, each beside a gradient
SLOW = 0.3  # seconds of a gradient from which a quick look leaves out what can be left out


@dataclass(frozen=True)
class Network:
    """A row: the network, the limits it is held to and the help peers need.

    Attributes:
        name: Its name in `NETWORKS`.
        hessian: A Hessian product, in gradients, at most.
        ggn: A Gauss-Newton product, in gradients, at most.
        hessian_ahead: curvlinops' time over ours, at least.
        ggn_ahead: The same for Gauss-Newton products.
        help: What peers need that do not run as they are, a name in `HELPS`.
        columns: Vectors multiplied at once; times are then those of one vector.
        tolerance: How far answers may lie from the exact ones. Rounding moves an input of a
            rectifier by a few ε, so a share of about (depth · ε) of them changes sides, which moves
            a product by the root of that share: √(20 · 1.2e-7) = 1.5e-3 for 20 layers of
            rectifiers, each with millions of inputs.
    """

    name: str
    hessian: float = 2.3
    ggn: float = 1.6
    hessian_ahead: float = 1.5
    ggn_ahead: float = 1.35
    help: str = ""
    columns: int | None = None
    tolerance: float = 1e-4

    @property
    def row(self) -> str:
        """The name of the row."""
        return self.name if self.columns is None else f"{self.name}, {self.columns} vectors"


LIST = [
    Network("resnet20", tolerance=1.5e-3),
    Network("nanogpt", help="plain attention"),
    Network("vit", help="plain attention"),
    Network("lstm", hessian=4.5, ggn=2.4, help="no oneDNN"),
    Network("minilm", hessian=2.6, ggn=1.8, ggn_ahead=1.15, help="plain attention"),
    Network("resemblyzer", hessian=4.5, ggn=2.4, help="no oneDNN"),
    Network("gelu mlp"),
    Network("mnist mlp"),
    Network("nanogpt", help="plain attention", columns=16),
    Network("gelu mlp", columns=16),
]


def measure(network: Network) -> list[Limit]:
    """Return all numbers of one network."""
    subject = NETWORKS[network.name]()
    vectors = directions(subject, network.columns)
    dtype = torch.float32 if is_quick() else torch.float64
    exact = exact_products(subject, vectors, network.help, dtype)
    entries = {
        name: Entry.start(name, subject, vectors, network.help)
        for name in WAYS
        if network.columns is None or "eigenthings" not in name
    }
    apart = {
        name: relative_difference(entry.answer, exact[name.split(",")[0]])
        for name, entry in entries.items()
        if name != "gradient" and entry.answer is not None
    }
    timed = {
        name: entry
        for name, entry in entries.items()
        if entry.multiply is not None and (name not in OURS or apart[name] <= network.tolerance)
    }
    for name in OURS:  # the second product may still prepare something for those to come
        if name in timed:
            timed[name]()
    if is_quick():
        return _limits(network, entries, apart, _quick_medians(timed))
    times = take_turns(timed, seconds=60 if network.columns is None else 120, least=3)
    medians = _paired(times)
    for name in OURS:
        if name in timed:
            again: list[Entry] = []
            units: list[float] = []
            for _ in range(BUILT):
                units.append(_seconds(timed["gradient"]))
                again.append(Entry.start(name, subject, vectors, ""))
            scales = [medians["gradient"] / unit for unit in units]
            medians |= _building(name, again, scales)
    return _limits(network, entries, apart, medians)


def _paired(times: Mapping[str, list[float]]) -> dict[str, float]:
    """Return seconds at the gradient's median speed: the median of ratios to the turn's gradient.

    A slow spell of the machine that is longer than a turn is then no part of the ratio.
    """
    gradients = times["gradient"]
    unit = statistics.median(gradients)
    return {
        name: unit * statistics.median(t / g for t, g in zip(found, gradients, strict=True))
        for name, found in times.items()
    }


def _quick_medians(timed: Mapping[str, Entry]) -> dict[str, float]:
    """Return times from two or more rounds; of peers that are slow, the first run is the one."""
    slow = timed["gradient"].first > SLOW
    repeated = {n: e for n, e in timed.items() if not slow or n in ("gradient", *OURS)}
    times = take_turns(repeated, seconds=6, least=2)
    found = {name: entry.first for name, entry in timed.items()}
    found |= {name: statistics.median(rounds) for name, rounds in times.items()}
    for name in OURS:
        if name in timed:
            found |= _building(name, [timed[name]], [1.0])
    return found


def _building(name: str, entries: list[Entry], scales: list[float]) -> dict[str, float]:
    """Return median seconds of what comes before the products of ours, each at its scale."""
    built = [s * entry.built for s, entry in zip(scales, entries, strict=True)]
    first = [s * entry.first for s, entry in zip(scales, entries, strict=True)]
    return {
        f"{name}: verified": statistics.median(built),
        f"{name}: built, first product": statistics.median(first),
        f"{name}: memory measured": _seconds(entries[0].operator.cost),
    }


def _seconds(work: Callable[[], Any]) -> float:
    start = clock()
    work()
    return clock() - start


def _limits(
    network: Network,
    entries: Mapping[str, Entry],
    apart: Mapping[str, float],
    medians: Mapping[str, float],
) -> list[Limit]:
    unit, share = medians["gradient"], network.columns or 1
    highs = {"hessian": network.hessian, "ggn": network.ggn}
    lows = {"hessian": network.hessian_ahead, "ggn": network.ggn_ahead}
    weighed = OURS if is_quick() and unit < SLOW else () if is_quick() else tuple(entries)
    limits = [Limit("gradient", 1e3 * unit, unit="ms")]
    if "gradient" in weighed:
        peak = _peak(network, entries["gradient"])
        limits.append(Limit("gradient: peak memory", peak, unit="MB"))
    for name, entry in entries.items():
        if name == "gradient":
            continue
        high = highs.get(name)
        if entry.multiply is None:
            limits.append(Limit(name, None, high=high, note=f"fails: {entry.error}"))
            continue
        matrix, *peer = name.split(", ")
        agrees = apart[name] <= network.tolerance
        value = medians[name] / unit / share if name in medians else None
        note = f"with {entry.help}; as it is it fails: {entry.error}" if entry.help else ""
        if not agrees:
            note = f"wrong by {apart[name]:.2g}{', ' if note else ''}{note}"
        right = agrees or bool(peer)  # a peer that is wrong is no failure of this run
        limits.append(Limit(name, value, high=high, unit="gradients", note=note, agrees=right))
        bound = None if peer else network.tolerance
        limits.append(Limit(f"{name}: difference", apart[name], high=bound))
        if peer and matrix in medians:
            low = lows[matrix] if peer == ["curvlinops"] else None
            limits.append(Limit(f"{name}: times ours", medians[name] / medians[matrix], low=low))
        built = f"{name}: built, first product"
        if built in medians:
            note = f"{entry.first / unit / share:.1f} the first time in the process"
            limits.append(Limit(built, medians[built] / unit / share, unit="gradients", note=note))
            for part, most in (("verified", VERIFIED), ("memory measured", None)):
                taken = medians[f"{name}: {part}"] / unit
                limits.append(Limit(f"{name}: {part}", taken, high=most, unit="gradients"))
        if name in weighed:
            peak = _peak(network, entry)
            limits.append(Limit(f"{name}: peak memory", peak, unit="MB"))
            if name in OURS and network.columns is None and entry.operator is not None:
                limits += _forecasts(entry, peak)
    return limits


def _peak(network: Network, entry: Entry) -> float:
    return peak_memory(peak_of, network.name, entry.name, entry.help, network.columns) / MB


def _forecasts(entry: Entry, peak: float) -> list[Limit]:
    """Return what the operator says a product takes over what it took, and what ten pairs would."""
    cost = entry.operator.cost()
    planned = hr.plan(entry.operator, k=PAIRS).best.memory / MB
    return [
        _ratio(f"{entry.name}: forecast over peak", cost.bytes / MB, peak),
        Limit(f"{entry.name}: plan of ten pairs", planned, unit="MB"),
    ]


def _ratio(name: str, forecast: float, peak: float) -> Limit:
    """Return a forecast over what was measured, in MB, with its bounds where there are any."""
    if peak < FLOOR:
        return Limit(name, forecast / peak, note=f"below {FLOOR:.0f} MB")
    return Limit(name, forecast / peak, low=1 / FACTOR, high=FACTOR)


def ten_pairs() -> list[Limit]:
    """Return the planned over the measured memory of ten eigenpairs."""
    limits = []
    kinds = {"hessian": hr.Hessian, "ggn": hr.GGN}
    for network in ("lstm", "vit"):
        model, inputs, targets = NETWORKS[network]()
        for name in OURS:
            operator = kinds[name](model, nn.CrossEntropyLoss(), (inputs, targets))
            planned = hr.plan(operator, k=PAIRS).best.memory
            measured = peak_memory(peak_of_pairs, network, name, PAIRS)
            title = f"{network}, {name}"
            limits.append(_ratio(f"{title}: planned over measured", planned / MB, measured / MB))
            limits.append(Limit(f"{title}: measured", measured / MB, unit="MB"))
    return limits


def summary(results: list[dict[str, Any]]) -> Table:
    """Return one line a network: times in gradients, ratios, memory, and the limits missed."""
    table = Table(
        title="in gradients (peak MB); ratios: their time over ours; * with help, see the notes"
    )
    columns = {
        "gradient": ("gradient",),
        "hessian": ("hessian", "hessian: peak memory"),
        "ggn": ("ggn", "ggn: peak memory"),
        "verified": ("hessian: verified", "ggn: verified"),
        "first": ("hessian: built, first product", "ggn: built, first product"),
        "measured": ("hessian: memory measured", "ggn: memory measured"),
        "curvlinops H": ("hessian, curvlinops", "hessian, curvlinops: peak memory"),
        "ratio H": ("hessian, curvlinops: times ours",),
        "curvlinops G": ("ggn, curvlinops", "ggn, curvlinops: peak memory"),
        "ratio G": ("ggn, curvlinops: times ours",),
        "eigenthings": (
            "hessian, hessian-eigenthings",
            "hessian, hessian-eigenthings: peak memory",
        ),
        "forecast/peak": ("hessian: forecast over peak", "ggn: forecast over peak"),
    }
    for title in ("network", *columns, "limits missed"):
        table.add_column(title, overflow="fold")
    for result in results:
        lines = {line["who"]: line for line in result["lines"]}
        if "gradient" in lines:
            cells = [_cell([lines.get(name) for name in names]) for names in columns.values()]
            bad = [
                f"{who} {line['verdict']}" if line["verdict"] != "missed" else who
                for who, line in lines.items()
                if line["verdict"] in ("missed", "disagrees")
            ]
            table.add_row(result["row"], *cells, ", ".join(bad) or "none")
    return table


def _cell(lines: list[dict[str, Any] | None]) -> str:
    shown = []
    for line in lines:
        if line is None or (line["value"] is None and not line["note"]):
            continue
        if line["value"] is None:
            shown.append(line["note"].split(maxsplit=1)[0].rstrip(":"))
            continue
        text = f"{line['value']:.0f}" if line["unit"] == "MB" else f"{line['value']:.2f}"
        bound = f" ≤{line['high']:g}" if line["high"] is not None else ""
        bound += f" ≥{line['low']:g}" if line["low"] is not None else ""
        mark = "*" if "as it is it fails" in line["note"] else ""
        mark += " wrong" if line["note"].startswith("wrong") else ""
        shown.append(f"({text} MB)" if line["unit"] == "MB" else f"{text}{mark}{bound}")
    return " ".join(shown)


ROWS = [Measure(network.row, partial(measure, network)) for network in LIST]
ROWS.append(Measure("ten pairs", ten_pairs))
