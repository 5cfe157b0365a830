"""What is usual: numbers of trained networks that were measured once and stored."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from math import exp, inf, log
from typing import Any

import numpy as np
from scipy import stats
from torch import nn

_SIZE, _ACCURACY = 10.0, 0.1
"""Factor of the weights and difference of the accuracy up to which networks are similar."""
_FEWEST = 3
"""Data sets below which nothing is said."""
_COVERED = 0.9
"""Share of similar networks in the stated range."""


def kind_of(model: nn.Module) -> str:
    """Return the kind of a network, by which reference networks are chosen: its main layers.

    >>> kind_of(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2)))
    'convolutional'
    """
    names = [type(module).__name__.lower() for module in model.modules()]
    if any("attention" in name for name in names):
        return "attention"
    if any(isinstance(module, nn.RNNBase | nn.RNNCellBase) for module in model.modules()):
        return "recurrent"
    if any(name.startswith("conv") for name in names):
        normalised = any("batchnorm" in name for name in names)
        return "convolutional with batch norm" if normalised else "convolutional"
    layers = {name.rpartition(".")[0] for name, _ in model.named_parameters()}
    return "linear" if len(layers) == 1 else "fully connected"


@dataclass(frozen=True)
class Reference:
    """Reference values: stored numbers of trained networks.

    Attributes:
        made: How they were made.
        networks: One record for each network: data, network, seed, kind, parameters, accuracy,
            statistics, and under "at_least" the names of those that are lower bounds.
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

    def similar(self, kind: str, parameters: int, accuracy: float | None) -> list[dict[str, Any]]:
        """Return the reference networks of a kind with similar size and accuracy.

        Args:
            kind: As `kind_of` names it.
            parameters: Number of weights; similar ones have at most ten times as many or as few.
            accuracy: On the samples of the inspection; similar ones differ by at most 0.1. None
                for a network without class labels, to which no stored one is similar.
        """
        if accuracy is None or parameters < 1:
            return []
        return [
            network
            for network in self.networks
            if network["kind"] == kind
            and abs(log(network["parameters"] / parameters)) <= log(_SIZE)
            and abs(network["accuracy"] - accuracy) <= _ACCURACY
        ]

    def usual(
        self,
        statistic: str,
        kind: str,
        parameters: int,
        accuracy: float | None,
        format: str = "",
    ) -> str:
        """Return the range of nine in ten similar reference networks; "" when too few are known."""
        found = usual_range(statistic, self.similar(kind, parameters, accuracy))
        if found is None:
            return ""
        low, high = (_format(end, format) for end in sorted(found, key=abs))
        return f"{low} or more" if inf in found else f"{low} to {high}"

    def describe(self, kind: str, parameters: int, accuracy: float | None) -> str:
        """Return a sentence on the reference networks whose range is called usual."""
        similar = self.similar(kind, parameters, accuracy)
        sizes = sorted(network["parameters"] for network in similar)
        scores = sorted(network["accuracy"] for network in similar)
        return (
            f"Usual: nine in ten of {len(similar)} trained {kind} networks of {sizes[0]:,} to "
            f"{sizes[-1]:,} weights, accuracy {scores[0]:.0%} to {scores[-1]:.0%}."
        )


def usual_range(statistic: str, networks: Sequence[dict[str, Any]]) -> tuple[float, float] | None:
    r"""Return the range in which nine in ten reference networks have a statistic, or None.

    $$\bar y \pm t_{m-1}\, s\, \sqrt{1 + 1/m}$$

    with mean and standard deviation of y = log|x| (of x itself for a share). Seeds of a network are
    alike, so m counts networks and not seeds. The upper end is infinite where some values are lower
    bounds.

    Args:
        statistic: Its name.
        networks: Records of similar networks, on at least three data sets.
    """
    known = [network for network in networks if statistic in network["statistics"]]
    if len({network["data"] for network in known}) < _FEWEST:
        return None
    count = len({(network["data"], network["network"]) for network in known})
    values = np.array([network["statistics"][statistic] for network in known])
    is_share = statistic.startswith("share")
    scaled = values if is_share else np.log(np.abs(values))
    quantile = float(stats.t.ppf(0.5 + _COVERED / 2, count - 1))
    middle, reach = scaled.mean(), quantile * scaled.std(ddof=1) * (1 + 1 / count) ** 0.5
    if is_share:
        return max(middle - reach, 0.0), min(middle + reach, 1.0)
    low, high = exp(middle - reach), exp(middle + reach)
    if any(statistic in network["at_least"] for network in known):
        high = inf
    return (-high, -low) if (values < 0).all() else (low, high)


def _format(value: float, format: str) -> str:
    """Return a reference value in a format; two digits without exponent by default.

    >>> _format(103.7, ""), _format(0.0123, ""), _format(0.5, ".0%")
    ('100', '0.012', '50%')
    """
    if format or abs(value) < 10:
        return f"{value:{format or '.2g'}}"
    return f"{float(f'{value:.2g}'):,.0f}"
