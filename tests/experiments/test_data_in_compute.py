"""What is judged without theory moves with its data: another seed, labels or pixels shuffled.

`test_theory_in_compute` makes theory wrong. Claims on data, trained networks and simulations alone
do not notice that. They must notice this, or they would say the same of any data.
"""

import types

import numpy as np
import pytest
import torch

from experiments.perturbing import belongs, claims_with, experiment_modules, has_moved
from experiments.test_theory_in_compute import LEFT_OUT, NOT_THEORY, OF_THEORY, UNMOVED
from hyperribbon.core import Band
from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.data import LabelledData, load_data
from hyperribbon.papers.experiments import all_experiments
from hyperribbon.papers.experiments.ribbons import kernels
from hyperribbon.papers.experiments.statements import Ledger, exact, observe

UNMOVED_BY_DATA = {
    "subnetworks/natural_gradient/invariant": "zero on every problem, whatever its scales",
    "fluctuations/bias/warning": "a yes or no that is yes in every repetition",
    "fluctuations/nonlinear/psi-four": "gives no number at preset smoke, and is never judged",
}
"""Claims without theory whose number no seed and no data move at preset smoke, with the reason."""

QUICK = ("ribbons/fig7", "fluctuations/fig2a", "fluctuations/fig8b")
"""Experiments that need about a second for all of this; the others are slow."""

WITHOUT_THEORY = [
    id
    for id in all_experiments()
    if id not in OF_THEORY or any(belongs(name, id) for name in UNMOVED[NOT_THEORY])
]


@pytest.mark.parametrize(
    "id", [pytest.param(id, marks=() if id in QUICK else pytest.mark.slow) for id in WITHOUT_THEORY]
)
def test_what_is_judged_without_theory_moves_with_seed_or_data(id, tmp_path):
    moved = by_data(all_experiments()[id], tmp_path)
    asked = {name for name in moved if id not in OF_THEORY or name in UNMOVED[NOT_THEORY]}
    unmoved = {name for name in asked if not moved[name]}
    assert unmoved == {name for name in UNMOVED_BY_DATA if belongs(name, id)}


def test_experiments_without_theory_are_named():
    named = {id for id in WITHOUT_THEORY if id not in OF_THEORY}
    assert named == {*LEFT_OUT, *(id for id in named if id.startswith("subnetworks"))}


def test_what_moves_a_number_is_told(tmp_path):
    def compute(config, context):
        data = kernels.load_data("digits")
        pixel = data.inputs.flatten(1)[:, 20]
        of_zeros = pixel[data.targets == 0].mean().item()
        return [of_zeros, pixel[0].item(), context.rng("draw").normal(), 1.0]

    names = ("labels and pixels", "pixels", "seed", "nothing")
    ledger = Ledger("none/told", *(observe(n, "here", n, Band(0, 2, "words")) for n in names))
    fake = types.SimpleNamespace(
        compute=compute,
        config=lambda preset: None,
        claims=lambda result: ledger.judge(dict(zip(names, map(exact, result), strict=True))),
    )
    assert by_data(fake, tmp_path) == {
        "none/told/labels and pixels": {"labels", "pixels"},
        "none/told/pixels": {"pixels"},
        "none/told/seed": {"seed"},
        "none/told/nothing": set(),
    }


def by_data(experiment, folder):
    """Return what moves the number of each claim: "seed", "labels" or "pixels"."""
    right = claims_with(experiment, folder / "right", [])
    moved = {name: set() for name in right}
    for cause, found in (
        ("seed", claims_with(experiment, folder / "seed", [], seed=1, refusals=ArgumentError)),
        ("labels", with_data(experiment, folder / "labels", shuffled_labels)),
        ("pixels", with_data(experiment, folder / "pixels", shuffled_pixels)),
    ):
        for name, claim in found.items():
            if has_moved(claim, right[name]):
                moved[name].add(cause)
    return moved


def with_data(experiment, folder, change):
    """Return the claims where every data set that is read is changed."""

    def changed(*args, **kwargs):
        return change(load_data(*args, **kwargs))

    places = [module for module in experiment_modules() if "load_data" in vars(module)]
    forget(places)
    replaced = [(module, "load_data", changed) for module in places]
    found = claims_with(experiment, folder, replaced, refusals=ArgumentError)
    forget(places)
    return found


def forget(modules):
    """Empty the caches of data in modules, which would outlive a change."""
    for module in modules:
        for value in vars(module).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


def shuffled_labels(data):
    """Return data whose labels are another sample's."""
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(data.targets)))
    return LabelledData(data.inputs, data.targets[order])


def shuffled_pixels(data):
    """Return data whose inputs have their numbers in an order of each sample's own."""
    rows = np.random.default_rng(0).permuted(data.inputs.flatten(1).numpy(), axis=1)
    return LabelledData(torch.from_numpy(rows).reshape(data.inputs.shape), data.targets)
