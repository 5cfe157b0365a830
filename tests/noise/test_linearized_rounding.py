"""A network in single precision is linearised as the same network in double precision."""

import numpy as np
import pytest
import torch

from hyperribbon import noise
from hyperribbon.papers.training import mlp


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_steps_of_single_precision_are_those_of_double(activation):
    """Units that are dead on all data leave directions that only rounding would move in."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(120, 8, generator=generator)
    targets = torch.randn(120, 2, generator=generator)
    model = mlp((8, 12, 12, 2), activation, seed=1)
    first_bias = next(p for name, p in model.named_parameters() if name.endswith("bias"))
    with torch.no_grad():
        first_bias[:3] -= 50.0
    single = noise.linearize(model, (inputs, targets))
    double = noise.linearize(model.double(), (inputs.double(), targets.double()))
    first, second = np.linalg.norm(single.solution()), np.linalg.norm(double.solution())
    # The smallest singular value kept is 1e-4 of the largest: 8 roundings grow to 1e-2 of a step.
    assert first == pytest.approx(second, rel=1e-2)
    assert np.linalg.matrix_rank(single.design) == np.linalg.matrix_rank(double.design)
    one, other = (n.stationary_covariance(1e-3, 10) for n in (single, double))
    assert np.trace(one) == pytest.approx(np.trace(other), rel=1e-2)
