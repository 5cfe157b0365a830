"""Scattering coefficients of images: fixed wavelets, moduli and averages instead of learned layers.

The wavelets are those of J. Bruna and S. Mallat, "Invariant scattering convolution networks"
(2013), with the constants that the library kymatio uses.
"""

from __future__ import annotations

from math import cos, pi, sin

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from hyperribbon.core import checks
from hyperribbon.core.checks import (
    ArgumentError,
    check_choice,
    check_finite,
    check_positive_int,
    validate,
)


class Scattering(nn.Module):
    """The scattering transform S of images with values in any range.

    With wavelets ψ_{j,θ} (scale 2^j, angle θ) and a Gaussian average φ of width 2^J,

        S0 = x ⋆ φ,   S1 = |x ⋆ ψ_{j1,θ1}| ⋆ φ,   S2 = ||x ⋆ ψ_{j1,θ1}| ⋆ ψ_{j2,θ2}| ⋆ φ

    with j1 < j2 < J, each sampled every 2^J pixels. Convolutions are exact: nothing is subsampled
    in between. The module has no parameters.

    Args:
        shape: (height, width) of an image.
        scales: Number J of octaves.
        angles: Number L of angles.
        layers: 1 for S0 and S1, 2 for S2 too.
        padding: "reflect" at the border, or "circular" for periodic images, whose edges must then
            be multiples of 2^J.

    >>> Scattering((28, 28))(torch.zeros(5, 1, 28, 28)).shape
    torch.Size([5, 1, 81, 7, 7])
    """

    wavelets: torch.Tensor
    rows: torch.Tensor
    columns: torch.Tensor

    @validate(shape=checks.wholes, scales=checks.count, angles=checks.count, layers=checks.count)
    def __init__(
        self,
        shape: tuple[int, int],
        *,
        scales: int = 2,
        angles: int = 8,
        layers: int = 2,
        padding: str = "reflect",
    ) -> None:
        super().__init__()
        self.scales, self.angles = scales, angles
        self.layers = check_positive_int("layers", layers, maximum=2)
        if len(shape) != 2 or not all(shape):
            raise ArgumentError("shape", shape, "expected (height, width)", "Give (28, 28).")
        self.shape = (int(shape[0]), int(shape[1]))
        stride = 2**scales
        if min(shape) < stride:
            reason = f"2^{scales} pixels exceed an edge of {shape}"
            raise ArgumentError("scales", scales, reason, "Use fewer scales.")
        check_choice("padding", padding, ("reflect", "circular"))
        if padding == "circular":
            if shape[0] % stride or shape[1] % stride:
                remedy = "Use padding='reflect'."
                raise ArgumentError("shape", shape, f"not multiples of {stride}", remedy)
            self.margins: tuple[tuple[int, int], ...] = ((0, 0), (0, 0))
        else:
            # Whole strides before, a multiple of strides in all.
            self.margins = tuple((stride, -size % stride + stride) for size in self.shape)
            if any(max(m) >= size for m, size in zip(self.margins, self.shape, strict=True)):
                reason = f"an image of {self.shape} is too small to reflect its edges"
                raise ArgumentError("scales", scales, reason, "Use fewer scales.")
        padded = tuple(n + sum(m) for n, m in zip(self.shape, self.margins, strict=True))
        wavelets, averages = filter_bank((padded[0], padded[1]), scales, angles)
        self.register_buffer("wavelets", wavelets.float())
        places = (
            torch.arange(before, before + size, stride, device="cpu")
            for (before, _), size in zip(self.margins, self.shape, strict=True)
        )
        for name, average, where in zip(("rows", "columns"), averages, places, strict=True):
            distances = (where[:, None] - torch.arange(len(average), device="cpu")) % len(average)
            self.register_buffer(name, average[distances].float())

    @property
    def paths(self) -> list[tuple[tuple[int, int], ...]]:
        """The (scale, angle) pairs of every scattering coefficient: none, one, or two of them."""
        single = [(j, angle) for j in range(self.scales) for angle in range(self.angles)]
        paths: list[tuple[tuple[int, int], ...]] = [(), *[(one,) for one in single]]
        if self.layers == 2:
            paths += [(one, two) for one in single for two in single if two[0] > one[0]]
        return paths

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return scattering coefficients (n, C, paths, ⌈H/2^J⌉, ⌈W/2^J⌉) of images (n, C, H, W)."""
        if images.shape[-2:] != self.shape:
            reason = f"their last two sizes are not {self.shape}"
            raise ArgumentError("images", images, reason, "Resize them.")
        (top, bottom), (left, right) = self.margins
        padded = F.pad(images, (left, right, top, bottom), "reflect") if top + left else images
        spectrum = torch.fft.fft2(padded)
        pieces = [self._smooth(padded).unsqueeze(-3)]
        deepest: list[torch.Tensor] = []
        for j in range(self.scales):
            moduli = self._moduli(spectrum, j)
            pieces.append(self._smooth(moduli))
            if self.layers == 2 and j + 1 < self.scales:
                for one in torch.fft.fft2(moduli).unbind(-3):
                    deeper = range(j + 1, self.scales)
                    deepest += [self._smooth(self._moduli(one, k)) for k in deeper]
        return torch.cat(pieces + deepest, dim=-3)

    def _moduli(self, spectrum: torch.Tensor, j: int) -> torch.Tensor:
        """Return |x ⋆ ψ_{j,θ}| for all angles, along a new axis, from the spectrum of x."""
        return torch.fft.ifft2(spectrum.unsqueeze(-3) * self.wavelets[j]).abs()

    def _smooth(self, signal: torch.Tensor) -> torch.Tensor:
        """Return scattering's x ⋆ φ every 2^J pixels; φ is a product of two Gaussians."""
        return self.rows @ signal @ self.columns.T


