"""Flatness that cannot be changed by scaling layers against each other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from hyperribbon.core.generators import torch_generator
from hyperribbon.core.parameters import ParameterSpace
from hyperribbon.inspection.comparison.sides import Side

__all__ = ["PROBES", "filter_norms", "magnitudes", "relative_flatness"]

PROBES = 16


def magnitudes(side: Side) -> torch.Tensor:
    """Return D = |θ| (P,), for the adaptive sharpness λ_max(DHD) of Kwon et al. (2021).

    A positive factor on any weight that another weight takes back leaves it unchanged: with
    θ' = Tθ and H' = T⁻¹HT⁻¹ for a diagonal T, D'H'D' = DHD. So it is for ReLU units whose incoming
    weights are scaled up and outgoing ones down.
    """
    return side.vector.abs()


def filter_norms(side: Side) -> torch.Tensor:
    """Return D (P,) with the norm of each weight's filter, as Li et al. (2018) scale directions.

    The filter of a matrix or a convolution is the row of weights of one output; a bias or a scale
    counts by its own magnitude. λ_max(DHD) does not change when whole layers are scaled.
    """
    space = side.groups[0].risk.space
    return _by_parameter(space, side.vector, _row_norms)


def relative_flatness(side: Side, seed: int) -> np.ndarray:
    """Return (WR)ᵀ G (WR), summed over layers, for each group and random R: (G, probes).

    R is a matrix of independent standard normals, so that W moves in proportion to itself, and G
    the Gauss-Newton matrix. The expectation is Σ_{s,s'} ⟨w_s, w_s'⟩ Tr G_{s,s'} over the rows of W,
    the relative flatness of Petzka et al. (2021), summed over layers; scaling layers against each
    other does not change it.
    """
    space = side.groups[0].risk.space
    generator = torch_generator(seed, "relative flatness")
    probes = [
        _by_parameter(space, side.vector, lambda weight: _proportional(weight, generator))
        for _ in range(PROBES)
    ]
    block = torch.stack(probes, dim=1)
    return np.array([(block * (g.ggn @ block)).sum(0).double().tolist() for g in side.groups])


def _by_parameter(
    space: ParameterSpace, vector: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    return space.flatten({name: change(w) for name, w in space.unflatten(vector).items()})


def _row_norms(weight: torch.Tensor) -> torch.Tensor:
    if weight.ndim < 2:
        return weight.abs()
    norms = torch.linalg.vector_norm(weight.flatten(1), dim=1)
    return norms.view(-1, *[1] * (weight.ndim - 1)).expand_as(weight).contiguous()


def _proportional(weight: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if weight.ndim < 2:
        return torch.zeros_like(weight)
    rows = weight.flatten(1)
    size = rows.shape[1]
    random = torch.randn(size, size, generator=generator, device="cpu", dtype=torch.float32)
    return (rows @ random.to(rows.device, rows.dtype)).view_as(weight)
