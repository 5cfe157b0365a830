"""Faults inside the package reach the caller as they were raised, and blame no argument."""

from importlib import import_module

import numpy as np
import pytest

import hyperribbon as hr
from errors.calls import CALLS
from errors.network_calls import DATA, LOSS, model
from hyperribbon.core.checks import ArgumentError

FAULTS = [
    # what fails, with what, in which call
    ("operators.fisher:_likelihood", TypeError, "hyperribbon.operators.fisher.Fisher"),
    ("core.parameters:_filter", KeyError, "hyperribbon.operators.hessian.Hessian"),
    ("core.parameters:ParameterSpace.of_model", RuntimeError, "hyperribbon.operators.ggn.GGN"),
    (
        "operators.linear_operator:LinearOperator.__init__",
        ValueError,
        "hyperribbon.operators.restriction_and_rescaling.Rescaled",
    ),
    ("spectra.eigensolvers:_capacity", IndexError, "hyperribbon.spectra.eigensolvers.eigsh"),
    ("spectra.products:Products.__call__", RuntimeError, "hyperribbon.spectra.eigensolvers.eigsh"),
    (
        "spectra.estimates.estimators:_diagonal_by_columns",
        AttributeError,
        "hyperribbon.spectra.estimates.estimators.diagonal",
    ),
    (
        "spectra.estimates.quadrature:_storage",
        ZeroDivisionError,
        "hyperribbon.spectra.estimates.quadrature.density",
    ),
    ("spectra.subspaces:_basis", ValueError, "hyperribbon.spectra.subspaces.alignment"),
    ("noise.weights:_dense_modes", KeyError, "hyperribbon.noise.weights.weight_covariance"),
    ("noise.flatness:_cross_fit", AssertionError, "hyperribbon.noise.flatness.variance_flatness"),
    (
        "noise.stationary:project",
        OverflowError,
        "hyperribbon.noise.stationary.stationary_covariance",
    ),
    (
        "noise.gradient_noise:alignment",
        IndexError,
        "hyperribbon.noise.gradient_noise.compare_noise",
    ),
    (
        "manifold.trajectories:_circle",
        FloatingPointError,
        "hyperribbon.manifold.trajectories.geodesic",
    ),
    (
        "manifold.streaming:leading_pairs",
        RuntimeError,
        "hyperribbon.manifold.streaming.stream_inpca",
    ),
    (
        "manifold.stress:rounding_of_centred",
        TypeError,
        "hyperribbon.manifold.stress.explained_stress",
    ),
    ("manifold.embedding:_choose_landmarks", LookupError, "errors.calls._embed"),
    ("subnetworks.selection:_scores", KeyError, "hyperribbon.subnetworks.selection.select"),
    (
        "subnetworks.tickets:_prune_further",
        TypeError,
        "hyperribbon.subnetworks.tickets.find_ticket",
    ),
    (
        "subnetworks.criticality:_verdict",
        AttributeError,
        "hyperribbon.subnetworks.criticality.layer_criticality",
    ),
    (
        "theory.fluctuations.stationary:in_eigenbasis",
        np.linalg.LinAlgError,
        "hyperribbon.theory.fluctuations.stationary.antisymmetric_part",
    ),
    ("theory.ribbons.sloppiness:_fit", IndexError, "hyperribbon.theory.ribbons.sloppiness.slope"),
    (
        "theory.linear_networks.kernel:chain_products",
        KeyError,
        "hyperribbon.theory.linear_networks.kernel.ntk",
    ),
    (
        "papers.simulation.fluctuations.one_layer:_add_rows",
        MemoryError,
        "hyperribbon.papers.simulation.fluctuations.one_layer.simulate_one_layer",
    ),
    ("papers.training.optimizers:_can_fuse", RuntimeError, "errors.run_calls._train"),
    ("papers.training.loop:copy_state", AssertionError, "errors.run_calls._train"),
    (
        "papers.training.ensembles:_moments",
        ZeroDivisionError,
        "hyperribbon.papers.training.ensembles.train_ensemble",
    ),
    ("recording.evaluation:in_mode", AttributeError, "hyperribbon.recording.evaluation.predict"),
    ("recording.trajectory:stored_content", KeyError, "errors.run_calls._append"),
    (
        "recording.trajectory:as_record",
        TypeError,
        "hyperribbon.recording.trajectory.Trajectory.open",
    ),
    (
        "application.inspection.linear.theory:_cut_rank",
        ValueError,
        "hyperribbon.application.inspection.linear.theory.compare_with_theory",
    ),
    (
        "application.inspection.anisotropy:_lift",
        AssertionError,
        "hyperribbon.application.inspection.anisotropy.measure_anisotropy",
    ),
    ("plots.printed:_curve", KeyError, "hyperribbon.plots.printed.draw"),
]


def break_down(monkeypatch, place, error):
    """Let a function of the package raise an error."""
    module, _, path = place.partition(":")
    owner = import_module(f"hyperribbon.{module}")
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part)

    def broken(*args, **kwargs):
        raise error

    monkeypatch.setattr(owner, name, broken)


@pytest.mark.parametrize(("place", "kind", "name"), FAULTS)
def test_a_fault_passes_as_it_was_raised(monkeypatch, place, kind, name):
    error = kind("a fault inside the package")
    break_down(monkeypatch, place, error)
    with pytest.raises(kind) as found:
        CALLS[name]()
    assert found.value is error
    assert not isinstance(found.value, ArgumentError)
    assert found.value.__cause__ is None


def test_every_room_with_public_functions_has_a_fault():
    layers = ("application.", "papers.")
    paths = [place.removeprefix(layers[0]).removeprefix(layers[1]) for place, _, _ in FAULTS]
    rooms = {path.partition(".")[0] for path in paths}
    assert rooms >= {"manifold", "noise", "operators", "spectra", "subnetworks", "theory"}
    assert rooms >= {"inspection", "recording", "training"}


@pytest.mark.parametrize("kind", [KeyError, TypeError, RuntimeError, ZeroDivisionError])
def test_a_failed_step_of_an_inspection_blames_no_argument(monkeypatch, kind):
    break_down(monkeypatch, "spectra.eigensolvers:_dense", kind("a fault inside the package"))
    found = hr.inspect(model(), LOSS, DATA, budget=5.0, k=2)
    failed = [outcome for outcome in found.outcomes if outcome.status == "failed"]
    assert failed
    for outcome in failed:
        assert "a fault inside the package" in outcome.reason
        assert "=" not in outcome.reason
