"""The manifold that training linear models follows, in closed form [ribbons]."""

from hyperribbon.theory.ribbons.bounds import (
    Bound,
    decay_base,
    mean_bound,
    spectrum_bound,
    split_index,
    target_decay_bound,
    target_norm_bound,
    weight_bound,
    weyl_bound,
)
from hyperribbon.theory.ribbons.geometry import (
    LyapunovForm,
    TargetNorm,
    gaussian_kernel_eigenvalues,
    lyapunov_form,
    target_norm,
    taylor_ribbon,
    trajectory_covariance,
)
from hyperribbon.theory.ribbons.phases import PhaseDiagram, phase_diagram, smallest_model
from hyperribbon.theory.ribbons.ribbon import Part, Ribbon
from hyperribbon.theory.ribbons.sloppiness import Slope, slope
from hyperribbon.theory.ribbons.truncation import Count, count_dimensions, dimensions_of
from hyperribbon.theory.ribbons.variants import (
    TrajectoryCovariance,
    kernels_bound,
    several_kernels,
    sgd,
)

__all__ = [
    "Bound",
    "Count",
    "LyapunovForm",
    "Part",
    "PhaseDiagram",
    "Ribbon",
    "Slope",
    "TargetNorm",
    "TrajectoryCovariance",
    "count_dimensions",
    "decay_base",
    "dimensions_of",
    "gaussian_kernel_eigenvalues",
    "kernels_bound",
    "lyapunov_form",
    "mean_bound",
    "phase_diagram",
    "several_kernels",
    "sgd",
    "slope",
    "smallest_model",
    "spectrum_bound",
    "split_index",
    "target_decay_bound",
    "target_norm",
    "target_norm_bound",
    "taylor_ribbon",
    "trajectory_covariance",
    "weight_bound",
    "weyl_bound",
]
