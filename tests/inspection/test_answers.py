"""Answers: few, true, with numbers and uncertainties, and every word explained."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from hyperribbon.application.cli.demo import WIDTHS
from hyperribbon.application.inspection.answers import (
    TERMS,
    Reference,
    answers,
    describe_usual,
    kind_of,
)
from hyperribbon.application.inspection.answers.reference import usual_range
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
    "layers.second_share": (0.2, 0.0),
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
    names["layers.second_share"] = "Share of the trace in its second layer, head (Linear)"
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
    assert "head (Linear) is second (20%)" in found[2].meaning and found[2].advice
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


def test_samples_are_named_where_they_are_not_all():
    all_of_them, other = ({**CONFIG, "total": total} for total in (512, 600))
    assert answers(_numbers(), "", all_of_them)[0].finding == "The sharpness is 10 ± 0.5."
    assert answers(_numbers(), "", other)[0].finding == "The sharpness is 10 ± 0.5 on 512 samples."


def test_a_layer_with_a_close_second_does_not_stand_out():
    layers = answers(_numbers(layers__second_share=(0.39, 0.0)), "", CONFIG)[2]
    assert "no layer stands out" in layers.meaning
    assert layers.advice == ""


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


def _network(data, value, statistic="sharpness", *, kind="a", size=100, accuracy=0.9, bound=False):
    at_least = [statistic] if bound else []
    about = {"data": data, "network": "", "kind": kind, "parameters": size, "accuracy": accuracy}
    return {**about, "statistics": {statistic: value}, "at_least": at_least}


def _networks(statistic, *values, **about):
    return [_network(f"data {i}", x, statistic, **about) for i, x in enumerate(values)]


def test_similar_networks_have_the_kind_the_size_and_the_accuracy():
    """A network at 47% is not laid beside others at 94%, nor a large one beside small ones."""
    others = [{"kind": "b"}, {"size": 1001}, {"size": 9}, {"accuracy": 0.79}, {"accuracy": 1.01}]
    networks = [_network(data, 1.0) for data in "uvw"] + [_network("u", 9.0, **o) for o in others]
    reference = Reference("", tuple(networks))
    assert len(reference.similar("a", 100, 0.9)) == 3
    assert len(reference.similar("a", 1000, 0.8)) == 5
    assert reference.similar("a", 100, None) == []  # a regression has no accuracy


def test_nothing_is_said_where_too_few_data_sets_are_similar():
    networks = [_network(data, 1.0 + i) for i, data in enumerate("uuvvu")]
    assert Reference("", tuple(networks)).usual("sharpness", "a", 100, 0.9) == ""
    assert Reference("", (*networks, _network("w", 2.0))).usual("sharpness", "a", 100, 0.9)
    assert Reference("", (*networks, _network("w", 2.0))).usual("trace", "a", 100, 0.9) == ""


def test_the_range_is_that_of_a_new_draw():
    """Of normal logarithms, the range of n data sets holds a new value nine times in ten."""
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(2000):
        *known, new = np.exp(rng.standard_normal(6))
        low, high = usual_range("sharpness", _networks("sharpness", *known))
        inside += low <= new <= high
    assert abs(inside / 2000 - 0.9) < 4 * (0.09 / 2000) ** 0.5


def test_ranges_of_shares_negative_values_and_lower_bounds():
    shares = _networks("share10", 0.9, 0.95, 0.99)
    assert usual_range("share10", shares)[1] == 1.0
    signed = _networks("negativity", -0.1, -0.2, -0.4)
    low, high = usual_range("negativity", signed)
    assert low < -0.4 and -0.1 < high < 0
    bounds = [*_networks("noise_scale", 1.0, 2.0), _network("w", 4.0, "noise_scale", bound=True)]
    assert usual_range("noise_scale", bounds)[1] == np.inf
    reference = Reference("", tuple(bounds))
    assert reference.usual("noise_scale", "a", 100, 0.9).endswith(" or more")
    told = "Usual: nine in ten of 3 trained a networks of 100 to 100 weights, accuracy 90% to 90%."
    assert reference.describe("a", 100, 0.9) == told


def test_the_stored_networks_are_many_and_of_many_kinds():
    stored = Reference.stored()
    settings = {(network["data"], network["network"]) for network in stored.networks}
    assert len(settings) >= 60 and len(stored.networks) == 3 * len(settings)
    assert len({network["data"] for network in stored.networks}) >= 5
    assert {network["kind"] for network in stored.networks} == {
        *("linear", "fully connected", "recurrent", "attention"),
        *("convolutional", "convolutional with batch norm"),
    }
    demo = sum((a + 1) * b for a, b in itertools.pairwise(WIDTHS))
    assert all(network["parameters"] != demo for network in stored.networks)


@pytest.mark.parametrize("apart", [("data",), ("data", "network")])
def test_networks_that_are_left_out_fall_into_the_stated_range(apart):
    """All seeds of a network, or all networks of a data set, beside the range of the others."""
    stored, inside = Reference.stored(), []
    for network in stored.networks:
        others = [o for o in stored.networks if any(o[name] != network[name] for name in apart)]
        like = network["kind"], network["parameters"], network["accuracy"]
        similar = Reference("", tuple(others)).similar(*like)
        for statistic, value in network["statistics"].items():
            found = usual_range(statistic, similar)
            if found is not None and statistic not in network["at_least"]:
                inside.append(found[0] <= value <= found[1])
    assert len(inside) > 300
    assert 0.85 <= np.mean(inside) <= 0.95


def test_a_network_measured_otherwise_is_not_compared():
    """Another loss, or a part of the weights, has other numbers: the range is left out."""
    accuracy = Quantity("model.accuracy", "", 0.98, 0.0, "", "", 512)
    numbers = {**_numbers(), "model.accuracy": accuracy}
    config = {**CONFIG, "parameters": 40_000}
    like = answers(numbers, "fully connected", {**config, "is_like_reference": True})
    assert " to " in like[0].usual and f"Usual: {like[0].usual}." in like[0].beside
    assert all(answer.usual == "" for answer in answers(numbers, "fully connected", config))
    assert describe_usual(numbers, "fully connected", config) == ""


@pytest.mark.parametrize(
    ("loss", "params", "is_like"),
    [
        (nn.CrossEntropyLoss(), None, True),
        (nn.functional.cross_entropy, None, True),
        (nn.CrossEntropyLoss(reduction="sum"), None, False),
        (nn.MultiMarginLoss(), None, False),
        (nn.CrossEntropyLoss(), "*.weight", False),
    ],
)
def test_what_an_inspection_is_like(loss, params, is_like, trained, quiet):
    from hyperribbon.application.inspection import inspect

    model, _, data, _ = trained
    found = inspect(model, loss, data, k=2, budget=2, params=params, console=quiet)
    assert found.config["is_like_reference"] is is_like


def test_stored_noise_scales_near_their_samples_are_lower_bounds():
    bounded = [n for n in Reference.stored().networks if n["at_least"]]
    assert bounded and all(n["at_least"] == ["noise_scale"] for n in bounded)
    assert all(n["statistics"]["noise_scale"] > 30 for n in bounded)


@pytest.mark.parametrize(("scale", "is_bound"), [(100.0, False), (103.0, True)])
def test_a_noise_scale_near_its_samples_is_a_bound_in_the_table_too(scale, is_bound):
    assert is_lower_bound(scale, 512) is is_bound
    assert ("lower bound" in scale_certainty(scale, 512)) is is_bound
    assert ("standard error" in scale_certainty(scale, 512)) is not is_bound


def test_kinds():
    attention = nn.MultiheadAttention(4, 1)
    assert kind_of(nn.Sequential(nn.Linear(2, 2))) == "linear"
    assert kind_of(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))) == "fully connected"
    normalised = nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1))
    assert kind_of(normalised) == "convolutional with batch norm"
    assert kind_of(nn.Sequential(nn.LSTM(2, 2))) == "recurrent"
    assert kind_of(nn.ModuleList([nn.Conv1d(1, 1, 1), attention])) == "attention"


def test_the_summary_opens_with_answers_and_leaves_the_table_to_those_who_ask(
    trained, quiet, monkeypatch
):
    from hyperribbon.application.inspection import inspect

    model, loss, data, _ = trained
    found = inspect(model, loss, data, k=3, budget=6, console=quiet)
    monkeypatch.setenv("COLUMNS", "120")
    texts = [found.summary(numbers=numbers) for numbers in (False, True)]
    assert repr(texts[0]) == str(texts[0]) and "\x1b" not in texts[0]
    assert texts[0].splitlines()[1].startswith("• The sharpness is")
    assert texts[0].count("• ") == len(found.answers()) <= 6
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
