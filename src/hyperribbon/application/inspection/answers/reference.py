"""What is usual: numbers of trained networks that were measured once and stored."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from torch import nn

_FEWEST = 3
"""Networks of a kind below which those of all kinds are shown instead."""


def kind_of(model: nn.Module) -> str:
    """Return what a network is built of: its most telling layers.

    >>> kind_of(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2)))
    'convolutional'
    """
    names = [type(module).__name__.lower() for module in model.modules()]
    if any("attention" in name for name in names):
        return "attention"
    if any(isinstance(module, nn.RNNBase | nn.RNNCellBase) for module in model.modules()):
        return "recurrent"
    if any(name.startswith("conv") for name in names):
        return "convolutional"
    return "fully connected"


@dataclass(frozen=True)
class Reference:
    """Reference values: stored numbers of trained networks.

    Attributes:
        made: How they were made.
        networks: One record for each network: name, kind, parameters, statistics, and under
            "at_least" the names of those that are lower bounds.
    """

    made: str
    networks: tuple[dict[str, Any], ...]

    @classmethod
    @lru_cache
    def stored(cls) -> Reference:
        """Return the reference values that come with the package."""
        path = files("hyperribbon.application.inspection.answers") / "reference.json"
        content = json.loads(path.read_text(encoding="utf-8"))
        return cls(content["made"], tuple(content["networks"]))

    def usual(self, statistic: str, kind: str, format: str = "") -> str:
        """Say between which values a statistic of trained networks lies; "" when unknown.

        Where some of the values are lower bounds, the largest of all is one too. The smallest is
        known where it is none of them: every true value is at least what is stored.
        """
        known = [n for n in self.networks if n["statistics"].get(statistic) is not None]
        same = [network for network in known if network["kind"] == kind]
        chosen, name = (same, f"{kind} ") if len(same) >= _FEWEST else (known, "")
        if len(chosen) < _FEWEST:
            return ""
        values = sorted(
            (network["statistics"][statistic], statistic in network.get("at_least", ()))
            for network in chosen
        )
        sizes = sorted(network["parameters"] for network in chosen)
        (low, is_bound), (high, _) = values[0], values[-1]
        bounds = sum(bounded for _, bounded in values)
        told = f"{_format(low, format)} to {_format(high, format)}"
        if bounds:
            told = f"{_format(low, format)} or more" if is_bound else f"{told} or more"
            told += f" (lower bounds: {bounds} of {len(chosen)} values)"
        return (
            f"{len(chosen)} small trained {name}networks of {sizes[0]:,} to {sizes[-1]:,} weights "
            f"have {told}."
        )


def _format(value: float, format: str) -> str:
    """Return a reference value in a format; two digits without exponent by default.

    >>> _format(103.7, ""), _format(0.0123, ""), _format(0.5, ".0%")
    ('100', '0.012', '50%')
    """
    if format or abs(value) < 10:
        return f"{value:{format or '.2g'}}"
    return f"{float(f'{value:.2g}'):,.0f}"
