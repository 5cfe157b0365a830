"""What the labels say of a trained network: its singular values and its sharpness."""

# pyright: reportConstantRedefinition=false
# Capitals are matrices here, not constants.
from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated as Float
from typing import Literal

import numpy as np

from hyperribbon.core import checks
from hyperribbon.core.checks import ArgumentError, check_choice, validate
from hyperribbon.theory.linear_networks.moments import check_labels

_WHITE = 1e-8


@validate(X=checks.matrix, width=checks.count)
def check_white(X: np.ndarray, width: int | None = None) -> float:
    r"""Return σx of inputs with $X X^\top / n = \sigma_x^2 I$, as balanced solutions assume.

    Args:
        X: Inputs (d0, n), samples as columns.
        width: The d0 that is expected.

    Raises:
        ArgumentError: The inputs are not white; the message says whether whitening with fewer
            directions would make them so.
    """
    if width is not None and X.shape[0] != width:
        reason = f"it must be a matrix ({width}, n)"
        raise ArgumentError("X", X, reason, "Put each sample in a column.")
    moment = X @ X.T / X.shape[1]
    variance = float(np.trace(moment)) / len(X)
    if np.abs(moment - variance * np.eye(len(X))).max() > _WHITE * variance or variance == 0:
        rank = int(np.linalg.matrix_rank(X))
        cause = (
            f"its {len(X)} features span only {rank} directions, so X Xᵀ/n cannot be σx² I"
            if rank < len(X)
            else "X Xᵀ/n is not σx² I"
        )
        raise ArgumentError("X", X, cause, "Use whiten(X).inputs, which drops constant directions.")
    return float(np.sqrt(variance))


@validate(X=checks.matrix, Y=checks.matrix, depth=checks.count)
def solution_singular_values(
    X: np.ndarray,
    Y: np.ndarray,
    depth: int,
    form: Literal["general", "interpolating"] = "general",
) -> Float[np.ndarray, "k"]:
    r"""Return the singular values of each layer at the solution of a balanced linear network.

    $$ \sigma_i(W)^L = \frac{\sigma_i(Y X^\top)}{n \sigma_x^2} \quad\text{(general)}, \qquad
    \sigma_i(W)^L = \frac{\sigma_i(Y)}{\sqrt n \sigma_x} \quad\text{(interpolating)} $$

    Implements Eq. (13) of [linear_networks], whose printed form is the second: right only when a
    linear map of the inputs can reproduce the labels. The first holds at the minimum always.

    Raises an ArgumentError when the inputs are not white, or the shapes do not fit.

    Args:
        X: White inputs (d0, n), samples as columns.
        Y: Targets (dL, n).
        depth: Number of layers L.
        form: "general" or "interpolating".

    Returns:
        min(d0, dL) values ("interpolating": min(d0, dL) leading ones), descending.
    """
    check_choice("form", form, ("general", "interpolating"))
    X, Y = check_labels(X, Y)
    sigma_x, samples = check_white(X), X.shape[1]
    if form == "general":
        values = np.linalg.svd(Y @ X.T, compute_uv=False) / (samples * sigma_x**2)
    else:
        values = np.linalg.svd(Y, compute_uv=False) / (np.sqrt(samples) * sigma_x)
    return values[: min(len(X), len(Y))] ** (1 / depth)


@validate(Y=checks.matrix)
def label_proportions(Y: np.ndarray) -> Float[np.ndarray, "classes"]:
    r"""Return each class's share in one-hot labels, αi = σi²(Y)/n, which the solution depends on.

    Args:
        Y: One-hot labels (classes, n), samples as columns.

    Raises:
        ArgumentError: The labels are not one-hot.

    >>> label_proportions(np.array([[1, 0, 1, 1], [0, 1, 0, 0]]))
    array([0.75, 0.25])
    """
    if not np.isin(Y, (0, 1)).all() or not np.all(Y.sum(axis=0) == 1):
        reason = "labels are one-hot only if every column has a single 1 and else zeros"
        remedy = "Give (classes, n) labels such as np.eye(classes)[labels].T."
        raise ArgumentError("Y", Y, reason, remedy)
    return Y.mean(axis=1)


@validate(proportions=checks.row, depth=checks.count, sigma_x=checks.positive)
def label_sharpness(
    proportions: Sequence[float] | np.ndarray, depth: int, sigma_x: float = 1.0
) -> float:
    r"""Return the sharpness of a balanced solution that interpolates one-hot labels.

    $$ \lambda_{\max} = L \, \sigma_x^{2/L} \, \alpha_{\max}^{1 - 1/L} $$

    Implements Eq. (14) of [linear_networks] with σmax²(Y)/n = αmax.

    Args:
        proportions: Share of each class, adding up to 1.
        depth: Number of layers L.
        sigma_x: Root mean square of the white inputs.

    Raises:
        ArgumentError: The proportions are negative, or do not add up to 1.

    >>> round(label_sharpness([0.1] * 10, depth=4), 4)
    0.7113
    """
    shares = np.asarray(proportions, dtype=np.float64)
    if not np.all(shares >= 0) or abs(shares.sum() - 1) > 1e-6:
        reason = "they must be shares, zero or more, that add up to 1"
        remedy = "Give one share for each class, such as label_proportions(Y)."
        raise ArgumentError("proportions", proportions, reason, remedy)
    return float(depth * sigma_x ** (2 / depth) * shares.max() ** (1 - 1 / depth))
