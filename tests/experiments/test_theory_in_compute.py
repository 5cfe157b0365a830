"""A wrong theory inside an experiment shows in its claims: every function of it, scaled by 1.3.

`test_smoke` makes results wrong after they were computed. That cannot tell whether theory stands on
both sides of a comparison, where an error of it would cancel. Here the functions that `compute`
takes from `hyperribbon.theory` give wrong values themselves, one at a time.
"""

import dataclasses
import functools
import inspect
import operator
import types

import numpy as np
import pytest

from experiments.perturbing import belongs, claims_with, experiment_modules, has_moved
from hyperribbon.core import Band
from hyperribbon.papers.experiments import all_experiments
from hyperribbon.papers.experiments.statements import Ledger, exact, observe
from hyperribbon.theory import fluctuations as theory

FACTOR = 1.3
REFUSALS = (ArithmeticError, IndexError, KeyError, TypeError, ValueError)
THEORY = "hyperribbon.theory"

NOT_THEORY = "judges data, trained networks or simulations alone"
OWN = "rests on a formula of the experiment's own, which another of its claims measures"
COUNTED = "a count, an order, a place or a ratio within theory, which an error of 1.3 leaves alone"

UNMOVED = {
    NOT_THEORY: (
        "ribbons/fig2/range",
        "ribbons/fig5/concentration",
        "ribbons/fig7/tail-grows",
        "ribbons/fig7/head-grows",
        "ribbons/fig7/tail-share",
        "ribbons/fig7/tail-of-P",
        "ribbons/kernels/sloppy-inputs",
        "ribbons/kernels/sloppy-kernel",
        "subnetworks/meanfield/slope-mean",
        "subnetworks/meanfield/slope-second-moment",
        "subnetworks/meanfield/slope-largest",
        "fluctuations/bias/warning",
        "fluctuations/fig2a/diagonal",
        "fluctuations/fig8a/first-layer-weak",
        "fluctuations/fig8b/first-layer-rank",
        "fluctuations/fig8b/columns-alike",
        "fluctuations/fig8b/elements-alike",
        "fluctuations/fig8c/drift",
        "fluctuations/nonlinear/psi-four",
        "fluctuations/nonlinear/steady-motion",
        "fluctuations/nonlinear/noise-alignment",
        "fluctuations/sampling/independence",
        "fluctuations/table1/under-fluctuations",
        "fluctuations/table1/over-fluctuations",
        "linear_networks/depth/amplified",
        "linear_networks/fig2-right/imbalance",
        "linear_networks/fig2-right/imbalance-unbalanced",
        "linear_networks/samples/disputed",
        "linear_networks/fig4/flattening",
    ),
    OWN: ("linear_networks/fig1-middle/amplified",),
    COUNTED: (
        "ribbons/fig2/one-slope",
        "ribbons/fig3/tail",
        "ribbons/fig5/head",
        "ribbons/fig5/tail",
        "ribbons/fig8/ridge",
        "ribbons/fig8/few-dimensions",
        "ribbons/fig8/ridge-slope",
        "ribbons/kernels/bound",
        "ribbons/sgd/stability",
        "fluctuations/fig2b/monotone",
        "fluctuations/fig5a/double-descent",
        "fluctuations/fig5c/current-peak",
        "fluctuations/fig5c/defect-peak",
        "linear_networks/flattening/together",
        "linear_networks/samples/raw-peak",
    ),
}
"""Claims whose number no wrong theory moves at preset smoke, by the reason they are kept."""

STUCK = (
    "ribbons/fig8/simulation",
    "ribbons/sgd/exact",
    "subnetworks/meanfield/mean",
    "subnetworks/meanfield/second-moment",
    "subnetworks/meanfield/largest",
    "fluctuations/fig9a/psi-local",
)
"""Claims on closed forms that at preset smoke miss their bands with the right theory too."""

QUICK = (
    "ribbons/fig4",
    "fluctuations/fig2a",
    "fluctuations/fig3b",
    "fluctuations/fig3c",
    "fluctuations/fig8b",
    "fluctuations/fig9b",
    "linear_networks/counts",
    "linear_networks/fig1-left",
    "linear_networks/fig1-middle",
)
"""Experiments that need less than two seconds for all of their theory; the others are slow."""

LEFT_OUT = ("ribbons/fig1", "ribbons/networks", "ribbons/thesis")
"""No theory is in them; `test_data_in_compute` has them."""

OF_THEORY = [
    *(id for id in all_experiments() if not id.startswith("subnetworks") and id not in LEFT_OUT),
    "subnetworks/gradient_regularisation",
    "subnetworks/meanfield",
]


@pytest.mark.parametrize(
    "id", [pytest.param(id, marks=() if id in QUICK else pytest.mark.slow) for id in OF_THEORY]
)
def test_a_wrong_theory_moves_what_is_judged_by_it(id, tmp_path):
    claims, moved, outcomes = by_theory(all_experiments()[id], tmp_path)
    unmoved = {name for name, functions in moved.items() if not functions}
    assert unmoved == {name for names in UNMOVED.values() for name in names if belongs(name, id)}
    closed = {name for name, claim in claims.items() if claim.expected.origin == "closed form"}
    stuck = {name for name in closed - unmoved if len(outcomes[name]) == 1}
    assert stuck == {name for name in STUCK if belongs(name, id)}


