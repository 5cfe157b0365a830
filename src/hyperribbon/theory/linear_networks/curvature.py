"""Hessian and Gauss-Newton matrix of a linear network, as operators that need no data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse.linalg import LinearOperator

from hyperribbon.core.checks import instance, matrices, validate
from hyperribbon.theory.linear_networks.moments import Moments, check_moments
from hyperribbon.theory.linear_networks.weight_chains import check_chain

_moments = instance(Moments, "Give Moments.of(X, Y).")


@validate(weights=matrices, moments=_moments)
def hessian(weights: Sequence[np.ndarray], moments: Moments) -> LinearOperator:
    r"""Return the Hessian of (1/2n)‖W_L…W_1 X − Y‖² as an operator.

    With R = WΣ − M, the gradient of layer ℓ is $S_\ell^\top R P_\ell^\top$; its derivative along
    V is

    $$ (\mathrm{d}S_\ell)^\top R P_\ell^\top + S_\ell^\top \mathrm{d}(R P_\ell^\top),
    \qquad \mathrm{d}R = \sum_k S_k V_k P_k \Sigma $$

    A product costs some dL·p operations, whatever the number of samples.

    Args:
        weights: W1, …, WL.
        moments: Of inputs and targets.

    Returns:
        (p, p); the weights are ordered layer by layer and row by row, as torch flattens them.
    """
    return _ChainCurvature(weights, moments, residual=True)


@validate(weights=matrices, moments=_moments)
def ggn(weights: Sequence[np.ndarray], moments: Moments) -> LinearOperator:
    """Return the Gauss-Newton matrix as an operator: the Hessian without its residual terms.

    It equals the Hessian where R = WΣ − M is zero, as at every minimum, whatever the loss there.

    Args:
        weights: W1, …, WL.
        moments: Of inputs and targets.

    Returns:
        (p, p); the weights are ordered layer by layer and row by row, as torch flattens them.
    """
    return _ChainCurvature(weights, moments, residual=False)


class _ChainCurvature(LinearOperator):
    def __init__(self, weights: Sequence[np.ndarray], moments: Moments, *, residual: bool) -> None:
        self._chain = check_chain(weights)
        check_moments(self._chain, moments)
        self._moments, self._residual = moments, residual
        self._sizes = np.cumsum([weight.size for weight in self._chain])[:-1]
        self._after = [np.eye(self._chain[-1].shape[0])]
        for weight in reversed(self._chain):
            self._after.append(self._after[-1] @ weight)
        self._after.reverse()
        errors = [moments.times_inputs(self._after[0]) - moments.cross]
        for weight in self._chain[:-1]:
            errors.append(errors[-1] @ weight.T)
        self._errors = errors
        size = sum(weight.size for weight in self._chain)
        super().__init__(np.dtype(np.float64), (size, size))

    def _matvec(self, x: np.ndarray) -> np.ndarray:
        return self._matmat(x.reshape(-1, 1))[:, 0]

    def _matmat(self, X: np.ndarray) -> np.ndarray:
        count = X.shape[1]
        pieces = np.split(np.asarray(X, dtype=np.float64).T, self._sizes, axis=1)
        moves = [p.reshape(count, *w.shape) for p, w in zip(pieces, self._chain, strict=True)]
        output = self._chain[-1].shape[0]
        after_moves = [np.zeros((count, output, output))]
        for layer in range(len(self._chain) - 1, -1, -1):
            after_moves.append(
                after_moves[-1] @ self._chain[layer] + self._after[layer + 1] @ moves[layer]
            )
        after_moves.reverse()
        error_move = self._moments.times_inputs(after_moves[0])
        products: list[np.ndarray] = []
        for layer, weight in enumerate(self._chain):
            product = self._after[layer + 1].T @ error_move
            if self._residual:
                product += after_moves[layer + 1].swapaxes(1, 2) @ self._errors[layer]
            products.append(product.reshape(count, -1))
            error_move = error_move @ weight.T
            if self._residual:
                error_move += self._errors[layer] @ moves[layer].swapaxes(1, 2)
        return np.hstack(products).T

    def _adjoint(self) -> _ChainCurvature:
        return self
