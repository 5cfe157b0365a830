"""Answers: few, true, with numbers and uncertainties, and every word explained."""

import io
import json
from dataclasses import replace
from importlib.resources import files

import pytest
from rich.console import Console
from torch import nn

from hyperribbon.application.inspection.answers import TERMS, Reference, answers, kind_of
from hyperribbon.application.inspection.quantities import (
    NOT_OVER_SAMPLES,
    PROBES,
    SPAN,
    Quantity,
)
from hyperribbon.application.inspection.sampling import is_lower_bound, scale_certainty

EVERYTHING = {
    "hessian.largest": (10.0, 0.5),
    "stability.ratio": (0.5, 0.025),
    "gauss_newton.share10": (0.7, 0.0),
    "gauss_newton.share50": (0.9, 0.0),
    "layers.first_share": (0.6, 0.0),
    "noise.scale": (80.0, 9.0),
    "subnetworks.prunable": (0.8, 0.0),
    "subnetworks.baseline": (0.92, 0.0),
    "subnetworks.pruned": (0.902, 0.0),
    "hessian.negativity": (-0.2, 0.0),
    "hessian.smallest": (-2.0, 0.1),
    "gauss_newton.trace": (30.0, 2.0),
    "model.loss": (0.3, 0.0),
}


def _numbers(**changes):
    values = {**EVERYTHING, **{key.replace("__", "."): value for key, value in changes.items()}}
    names = {"layers.first_share": "Share of the trace in its first layer, conv1 (Conv2d)"}
    names["subnetworks.baseline"] = "Accuracy of the trained network"
    return {
        key: Quantity(key, names.get(key, key), *value, "how", "sure", 512)
        for key, value in values.items()
        if value is not None
    }


CONFIG = {"optimizer": "SGD, η = 0.1", "batch_size": 64, "parameters": 1000}


def test_the_error_of_the_arithmetic_is_not_shown_as_that_of_the_samples():
    numbers = _numbers(hessian__largest=(3.631, 6.6e-6))
    assert "3.631 ± 6.6e-06" in answers(numbers, "dense", CONFIG)[0].finding
    alone = replace(numbers["hessian.largest"], certainty=f"a residual; {NOT_OVER_SAMPLES}")
    answer = answers({**numbers, "hessian.largest": alone}, "dense", CONFIG)[0]
    assert answer.finding == "The sharpness is 3.631 on 512 samples."
    assert NOT_OVER_SAMPLES in answer.meaning


def test_there_are_at_most_six_each_with_a_number_and_an_explained_term():
    found = answers(_numbers(), "convolutional", CONFIG)
    assert [a.term for a in found] == [
        "sharpness",
        "stability",
        "layers",
        "noise",
        "pruning",
        "concentration",
    ]
    assert all(any(c.isdigit() for c in answer.finding) for answer in found)
    assert "10 ± 0.5 on 512 samples" in found[0].finding
    assert "SGD, η = 0.1 is at 50 ± 2% of its stability limit on 512 samples" in found[1].finding
    assert "80 ± 9" in found[3].finding
    assert "conv1 (Conv2d) holds 60%" in found[2].finding
    assert found[4].finding == (
        "Zeroing the smallest 80% of the weights lowers accuracy from 92.0% to 90.2% "
        "(512 samples, no retraining)."
    )


@pytest.mark.parametrize(
    ("ratio", "word"), [(0.5, "is stable"), (0.9, "near the limit"), (1.3, "above the largest")]
)
def test_the_step_is_judged_by_its_limit(ratio, word):
    found = answers(_numbers(stability__ratio=(ratio, 0.01)), "", CONFIG)
    assert word in found[1].meaning


@pytest.mark.parametrize(("scale", "word"), [(80.0, "close"), (8.0, "mean"), (800.0, "noise")])
def test_the_batch_is_judged_by_the_noise_scale(scale, word):
    found = answers(_numbers(noise__scale=(scale, 1.0)), "", CONFIG)
    assert word in found[3].meaning + found[3].advice


def test_little_that_was_measured_still_gives_answers():
    few = dict.fromkeys(
        (
            "stability__ratio",
            "gauss_newton__share10",
            "noise__scale",
            "subnetworks__prunable",
            "hessian__negativity",
        )
    )
    found = answers(_numbers(**few), "attention", {})
    assert [a.term for a in found] == ["sharpness", "layers", "trace", "loss"]
    assert "2/λ₁ = 0.2" in found[0].advice
    assert answers({}, "", {}) == []


def test_every_term_has_two_paragraphs():
    for name, term in TERMS.items():
        assert len(term.what.split()) > 25, name
        assert len(term.reading.split()) > 25, name


