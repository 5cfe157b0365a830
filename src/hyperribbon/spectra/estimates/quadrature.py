"""Spectral density by stochastic Lanczos quadrature."""

from __future__ import annotations

import shutil
import tempfile
from math import ceil, sqrt
from typing import Any

import torch

from hyperribbon.core.checks import (
    ArgumentError,
    check_positive,
    count,
    function,
    positive,
    validate,
)
from hyperribbon.core.devices.modes import plain_arithmetic
from hyperribbon.core.generators import torch_generator
from hyperribbon.core.spectral_results import Density
from hyperribbon.spectra.krylov.basis import Basis
from hyperribbon.spectra.planning import affordable_vectors
from hyperribbon.spectra.products import Products, ShouldStop, StoppedError

_WORKING = 8  # vectors in memory at once besides the chain
_FINEST = 300  # widths in the range of the nodes, at the most
_FEWER = 0.8  # part of the steps whose rule bounds the error of the quadrature
_MISPLACED = 0.01  # mass that the two may put in different places
_INVISIBLE = 1e-6  # part of the largest value below which densities are not told from zero


@validate(probes=count, steps=count, points=count, memory=positive, should_stop=function)
@plain_arithmetic()
def density(
    op: Any,
    *,
    probes: int = 10,
    steps: int = 60,
    width: float | None = None,
    points: int = 1024,
    seed: int = 0,
    memory: float | None = None,
    should_stop: ShouldStop | None = None,
) -> Density:
    """Return by quadrature the density of a symmetric operator's eigenvalues, smoothed.

    Each random unit vector v gives, by Lanczos with full reorthogonalisation, Ritz values θⱼ and
    weights wⱼ (squared first components) that integrate polynomials up to degree 2·steps − 1
    exactly against the spectral measure of v. With a Gaussian kernel g of standard deviation σ,

        ρ(x) = mean over probes of Σⱼ wⱼ g_σ(x − θⱼ).

    The band holds two errors of it, and is meant for the exact density under the same kernel, at
    95% of points. One is that of n probes, whose variance for vectors uniform on the sphere is

        Var ρ(x) = 2/(n(P + 2)) · (Σ wⱼ g_σ(x − θⱼ)² − ρ(x)²),

    times Student's quantile. The other is that of the quadrature: how far the rules of four fifths
    of the steps are from those of all, at most within two widths or the spacing of the nodes there,
    since both may miss eigenvalues between two nodes. What a kernel narrower than the
    nodes' spacing draws is peaks at the nodes, so where no width is given it is the smallest at
    which the two kinds of rules put no more than 1% of the mass in different places, and at which
    the error of the probes is smooth beside the density.

    Args:
        op: Any object with `.shape` and `@`.
        probes: Random vectors, at least two.
        steps: Lanczos steps a probe.
        width: σ; None for the smallest that the nodes resolve, at least 1/300 of their range.
        points: Grid points.
        seed: Seed of the probes.
        memory: Bytes that may be used; None for what the device has free. Where `steps` vectors do
            not fit, they are kept on disk, in TMPDIR, with the same numbers.
        should_stop: Called at the beginning and before every product; not inside one. Once it
            returns True, the density is that of the probes so far, with their wider band. With
            several processes all of them give one, and one that returns True stops all.

    Raises:
        ArgumentError: The grid is too coarse for the width, an argument does not fit, or the
            memory is too small for a product.
        StoppedError: `should_stop` returned True before two probes were done.

    >>> import torch
    >>> result = density(torch.diag(torch.tensor([0.0, 0.0, 0.0, 1.0])), seed=1)
    >>> round(float(torch.trapezoid(result.values, result.grid)), 6)
    1.0
    """
    products = Products(op, should_stop)
    if probes < 2:
        raise ArgumentError("probes", probes, "an error band needs two or more", "Give probes=10.")
    if points < 2:
        raise ArgumentError("points", points, "a grid needs two or more", "Give points=1024.")
    steps = min(steps, products.size)
    storage = _storage(products, steps, memory)
    generator = torch_generator(seed, "density")
    rules: list[tuple[_Rule, _Rule]] = []
    for _ in range(probes):
        try:
            rules.append(_rules(products, products.random_part(generator), steps, storage))
        except StoppedError:
            if len(rules) < 2:
                raise
            break
    low = min(float(rule.nodes[0]) for rule, _ in rules)
    high = max(float(rule.nodes[-1]) for rule, _ in rules)
    span = max(high - low, 1e-6 * max(abs(low), abs(high)), 1e-30)
    sigma = None if width is None else check_positive("width", width)
    if sigma is None:
        sigma = _resolved_width(rules, low, high, span, products.size)
    grid = torch.linspace(
        low - 6 * sigma, high + 6 * sigma, points, dtype=torch.float64, device="cpu"
    )
    if float(grid[1] - grid[0]) > sigma:
        needed = int((high - low) / sigma) + 13
        reason = f"the grid is coarser than the kernel's width {sigma:.2g}"
        remedy = f"Give points={2 * needed}, or a larger width."
        raise ArgumentError("points", points, reason, remedy)
    mean, shorter = (_mean_curve(grid, [pair[which] for pair in rules], sigma) for which in (0, 1))
    variance = _probe_variance(grid, [rule for rule, _ in rules], sigma, mean, products.size)
    from scipy.special import stdtrit

    reach = float(stdtrit(len(rules), 0.975)) * variance.sqrt()
    nearby = _node_spacing(grid, [rule for _, rule in rules]).clamp(min=2 * sigma)
    reach += _nearby_largest((mean - shorter).abs(), (nearby / (grid[1] - grid[0])).long())
    reach += _INVISIBLE * float(mean.max())
    nodes, order = torch.cat([rule.nodes for rule, _ in rules]).sort()
    total = torch.trapezoid(mean, grid)
    return Density(
        grid=grid,
        values=mean / total,
        low=(mean - reach).clamp(min=0) / total,
        high=(mean + reach) / total,
        matvecs=products.matvecs,
        width=sigma,
        nodes=nodes,
        weights=torch.cat([rule.weights for rule, _ in rules])[order] / len(rules),
        method="stochastic lanczos quadrature",
    )