def test_theory_that_is_compared_with_itself_is_found(tmp_path):
    def compute(config, context):
        squares = theory.isotropic_variance(0.1, 0.25, 10) ** 2
        return theory.isotropic_variance(0.1, 0.25, 10) * np.array([1.0, squares**-0.5])

    ledger = Ledger("none/itself", *(observe(n, "here", n, Band(0, 2, "words")) for n in "ab"))
    fake = types.SimpleNamespace(
        compute=compute,
        config=lambda preset: None,
        claims=lambda result: ledger.judge({"a": exact(result[0]), "b": exact(result[1])}),
    )
    _, moved, _ = by_theory(fake, tmp_path)
    assert moved == {"none/itself/a": {"isotropic_variance"}, "none/itself/b": set()}


def targets():
    """Return where experiments find theory: (module or class, name), each once."""
    found = {}
    for module in experiment_modules():
        for key, value in vars(module).items():
            if isinstance(value, types.ModuleType) and value.__name__.startswith(THEORY):
                found |= {(value, one): None for one in members(value)}
            elif getattr(value, "__module__", "").startswith(THEORY):
                if isinstance(value, type):
                    found |= {(value, one): None for one in members(value)}
                elif callable(value):
                    found[module, key] = None
    return list(found)


def members(owner):
    """Return the names of a module's public functions, or of a class's methods and properties."""
    if isinstance(owner, type):
        kinds = (types.FunctionType, property)
        return [n for n, v in vars(owner).items() if isinstance(v, kinds) and n[0] != "_"]
    functions = {n: v for n, v in vars(owner).items() if isinstance(v, types.FunctionType)}
    return [n for n, v in functions.items() if n[0] != "_" and v.__module__.startswith(THEORY)]


def wrong(found, called, name, change):
    """Return a function or property that notes its calls and gives its value changed."""
    inner = found.fget if isinstance(found, property) else found
    assert inner is not None

    @functools.wraps(inner)
    def changed(*args, **kwargs):
        called.add(name)
        return change(inner(*args, **kwargs))

    return property(changed) if isinstance(found, property) else changed


def scaled(value):
    """Return every number of a value times 1.3."""
    return changed_numbers(value, lambda number: FACTOR * number, parts=None)


def bent(value):
    """Return numbers to the power 1/1.3, of a dataclass in its first field alone.

    A factor cancels in slopes, shares and ratios, and where all parts have it; this does not. Both
    depend on the value only, so that theory compared with itself still agrees.
    """
    return changed_numbers(value, lambda x: np.sign(x) * np.abs(x) ** (1 / FACTOR), parts=1)


def changed_numbers(value, change, parts):
    if isinstance(value, bool | str | np.bool_) or value is None:
        return value
    if isinstance(value, int | np.integer) or is_whole(value):
        return value + np.maximum(np.rint(0.3 * np.abs(value)), 1).astype(int)
    if isinstance(value, float | np.ndarray):
        return value if np.asarray(value).dtype == bool else change(value)
    if inspect.isfunction(value):
        return lambda *args, **kwargs: changed_numbers(value(*args, **kwargs), change, parts)
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value) if field.init][:parts]
        given = {name: changed_numbers(getattr(value, name), change, None) for name in names}
        return dataclasses.replace(value, **given)
    if isinstance(value, tuple | list):
        return type(value)([changed_numbers(one, change, parts) for one in value])
    return operator.mul(FACTOR, value)  # an operator


def is_whole(value):
    return isinstance(value, np.ndarray) and np.issubdtype(value.dtype, np.integer)


def measure(experiment, folder, places, change=None):
    """Return the claims at preset smoke with some of theory changed, and which of it was called."""
    called = set()
    given = [
        (owner, name, wrong(vars(owner)[name], called, (owner, name), change or (lambda v: v)))
        for owner, name in places
    ]
    return claims_with(experiment, folder, given, refusals=REFUSALS if change else ()), called


def by_theory(experiment, folder):
    """Return the claims, the functions that move the number of each, and where that came to lie."""
    right, called = measure(experiment, folder / "right", targets())
    assert called, "nothing of theory is called"
    moved = {name: set() for name in right}
    outcomes = {name: {outcome(claim)} for name, claim in right.items()}
    for number, target in enumerate(sorted(called, key=lambda one: (str(one[0]), one[1]))):
        for change in (scaled, bent):
            place = folder / f"{change.__name__} {number}"
            for name, claim in measure(experiment, place, [target], change)[0].items():
                if has_moved(claim, right[name]):
                    moved[name].add(target[1])
                    outcomes[name].add(outcome(claim))
    return right, moved, outcomes


def outcome(claim):
    """Return where a number lies: below, in or above its band."""
    edges = (claim.expected.low, np.nextafter(claim.expected.high, np.inf))
    return int(np.digitize(claim.measured, edges))
