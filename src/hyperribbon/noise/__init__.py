"""Gradient noise, weight fluctuations under SGD, and the flatness along their modes."""

from hyperribbon.noise.flatness import (
    DriftWarning,
    FewSamplesWarning,
    VarianceFlatness,
    variance_flatness,
)
from hyperribbon.noise.fluctuations import fluctuations
from hyperribbon.noise.gradient_noise import (
    GradientNoise,
    compare_noise,
    detailed_balance_defect,
    measure_noise,
    noise_scale,
    proportionality,
)
from hyperribbon.noise.layer_fluctuations import Fluctuations, LayerFluctuations
from hyperribbon.noise.linearized import LinearizedNetwork, linearize
from hyperribbon.noise.stationarity import Stationarity, autocorrelation_time, stationarity
from hyperribbon.noise.stationary import (
    LeadingCovariance,
    StabilityWarning,
    stationary_covariance,
)
from hyperribbon.noise.weights import (
    CovarianceComparison,
    WeightCovariance,
    compare_covariance,
    weight_covariance,
)

__all__ = [
    "CovarianceComparison",
    "DriftWarning",
    "FewSamplesWarning",
    "Fluctuations",
    "GradientNoise",
    "LayerFluctuations",
    "LeadingCovariance",
    "LinearizedNetwork",
    "StabilityWarning",
    "Stationarity",
    "VarianceFlatness",
    "WeightCovariance",
    "autocorrelation_time",
    "compare_covariance",
    "compare_noise",
    "detailed_balance_defect",
    "fluctuations",
    "linearize",
    "measure_noise",
    "noise_scale",
    "proportionality",
    "stationarity",
    "stationary_covariance",
    "variance_flatness",
    "weight_covariance",
]
