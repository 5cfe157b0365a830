"""What an inspection finds: numbers with their certificates, tables, charts and readings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import torch

from hyperribbon.core.html import error_text
from hyperribbon.core.result import Brief
from hyperribbon.core.spectral_results import Estimate, Spectrum
from hyperribbon.plots import Chart

NOT_OVER_SAMPLES = "how much other samples would change it was not measured"
"""Certainty of a number whose error is that of its arithmetic alone."""
SPAN = "which span at most"
"""Words before the number of directions that samples span, where it is small."""
PROBES = "standard error over random probes"
"""Certainty of an estimate by products with random vectors."""


@dataclass(frozen=True)
class Quantity:
    """One number, how it was obtained and how certain it is.

    Attributes:
        key: Short name, unique in an inspection: "hessian.largest".
        name: What it is.
        value: The number.
        error: Bound or standard error of it; 0 when exact, NaN when unknown.
        method: How it was obtained.
        certainty: What the error is, in words.
        samples: How many it is of; 0 where it is not of samples.
        mode: Mode of the layers, and the batches, where these matter; or "".
    """

    key: str
    name: str
    value: float
    error: float
    method: str
    certainty: str
    samples: int = 0
    mode: str = ""

    def text(self) -> str:
        """Return the quantity in words: the number with its error.

        A ± is a sampling error, or says that it is the solver's.

        >>> Quantity("a", "a", 1.5, 0.25, "", "standard error over samples").text()
        '1.5 ± 0.25'
        >>> Quantity("a", "a", 1.5, 1e-6, "", "residual of the eigenpair").text()
        '1.5 ± 1e-06 (solver)'
        """
        number = f"{self.value:,.0f}" if float(self.value).is_integer() else f"{self.value:.4g}"
        return f"{number} {error_text(self.error, self.certainty)}" if self.error > 0 else number


@dataclass(frozen=True)
class Measured:
    """Leading eigenpairs and trace of a positive semidefinite matrix.

    Attributes:
        spectrum: Its leading eigenpairs.
        trace: Its trace.
        dimension: Its size P.
        samples: How many samples it is of; 0 for those of the step that measured it.
    """

    spectrum: Spectrum
    trace: Estimate
    dimension: int
    samples: int = 0

    @property
    def shares(self) -> np.ndarray:
        """Quantities (k,): shares of the trace in the leading 1, 2, … k directions."""
        values = as_array(self.spectrum.eigenvalues)
        total = self.trace.value
        return np.cumsum(values) / total if total else np.full(len(values), np.nan)

    def scaled(self, factor: float) -> Measured:
        """Return the quantities of `factor` times the measured matrix."""
        scaled = self.spectrum.scaled(factor), self.trace.scaled(factor)
        return replace(self, spectrum=scaled[0], trace=scaled[1])


@dataclass
class Part(Brief):
    """What one measurement of an inspection found, collected piece by piece.

    Attributes:
        name: Its name: "hessian".
        title: Heading.
        group: Tab it belongs to: "Curvature".
        quantities: Numbers.
        readings: Plain sentences, the most telling first.
        charts: Figures.
        tables: Tables by title.
        arrays: Raw results by name.
        notes: Assumptions and limits.
        shortened: What the budget cut short.
        is_of_samples: Whether its numbers are of the samples, not of weights or records alone.
    """

    name: str
    title: str
    group: str = "Curvature"
    quantities: list[Quantity] = field(default_factory=list)
    readings: list[str] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    shortened: list[str] = field(default_factory=list)
    is_of_samples: bool = True

    def __getitem__(self, key: str) -> Quantity:
        """Return a quantity of a part by its key."""
        for quantity in self.quantities:
            if quantity.key == key:
                return quantity
        raise KeyError(key)

    def number(self, *values: Any) -> None:
        """Add a quantity of these values to the part."""
        self.quantities.append(Quantity(*values))

    def exact(self, key: str, name: str, value: Any, method: str) -> None:
        """Add a quantity to the part that rounding alone makes uncertain."""
        self.quantities.append(exact(key, name, value, method))

    def on(self, samples: int) -> Part:
        """Return a part's quantities with the samples they are of, where they do not say so."""
        if not self.is_of_samples:
            return self
        numbers = [replace(q, samples=q.samples or samples) for q in self.quantities]
        return replace(self, quantities=numbers)

    def in_modes(self, modes: Mapping[int, str]) -> Part:
        """Return a part's quantities with the mode they were measured in, by their samples."""
        numbers = [replace(q, mode=q.mode or modes.get(q.samples, "")) for q in self.quantities]
        return replace(self, quantities=numbers)


def exact(key: str, name: str, value: Any, method: str) -> Quantity:
    """Return a quantity that rounding alone makes uncertain."""
    return Quantity(key, name, float(value), 0.0, method, "exact on the data used")


def from_estimate(key: str, name: str, estimate: Estimate, method: str) -> Quantity:
    """Return a quantity with the standard error of its estimate."""
    if estimate.exact:
        return exact(key, name, estimate.value, method)
    return Quantity(key, name, estimate.value, estimate.stderr, method, PROBES)


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor as an array of doubles for a quantity or chart."""
    return tensor.detach().cpu().double().numpy()
