"""An experiment at preset smoke while something it computes from is wrong."""

import sys
import warnings

import numpy as np
import pytest

from hyperribbon.papers.experiments.context import Context

EXPERIMENTS = "hyperribbon.papers.experiments"


def experiment_modules():
    """Return the modules of all experiments that are imported."""
    return [module for name, module in list(sys.modules.items()) if name.startswith(EXPERIMENTS)]


def claims_with(experiment, folder, replaced, *, seed=0, refusals=()):
    """Return the claims by id, with other objects in the place of some.

    Args:
        experiment: What is computed.
        folder: For what it keeps.
        replaced: Owner, name and new object of each place.
        seed: Of the run.
        refusals: Errors with which it may refuse what it is given; then no claim is made.
    """
    for place in ("parts", "shared"):
        (folder / place).mkdir(parents=True)
    context = Context(seed, folder / "parts", folder / "shared")
    with (
        pytest.MonkeyPatch.context() as patch,
        warnings.catch_warnings(),
        np.errstate(all="ignore"),
    ):
        warnings.simplefilter("ignore")
        for owner, name, given in replaced:
            patch.setattr(owner, name, given)
        try:
            claims = experiment.claims(experiment.compute(experiment.config("smoke"), context))
        except refusals:
            claims = []
    return {claim.id: claim for claim in claims}


def has_moved(claim, right):
    """Return whether a number differs from the right one."""
    return not np.isclose(claim.measured, right.measured, 1e-9, 0, equal_nan=True)


def belongs(name, id):
    """Return whether a claim of this name is one of the experiment's."""
    return name.rpartition("/")[0] == id
