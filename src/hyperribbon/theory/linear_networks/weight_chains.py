"""Chains of weight matrices W1, …, WL: checks, partial products, balanced samples."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import accumulate, pairwise
from typing import Annotated as Float

import numpy as np

from hyperribbon.core import checks
from hyperribbon.core.checks import ArgumentError, check_array, check_finite, validate

_RANK = 1e-12  # singular value over the largest below which it counts as zero
_generator = checks.instance(np.random.Generator, "Give np.random.default_rng(seed).")


def check_chain(weights: Sequence[np.ndarray]) -> list[Float[np.ndarray, "_ _"]]:
    """Return the chain of weights W1, …, WL in double precision, if each fits the next.

    Raises:
        ArgumentError: No layer, not a matrix, widths that do not chain, or NaN.
    """
    chain = [np.asarray(weight, dtype=np.float64) for weight in weights]
    if not chain:
        raise ArgumentError("weights", weights, "it has no layer", "Give W1, …, WL in a list.")
    for index, weight in enumerate(chain, start=1):
        if weight.ndim != 2 or 0 in weight.shape:
            reason = "a layer is a matrix (d_out, d_in)"
            remedy = "Give layers in their order, first layer first."
            raise ArgumentError(f"weights[{index - 1}]", weight, reason, remedy)
        check_finite(f"weights[{index - 1}]", weight)
        if index > 1 and weight.shape[1] != chain[index - 2].shape[0]:
            reason = (
                f"it takes {weight.shape[1]} inputs, but layer {index - 1} has "
                f"{chain[index - 2].shape[0]} outputs"
            )
            remedy = "Give layers in their order, each of shape (d_out, d_in)."
            raise ArgumentError(f"weights[{index - 1}]", weight, reason, remedy)
    return chain


def check_widths(widths: Sequence[int]) -> list[int]:
    """Return the widths d0, …, dL of a chain as ints, at least two positive whole numbers."""
    values = check_array("widths", widths, ndim=1)
    if len(values) < 2 or (values != np.floor(values)).any() or (values < 1).any():
        reason = "it must be two or more whole numbers, each at least 1"
        raise ArgumentError("widths", widths, reason, "Give d0, d1, …, dL, such as (784, 64, 10).")
    return [int(width) for width in values]


def _left_multiplied(product: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return weight @ product


@validate(weights=checks.matrices)
def chain_products(
    weights: Sequence[np.ndarray],
) -> tuple[list[Float[np.ndarray, "_ _"]], list[Float[np.ndarray, "_ _"]]]:
    r"""Return the products of a chain's weights before and after each layer.

    $$ P_\ell = W_{\ell-1} \cdots W_1, \qquad S_\ell = W_L \cdots W_{\ell+1} $$

    with P1 and SL the identity. Implements Eq. (4) of [linear_networks], without the inputs.
    """
    chain = check_chain(weights)
    before = list(accumulate(chain[:-1], _left_multiplied))
    after = list(accumulate(chain[:0:-1], np.matmul))
    first, last = np.eye(chain[0].shape[1]), np.eye(chain[-1].shape[0])
    return [first, *before], [*reversed(after), last]


@validate(weights=checks.matrices)
def end_to_end(weights: Sequence[np.ndarray]) -> Float[np.ndarray, "dL d0"]:
    """Return W_L … W_1, the map of a whole chain of weights."""
    return reduce(_left_multiplied, check_chain(weights))


@validate(product=checks.matrix, widths=checks.list_of(checks.count))
def balance_layers(product: np.ndarray, widths: Sequence[int]) -> list[Float[np.ndarray, "_ _"]]:
    r"""Return a balanced chain of weights with a given end-to-end map.

    $$ W_\ell = B_\ell S^{1/L} B_{\ell-1}^\top, \qquad W_L \cdots W_1 = U S V^\top, \quad
    B_0 = V, \quad B_L = U $$

    Args:
        product: The map (dL, d0); its smallest singular values are cut where a layer is narrower
            than its rank.
        widths: d1, …, dL.

    Raises:
        ArgumentError: The last width is not the map's.

    >>> W1, W2 = balance_layers(np.array([[4.0, 0.0]]), (3, 1))
    >>> (W2 @ W1).round(12), float(np.sum(W1**2)), float(np.sum(W2**2))
    (array([[4., 0.]]), 4.0, 4.0)
    """
    if [*widths][-1:] != [len(product)]:
        reason = f"its last entry must be dL = {len(product)}"
        raise ArgumentError("widths", widths, reason, "Give d1, …, dL.")
    left, values, right = np.linalg.svd(product, full_matrices=False)
    rank = min(int((values > _RANK * values[0]).sum()), *widths) if values[0] > 0 else 0
    shared = values[:rank] ** (1 / len(widths))
    bases = [right[:rank].T, *(np.eye(width, rank) for width in widths[:-1]), left[:, :rank]]
    return [after * shared @ before.T for before, after in pairwise(bases)]


@validate(widths=checks.row, singular_values=checks.numbers, generator=_generator)
def sample_balanced_weights(
    widths: Sequence[int],
    singular_values: float | Sequence[float] | np.ndarray,
    generator: np.random.Generator,
) -> list[Float[np.ndarray, "_ _"]]:
    r"""Draw a chain of strongly balanced weights with given singular values.

    $$ W_\ell = U_\ell S V_\ell^\top, \qquad V_{\ell+1} = U_\ell
    \quad\Rightarrow\quad W_\ell W_\ell^\top = W_{\ell+1}^\top W_{\ell+1} $$

    with random orthonormal columns. Implements App. C of [linear_networks].

    Args:
        widths: d0, …, dL.
        singular_values: k = min(widths) numbers, zero or more; one number stands for k equal ones.
        generator: Source of the random directions.

    Returns:
        W1, …, WL, with Wℓ of shape (dℓ, dℓ₋₁).

    Raises:
        ArgumentError: The singular values are too few, too many, negative or not finite.

    >>> W1, W2 = sample_balanced_weights((5, 3, 4), 0.5, np.random.default_rng(0))
    >>> bool(np.allclose(W1 @ W1.T, W2.T @ W2))
    True
    """
    widths = check_widths(widths)
    rank = min(widths)
    values = np.asarray(singular_values, dtype=np.float64)
    values = np.full(rank, values) if values.ndim == 0 else values
    if values.shape != (rank,) or not np.all(np.isfinite(values) & (values >= 0)):
        reason = (
            f"the narrowest layer has width {rank}, so {rank} finite numbers, zero or more, are "
            "needed"
        )
        remedy = "Give one number, or one for each unit of the narrowest layer."
        raise ArgumentError("singular_values", singular_values, reason, remedy)
    bases = [np.linalg.qr(generator.standard_normal((width, rank)))[0] for width in widths]
    return [(bases[i + 1] * values) @ bases[i].T for i in range(len(widths) - 1)]
