import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperribbon.papers.training.sampling import SAMPLING_SCHEMES, epoch_batches, steps_per_epoch

sizes = st.tuples(st.integers(1, 60), st.integers(1, 70), st.integers(0, 5))


@settings(max_examples=60, deadline=None)
@given(sizes)
def test_shuffle_uses_every_sample_once(numbers):
    samples, batch, epoch = numbers
    batches = epoch_batches(samples, batch, scheme="shuffle", seed=3, epoch=epoch)
    assert len(batches) == steps_per_epoch(samples, batch)
    assert sorted(torch.cat(batches).tolist()) == list(range(samples))


@settings(max_examples=60, deadline=None)
@given(sizes)
def test_fresh_subsets_have_no_repeats(numbers):
    samples, batch, epoch = numbers
    for indices in epoch_batches(samples, batch, scheme="without_replacement", seed=3, epoch=epoch):
        assert len(set(indices.tolist())) == len(indices) == min(batch, samples)


def test_batches_depend_on_seed_and_epoch_alone():
    for scheme in SAMPLING_SCHEMES:
        one = torch.cat(epoch_batches(50, 8, scheme=scheme, seed=1, epoch=2))
        assert torch.equal(one, torch.cat(epoch_batches(50, 8, scheme=scheme, seed=1, epoch=2)))
        assert not torch.equal(one, torch.cat(epoch_batches(50, 8, scheme=scheme, seed=1, epoch=3)))
        assert not torch.equal(one, torch.cat(epoch_batches(50, 8, scheme=scheme, seed=2, epoch=2)))


def test_noise_of_the_batch_mean_has_the_factor_of_its_scheme():
    """Var of a minibatch mean: s²/S with replacement, (P−S)/(P−1)·s²/S with fresh subsets."""
    samples, size = 20, 8
    values = torch.arange(samples, dtype=torch.float64)
    variance = values.var(unbiased=False).item()
    for scheme, factor in [
        ("replacement", 1.0),
        ("without_replacement", (samples - size) / (samples - 1)),
    ]:
        means = np.array(
            [
                values[batch].mean().item()
                for epoch in range(4000)
                for batch in epoch_batches(samples, size, scheme=scheme, seed=0, epoch=epoch)
            ]
        )
        # relative standard error of a variance from 12000 draws: √(2/12000) = 1.3%
        assert abs(means.var() / (factor * variance / size) - 1) < 0.06
        assert abs(means.mean() - values.mean().item()) < 5 * (variance / size / len(means)) ** 0.5
