"""Hessian spectra of deep linear networks, from the weights and from the labels.

The network is f(X) = W_L … W_1 X with layers Wℓ of shape (dℓ, dℓ₋₁), inputs X (d0, n) and targets
Y (dL, n) with samples as columns, and the loss is (1/2n)‖f(X) − Y‖². Key: [linear_networks].
"""

from hyperribbon.core.data.whitening import Whitened, whiten
from hyperribbon.theory.linear_networks.balanced import (
    balance_defect,
    balanced_count,
    balanced_eigenvalues,
    balanced_eigenvectors,
    printed_count,
)
from hyperribbon.theory.linear_networks.curvature import ggn, hessian, restrict_to_range
from hyperribbon.theory.linear_networks.kernel import jacobian, ntk, sharpness_bound, trace
from hyperribbon.theory.linear_networks.moments import Moments
from hyperribbon.theory.linear_networks.shallow import (
    shallow_count,
    shallow_eigenvalues,
    shallow_eigenvectors,
    shallow_sharpness,
    shallow_trace,
)
from hyperribbon.theory.linear_networks.solution import (
    check_white,
    label_proportions,
    label_sharpness,
    solution_singular_values,
)
from hyperribbon.theory.linear_networks.weight_chains import (
    balance_layers,
    chain_products,
    end_to_end,
    sample_balanced_weights,
)

__all__ = [
    "Moments",
    "Whitened",
    "balance_defect",
    "balance_layers",
    "balanced_count",
    "balanced_eigenvalues",
    "balanced_eigenvectors",
    "chain_products",
    "check_white",
    "end_to_end",
    "ggn",
    "hessian",
    "jacobian",
    "label_proportions",
    "label_sharpness",
    "ntk",
    "printed_count",
    "restrict_to_range",
    "sample_balanced_weights",
    "shallow_count",
    "shallow_eigenvalues",
    "shallow_eigenvectors",
    "shallow_sharpness",
    "shallow_trace",
    "sharpness_bound",
    "solution_singular_values",
    "trace",
    "whiten",
]
