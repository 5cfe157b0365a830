"""Standard errors over samples, against their definition and against repetition."""

import numpy as np
import pytest
import torch

from hyperribbon.application.inspection.sampling import noise_scale_error, standard_error


class Samples:
    """Gradients of single samples, in the place of a model."""

    def __init__(self, gradients):
        self.gradients = gradients
        self.samples = len(gradients)

    @property
    def gradient(self):
        return self.gradients.mean(0)

    def groups(self, number, seed):
        return [Samples(part) for part in self.gradients.chunk(number)]


def test_it_is_that_of_the_mean_of_eight_groups():
    values = torch.tensor([3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0]).repeat_interleave(2)
    found = standard_error(Samples(values.unsqueeze(1)), lambda group: float(group.gradient), 0)
    assert found == pytest.approx(np.std([3, 1, 4, 1, 5, 9, 2, 6], ddof=1) / 8**0.5)


def test_the_error_of_the_noise_scale_is_its_spread_over_other_samples():
    """Over 300 sets of 64 samples, whose own spread is known to 4%.

    Eight groups see 0.965 of a deviation on average, and the trace adds √(2/(64·50)) to the
    gradient's 2/(4·8): together the error should be 0.9 of the spread.
    """
    generator = torch.Generator().manual_seed(0)
    mean = torch.full((50,), 4 / 50**0.5, dtype=torch.float64)
    scales, errors = [], []
    for _ in range(300):
        rows = mean + torch.randn(64, 50, generator=generator, dtype=torch.float64)
        scale = float(rows.var(0).sum() / rows.mean(0).square().sum())
        scales.append(scale)
        errors.append(noise_scale_error(scale, Samples(rows), 0))
    assert np.mean(errors) / np.std(scales) == pytest.approx(0.9, abs=0.12)