@validate(
    images=checks.tensor,
    scales=checks.count,
    angles=checks.count,
    layers=checks.count,
    batch_size=checks.count,
)
def scattering_features(
    images: torch.Tensor, *, scales: int = 2, angles: int = 8, layers: int = 2, batch_size: int = 64
) -> torch.Tensor:
    """Return the scattering coefficients of images (n, C, H, W) as features (n, d).

    Args:
        images: Images.
        scales: Number J of octaves.
        angles: Number of angles.
        layers: 1 or 2.
        batch_size: Images at a time.

    Raises:
        ArgumentError: There are none, or they have fewer than three axes.
    """
    if images.ndim < 3 or not images.numel():
        raise ArgumentError("images", images, "expected images (n, C, H, W)", "Give some.")
    check_finite("images", images)
    images = images if images.dtype == torch.float64 else images.float()
    shape = (images.shape[-2], images.shape[-1])
    transform = Scattering(shape, scales=scales, angles=angles, layers=layers)
    transform = transform.to(images.device, images.dtype)
    return torch.cat([transform(some).flatten(1) for some in images.split(batch_size)])


def filter_bank(
    shape: tuple[int, int], scales: int, angles: int
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Return the wavelet filters of a scattering transform, in float64.

        ψ_{j,θ}(u) = g(u)·(exp(i ξ·u) − β),   |ξ| = (3π/4)/2^j along θ,

    with g a Gaussian of width 0.8·2^j along ξ and 4/L times narrower frequency across, β such that
    ψ has mean zero; φ is an isotropic Gaussian of width 0.8·2^{J−1}, a product of two. All are
    periodic.

    Args:
        shape: (height, width).
        scales: J.
        angles: L.

    Returns:
        Wavelets (J, L, height, width) on the frequency grid, where they are real, and the averages
        (height,) and (width,) in space.
    """
    wavelets = np.empty((scales, angles, *shape))
    for j in range(scales):
        for number in range(angles):
            theta = (int(angles - angles / 2 - 1) - number) * pi / angles
            gabor = _gabor(shape, 0.8 * 2**j, theta, 0.75 * pi / 2**j, 4 / angles)
            envelope = _gabor(shape, 0.8 * 2**j, theta, 0.0, 4 / angles)
            morlet = gabor - gabor.sum() / envelope.sum() * envelope
            wavelets[j, number] = np.fft.fft2(morlet).real
    height, width = (_gaussian(size, 0.8 * 2 ** (scales - 1)) for size in shape)
    return torch.from_numpy(wavelets), (height, width)


def _gabor(
    shape: tuple[int, int], sigma: float, theta: float, frequency: float, slant: float
) -> np.ndarray:
    """Return a scattering filter g(u)·exp(i ξ·u), ∫g = 1, summed over periods."""
    reach = [int(np.ceil(8 * sigma / min(slant, 1.0) / size)) for size in shape]
    spans = [np.arange(-r * n, (r + 1) * n) for r, n in zip(reach, shape, strict=True)]
    rows, columns = np.meshgrid(*spans, indexing="ij")
    along = rows * cos(theta) + columns * sin(theta)
    across = columns * cos(theta) - rows * sin(theta)
    envelope = np.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2))
    values = envelope * np.exp(1j * frequency * along) * slant / (2 * pi * sigma**2)
    periods = [2 * r + 1 for r in reach]
    return values.reshape(periods[0], shape[0], periods[1], shape[1]).sum(axis=(0, 2))


def _gaussian(size: int, sigma: float) -> torch.Tensor:
    """Return a scattering filter: a Gaussian of unit sum, summed over periods."""
    reach = int(np.ceil(8 * sigma / size))
    span = np.arange(-reach * size, (reach + 1) * size)
    values = np.exp(-(span**2) / (2 * sigma**2)).reshape(-1, size).sum(axis=0)
    return torch.from_numpy(values / values.sum())
