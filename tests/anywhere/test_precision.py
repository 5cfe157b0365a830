"""Weights of 16 bits through every public call: float32's numbers, to the rounding of 16 bits.

Tolerances come from counting roundings. One rounding changes a number by at most u = eps/2 of
itself; n of them, which are as good as independent, by λ√n·u but with probability 2·exp(−λ²/2)
(Higham and Mary, SIAM J. Sci. Comput. 41, 2019). λ = 4 leaves 7e-4. Each number is compared in
units of the largest of its kind. Sums over samples are taken in float64 and add nothing.
"""

from __future__ import annotations

import math
import re

import pytest
import torch

import hyperribbon as hr
from anywhere.calls import CALLS, differences, make_setting, numbers

SURE = 4.0
# Two layers, tanh and softmax: four roundings forwards, six for the tangents, four at the loss, six
# backwards.
PRODUCTS = SURE * math.sqrt(20)
# A loss: two layers of two roundings each, log-softmax and the mean.
LOSSES = SURE * math.sqrt(6)


def steps(count: int, reach: float) -> float:
    """Return the roundings of weights that are trained, in units of the largest weight.

    They are rounded at every step, and each step is `reach` = lr/(1 − momentum) gradients with the
    rounding of a product; gradients stay below half of the largest weight.
    """
    return SURE * math.sqrt(count) + count * reach * PRODUCTS / 2


RECORDED = "Recorder, Trajectory, weight_covariance, variance_flatness"
ROUNDINGS = {
    "train": steps(9, 0.2),
    "train_ensemble": steps(6, 0.1),
    "find_ticket": steps(12, 0.1),
    RECORDED: 2 * steps(90, 0.1),  # a variance has twice the relative error
    "layer_criticality": 2 * LOSSES,  # differences of two losses, in units of the loss
}
# Elsewhere are differences of numbers that nearly cancel, and counts.
PLACES = {
    "inspect": r"model\.(loss|gradient)|hessian\.(largest|smallest|trace)|gauss_newton|fisher|"
    r"noise\.(trace|gradient|scale|share)|(first|second)_share",
    "compare": r"\.\d+\.[ab]$",
    "compare_with_theory": r"chain\.(weights|moments)|rungs",
}
QUICK = {"Hessian", "trace", "Mask, select", "Streaming, stream_inpca", "train"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in CALLS]
)
def test_sixteen_bits_give_the_numbers_of_float32(name, dtype, tmp_path):
    found = numbers(CALLS[name](make_setting(tmp_path / "narrow", dtype=dtype)))
    wide = make_setting(tmp_path / "wide", dtype=torch.float32, rounded=dtype)
    expected = numbers(CALLS[name](wide))
    assert found.keys() == expected.keys()
    compared = [place for place in expected if re.search(PLACES.get(name, ""), place)]
    assert compared
    tolerance = ROUNDINGS.get(name, PRODUCTS) * torch.finfo(dtype).eps / 2
    loss = -wide.score(wide.model.state_dict()) if name == "layer_criticality" else 0.0
    assert not differences(
        {place: found[place] for place in compared},
        {place: expected[place] for place in compared},
        tolerance,
        least=loss,
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_step_is_as_long_in_sixteen_bits(dtype):
    """The fused update of torch 2.13 on the CPU is not: most weights are off by whole steps."""
    from hyperribbon.papers.training.optimizers import make_optimizer

    draws = torch.Generator("cpu").manual_seed(0)
    start, slope = (torch.randn(67, generator=draws).to(dtype) for _ in range(2))
    ends = []
    for kind in (dtype, torch.float32):
        weights = torch.nn.Parameter(start.to(kind, copy=True))
        weights.grad = slope.to(kind)
        make_optimizer([weights], "sgd", lr=0.1, momentum=0.5).step()
        ends.append(weights.detach().float())
    # The product with the rate is rounded, and the sum.
    tolerance = SURE * math.sqrt(2) * torch.finfo(dtype).eps / 2
    assert float((ends[0] - ends[1]).abs().max()) < tolerance * float(start.abs().max())


MADE = {
    "Hessian": lambda at: at.hessian,
    "GGN": lambda at: hr.GGN(at.risk),
    "Fisher": lambda at: hr.Fisher(at.model, at.data),
    "GradientCovariance": lambda at: hr.GradientCovariance(at.risk),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", MADE)
def test_products_can_be_raised_to_single_precision(name, dtype, tmp_path):
    """The weights stay what their 16 bits say; nothing else is rounded to them."""
    narrow = MADE[name](make_setting(tmp_path / "narrow", dtype=dtype))
    wide = make_setting(tmp_path / "wide", dtype=torch.float32, rounded=dtype)
    vectors = wide.vectors(2)
    found, expected = narrow.in_precision(torch.float32) @ vectors, MADE[name](wide) @ vectors
    assert found.dtype == torch.float32
    # Sums of at most 24 × 39 products, in whatever order.
    limit = 24 * 39 * torch.finfo(torch.float32).eps
    assert float((found - expected).abs().max()) <= limit * float(expected.abs().max())
    coarse = (narrow @ vectors.to(dtype)).float()
    assert float((coarse - expected).abs().max()) > limit * float(expected.abs().max())
