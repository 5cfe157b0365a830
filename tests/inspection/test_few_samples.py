"""What few samples or few directions would make of a number: it is of more of them, or absent."""

import numpy as np
import pytest
import torch
from torch import nn

import hyperribbon as hr
from hyperribbon.application.inspection import inspect
from hyperribbon.application.inspection.engine import inspect as inspecting
from hyperribbon.application.inspection.engine.inspect import _where
from hyperribbon.application.inspection.engine.notebook import Level, Notebook
from hyperribbon.application.inspection.engine.subject import Subject
from hyperribbon.application.inspection.parts import headlines
from hyperribbon.application.inspection.parts.gradient_noise import noise_part
from hyperribbon.application.inspection.parts.headlines import measure_gauss_newton, measure_trace
from hyperribbon.application.inspection.parts.sloppiness import sloppiness_part
from hyperribbon.application.inspection.quantities import PROBES, SPAN, Part, Quantity


@pytest.mark.parametrize("known", [1, 4])
def test_noise_is_laid_beside_ten_directions_or_none(trained, known):
    """Their overlap over fewer is another number, which may be larger or smaller."""
    model, loss, data, _ = trained
    subject, notebook = Subject(model, loss, data), Notebook(k=10, seed=0)
    level = Level(subject, spectra={"hessian": hr.eigsh(subject.hessian, known)})
    notebook.levels.append(level)
    part = noise_part(level, notebook)
    keys = {quantity.key for quantity in part.quantities}
    assert not keys & {"noise.alignment", "noise.balance_defect", "noise.exponent"}
    assert f"needs 10 eigenvectors; {known} w" in part.shortened[0]
    level.spectra["hessian"] = hr.eigsh(subject.hessian, 10)
    assert "noise.alignment" in {q.key for q in noise_part(level, notebook).quantities}


def test_the_spectrum_of_the_inputs_is_of_all_samples_however_few_the_step_has(trained):
    model, loss, data, _ = trained
    subject = Subject(model, loss, data)
    few, all_of_them = (
        sloppiness_part(Level(side), Notebook(k=5, seed=0))
        for side in (subject.with_samples(4, 0), subject)
    )
    for one, other in zip(few.quantities, all_of_them.quantities, strict=True):
        assert (one.value, one.samples) == (other.value, 240)
    assert np.array_equal(few.arrays["eigenvalues"], all_of_them.arrays["eigenvalues"])


@pytest.mark.parametrize(("outputs", "is_told"), [(1, True), (3, False)])
def test_samples_of_one_output_say_how_few_directions_they_span(outputs, is_told):
    torch.manual_seed(0)
    data = torch.randn(64, 6), torch.randn(64, outputs)
    model = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, outputs))
    level = Level(Subject(model, nn.MSELoss(), data), 64)
    notebook = Notebook(k=50, seed=0)
    measure_trace(level, notebook)
    measure_gauss_newton(level, notebook)
    told = level.statistics["share50"].certainty
    assert (f"{SPAN} 64 directions" in told) is is_told


def test_a_trace_over_probes_says_so():
    """2,304 outputs per sample: single rows would cost more than random ones."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Conv2d(2, 4, 1))
    data = torch.randn(8, 1, 24, 24), torch.randint(0, 4, (8, 24, 24))
    level = Level(Subject(model, nn.CrossEntropyLoss(), data), 8)
    measure_trace(level, Notebook(k=5, seed=0))
    assert level.statistics["trace"].certainty == PROBES


def test_the_headline_names_the_most_samples(trained, quiet, monkeypatch):
    model, loss, data, _ = trained
    subject = Subject(model, loss, data)
    parts = [
        Part("a", "", "", tuple(Quantity("a", "", 1.0, 0.0, "", "", n) for n in counts))
        for counts in ((0, 8), (64,))
    ]
    assert _where(subject, parts, 8) == "64 samples drawn from 240 (fewer where stated)"
    assert _where(subject, parts[1:], 8) == "64 samples drawn from 240"
    assert _where(subject, [], 240) == "all 240 samples"
    monkeypatch.setattr(inspecting, "MEASUREMENTS", headlines.MEASUREMENTS)
    assert inspect(model, loss, data, k=3, budget=20, console=quiet).where == "all 240 samples"
