"""Weights of 16 bits through every public call: float32's numbers, to the rounding of 16 bits."""

from __future__ import annotations

import pytest
import torch

from anywhere.calls import CALLS, differences, make_setting, numbers

# A product passes about eight roundings on its way through two layers and back, and again for the
# second derivative; each is half an eps of the largest number, and a difference of two such numbers
# doubles it.
PRODUCTS = 16
# Weights that are trained are rounded at every step: nine steps with a momentum of one half (each
# rounding counts twice), of gradients with the rounding above.
STEPS = 9 * 2 * PRODUCTS
ROUNDINGS = {"train": STEPS, "train_ensemble": STEPS, "find_ticket": STEPS}
# The drop is a difference of two losses of about its size ten times, evaluated in 16 bits.
ROUNDINGS["layer_criticality"] = 10 * PRODUCTS
# Deviations from zero: of layers from balance, of weights from a stationary state.
NO_SCALE = {"compare_with_theory", "Recorder, Trajectory, weight_covariance, variance_flatness"}
NO_SCALE |= {"inspect", "compare"}


QUICK = {"Hessian", "trace", "Mask, select", "Streaming, stream_inpca", "train"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in CALLS]
)
def test_sixteen_bits_give_the_numbers_of_float32(name, dtype, tmp_path):
    found = numbers(CALLS[name](make_setting(tmp_path / "narrow", dtype=dtype)))
    wide = make_setting(tmp_path / "wide", dtype=torch.float32, rounded=dtype)
    expected = numbers(CALLS[name](wide))
    if name in NO_SCALE:
        assert found.keys() == expected.keys()
        return
    tolerance = ROUNDINGS.get(name, PRODUCTS) * torch.finfo(dtype).eps
    assert not differences(found, expected, tolerance)