def _resolved_width(
    rules: list[tuple[_Rule, _Rule]], low: float, high: float, span: float, size: int
) -> float:
    """Return the smallest width of a quadrature's density without peaks of single nodes.

    Rules of fewer steps give nearly the same density there, and its standard error s changes over
    a width by no more than the density ρ itself does over its extent 1/∫ρ²: ∫s ≤ σ∫ρ².
    """
    sigma = span / _FINEST
    while sigma < span / 10:
        points = int(2 * span / sigma) + 25
        grid = torch.linspace(
            low - 6 * sigma, high + 6 * sigma, points, dtype=torch.float64, device="cpu"
        )
        whole, shorter = (_mean_curve(grid, [pair[i] for pair in rules], sigma) for i in (0, 1))
        moved = float(torch.trapezoid((whole - shorter).abs(), grid)) / 2
        error = _probe_variance(grid, [rule for rule, _ in rules], sigma, whole, size).sqrt()
        slope = sigma * torch.trapezoid(whole**2, grid)
        if moved <= _MISPLACED and float(torch.trapezoid(error, grid)) <= float(slope):
            break
        sigma *= 1.2
    return sigma


def _probe_variance(
    grid: torch.Tensor, rules: list[_Rule], sigma: float, mean: torch.Tensor, size: int
) -> torch.Tensor:
    """Return the variance of the quadrature's density over the choice of probes, on a grid."""
    squares = _mean_curve(grid, rules, sigma / sqrt(2)) / (2 * sqrt(torch.pi) * sigma)  # Σ w g_σ²
    return 2 / (size + 2) * (squares - mean**2).clamp(min=0) / len(rules)


def _storage(products: Products, steps: int, memory: float | None) -> str:
    """Return where the chain of a quadrature's probe is kept, "memory" or "disk", on all ranks."""
    vectors = affordable_vectors(products, memory, _WORKING)
    kept = steps * products.length * products.dtype.itemsize
    if steps * products.length <= (vectors - _WORKING) * products.size:
        return products.processes.choose("memory")
    folder = tempfile.gettempdir()
    if kept > shutil.disk_usage(folder).free:
        reason = f"{kept / 1e9:.2f} GB of Lanczos vectors fit neither in memory nor in {folder}"
        remedy = (
            "Give fewer steps, set TMPDIR to a folder with more space, or restrict the operator."
        )
        raise ArgumentError("steps", steps, reason, remedy)
    return products.processes.choose("disk")


def _rules(
    products: Products, probe: torch.Tensor, steps: int, storage: str
) -> tuple[_Rule, _Rule]:
    """Return the Gauss quadrature rule of one probe, and that of its first steps only."""
    basis = Basis(products, steps, storage)
    basis.add(probe)
    while basis.size < steps and float(basis.coupling) > basis.rounding:
        basis.extend(basis.weights[:, -1])
    whole = basis.ritz()
    first = ceil(_FEWER * basis.size)
    if basis.size < steps or first == basis.size:  # the chain is exhausted: the rule is exact
        return _Rule(*whole), _Rule(*whole)
    T = basis.projected[:first, :first]
    return _Rule(*whole), _Rule(*products.eigh(T))


class _Rule:
    """Nodes (ascending) and weights of a Gauss rule, from eigenvalues and eigenvectors of T."""

    def __init__(self, nodes: torch.Tensor, vectors: torch.Tensor) -> None:
        self.nodes, self.weights = nodes, vectors[0] ** 2


def _mean_curve(grid: torch.Tensor, rules: list[_Rule], sigma: float) -> torch.Tensor:
    """Return the density Σ w g_σ(x − θ) on a grid, the mean over quadrature rules."""
    total = torch.zeros_like(grid)
    for rule in rules:
        distances = (grid.unsqueeze(1) - rule.nodes.unsqueeze(0)) / sigma
        total += torch.exp(-0.5 * distances**2) @ rule.weights
    return total / (len(rules) * sigma * sqrt(2 * torch.pi))


def _node_spacing(grid: torch.Tensor, rules: list[_Rule]) -> torch.Tensor:
    """Return the distance between quadrature nodes around each point, the mean over rules."""
    total = torch.zeros_like(grid)
    for rule in rules:
        if len(rule.nodes) > 1:
            nodes = rule.nodes.to(grid)
            place = torch.searchsorted(nodes, grid).clamp(1, len(nodes) - 1)
            total += nodes[place] - nodes[place - 1]
    return total / len(rules)


def _nearby_largest(values: torch.Tensor, reach: torch.Tensor) -> torch.Tensor:
    """Return for a quadrature the largest of the values within so many points of each."""
    last = len(values) - 1
    index = torch.arange(last + 1, device=values.device)
    start, stop = (index - reach).clamp(min=0), (index + reach).clamp(max=last)
    level = (stop - start + 1).double().log2().long()
    largest = [values]  # over 1, 2, 4, ... points from each on
    for power in range(int(level.max())):
        following = (index + 2**power).clamp(max=last)
        largest.append(torch.maximum(largest[-1], largest[-1][following]))
    table = torch.stack(largest)
    return torch.maximum(table[level, start], table[level, stop - 2**level + 1])
