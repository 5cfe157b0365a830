"""Memory that is given back, and numbers that stay the same without it."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import hyperribbon as hr
from hyperribbon.application.inspection import Budget, inspect
from hyperribbon.application.inspection.engine import notebook as notebooks
from hyperribbon.application.inspection.engine.clock import Clock
from hyperribbon.application.inspection.engine.notebook import Level, Notebook
from hyperribbon.application.inspection.engine.subject import Subject
from hyperribbon.application.inspection.evaluating import outputs_at
from hyperribbon.application.inspection.memory import lacking_room
from hyperribbon.application.inspection.parts.headlines import Reached
from hyperribbon.application.inspection.parts.layers import layers_part
from hyperribbon.application.inspection.sampling import (
    _CLIMB,
    _climb,
    sharpness_error,
    standard_error,
)
from hyperribbon.core.checks import ArgumentError
from hyperribbon.papers.training import mlp

LOSS = nn.CrossEntropyLoss()


def subject_of(memory=1e8, samples=64, model=None):
    torch.manual_seed(0)
    data = torch.randn(samples, 6), torch.arange(samples) % 3
    return Subject(model or mlp((6, 8, 3), "tanh", seed=0), LOSS, data, memory=memory)


def graphs_of(subject):
    return len(subject.risk._kept.chunks)


def test_only_one_level_keeps_its_graphs_and_the_others_have_the_same_products_again():
    whole = subject_of()
    notebook = Notebook(k=3, seed=0)
    few, many = (Level(whole.with_samples(n, 0), n) for n in (8, 32))
    notebook.levels = [few, many]
    v = torch.randn(few.subject.dimension)
    before = few.subject.hessian @ v
    _ = many.subject.hessian @ v, few.subject.vector, few.subject.gradient
    assert graphs_of(few.subject) == graphs_of(many.subject) == 1
    notebook.make_room(many)
    assert graphs_of(few.subject) == 0
    assert graphs_of(many.subject) == 1
    assert not {"vector", "gradient"} & set(few.subject.__dict__)
    assert torch.equal(few.subject.hessian @ v, before)


def test_a_finer_level_takes_the_eigenvectors_of_a_coarser_one():
    subject = subject_of()
    found = hr.eigsh(subject.hessian, 2)
    few, many = Level(subject, 8), Level(subject, 64)
    few.spectra = {"top": found, "hessian": found}
    many.spectra = {"top": found}
    few.drop_vectors(many)
    assert few.spectra["top"].eigenvectors is None
    assert few.spectra["hessian"].eigenvectors is not None
    assert torch.equal(few.spectra["top"].eigenvalues, found.eigenvalues)


def test_evaluations_are_cut_to_the_memory_and_give_the_same(monkeypatch):
    rich, poor = subject_of(), subject_of()
    poor.risk.memory = 20 * poor.risk.bytes_per_sample  # ten samples at once
    pieces = [len(outputs) for outputs, _ in outputs_at(poor)]
    assert max(pieces) == 10
    assert sum(pieces) == 64
    assert [len(outputs) for outputs, _ in outputs_at(rich)] == [64]
    joined = [torch.cat([outputs for outputs, _ in outputs_at(side)]) for side in (rich, poor)]
    assert torch.allclose(*joined, atol=1e-6)
    monkeypatch.setattr(poor.risk._probe, "must_be_whole", True)
    assert [len(outputs) for outputs, _ in outputs_at(poor)] == [64]


def test_the_climb_is_the_best_of_its_krylov_space():
    """By a dense orthonormal basis of v, Hv, H²v, … in double precision."""
    subject = subject_of()
    dense = subject.hessian.to_dense().double()
    v = torch.randn(len(dense))
    powers = [v.double() / v.norm()]
    for _ in range(_CLIMB - 1):
        powers.append(dense @ powers[-1])
        powers[-1] /= powers[-1].norm()
    basis = torch.linalg.qr(torch.stack(powers, 1)).Q
    best = torch.linalg.eigvalsh(basis.T @ dense @ basis)[-1]
    value, a = _climb(subject.hessian, v)
    assert value == pytest.approx(float(best), rel=1e-4)
    assert float(a @ (subject.hessian @ a)) == pytest.approx(value, rel=1e-4)
    top = torch.linalg.eigh(dense).eigenvectors[:, -1].float()
    assert _climb(subject.hessian, top)[0] == pytest.approx(
        float(torch.linalg.eigvalsh(dense)[-1]), rel=1e-4
    )  # nothing is left to climb


def test_the_error_on_reached_coordinates_is_that_on_all():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(60, 4), nn.Tanh(), nn.Flatten(), nn.Linear(20, 3))
    data = torch.randint(0, 12, (32, 5)), torch.arange(32) % 3
    subject = Subject(model, LOSS, data)
    top = hr.eigsh(subject.hessian, 1).eigenvectors[:, 0]
    reached = Reached.of(
        subject.hessian, [subject.hessian @ torch.randn(len(top)) for _ in range(2)]
    )
    assert reached.shape[0] == 12 * 4 + 63
    expected = sharpness_error(subject, top, 0)
    found = sharpness_error(subject, reached.narrow(top), 0, reached.with_operator)
    assert found == pytest.approx(expected, rel=1e-3)


def test_the_last_group_follows_from_the_mean_of_all():
    """Not where classes have weights, as groups then count differently."""
    subject = subject_of()
    top = hr.eigsh(subject.hessian, 1, tol=1e-5)
    v, value = top.eigenvectors[:, 0], float(top.eigenvalues[0])
    seen = []

    def along(group):
        seen.append(group)
        return float(v @ (group.hessian @ v))

    expected = standard_error(subject, along, 0)
    assert len(seen) == 8
    assert standard_error(subject, along, 0, value) == pytest.approx(expected, rel=1e-3)
    assert len(seen) == 8 + 7
    assert sharpness_error(subject, v, 0, value=value) == pytest.approx(
        sharpness_error(subject, v, 0), rel=1e-3
    )
    subject.loss = nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 5.0]))
    weighted = Subject(subject.model, subject.loss, subject.source)
    assert not weighted.has_equal_samples
    assert standard_error(weighted, along, 0, value) == standard_error(weighted, along, 0)
    uneven = subject_of(samples=67)
    assert standard_error(uneven, along, 0, value) == standard_error(uneven, along, 0)


def test_what_lacks_room_says_how_much_it_needs(quiet):
    """100,000 weights in 2 MB: the loss is there, eigenpairs say what they would take."""
    data = torch.randn(64, 300), torch.arange(64) % 3
    found = inspect(
        mlp((300, 300, 3), "tanh", seed=0), LOSS, data, k=3, console=quiet, budget=Budget(20, 2e6)
    )
    assert found["model.loss"].value > 0
    short = [o for o in found.outcomes if o.status == "omitted" and "MB" in o.reason]
    assert any("Sharpness" in outcome.step for outcome in short)
    assert all("of the budget's memory" in outcome.reason for outcome in short)
    assert not [o for o in found.outcomes if o.status == "failed"]


def test_only_memory_is_lack_of_room():
    assert lacking_room(ArgumentError("memory", 5e6, "it takes 7 MB", "Give more.")).endswith(
        "may take 5 MB, and it takes 7 MB"
    )
    assert not lacking_room(ArgumentError("k", 3, "no", "no"))
    assert not lacking_room(MemoryError())


def test_a_layer_without_room_leaves_the_others(monkeypatch):
    subject = subject_of()
    solve = notebooks.eigsh

    def refusing(block, *args, **options):
        if block.shape[0] > 50:
            raise ArgumentError("memory", 1e6, "it takes 2 MB", "Give more.")
        return solve(block, *args, **options)

    monkeypatch.setattr(notebooks, "eigsh", refusing)
    part = layers_part(Level(subject), Notebook(k=3, seed=0, clock=Clock()))
    assert len(part.tables["Sharpness by layer"]) == 1
    assert "1 of 2 layers" in part.shortened[0]
    assert "it takes 2 MB" in part.shortened[1]
    assert not part.readings  # no superlative over a part of the layers


def test_kept_pairs_are_cut_once(quiet):
    subject = subject_of()
    found = hr.eigsh(subject.hessian, 5)
    notebook = Notebook(k=5, seed=0, memory=16 * 4 * 83 * 3)
    kept = notebook.trim(found)
    assert kept.eigenvectors.shape == (83, 3)
    assert notebook.trim(kept) is kept
    bare = replace(found, eigenvectors=None)
    assert notebook.trim(bare) is bare
