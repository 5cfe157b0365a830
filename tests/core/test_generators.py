import numpy as np
import pytest
import torch

from hyperribbon.core import ArgumentError, derive_seed, numpy_generator, torch_generator


def test_streams_are_named_and_repeatable():
    first = numpy_generator(3, "weights", 1).standard_normal(5)
    again = numpy_generator(3, "weights", 1).standard_normal(5)
    other = numpy_generator(3, "weights", 2).standard_normal(5)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_keys_do_not_run_together():
    assert derive_seed(0, "a", "b") != derive_seed(0, "ab")
    assert derive_seed(0, 1) != derive_seed(0, "1")


def test_the_global_state_is_untouched():
    state = torch.get_rng_state()
    torch.randn(3, generator=torch_generator(0, "x"))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("seed", [-1, 1.5, "0", True])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(ArgumentError, match="seed"):
        derive_seed(seed)
