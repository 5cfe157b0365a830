"""How the loss rises along the modes in which weights fluctuate, and how those modes relax."""

# pyright: reportConstantRedefinition=false
# Capitals are quantities of the paper here, not constants.
from __future__ import annotations

from typing import Annotated as Float

import numpy as np
from numpy.typing import ArrayLike

from hyperribbon.core.checks import (
    ArgumentError,
    check_shape,
    count,
    decay_rates,
    non_negative,
    non_negative_numbers,
    number,
    positive,
    row,
    validate,
    zero_or_more,
)


@validate(D1=non_negative_numbers, input_variance=positive, theta=number)
def loss_along_second_layer_modes(D1: ArrayLike, input_variance: float, theta: float) -> np.ndarray:
    """Return the flatness δL(θaᵢ) = ½σx²θ²D₁ᵢ for a step θ along mode aᵢ of W₂.

    Exact for white inputs. Implements the first form of Eq. (3.37) of [fluctuations]; its second
    form, in terms of M₂₂, is smaller by 1 + D₁/D₂.
    """
    return 0.5 * input_variance * theta**2 * np.asarray(D1, float)


@validate(D2=zero_or_more, input_variance=positive, theta=number, inputs=count, modes=count)
def loss_along_first_layer_modes(
    D2: float, input_variance: float, theta: float, inputs: int, modes: int
) -> np.ndarray:
    """Return the flatness δL along modes of W₁ (N_o = 1): ½σx²θ²D₂ for the first N_i, then 0.

    The modes that fluctuate are all of the form V⊗e, so every one meets the same curvature σx²D₂.
    """
    return np.where(np.arange(modes) < inputs, 0.5 * input_variance * theta**2 * D2, 0.0)


@validate(D1=non_negative, D2=positive)
def local_exponent(D1: ArrayLike, D2: float) -> np.ndarray:
    """Return the local exponent ψ = −d ln M₂₂/d ln F = 2·D₂/(D₁+D₂), flatness F ∝ D₁^(−1/2).

    From Eqs. (3.34) and (3.37) of [fluctuations]. The ψ = 2 stated there needs D₁ ≪ D₂.

    >>> local_exponent([0.0, 1.0], 1.0)
    array([2., 1.])
    """
    return 2 * D2 / (np.asarray(D1, dtype=np.float64) + D2)


@validate(variances=row, curvatures=row)
def fit_exponent(variances: ArrayLike, curvatures: ArrayLike) -> float:
    """Return ψ of variance ∝ F^(−ψ), flatness F = curvature^(−1/2), by least squares on logarithms.

    Modes without positive variance or curvature are left out.

    Raises:
        ArgumentError: Fewer than three modes remain, or they share one curvature.

    >>> round(fit_exponent([1.0, 4.0, 9.0], [1.0, 2.0, 3.0]), 12)
    4.0
    """
    variances = np.asarray(variances, dtype=np.float64)
    curvatures = np.asarray(curvatures, dtype=np.float64)
    check_shape("curvatures", curvatures, variances.shape, f"there are {len(variances)} variances")
    use = (variances > 0) & (curvatures > 0)
    remedy = "Give at least three modes of different curvature."
    if use.sum() < 3:
        reason = f"{int(use.sum())} modes have positive variance and curvature, too few for a slope"
        raise ArgumentError("curvatures", curvatures, reason, remedy)
    logs = np.log(curvatures[use])
    if np.ptp(logs) <= 1e-6:  # curvatures may have been measured in single precision
        reason = "all curvatures are equal up to rounding, so there is no slope"
        raise ArgumentError("curvatures", curvatures, reason, remedy)
    return float(2 * np.polyfit(logs, np.log(variances[use]), 1)[0])


@validate(t=non_negative, rates=decay_rates, input_variance=positive)
def mode_correlation(
    t: ArrayLike, rates: ArrayLike, input_variance: float
) -> Float[np.ndarray, "*times modes"]:
    """Return ⟨χ_k(t)χ_k(0)⟩/⟨χ_k²⟩ = e^(−σx²ω_k t) of modes of any flatness, (times, modes).

    Implements Eq. (3.40) of [fluctuations], where χ̇ = −σx²ωχ + ζ (Eq. 3.39 lacks the sign).
    """
    return np.exp(-input_variance * np.multiply.outer(t, rates))


@validate(
    t=non_negative,
    rates=decay_rates,
    input_variance=positive,
    strength=zero_or_more,
    initial=non_negative,
)
def mode_variance(
    t: ArrayLike,
    rates: ArrayLike,
    input_variance: float,
    strength: float,
    initial: ArrayLike = 0.0,
) -> Float[np.ndarray, "*times modes"]:
    """Return ⟨χ_k(t)²⟩ of modes of any flatness from ⟨χ_k(0)²⟩ = `initial`, (times, modes).

        e^(−2σx²ω_k t)·initial + σ_R²/(2σx²)·(1 − e^(−2σx²ω_k t))

    Implements Eqs. (3.41) and (3.42) of [fluctuations]; modes with ω_k = 0 keep their variance.
    """
    decay = np.exp(-2 * input_variance * np.multiply.outer(t, rates))
    initial = np.asarray(initial)
    reason = "there is one for each of the rates"
    check_shape("initial", initial, np.shape(rates), reason, broadcast=True)
    return decay * initial + strength / (2 * input_variance) * (1 - decay)


@validate(
    lr=positive,
    batch_size=count,
    input_variance=positive,
    target_variance=zero_or_more,
    inputs=count,
)
def drift_rates(
    lr: float, batch_size: int, input_variance: float, target_variance: float, inputs: int
) -> tuple[float, float]:
    """Return the drift of flatness: W₁W₁ᵀ ⟂ W₂ and D₂ decay by λ²σx²σy²/S per step, N_i times that.

    The noise does not conserve W₂ᵀW₂ − W₁W₁ᵀ (Eq. 3.6 of [fluctuations]): its mean changes by
    λσ_R²(W₁W₁ᵀ − N_i W₂ᵀW₂) a step for one output, so that the weights shrink towards balance.
    """
    rate = lr**2 * (input_variance * target_variance) / batch_size
    return rate, rate * inputs


@validate(lr=positive, batch_size=count, target_variance=zero_or_more, inputs=count, D2=positive)
def stationarity_ratio(
    lr: float, batch_size: int, target_variance: float, inputs: int, D2: float
) -> float:
    """Return λσy²N_i/(S·D₂): drift of the flatness over how fast fluctuations relax.

    Quasi-stationary theory needs it far below one. For σx² = 1/N_i it is λσy²/(Sσx²D₂).
    """
    return lr * target_variance * inputs / (batch_size * D2)
