"""Everything an inspection can do, the most telling first."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from hyperribbon.inspection.carrying import subnetworks_part
from hyperribbon.inspection.curvature import density_part, spectrum_part, trace_part
from hyperribbon.inspection.gradient_noise import noise_part
from hyperribbon.inspection.information import fisher_part, gauss_newton_factor
from hyperribbon.inspection.landscape import slices_part
from hyperribbon.inspection.layers import layers_part
from hyperribbon.inspection.looks import COUNTS
from hyperribbon.inspection.notebook import Notebook
from hyperribbon.inspection.path import path_part
from hyperribbon.inspection.planning import Step
from hyperribbon.inspection.sloppiness import sloppiness_part
from hyperribbon.inspection.stability import stability_part
from hyperribbon.inspection.subject import Subject
from hyperribbon.inspection.theories import no_chain, theory_part

__all__ = ["STEPS"]


def _no_rule(subject: Subject, notebook: Notebook) -> str:
    return "" if notebook.rule else "pass optimizer= (or a learning rate) to have it"


def _no_start(subject: Subject, notebook: Notebook) -> str:
    return "" if notebook.initial is not None else "pass initial= (the state before training)"


def _no_trajectory(subject: Subject, notebook: Notebook) -> str:
    return "" if notebook.trajectory is not None else "pass trajectory= (a Recorder's folder)"


def _no_numbers(subject: Subject, notebook: Notebook) -> str:
    batch = next(subject.hessian.risk.source.batches())
    inputs = batch[0] if isinstance(batch, tuple | list) else batch
    if isinstance(inputs, torch.Tensor) and inputs.is_floating_point():
        return ""
    return "the inputs are not tensors of real numbers"


def _layers(subject: Subject) -> int:
    return len(subject.hessian.space.layers())


def _fisher(subject: Subject, notebook: Notebook) -> float:
    known = notebook.matrices.get("gauss_newton") is not None and gauss_newton_factor(subject)
    return 1 if known else 3 * min(notebook.k, COUNTS[-1]) + 30


STEPS = (
    Step("stability", "Sharpness against the stability limit", stability_part,
         lambda s, n: 40 if n.rule and isinstance(n.rule.rates, Mapping) else 1, is_fixed=True,
         obstacle=_no_rule),
    Step("noise", "Gradient noise", noise_part, lambda s, n: 4 * min(n.k, COUNTS[0]) + 25,
         is_fixed=True),
    Step("fisher", "Fisher information", fisher_part, _fisher, is_fixed=True),
    Step("subnetworks", "Sub-networks", subnetworks_part,
         lambda s, n: _layers(s) + 12, is_fixed=True, obstacle=_no_start),
    Step("layers", "Layer by layer", layers_part, lambda s, n: 25 * _layers(s), least=30),
    Step("sloppiness", "Sloppiness of the data", sloppiness_part, lambda s, n: 3, is_fixed=True,
         obstacle=_no_numbers),
    Step("slices", "Slices of the loss", slices_part, lambda s, n: 150, least=10),
    Step("path", "Path of the training", path_part, lambda s, n: 5, is_fixed=True,
         obstacle=_no_trajectory),
    Step("theory", "Theory beside the measurement", theory_part, lambda s, n: 300, is_fixed=True,
         is_late=True, obstacle=no_chain),
    Step("trace", "Trace of the Hessian", trace_part, lambda s, n: 120, is_fixed=True,
         is_late=True),
    Step("density", "Spectral density", density_part, lambda s, n: 300, least=24,
         is_late=True),
    Step("spectrum", "Leading eigenvalues of the Hessian", spectrum_part,
         lambda s, n: 8 * min(n.k, s.dimension) + 40, is_fixed=True, is_late=True,
         obstacle=lambda s, n: "" if n.k > COUNTS[0] else "all that were asked for are known"),
)  # fmt: skip
"""In order of how much they tell for what they cost."""
