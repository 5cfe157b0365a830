"""Chains of weight matrices and the moments of the data: all a deep linear network needs to know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hyperribbon.core.checks import ArgumentError, check_finite

__all__ = [
    "Moments",
    "ReducedChain",
    "chain_products",
    "check_chain",
    "check_labels",
    "check_widths",
    "reduce_chain",
    "sample_balanced_weights",
]

_WHITE = 1e-10  # relative deviation of X Xᵀ/n from σ² I below which inputs count as white
_RANK = 1e-12  # relative size below which a singular value counts as zero


@dataclass(frozen=True)
class Moments:
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
    cross: np.ndarray
    targets: float

    @classmethod
    def of(cls, X: np.ndarray, Y: np.ndarray) -> Moments:
        """Return the moments of inputs (d0, n) and targets (dL, n), samples as columns.

        White inputs are recognised, and their Σ kept as a diagonal.

        Raises:
            ArgumentError: The shapes do not fit, or an entry is NaN or infinite.
        """
        X, Y = check_labels(X, Y)
        samples = X.shape[1]
        inputs = X @ X.T / samples
        variance = np.trace(inputs) / len(inputs)
        if np.abs(inputs - variance * np.eye(len(inputs))).max() <= _WHITE * variance:
            inputs = np.full(len(inputs), variance)
        return cls(inputs, Y @ X.T / samples, float(np.sum(Y * Y)) / samples)

    @property
    def is_white(self) -> bool:
        """Whether Σ is a multiple of the identity."""
        return self.inputs.ndim == 1 and bool(
            np.ptp(self.inputs) <= _WHITE * np.abs(self.inputs).max()
        )

    @property
    def sigma_x(self) -> float:
        """Root mean square input, √(Tr Σ / d0): σx of white inputs."""
        diagonal = self.inputs if self.inputs.ndim == 1 else np.diagonal(self.inputs)
        return float(np.sqrt(diagonal.mean()))

    def times_inputs(self, matrix: np.ndarray) -> np.ndarray:
        """Return `matrix` Σ, for a matrix (..., d0)."""
        return matrix * self.inputs if self.inputs.ndim == 1 else matrix @ self.inputs

    def loss(self, end_to_end: np.ndarray) -> float:
        """Return (1/2n)‖W X − Y‖² of the product W (dL, d0) of all layers."""
        product = self.times_inputs(end_to_end)
        return 0.5 * float(np.sum(end_to_end * (product - 2 * self.cross)) + self.targets)


def check_labels(X: np.ndarray, Y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return X (d0, n) and Y (dL, n) in double precision, if they belong together.

    Raises:
        ArgumentError: Not matrices, different numbers of samples, none, or NaN.
    """
    X, Y = (np.asarray(matrix, dtype=np.float64) for matrix in (X, Y))
    if X.ndim != 2 or 0 in X.shape:
        raise ArgumentError("X", X, "it must be a matrix (d0, n)", "Put each sample in a column.")
    if Y.ndim != 2 or Y.shape[1] != X.shape[1]:
        raise ArgumentError(
            "Y", Y, f"it must be a matrix (dL, {X.shape[1]})", "Put each sample in a column."
        )
    return check_finite("X", X), check_finite("Y", Y)


