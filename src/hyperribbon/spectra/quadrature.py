"""Spectral density by stochastic Lanczos quadrature."""

from __future__ import annotations

import shutil
import tempfile
from math import sqrt
from typing import Any

import torch

from hyperribbon.core.checks import ArgumentError, check_positive, check_positive_int
from hyperribbon.core.generators import torch_generator
from hyperribbon.core.results import Density
from hyperribbon.spectra.basis import Basis
from hyperribbon.spectra.planning import affordable_vectors
from hyperribbon.spectra.products import Products

__all__ = ["density"]

_WORKING = 8  # vectors in memory at once besides the chain


def density(
    op: Any,
    *,
    probes: int = 10,
    steps: int = 60,
    width: float | None = None,
    points: int = 1024,
    seed: int = 0,
    memory: float | None = None,
) -> Density:
    """Return the density of a symmetric operator's eigenvalues, (1/P) Σ δ(x − λᵢ), smoothed.

    Each random unit vector v gives, by Lanczos with full reorthogonalisation, Ritz values θⱼ and
    weights wⱼ (squared first components) that integrate polynomials up to degree 2·steps − 1
    exactly against the spectral measure of v. With a Gaussian kernel g of standard deviation σ,

        ρ(x) = mean over probes of Σⱼ wⱼ g_σ(x − θⱼ).

    The band is the mean ± 2 standard errors over the probes.

    Args:
        op: Any object with `.shape` and `@`.
        probes: Random vectors, at least two.
        steps: Lanczos steps a probe.
        width: σ; None for 1/200 of the range of Ritz values.
        points: Grid points.
        seed: Seed of the probes.
        memory: Bytes that may be used; None for what the device has free. Where 2·steps vectors do
            not fit, they are kept on disk, in TMPDIR, with the same numbers.

    Raises:
        ArgumentError: The grid is too coarse for the width, an argument does not fit, or the
            memory is too small for a product.

    >>> import torch
    >>> result = density(torch.diag(torch.tensor([0.0, 0.0, 0.0, 1.0])), seed=1)
    >>> round(float(torch.trapezoid(result.values, result.grid)), 6)
    1.0
    """
    products = Products(op)
    check_positive_int("steps", steps)
    check_positive_int("points", points)
    if check_positive_int("probes", probes) < 2:
        raise ArgumentError("probes", probes, "a band needs two or more", "Give probes=10.")
    steps = min(steps, products.size)
    memory = None if memory is None else check_positive("memory", memory)
    storage = _storage(products, steps, memory)
    generator = torch_generator(seed, "density")
    rules = []
    for _ in range(probes):
        probe = torch.randn(1, products.size, generator=generator, dtype=products.dtype)
        probe = products.part(probe).to(products.device)
        rules.append(_quadrature(products, probe, steps, storage))
    low = min(float(nodes[0]) for nodes, _ in rules)
    high = max(float(nodes[-1]) for nodes, _ in rules)
    span = max(high - low, 1e-6 * max(abs(low), abs(high)), 1e-30)
    sigma = span / 200 if width is None else check_positive("width", width)
    grid = torch.linspace(low - 6 * sigma, high + 6 * sigma, points, dtype=torch.float64)
    if float(grid[1] - grid[0]) > sigma:
        needed = int((high - low) / sigma) + 13
        raise ArgumentError(
            "points",
            points,
            f"the grid is coarser than the kernel's width {sigma:.2g}",
            f"Give points={2 * needed}, or a larger width.",
        )
    curves = torch.stack([_smooth(grid, nodes, weights, sigma) for nodes, weights in rules])
    curves = curves / torch.trapezoid(curves, grid, dim=1).unsqueeze(1)
    mean, error = curves.mean(0), curves.std(0) / sqrt(probes)
    nodes, order = torch.cat([nodes for nodes, _ in rules]).sort()
    return Density(
        grid=grid,
        values=mean,
        low=(mean - 2 * error).clamp(min=0),
        high=mean + 2 * error,
        matvecs=products.matvecs,
        width=sigma,
        nodes=nodes,
        weights=torch.cat([weights for _, weights in rules])[order] / probes,
        method="stochastic lanczos quadrature",
    )


def _storage(products: Products, steps: int, memory: float | None) -> str:
    """Return where the chain of a probe is kept, "memory" or "disk"; the same on all ranks."""
    vectors = affordable_vectors(products, memory, _WORKING)
    kept = 2 * steps * products.length * products.dtype.itemsize
    if 2 * steps * products.length <= (vectors - _WORKING) * products.size:
        return products.processes.choose("memory")
    folder = tempfile.gettempdir()
    if kept > shutil.disk_usage(folder).free:
        raise ArgumentError(
            "steps",
            steps,
            f"{kept / 1e9:.2f} GB of Lanczos vectors fit neither in memory nor in {folder}",
            "Give fewer steps, set TMPDIR to a folder with more space, or restrict the operator.",
        )
    return products.processes.choose("disk")


def _quadrature(
    products: Products, probe: torch.Tensor, steps: int, storage: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the nodes (ascending) and weights of the Gauss rule of one probe."""
    basis = Basis(products, steps, storage)
    basis.expand(probe)
    while basis.size < steps:
        direction, _ = basis.remainder()
        if len(direction) == 0:
            break
        basis.expand(direction, orthonormal=True)
    nodes, coefficients = basis.ritz()
    return nodes, coefficients[0] ** 2


def _smooth(
    grid: torch.Tensor, nodes: torch.Tensor, weights: torch.Tensor, sigma: float
) -> torch.Tensor:
    distances = (grid.unsqueeze(1) - nodes.unsqueeze(0)) / sigma
    return torch.exp(-0.5 * distances**2) @ weights / (sigma * sqrt(2 * torch.pi))
