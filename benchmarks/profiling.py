"""Where the time of a product goes: operations of a gradient, a Hessian and a GGN product."""

from __future__ import annotations

from collections import defaultdict

from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from benchmarks.models import NETWORKS
from benchmarks.products import OURS, Entry, directions

__all__ = ["operations"]

PRODUCTS = 3


def operations(network: str, top: int = 20) -> Table:
    """Return the operations that take longest, in percent of the gradient's time, and their calls.

    A share is the time spent in the operation itself, without what it calls. The last line has all
    operations together: the product in percent of a gradient.

    Raises:
        ValueError: There is no such network.
    """
    if network not in NETWORKS:
        raise ValueError(f"unknown network {network!r}; known: {', '.join(NETWORKS)}")
    subject = NETWORKS[network]()
    vectors = directions(subject)
    shares: dict[str, dict[str, tuple[float, float]]] = defaultdict(dict)
    totals, failures = {}, []
    for name in ("gradient", *OURS):
        entry = Entry.start(name, subject, vectors, "")
        if entry.multiply is None:
            failures.append(f"{name} fails: {entry.error}")
            continue
        entry()
        with profile(activities=[ProfilerActivity.CPU]) as recorded:
            for _ in range(PRODUCTS):
                entry()
        events = recorded.key_averages()
        totals[name] = sum(event.self_cpu_time_total for event in events)
        for event in events:
            shares[event.key][name] = (event.self_cpu_time_total, event.count / PRODUCTS)
    unit = totals["gradient"]
    table = Table(
        title=f"{network}: percent of a gradient ({unit / PRODUCTS / 1e3:.1f} ms), calls",
        caption="\n".join(failures) or None,
        title_justify="left",
    )
    for column in ("operation", *totals):
        table.add_column(column, justify="left" if column == "operation" else "right")
    longest = sorted(shares, key=lambda key: -max(time for time, _ in shares[key].values()))
    for key in longest[:top]:
        cells = [_cell(shares[key].get(name), unit) for name in totals]
        table.add_row(key, *cells)
    table.add_section()
    table.add_row("all", *(f"{100 * total / unit:.0f} %" for total in totals.values()))
    return table


def _cell(share: tuple[float, float] | None, unit: float) -> str:
    return "" if share is None else f"{100 * share[0] / unit:.1f} %  ×{share[1]:.0f}"