def check_chain(weights: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the layers W1, …, WL in double precision, if each fits the next.

    Raises:
        ArgumentError: No layer, not a matrix, widths that do not chain, or NaN.
    """
    chain = [np.asarray(weight, dtype=np.float64) for weight in weights]
    if not chain:
        raise ArgumentError("weights", weights, "it has no layer", "Give W1, …, WL in a list.")
    for index, weight in enumerate(chain, start=1):
        if weight.ndim != 2 or 0 in weight.shape:
            raise ArgumentError(
                f"weights[{index - 1}]", weight, "a layer is a matrix (d_out, d_in)",
                "Give layers in their order, first layer first.",
            )  # fmt: skip
        check_finite(f"weights[{index - 1}]", weight)
        if index > 1 and weight.shape[1] != chain[index - 2].shape[0]:
            raise ArgumentError(
                f"weights[{index - 1}]", weight,
                f"it takes {weight.shape[1]} inputs, but layer {index - 1} has "
                f"{chain[index - 2].shape[0]} outputs",
                "Give layers in their order, each of shape (d_out, d_in).",
            )  # fmt: skip
    return chain


def check_widths(widths: Sequence[int]) -> list[int]:
    """Return the widths d0, …, dL as ints, if they are at least two positive whole numbers."""
    values = list(widths)
    if len(values) < 2 or any(int(w) != w or w < 1 for w in values):
        raise ArgumentError(
            "widths", widths, "it must be two or more whole numbers, each at least 1",
            "Give d0, d1, …, dL, such as (784, 64, 10).",
        )  # fmt: skip
    return [int(width) for width in values]


def chain_products(weights: Sequence[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    r"""Return the products before and after each layer.

    $$ P_\ell = W_{\ell-1} \cdots W_1, \qquad S_\ell = W_L \cdots W_{\ell+1} $$

    with P1 and SL the identity. Implements Eq. (4) of [linear_networks], without the inputs.
    """
    chain = check_chain(weights)
    before = [np.eye(chain[0].shape[1])]
    for weight in chain[:-1]:
        before.append(weight @ before[-1])
    after = [np.eye(chain[-1].shape[0])]
    for weight in reversed(chain[1:]):
        after.append(after[-1] @ weight)
    return before, after[::-1]


def sample_balanced_weights(
    widths: Sequence[int],
    singular_values: float | Sequence[float] | np.ndarray,
    generator: np.random.Generator,
) -> list[np.ndarray]:
    r"""Draw strongly balanced layers with given singular values.

    $$ W_\ell = U_\ell S V_\ell^\top, \qquad V_{\ell+1} = U_\ell
    \quad\Rightarrow\quad W_\ell W_\ell^\top = W_{\ell+1}^\top W_{\ell+1} $$

    with random orthonormal columns. Implements App. C of [linear_networks].

    Args:
        widths: d0, …, dL.
        singular_values: k = min(widths) numbers, zero or more; one number stands for k equal ones.
        generator: Source of the random directions.

    Returns:
        W1, …, WL, with Wℓ of shape (dℓ, dℓ₋₁).

    >>> W1, W2 = sample_balanced_weights((5, 3, 4), 0.5, np.random.default_rng(0))
    >>> bool(np.allclose(W1 @ W1.T, W2.T @ W2))
    True
    """
    widths = check_widths(widths)
    rank = min(widths)
    values = np.asarray(singular_values, dtype=np.float64)
    values = np.full(rank, values) if values.ndim == 0 else values
    if values.shape != (rank,) or not np.all(np.isfinite(values) & (values >= 0)):
        raise ArgumentError(
            "singular_values", singular_values,
            f"the narrowest layer has width {rank}, so {rank} finite numbers, zero or more, are "
            "needed", "Give one number, or one for each unit of the narrowest layer.",
        )  # fmt: skip
    bases = [np.linalg.qr(generator.standard_normal((width, rank)))[0] for width in widths]
    return [(bases[i + 1] * values) @ bases[i].T for i in range(len(widths) - 1)]


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
    """Leave out every direction that gradient descent never enters.

    The gradient of layer ℓ is Sℓᵀ R Pℓᵀ with R = WΣ − M. So the first layer moves only within the
    span of the inputs; when these are white, only within the rows of W1 and M. A hidden layer's
    units move only within the columns of the layer before it and the rows of the layer after it
    (k directions when the layers are balanced with rank k, however wide they are).

    Without `hidden`, the reduced network's Hessian has the full one's leading eigenvalues too: the
    directions left out carry copies of eigenvalues of S1ᵀS1·σx², which are never the largest, or
    zero. With `hidden` that is so only where R = 0.

    Args:
        weights: W1, …, WL.
        moments: Of the data the network is trained on.
        hidden: Reduce the hidden layers as well as the inputs.
    """
    chain = check_chain(weights)
    check_moments(chain, moments)
    basis, moments = _input_basis(chain[0], moments)
    bases = [basis]
    for before, after in zip(chain, chain[1:], strict=False):
        width = before.shape[0]
        span = np.hstack([before @ bases[-1], after.T]) if hidden else np.eye(width)
        bases.append(_orthonormal(span))
    bases.append(np.eye(chain[-1].shape[0]))
    reduced = [bases[i + 1].T @ weight @ bases[i] for i, weight in enumerate(chain)]

    def lift(layers: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [bases[i + 1] @ layer @ bases[i].T for i, layer in enumerate(layers)]

    frozen = [full - back for full, back in zip(chain, lift(reduced), strict=True)]

    def expand(layers: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [rest + back for rest, back in zip(frozen, lift(layers), strict=True)]

    return ReducedChain(reduced, moments, expand)


def check_moments(chain: Sequence[np.ndarray], moments: Moments) -> None:
    """Raise ArgumentError unless the moments belong to the chain's inputs and outputs."""
    expected = (chain[-1].shape[0], chain[0].shape[1])
    if moments.cross.shape != expected:
        raise ArgumentError(
            "moments", moments.cross,
            f"the network maps {expected[1]} inputs to {expected[0]} outputs",
            "Compute them from the inputs and targets of this network.",
        )  # fmt: skip


def _input_basis(first: np.ndarray, moments: Moments) -> tuple[np.ndarray, Moments]:
    if moments.is_white:
        basis = _orthonormal(np.hstack([first.T, moments.cross.T]))
        variances = moments.inputs[: basis.shape[1]]
    elif moments.inputs.ndim == 1:
        present = moments.inputs > _RANK * moments.inputs.max()
        basis, variances = np.eye(len(present))[:, present], moments.inputs[present]
    else:
        variances, vectors = np.linalg.eigh(moments.inputs)
        present = variances > _RANK * variances[-1]
        basis, variances = vectors[:, present], variances[present]
    return basis, Moments(variances, moments.cross @ basis, moments.targets)


def _orthonormal(columns: np.ndarray) -> np.ndarray:
    """Return an orthonormal basis of the columns' span; the identity when they span everything."""
    size = columns.shape[0]
    if columns.shape[1] >= size:
        rank = np.linalg.matrix_rank(columns, rtol=_RANK)
        if rank == size:
            return np.eye(size)
    left, singular, _ = np.linalg.svd(columns, full_matrices=False)
    return left[:, : max(1, int(np.sum(singular > _RANK * singular[0])))]
