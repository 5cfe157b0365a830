"""Hessian and Gauss-Newton matrix of a linear network, as operators that need no data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse.linalg import LinearOperator

from hyperribbon.core.checks import ArgumentError, instance, matrices, validate
from hyperribbon.theory.linear_networks.moments import Moments, check_moments
from hyperribbon.theory.linear_networks.weight_chains import check_chain

_moments = instance(Moments, "Give Moments.of(X, Y).")


@validate(weights=matrices, moments=_moments)
def hessian(weights: Sequence[np.ndarray], moments: Moments) -> LinearOperator:
    r"""Return the curvature of (1/2n)‖W_L…W_1 X − Y‖² as an operator: the Hessian.

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
    """Return the Gauss-Newton part of a linear network's curvature as an operator.

    It equals the Hessian where R = WΣ − M is zero, as at every minimum, whatever the loss there.

    Args:
        weights: W1, …, WL.
        moments: Of inputs and targets.

    Returns:
        (p, p); the weights are ordered layer by layer and row by row, as torch flattens them.
    """
    return _ChainCurvature(weights, moments, residual=False)


def restrict_to_range(curvature: LinearOperator) -> LinearOperator:
    r"""Return the curvature of a linear network on a subspace that contains its range.

    A product leaves $S_\ell^\top(\cdot)$ in layer ℓ, and the residual adds $(\cdot) R P_\ell^\top$.
    So all non-zero eigenvalues belong to moves

    $$ V_\ell = Q_\ell A_\ell + Q_\ell^\perp B_\ell N_\ell^\top $$

    with orthonormal Q for the rows of S and N for those of R Pᵀ: some dL(dℓ + dℓ₋₁) numbers in
    layer ℓ instead of dℓ dℓ₋₁.

    Args:
        curvature: What `hessian` or `ggn` returned.

    Returns:
        A symmetric operator with the same non-zero eigenvalues.

    Raises:
        ArgumentError: It is another operator.
    """
    if not isinstance(curvature, _ChainCurvature):
        remedy = "Give what hessian or ggn returned."
        raise ArgumentError("curvature", curvature, "it is of no linear network", remedy)
    chain, moments = curvature.chain, curvature.moments
    return _ChainCurvature(chain, moments, residual=curvature.residual, restricted=True)


class _ChainCurvature(LinearOperator):
    def __init__(
        self,
        weights: Sequence[np.ndarray],
        moments: Moments,
        *,
        residual: bool,
        restricted: bool = False,
    ) -> None:
        self.chain = check_chain(weights)
        check_moments(self.chain, moments)
        self.moments, self.residual = moments, residual
        after = self._products_after()
        if restricted:  # hidden units in bases that begin with the rows of S
            turns = [np.linalg.qr(S.T, mode="complete")[0] for S in after[1:-1]]
            sides = zip([np.eye(after[0].shape[1]), *turns], [*turns, after[-1]], strict=True)
            self.chain = [
                turn.T @ weight @ before
                for weight, (before, turn) in zip(self.chain, sides, strict=True)
            ]
            after = self._products_after()
        self._after = after
        errors = [moments.times_inputs(after[0]) - moments.cross]
        for weight in self.chain[:-1]:
            errors.append(errors[-1] @ weight.T)
        self._errors = errors
        # A layer moves in its first rows, and below them within the rows of R Pᵀ.
        self._ranks = [min(S.shape) if restricted else S.shape[1] for S in after[1:]]
        kept = None if restricted and residual else 0
        self._ends = [np.linalg.qr(error.T[:, :kept])[0] for error in errors]
        self._shapes = []
        for weight, rank, ends in zip(self.chain, self._ranks, self._ends, strict=True):
            out, into = weight.shape
            self._shapes += [(rank, into), (out - rank, ends.shape[1])]
        sizes = [rows * columns for rows, columns in self._shapes]
        self._places = np.cumsum(sizes)[:-1]
        super().__init__(np.dtype(np.float64), (sum(sizes), sum(sizes)))

    def _products_after(self) -> list[np.ndarray]:
        after = [np.eye(self.chain[-1].shape[0])]
        for weight in reversed(self.chain):
            after.append(after[-1] @ weight)
        return after[::-1]

    def _matvec(self, x: np.ndarray) -> np.ndarray:
        return self._matmat(x.reshape(-1, 1))[:, 0]

    def _matmat(self, X: np.ndarray) -> np.ndarray:
        count = X.shape[1]
        pieces = np.split(np.asarray(X, dtype=np.float64).T, self._places, axis=1)
        moves = [p.reshape(count, *shape) for p, shape in zip(pieces, self._shapes, strict=True)]
        firsts, rests = moves[::2], moves[1::2]
        output = self.chain[-1].shape[0]
        after_moves = [np.zeros((count, output, output))]
        for layer in range(len(self.chain) - 1, -1, -1):
            S = self._after[layer + 1][:, : self._ranks[layer]]
            after_moves.append(after_moves[-1] @ self.chain[layer] + S @ firsts[layer])
        after_moves.reverse()
        error_move = self.moments.times_inputs(after_moves[0])
        products: list[np.ndarray] = []
        for layer, weight in enumerate(self.chain):
            rank, error = self._ranks[layer], self._errors[layer]
            within = error @ self._ends[layer]
            after_move = after_moves[layer + 1].swapaxes(1, 2)
            product = self._after[layer + 1][:, :rank].T @ error_move
            if self.residual:
                product += after_move[:, :rank] @ error
            for part in (product, after_move[:, rank:] @ within):
                products.append(part.reshape(count, part.shape[1] * part.shape[2]))
            error_move = error_move @ weight.T
            if self.residual:
                error_move[..., :rank] += error @ firsts[layer].swapaxes(1, 2)
                error_move[..., rank:] += within @ rests[layer].swapaxes(1, 2)
        return np.hstack(products).T

    def _adjoint(self) -> _ChainCurvature:
        return self
