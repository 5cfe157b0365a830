"""What the user has set for all of torch does not change hyperribbon's numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch

import hyperribbon as hr
from anywhere.calls import (
    AS_IT_RUNS,
    CALLS,
    LONG,
    OWN_LOADER,
    RESULTS,
    WITHOUT_TENSORS,
    Numbers,
    differences,
    make_setting,
    numbers,
)
from anywhere.test_precision import ROUNDINGS

# Sums of at most 24 × 39 products in single precision, in whatever order: 936 · 6e-8 in the worst
# case. The settings below leave the order alone, so what differs at all differs by a dtype.
ROUNDING = 24 * 39 * torch.finfo(torch.float32).eps


@contextmanager
def default_device() -> Iterator[None]:
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextmanager
def default_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextmanager
def everything() -> Iterator[None]:
    with ExitStack() as stack:
        for setting in (default_device, default_dtype, deterministic):
            stack.enter_context(setting())
        yield


SETTINGS = {
    "default device": default_device,
    "default dtype": default_dtype,
    "deterministic": deterministic,
    "inference mode": torch.inference_mode,
    "no grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


QUICK = {"Hessian", "trace", "density", "Mask, select", "stationary_covariance"}
"""Under each setting alone in every run; under autocast, which changes most, all short calls."""


def is_quick(name: str, ambient: str) -> bool:
    return name in QUICK or (ambient == "autocast" and name not in LONG)


WITH_SETTINGS = [
    pytest.param(name, ambient, marks=[pytest.mark.slow] * (not is_quick(name, ambient)))
    for name in CALLS
    for ambient in SETTINGS
]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Numbers]:
    known: dict[str, Numbers] = {}

    def compute(name: str) -> Numbers:
        if name not in known:
            folder = tmp_path_factory.mktemp("plain")
            known[name] = numbers(CALLS[name](make_setting(folder)))
        return known[name]

    return compute


def test_every_public_name_is_called():
    called = {part.strip() for name in CALLS for part in name.split(",")}
    rooms = {name for name in hr.__all__ if type(getattr(hr, name)).__name__ == "module"}
    missing = set(hr.__all__) - rooms - WITHOUT_TENSORS - OWN_LOADER - RESULTS - called
    assert not missing


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in CALLS]
)
def test_defaults_of_torch_change_no_number(name, plain, tmp_path):
    expected = plain(name)
    setting = make_setting(tmp_path)
    with everything():
        found = CALLS[name](setting)
    assert not differences(numbers(found), expected, ROUNDING)


@pytest.mark.parametrize(("name", "ambient"), WITH_SETTINGS)
def test_a_setting_changes_no_number(name, ambient, plain, tmp_path: Path):
    expected = plain(name)
    setting = make_setting(tmp_path)
    with SETTINGS[ambient]():
        found = CALLS[name](setting)
    as_it_runs = ambient == "autocast" and name in AS_IT_RUNS
    tolerance = ROUNDINGS[name] * torch.finfo(torch.bfloat16).eps / 2 if as_it_runs else ROUNDING
    loss = -setting.score(setting.model.state_dict()) if name == "layer_criticality" else 0.0
    assert not differences(numbers(found), expected, tolerance, least=loss)


def test_a_model_made_in_inference_mode_is_measured_and_not_trained(tmp_path):
    at = make_setting(tmp_path)
    with torch.inference_mode():
        made = copy.deepcopy(at.model)
        found = hr.eigsh(hr.Hessian(made, at.loss, at.data), 2).eigenvalues
    expected = hr.eigsh(at.hessian, 2).eigenvalues
    torch.testing.assert_close(found, expected, rtol=ROUNDING, atol=0)
    with pytest.raises(hr.ArgumentError, match=r"inference_mode\(\)"):
        hr.train(made, at.loss, at.data, epochs=1, lr=0.1)
