"""Results in a notebook: what they show, escaped, without anything that runs."""

from __future__ import annotations

import io
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

import hyperribbon as hr
from hyperribbon.application.inspection import Part
from hyperribbon.core import html
from hyperribbon.papers.experiments.sweeping import Points
from hyperribbon.plots import Chart, Curve
from hyperribbon.subnetworks.sweeps import sweep_selection

VOID = {"img", "path", "circle", "polyline", "polygon", "br"}
CHART = Chart("it", "A chart", "x", "y", (Curve(np.arange(3.0), np.arange(3.0)),))
NASTY = '<script>alert("x")</script>'


class Reader(HTMLParser):
    """Checks that tags close in order, and keeps the words."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.words: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        assert not any(name.startswith("on") for name, _ in attrs), attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def read(result) -> Reader:
    reader = Reader()
    reader.feed(result._repr_html_())
    assert not reader.open
    assert not reader.tags & {"script", "style", "link", "iframe"}
    return reader


@pytest.fixture(scope="module")
def subject():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    return model, nn.CrossEntropyLoss(), (torch.randn(48, 4), torch.randint(0, 3, (48,)))


def said(result) -> str:
    return " ".join(read(result).words)


def test_spectra_estimates_densities_and_plans(subject):
    hessian = hr.Hessian(*subject)
    found = hr.eigsh(hessian, 15)
    text = said(found)
    assert html.number(float(found.eigenvalues[0])) in text
    assert html.number(float(found.eigenvalues[14])) in text
    assert "3 more" in text
    estimate = hr.Estimate(10.0, 1.0, False, 5, "hutchinson", 4)
    assert "10 ± 1" in said(estimate) and "7.224 to 12.78" in said(estimate)
    assert "±" not in said(hr.trace(hessian))
    assert "img" in read(hr.density(hessian, probes=3, steps=8)).tags
    assert "dense" in said(hr.plan(hessian, 3))


def test_inspections_comparisons_and_their_plans(subject):
    model, loss, data = subject
    quiet = Console(file=io.StringIO())
    found = hr.inspect(model, loss, data, k=3, budget=2, console=quiet)
    assert found.answers()[0].finding in said(found)
    assert found["model.loss"].text() in said(found)
    pictured = replace(found, parts={"it": Part("it", "A part", "Group", charts=(CHART,))})
    assert {"img", "details"} <= read(pictured).tags and "A part" in said(pictured)
    assert "steps on" in said(found.plan)
    other = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    compared = hr.compare(model, other, loss, data, names=("A", NASTY), console=quiet, k=2)
    assert compared.reading()[0] in said(compared)


def test_sweeps_embeddings_and_claims(subject):
    model, _, data = subject
    start = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
    scan = sweep_selection(model, model.state_dict(), start, data, fractions=[0.0, 0.5, 1.0])
    assert "3 sub-networks" in said(scan)
    points = Points(
        [
            {
                "point": {"lr": 0.1, NASTY: 2},
                "error": None,
                "result": {"loss": 0.25, "path": np.ones(3)},
            },
            {"point": {"lr": 0.2}, "result": None, "error": "Traceback\nValueError: no <b>"},
        ]
    )
    assert "1 failed" in said(points) and "loss 0.25, path array (3,)" in said(points)
    space = hr.InPCA(n_components=2)
    assert "not fitted" in said(space)
    space.fit(np.random.default_rng(0).dirichlet(np.ones(3), (5, 8)))
    assert "InPCA of 5 models" in said(space)
    assert space._repr_mimebundle_()["text/html"] == space._repr_html_()
    band = hr.Band.at_least(1.0, "words")
    claim = hr.Claim(
        "ribbons/fig4/bound",
        "ribbons",
        "Fig. 4",
        NASTY,
        "more than one",
        "",
        band,
        2.0,
        0.5,
        (1.0, 3.0),
        (2.0,),
        "holds",
        "inside",
    )
    assert NASTY in said(claim) and "1 to any (words)" in said(claim)
