"""The tables of the page on scale: what was measured, and what the cost model makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["lanczos_table", "models_table"]

_PRODUCTS = 34  # products of k = 3 pairs: 3k + 25
_VECTORS = 8  # vectors of the weights' size that a product holds, beside the basis
_FORWARDS = 6  # a Hessian product in forward passes
_READS = 2  # times a step goes over the full basis: 4 times, half of it on average


@dataclass(frozen=True)
class Machine:
    """What the cost model assumes of a machine; rates are effective ones, per process."""

    name: str
    processes: int
    flops: float
    bandwidth: float
    network: float
    memory: float


MACHINES = (
    Machine("8 GPUs, one node", 8, 2e13, 1.2e12, 2e11, 80e9),
    Machine("64 GPUs, eight nodes", 64, 2e13, 1.2e12, 2e10, 80e9),
)


def lanczos_table(tokens: float = 1e5) -> str:
    """Return time and memory of three Hessian eigenpairs, by machine and weights."""
    lines = [
        "| machine | weights | a product | orthogonalisation | network | 34 steps | memory a GPU |",
        "|---|---|---|---|---|---|---|",
    ]
    for machine in MACHINES:
        for weights in (1e8, 1e9):
            n, vector = machine.processes, 4 * weights
            product = _FORWARDS * 2 * weights * tokens / n / machine.flops
            basis = _READS * _PRODUCTS * vector / n / machine.bandwidth
            network = 2 * vector / machine.network
            memory = _VECTORS * vector + 2 * _PRODUCTS * vector / n
            half = _VECTORS * vector + _PRODUCTS * vector / n
            room = "" if memory < machine.memory else f" (half precision: {half / 1e9:.0f} GB)"
            lines.append(
                f"| {machine.name} | {_power(weights)} | {product:.2g} s | {basis:.2g} s "
                f"| {network:.2g} s | {_time(_PRODUCTS * (product + basis + network))} "
                f"| {memory / 1e9:.0f} GB{room} |"
            )
    return "\n".join(lines)


def models_table(results: Mapping[str, Any] | None) -> str:
    """Return time and disk of InPCA by the number of models, from the largest measured one."""
    measured = {
        line["who"]: line["value"]
        for row in (results or {"rows": []})["rows"]
        for line in row["lines"]
        if "value" in line
    }
    seconds = measured.get("20,000 models: time")
    if seconds is None:
        return "No results are stored yet."
    pair = seconds / (20_000**2 / 2)
    lines = [
        "| models | distances, this machine | 64 such machines | tiles on disk | 500 landmarks |",
        "|---|---|---|---|---|",
    ]
    for count in (2e4, 1e5, 1e6):
        alone = pair * count**2 / 2
        lines.append(
            f"| {_power(count)} | {_time(alone)} | {_time(alone / 64)} "
            f"| {2 * count**2 / 1e9:.3g} GB | {_time(pair * count * 500)} |"
        )
    return "\n".join(lines)


def _power(number: float) -> str:
    exponent = len(str(int(number))) - 1
    lead = int(number) // 10**exponent
    power = "10" + "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] for digit in str(exponent))
    return power if lead == 1 else f"{lead}·{power}"


def _time(seconds: float) -> str:
    for size, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds:.2g} s"
