"""Synthetic data with a known spectrum."""

from __future__ import annotations

import numpy as np
import torch

from hyperribbon.core.checks import ArgumentError, count, positive, square, validate, zero_or_more
from hyperribbon.core.generators import numpy_generator


@validate(samples=count, dimensions=count, slope=zero_or_more)
def sloppy_inputs(
    samples: int, dimensions: int, slope: float, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    r"""Synthetic inputs whose correlation matrix has exponentially falling eigenvalues.

    $$ X = \sqrt{n}\, U\,\mathrm{diag}(\sqrt{\lambda_i})\, V^\top, \quad \lambda_i = e^{-c(i-1)} $$

    with random orthonormal U (n, r) and V (d, r), r = min(n, d): X Xᵀ / n has exactly the
    eigenvalues λi.

    Args:
        samples: n, rows of X.
        dimensions: d, columns of X.
        slope: c, the decay of the logarithm of the eigenvalues per index.
        seed: Seed of the two bases.

    Returns:
        X (n, d) and the eigenvalues (r,).
    """
    rng = numpy_generator(seed, "sloppy inputs")
    rank = min(samples, dimensions)
    left, _ = np.linalg.qr(rng.standard_normal((samples, rank)))
    right, _ = np.linalg.qr(rng.standard_normal((dimensions, rank)))
    eigenvalues = np.exp(-slope * np.arange(rank))
    return np.sqrt(samples) * (left * np.sqrt(eigenvalues)) @ right.T, eigenvalues


@validate(samples=count, dimensions=count, covariance=square)
def wishart_inputs(
    samples: int, dimensions: int, covariance: np.ndarray | None = None, seed: int = 0
) -> np.ndarray:
    r"""Synthetic Gaussian inputs (n, d) with the given covariance; X Xᵀ is a Wishart matrix.

    Args:
        samples: n.
        dimensions: d.
        covariance: (d, d) positive semi-definite; the identity when None.
        seed: Seed of the draw.

    Returns:
        (n, d) float64.

    Raises:
        ArgumentError: The covariance is not symmetric, of another size, or has a negative
            eigenvalue.
    """
    white = numpy_generator(seed, "wishart inputs").standard_normal((samples, dimensions))
    if covariance is None:
        return white
    if covariance.shape != (dimensions, dimensions) or not np.allclose(covariance, covariance.T):
        reason = f"it must be a symmetric matrix of shape ({dimensions}, {dimensions})"
        raise ArgumentError("covariance", covariance, reason, "Check the shape and the symmetry.")
    values, vectors = np.linalg.eigh(covariance)
    if values[0] < -1e-12 * abs(values[-1]):
        reason = f"it has the negative eigenvalue {values[0]:.3g}"
        remedy = "Give a positive semi-definite matrix."
        raise ArgumentError("covariance", covariance, reason, remedy)
    return white @ (vectors * np.sqrt(np.clip(values, 0, None))) @ vectors.T


@validate(samples=count, dimensions=count, outputs=count, noise=zero_or_more, sigma_x=positive)
def teacher_student(
    samples: int,
    dimensions: int,
    outputs: int = 1,
    noise: float = 0.0,
    sigma_x: float = 1.0,
    seed: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    r"""Synthetic data of a linear teacher: y = W* x + ε, x ~ N(0, σx² I), W* ~ N(0, 1/d).

    Args:
        samples: n.
        dimensions: d.
        outputs: Number of outputs.
        noise: Standard deviation of the label noise.
        sigma_x: Standard deviation of the inputs.
        seed: Seed of the draw.

    Returns:
        Inputs (n, d), targets (n, outputs) and the teacher (outputs, d), float64.
    """
    rng = numpy_generator(seed, "teacher student")
    inputs = sigma_x * rng.standard_normal((samples, dimensions))
    teacher = rng.standard_normal((outputs, dimensions)) / np.sqrt(dimensions)
    targets = inputs @ teacher.T + noise * rng.standard_normal((samples, outputs))
    return torch.from_numpy(inputs), torch.from_numpy(targets), torch.from_numpy(teacher)
