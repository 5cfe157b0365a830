"""The moments of the data: all that a deep linear network under squared loss knows of them."""

# pyright: reportConstantRedefinition=false
# Capitals are matrices here, not constants.
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated as Float

import numpy as np

from hyperribbon.core.checks import ArgumentError, check_array, check_finite
from hyperribbon.core.result import Brief
from hyperribbon.theory.linear_networks.weight_chains import check_chain

_WHITE = 1e-10  # relative deviation of X Xᵀ/n from σ² I below which inputs count as white
_RANK = 1e-12  # relative size below which a singular value counts as zero


@dataclass(frozen=True)
class Moments(Brief):
    r"""Second moments of inputs X (d0, n) and targets Y (dL, n).

    $$ \Sigma = \tfrac1n X X^\top, \qquad M = \tfrac1n Y X^\top, \qquad t = \tfrac1n \|Y\|_F^2 $$

    The squared loss of a linear network, its gradient and its Hessian depend on the data through
    these three only.

    Attributes:
        inputs: Σ, as (d0, d0), or as its diagonal (d0,) when Σ is diagonal.
        cross: M, (dL, d0).
        targets: t.
    """

    inputs: np.ndarray
    cross: Float[np.ndarray, "dL d0"]
    targets: float

    @classmethod
    def of(cls, X: np.ndarray, Y: np.ndarray) -> Moments:
        """Return the moments of inputs (d0, n) and targets (dL, n), samples as columns.

        White inputs are recognised, and their Σ kept as a diagonal.

        Raises an ArgumentError when the shapes do not fit, or an entry is NaN or infinite.
        """
        X, Y = check_labels(X, Y)
        samples = X.shape[1]
        inputs = X @ X.T / samples
        variance = np.trace(inputs) / len(inputs)
        if np.abs(inputs - variance * np.eye(len(inputs))).max() <= _WHITE * variance:
            inputs = np.full(len(inputs), variance)
        check_finite("X", inputs)
        return cls(inputs, check_finite("Y", Y @ X.T / samples), float(np.sum(Y * Y)) / samples)

    @property
    def is_white(self) -> bool:
        """Whether the inputs' second moment Σ is a multiple of the identity."""
        return self.inputs.ndim == 1 and bool(
            np.ptp(self.inputs) <= _WHITE * np.abs(self.inputs).max()
        )

    @property
    def sigma_x(self) -> float:
        """Root mean square input from the moments, √(Tr Σ / d0): σx of white inputs."""
        diagonal = self.inputs if self.inputs.ndim == 1 else np.diagonal(self.inputs)
        return float(np.sqrt(diagonal.mean()))

    def times_inputs(self, matrix: np.ndarray) -> np.ndarray:
        """Return `matrix` times the inputs' second moment Σ, for a matrix (..., d0)."""
        return matrix * self.inputs if self.inputs.ndim == 1 else matrix @ self.inputs

    def loss(self, end_to_end: np.ndarray) -> float:
        """Return (1/2n)‖W X − Y‖² from moments, for the product W (dL, d0) of all layers."""
        product = self.times_inputs(end_to_end)
        return 0.5 * float(np.sum(end_to_end * (product - 2 * self.cross)) + self.targets)


def check_labels(
    X: np.ndarray, Y: np.ndarray
) -> tuple[Float[np.ndarray, "d0 n"], Float[np.ndarray, "dL n"]]:
    """Return X (d0, n) and Y (dL, n), of which moments are taken, in double precision.

    Raises:
        ArgumentError: Not matrices, different numbers of samples, none, or NaN.
    """
    remedy = "Put each sample in a column."
    X = check_array("X", X, ndim=2, remedy=remedy)
    Y = check_array("Y", Y, ndim=2, remedy=remedy)
    if Y.shape[1] != X.shape[1]:
        raise ArgumentError("Y", Y, f"it must be a matrix (dL, {X.shape[1]})", remedy)
    return X, Y


