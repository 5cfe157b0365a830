"""What to record while a linear network is trained: curvature, balance, singular values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hyperribbon.core import checks
from hyperribbon.core.checks import check_choice, validate
from hyperribbon.core.checks import operator as square_operator
from hyperribbon.spectra import eigsh
from hyperribbon.theory import linear_networks as theory
from hyperribbon.theory.linear_networks.moments import Moments, reduce_chain

_NAMES = ("sharpness", "trace", "balance_defect", "singular_values")


_MOMENTS = checks.instance(Moments, "Give theory.linear_networks.Moments.of(X, Y).")


@validate(
    weights=checks.matrices,
    moments=_MOMENTS,
    k=checks.count,
    matrix=checks.function,
    should_stop=checks.function,
)
def leading_eigenvalues(
    weights: Sequence[np.ndarray],
    moments: Moments,
    k: int = 1,
    *,
    matrix: Callable[..., Any] = theory.hessian,
    tol: float = 1e-5,
    seed: int = 0,
    memory: float | None = None,
    should_stop: Callable[[], bool | None] | None = None,
) -> np.ndarray:
    """Measure a linear network's k largest Hessian eigenvalues from its layers and moments.

    Args:
        weights: W1, …, WL.
        moments: Of inputs and targets.
        k: How many; all of them when the network has fewer weights.
        matrix: `theory.linear_networks.hessian` or `ggn`.
        tol: Residuals to reach, relative to the largest eigenvalue.
        seed: Seed of the eigensolver.
        memory: Bytes that the eigensolver may use; None for what is free.
        should_stop: Asked between products, as for `eigsh`.

    Returns:
        (k,), descending.

    >>> W1, W2 = np.array([[2.0]]), np.array([[3.0]])
    >>> leading_eigenvalues([W1, W2], Moments(np.ones(1), np.array([[6.0]]), 36.0)).round(6)
    array([13.])
    """
    reduced = reduce_chain(weights, moments, hidden=False)
    whole = square_operator("matrix", matrix(reduced.weights, reduced.moments))
    operator = theory.restrict_to_range(whole)
    limits = {"memory": memory, "should_stop": should_stop, "certificate": "full"}
    size = min(k, operator.shape[0])
    found = eigsh(operator, size, tol=tol, seed=seed, eigenvectors=False, **limits)
    values = np.concatenate(
        [found.eigenvalues, np.zeros(min(k, whole.shape[0] - operator.shape[0]))]
    )
    left_out = weights[0].shape[1] - reduced.weights[0].shape[1]
    if left_out:
        after = theory.chain_products(reduced.weights)[1][0]
        copied = moments.sigma_x**2 * np.linalg.eigvalsh(after.T @ after)
        values = np.concatenate([values, np.repeat(copied, min(left_out, k))])
    return np.sort(values)[::-1][:k]


@validate(moments=_MOMENTS)
def linear_measurements(
    moments: Moments, names: Sequence[str] = _NAMES
) -> dict[str, Callable[[Sequence[np.ndarray]], Any]]:
    """Return measurements for `simulation.train_linear(..., measure=...)`.

    Args:
        moments: Of the data the network is trained on.
        names: Any of "sharpness" (largest Hessian eigenvalue), "trace" (Eq. 7 of
            [linear_networks]), "balance_defect" and "singular_values" (of the whole network).
    """
    functions: dict[str, Callable[[Sequence[np.ndarray]], Any]] = {
        "sharpness": lambda weights: float(leading_eigenvalues(weights, moments)[0]),
        "trace": partial(theory.trace, X=moments),
        "balance_defect": theory.balance_defect,
        "singular_values": _singular_values,
    }
    listed = [names] if isinstance(names, str) else checks.iterable("names", names)
    return {check_choice("names", name, _NAMES): functions[name] for name in listed}


def _singular_values(weights: Sequence[np.ndarray]) -> np.ndarray:
    return np.linalg.svd(theory.end_to_end(weights), compute_uv=False)