def test_what_is_usual_is_told_from_stored_networks():
    path = files("hyperribbon.application.inspection.answers") / "reference.json"
    stored = json.loads(path.read_text())
    assert "benchmarks/reference.py" in stored["made"]
    reference = Reference(
        "",
        tuple(
            {"kind": kind, "parameters": size, "statistics": {"sharpness": value}}
            for kind, size, value in (("a", 10, 1.0), ("a", 20, 2.0), ("a", 30, 3.0), ("b", 5, 9.0))
        ),
    )
    assert reference.usual("sharpness", "a").startswith("3 small trained a networks of 10 to 30")
    assert "1 to 3." in reference.usual("sharpness", "a")
    assert reference.usual("sharpness", "b").startswith("4 small trained networks")
    assert reference.usual("nothing", "a") == ""


@pytest.mark.parametrize(
    ("bounded", "told"),
    [
        ((), "have 10 to 400."),
        ((3,), "have 10 to 400 or more (lower bounds: 1 of 4 values)."),
        ((1,), "have 10 to 400 or more (lower bounds: 1 of 4 values)."),
        ((0, 3), "have 10 or more (lower bounds: 2 of 4 values)."),
    ],
)
def test_lower_bounds_are_told_as_such(bounded, told):
    """A bound of 100 may be a value of 10,000: it leaves the largest open, whichever it is."""
    records = [
        {"kind": "a", "parameters": 10, "statistics": {"noise_scale": value}, "at_least": []}
        for value in (10.0, 100.0, 200.0, 400.0)
    ]
    for place in bounded:
        records[place]["at_least"] = ["noise_scale"]
    assert Reference("", tuple(records)).usual("noise_scale", "a", ",.0f").endswith(told)


def test_stored_noise_scales_near_their_samples_are_lower_bounds():
    for network in Reference.stored().networks:
        scale = network["statistics"]["noise_scale"]
        assert network["at_least"] == (["noise_scale"] if scale > 0.2 * 512 else [])
    assert "or more (lower bounds: 2 of 4 values)" in Reference.stored().usual(
        "noise_scale", "fully connected", ",.0f"
    )


@pytest.mark.parametrize(("scale", "is_bound"), [(100.0, False), (103.0, True)])
def test_a_noise_scale_near_its_samples_is_a_bound_in_the_table_too(scale, is_bound):
    assert is_lower_bound(scale, 512) is is_bound
    assert ("lower bound" in scale_certainty(scale, 512)) is is_bound
    assert ("standard error" in scale_certainty(scale, 512)) is not is_bound


def test_kinds():
    attention = nn.MultiheadAttention(4, 1)
    assert kind_of(nn.Sequential(nn.Linear(2, 2))) == "fully connected"
    assert kind_of(nn.Sequential(nn.LSTM(2, 2))) == "recurrent"
    assert kind_of(nn.ModuleList([nn.Conv1d(1, 1, 1), attention])) == "attention"


def test_the_summary_opens_with_answers_and_leaves_the_table_to_those_who_ask(trained, quiet):
    from hyperribbon.application.inspection import inspect

    model, loss, data, _ = trained
    found = inspect(model, loss, data, k=3, budget=6, console=quiet)
    texts = []
    for numbers in (False, True):
        console = Console(record=True, width=120, file=io.StringIO())
        found.summary(console, numbers=numbers)
        texts.append(console.export_text())
    assert texts[0].splitlines()[1].strip().startswith("• The sharpness is")
    assert texts[0].count(" • ") == len(found.answers()) <= 6
    assert "All numbers" not in texts[0]
    assert "how certain" in texts[1]


def test_few_samples_bound_the_noise_scale_from_below():
    """The squared mean gradient of N samples holds tr C/N of noise: B comes out below N."""
    numbers = {"noise.scale": Quantity("noise.scale", "", 6.0, 2.0, "", "", 8)}
    (answer,) = answers(numbers, "other", {"batch_size": 4})
    assert "at least 6" in answer.finding
    assert "too few" in answer.meaning
    assert "noise dominates" in answer.advice


def test_directions_that_samples_cannot_have_are_no_finding():
    """A hundred samples of one output have a hundred directions at most, whatever the network."""
    certainty = f"residuals, {SPAN} 64 directions"
    share = Quantity("gauss_newton.share10", "", 0.96, 0.0, "", certainty, 64)
    (answer,) = answers({"gauss_newton.share10": share}, "", {"parameters": 2113})
    assert "span at most 64 directions" in answer.meaning
    assert answer.advice == ""


def test_an_error_over_probes_is_not_one_over_samples():
    trace = Quantity("gauss_newton.trace", "", 42.16, 0.29, "", PROBES, 8)
    (answer,) = answers({"gauss_newton.trace": trace}, "", {})
    assert "random probes" in answer.meaning
    assert NOT_OVER_SAMPLES in answer.meaning


def test_what_is_usual_has_no_exponents():
    records = tuple(
        {"kind": "a", "parameters": 10, "statistics": {"trace": value}}
        for value in (0.62, 62.3, 103.7)
    )
    assert Reference("", records).usual("trace", "a").endswith("have 0.62 to 100.")