@dataclass(frozen=True)
class ReducedChain:
    """A smaller chain that gradient descent moves exactly as it moves the full one.

    Attributes:
        weights: The layers in the coordinates that training can reach.
        moments: The data in those coordinates.
        expand: Takes reduced layers to full ones; what training cannot reach stays as it was.
    """

    weights: list[np.ndarray]
    moments: Moments
    expand: Callable[[Sequence[np.ndarray]], list[np.ndarray]]


def reduce_chain(
    weights: Sequence[np.ndarray], moments: Moments, *, hidden: bool = True
) -> ReducedChain:
    """Reduce moments and layers by every direction that gradient descent never enters.

    The gradient of layer ℓ is Sℓᵀ R Pℓᵀ with R = WΣ − M. So with white inputs the first layer moves
    only within the rows of W1 and M; otherwise the inputs are turned to their principal axes, where
    a product with Σ costs nothing. A hidden layer's units move only within the columns of the layer
    before it and the rows of the layer after it (k directions when the layers are balanced with
    rank k, however wide they are).

    Without `hidden`, the Hessian keeps its spectrum too, but for copies of the eigenvalues of
    σx² S1ᵀS1, one for each input direction left out. They are never larger than the reduced
    network's largest. With `hidden` more is missing where R is not 0.

    Args:
        weights: W1, …, WL.
        moments: Of the data the network is trained on.
        hidden: Reduce the hidden layers as well as the inputs.

    Returns:
        The smaller layers, the moments that go with them, and the way back to all weights.
    """
    chain = check_chain(weights)
    check_moments(chain, moments)
    basis, moments = _input_basis(chain[0], moments)
    bases = [basis]
    for before, after in pairwise(chain):
        span = np.hstack([_times(before, bases[-1]), after.T]) if hidden else None
        bases.append(None if span is None else _orthonormal(span))
    bases.append(None)
    sides = list(pairwise(bases))
    inner = [_times(weight, into) for weight, (into, _) in zip(chain, sides, strict=True)]
    outs = [out for _, out in sides]
    reduced = [(w if o is None else o.T @ w).copy() for w, o in zip(inner, outs, strict=True)]

    def lift(layers: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [
            _times(layer if out is None else out @ layer, None if into is None else into.T)
            for layer, (into, out) in zip(layers, sides, strict=True)
        ]

    frozen = [full - back for full, back in zip(chain, lift(reduced), strict=True)]

    def expand(layers: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [rest + back for rest, back in zip(frozen, lift(layers), strict=True)]

    return ReducedChain(reduced, moments, expand)


def check_moments(chain: Sequence[np.ndarray], moments: Moments) -> None:
    """Raise ArgumentError unless the moments belong to the chain's inputs and outputs."""
    expected = (chain[-1].shape[0], chain[0].shape[1])
    if moments.cross.shape != expected:
        reason = f"the network maps {expected[1]} inputs to {expected[0]} outputs"
        remedy = "Compute them from the inputs and targets of this network."
        raise ArgumentError("moments", moments.cross, reason, remedy)


def _input_basis(first: np.ndarray, moments: Moments) -> tuple[np.ndarray | None, Moments]:
    if moments.is_white:
        basis = _orthonormal(np.hstack([first.T, moments.cross.T]))
        variances = moments.inputs[: len(moments.inputs) if basis is None else basis.shape[1]]
    elif moments.inputs.ndim == 1:
        basis, variances = None, moments.inputs
    else:
        variances, basis = np.linalg.eigh(moments.inputs)
        variances = np.maximum(variances, 0)
    return basis, Moments(variances, _times(moments.cross, basis), moments.targets)


def _orthonormal(columns: np.ndarray) -> np.ndarray | None:
    """Return an orthonormal basis of moments' columns; None when they span everything."""
    left, singular, _ = np.linalg.svd(columns, full_matrices=False)
    rank = max(1, int(np.sum(singular > _RANK * singular[0])))
    return None if rank == len(columns) else left[:, :rank]


def _times(matrix: np.ndarray, basis: np.ndarray | None) -> np.ndarray:
    """Return a product of moments and bases; None stands for the identity."""
    return matrix if basis is None else matrix @ basis
