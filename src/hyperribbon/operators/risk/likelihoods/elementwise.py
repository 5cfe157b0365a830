"""Likelihoods under which every output is the parameter of an observation of its own."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import scipy.special as special
import torch

from hyperribbon.core.checks import ArgumentError, check_positive
from hyperribbon.core.devices.typed import from_numpy
from hyperribbon.operators.risk.likelihoods.base import Likelihood, check_shape, draw
from hyperribbon.operators.risk.losses.base import one_element_each, wide

__all__ = ["Bernoulli", "Laplace", "Poisson", "StudentT"]

_STEPS = 12  # counts that the start of the search for a quantile may be off


class _ByElement(Likelihood):
    """p(y | f) = Π p(y_i | f_i) over the elements of the outputs."""

    @abstractmethod
    def single(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return I(f_i) of every element."""

    @abstractmethod
    def slope(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return −∂log p(y_i|f_i)/∂f_i."""

    @abstractmethod
    def drawn_slope(self, outputs: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
        """Return the slopes of targets drawn with uniform numbers (samples, n, …) in float64."""

    def information(self, outputs: torch.Tensor, inputs: Any, block: torch.Tensor) -> torch.Tensor:
        """Return I(f)∘u."""
        return (self.single(wide(outputs)) * block).to(block.dtype)

    def root(self, outputs: torch.Tensor, inputs: Any) -> torch.Tensor:
        """Return √I(f), one row an element."""
        return one_element_each(self.single(wide(outputs)).sqrt().to(outputs.dtype))

    def score(self, outputs: torch.Tensor, inputs: Any, targets: Any) -> torch.Tensor:
        """Return −∂log p(y|f)/∂f."""
        check_shape(targets, outputs)
        outputs_wide = wide(outputs)
        return self.slope(outputs_wide, targets.to(outputs_wide.dtype)).to(outputs.dtype)

    def draw_scores(
        self, outputs: torch.Tensor, inputs: Any, samples: int, seed: tuple[int, int]
    ) -> torch.Tensor:
        """Return scores of targets drawn by the inverse of their distribution function."""
        uniform = draw(torch.rand, seed, samples, outputs.shape).to(outputs.device)
        return self.drawn_slope(wide(outputs), uniform).to(outputs.dtype)


class Bernoulli(_ByElement):
    """Coins y of probability σ(f); I = σ(f)σ(−f)."""

    def single(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return σ(f)σ(−f)."""
        return torch.sigmoid(outputs) * torch.sigmoid(-outputs)

    def slope(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return σ(f) − y, exact where σ rounds to one."""
        return (1 - targets) * torch.sigmoid(outputs) - targets * torch.sigmoid(-outputs)

    def drawn_slope(self, outputs: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
        """Return σ(f) − y with y = 1 where u < σ(f)."""
        heads = uniform < torch.sigmoid(outputs.double())
        return self.slope(outputs, heads.to(outputs.dtype))


class Poisson(_ByElement):
    """Counts y of rate e^f; I = e^f."""

    def single(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return e^f."""
        return outputs.exp()

    def slope(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return e^f − y."""
        return outputs.exp() - targets

    def drawn_slope(self, outputs: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
        """Return e^f − y with the smallest y whose distribution function is u or more."""
        rate = outputs.double().exp()
        counts = _poisson_quantile(_inside(uniform), rate.cpu().numpy())
        return rate - from_numpy(counts).to(rate.device)


class _Location(_ByElement):
    """Noise of a given scale around the outputs."""

    def __init__(self, scale: float | torch.Tensor = 1.0) -> None:
        if not isinstance(scale, torch.Tensor):
            check_positive("scale", scale)
        elif not bool((scale > 0).all()):
            raise ArgumentError("scale", scale, "a scale is positive", "Give positive numbers.")
        self._scale = scale

    @abstractmethod
    def standard(self, residual: torch.Tensor) -> torch.Tensor:
        """Return ∂(−log p)/∂r of residuals r = (f − y)/scale."""

    @abstractmethod
    def quantile(self, uniform: torch.Tensor) -> torch.Tensor:
        """Return the noise of scale one with distribution function u."""

    @abstractmethod
    def standard_information(self) -> float:
        """Return I at scale one."""

    def single(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return I/scale²."""
        return self.standard_information() / self._scale_of(outputs).square().expand_as(outputs)

    def slope(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the slope in f = scale·r + y."""
        scale = self._scale_of(outputs)
        return self.standard((outputs - targets) / scale) / scale

    def drawn_slope(self, outputs: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
        """Return the slope at residuals −z of drawn noise z."""
        return self.standard(-self.quantile(uniform)) / self._scale_of(outputs)

    def _scale_of(self, outputs: torch.Tensor) -> torch.Tensor:
        scale = torch.as_tensor(self._scale, dtype=outputs.dtype, device=outputs.device)
        if scale.ndim and scale.shape != outputs.shape[1:]:
            reason = f"a sample's outputs have shape {tuple(outputs.shape[1:])}"
            raise ArgumentError("scale", scale, reason, "Give one scale for all, or one an output.")
        if not bool(scale.square().reciprocal().isfinite().all()):
            reason = f"1/scale² has no room in {outputs.dtype}"
            raise ArgumentError("scale", self._scale, reason, "Give a larger one.")
        return scale


class Laplace(_Location):
    """Noise with density e^(−|r|)/2 around the outputs; I = 1/scale².

    Args:
        scale: b, a number or one an output.
    """

    def standard(self, residual: torch.Tensor) -> torch.Tensor:
        """Return sign r."""
        return residual.sign()

    def quantile(self, uniform: torch.Tensor) -> torch.Tensor:
        """Return ±log(1 − |2u − 1|)."""
        centred = 2 * uniform - 1
        return -centred.sign() * torch.log1p(-centred.abs())

    def standard_information(self) -> float:
        """Return 1."""
        return 1.0


class StudentT(_Location):
    """Student's t noise of ν degrees of freedom; I = (ν + 1)/((ν + 3)·scale²).

    Args:
        df: ν.
        scale: A number or one an output.
    """

    def __init__(self, df: float, scale: float | torch.Tensor = 1.0) -> None:
        super().__init__(scale)
        self._df = check_positive("df", df)

    def standard(self, residual: torch.Tensor) -> torch.Tensor:
        """Return (ν + 1)r/(ν + r²)."""
        return (self._df + 1) * residual / (self._df + residual.square())

    def quantile(self, uniform: torch.Tensor) -> torch.Tensor:
        """Return the inverse of the distribution function."""
        noise = special.stdtrit(self._df, _inside(uniform))
        return from_numpy(noise).to(uniform.device)

    def standard_information(self) -> float:
        """Return (ν + 1)/(ν + 3)."""
        return (self._df + 1) / (self._df + 3)


def _poisson_quantile(u: np.ndarray, rate: np.ndarray) -> np.ndarray:
    """Return the smallest counts whose distribution function is u or more.

    The search starts at the quantile of a normal distribution with the skewness taken into account,
    which is off by about one. It goes no further than rounding errors of the distribution function
    could lead it astray, far out in the tails of large rates.
    """
    z = special.ndtri(u)
    start = np.where(rate < 1, 0, rate + z * np.sqrt(rate) + (z * z - 1) / 6 - 0.5)
    counts = np.ceil(start).clip(min=0)
    for _ in range(_STEPS):
        low = special.pdtr(counts, rate) < u
        high = (counts > 0) & (special.pdtr(counts - 1, rate) >= u)
        if not (low | high).any():
            break
        counts = counts + low - high
    return counts


def _inside(uniform: torch.Tensor) -> np.ndarray:
    """Return uniform numbers without zero, where noise is infinite."""
    return uniform.cpu().clamp(min=2.0**-53).numpy()
