import numpy as np
import pytest
import torch

from hyperribbon.core.checks import ArgumentError
from hyperribbon.spectra import eigsh, plan


class Shape:
    """An operator of any size that must not be multiplied."""

    def __init__(self, size, flops=None, memory=0, gram_size=None):
        self.shape, self.dtype, self.device = (size, size), torch.float32, torch.device("cpu")
        self._flops, self._memory = flops, memory
        if gram_size:
            self.gram_size = gram_size

    def __matmul__(self, other):
        raise AssertionError("a plan multiplies nothing")

    def cost(self):
        if self._flops is None:
            return None
        return type("Cost", (), {"bytes": self._memory, "flops": self._flops})()


def route(result, method):
    return next(r for r in result.routes if r.method == method)


def test_small_operators_are_written_out():
    assert plan(torch.eye(300), 5).best.method == "dense"


def test_large_operators_go_by_lanczos():
    assert plan(Shape(1_000_000), 10).best.method == "lanczos"


def test_few_samples_go_by_the_gram_matrix_and_many_do_not():
    few = Shape(1_000_000, flops=1e9, gram_size=20)
    many = Shape(1_000_000, flops=1e9, gram_size=20_000)
    assert plan(few, 10).best.method == "gram"
    assert plan(many, 10).best.method == "lanczos"


def test_memory_is_counted():
    result = plan(Shape(1_000_000, flops=1e9, memory=10**9), 10)
    lanczos = route(result, "lanczos")
    assert lanczos.memory >= 10**9 + lanczos.matvecs * 4_000_000
    assert route(result, "dense").memory >= 8 * 10**12
    assert not route(result, "dense").fits


def test_the_product_that_measures_rounding_is_counted():
    small, large = Shape(10**6, flops=1e9, memory=10**9), Shape(10**6, flops=1e9, memory=10**9)
    cost = large.cost()
    cost.beside = 5 * 10**8
    large.cost = lambda: cost
    ours, theirs = (route(plan(shape, 10), "dense") for shape in (small, large))
    assert theirs.memory == ours.memory + cost.beside
    # It comes after Lanczos has given its basis back, at tolerances that come near rounding.
    for tol, is_larger in ((1e-4, True), (1e-3, False)):
        ours, theirs = (route(plan(shape, 10, tol=tol), "lanczos") for shape in (small, large))
        assert (theirs.memory > ours.memory) == is_larger


def test_less_memory_means_a_smaller_basis():
    rich = route(plan(Shape(1_000_000), 10, memory=8e9), "lanczos")
    poor = route(plan(Shape(1_000_000), 10, memory=4e8), "lanczos")
    assert poor.fits
    assert poor.memory < rich.memory


def test_when_nothing_fits_the_error_says_what_would():
    with pytest.raises(ArgumentError) as caught:
        plan(Shape(100_000_000), 10, memory=1e9)
    message = str(caught.value)
    assert "1.00 GB" in message
    assert "lanczos" in message
    coordinates = int(message.split("About ")[1].split(" ")[0])
    assert plan(Shape(coordinates), 10, memory=1e9).best.fits


def test_time_grows_with_the_cost_of_a_product():
    cheap = route(plan(Shape(10**6, flops=1e8), 10), "lanczos")
    dear = route(plan(Shape(10**6, flops=1e12), 10), "lanczos")
    assert dear.seconds > 10 * cheap.seconds


def test_the_plan_prints_its_routes():
    text = str(plan(Shape(10**6, flops=1e9, gram_size=100), 10))
    assert all(word in text for word in ("dense", "gram", "lanczos", "does not fit"))


def test_eigsh_follows_the_plan(factored):
    op = factored(torch.randn(15, 3000, generator=torch.Generator().manual_seed(0)))
    assert eigsh(op, 3).method == plan(op, 3).best.method == "gram"


def test_time_is_of_the_right_order():
    A = np.random.default_rng(0).normal(size=(700, 700))
    estimate = route(plan(A + A.T, 5), "dense").seconds
    assert 1e-3 < estimate < 60


@pytest.mark.parametrize(("k", "options"), [(0, {}), (11, {}), (2, {"memory": 0})])
def test_bad_arguments(k, options):
    with pytest.raises(ArgumentError):
        plan(torch.eye(10), k, **options)
