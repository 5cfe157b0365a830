"""Everything an inspection can do, the most telling first."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from hyperribbon.inspection.basics import basics_part
from hyperribbon.inspection.carrying import subnetworks_part
from hyperribbon.inspection.curvature import (
    density_part,
    gauss_newton_part,
    hessian_part,
    trace_part,
)
from hyperribbon.inspection.gradient_noise import noise_part
from hyperribbon.inspection.information import fisher_part, gauss_newton_factor
from hyperribbon.inspection.landscape import slices_part
from hyperribbon.inspection.layers import layers_part
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


def _pairs(subject: Subject, notebook: Notebook) -> float:
    return 4 * min(notebook.k, subject.dimension) + 40


def _layers(subject: Subject) -> int:
    return len(subject.hessian.space.layers())


STEPS = (
    Step("basics", "Loss and gradient", basics_part, lambda s, n: 3, is_fixed=True),
    Step("hessian", "Ends of the Hessian spectrum", hessian_part,
         lambda s, n: 1.25 * _pairs(s, n), least=20, is_steady=True),
    Step("gauss_newton", "Gauss-Newton spectrum and trace", gauss_newton_part, _pairs, least=20),
    Step("fisher", "Fisher information", fisher_part,
         lambda s, n: 1 if gauss_newton_factor(s) else _pairs(s, n)),
    Step("stability", "Sharpness against the stability limit", stability_part,
         lambda s, n: 40 if n.rule and isinstance(n.rule.rates, Mapping) else 1, is_fixed=True,
         obstacle=_no_rule),
    Step("noise", "Gradient noise", noise_part, lambda s, n: 4 * min(n.k, 30) + 50, least=15),
    Step("subnetworks", "Sub-networks", subnetworks_part,
         lambda s, n: _layers(s) + 12, is_fixed=True, obstacle=_no_start),
    Step("sloppiness", "Sloppiness of the data", sloppiness_part, lambda s, n: 3, is_fixed=True,
         obstacle=_no_numbers),
    Step("slices", "Slices of the loss", slices_part, lambda s, n: 150, least=10),
    Step("layers", "Layer by layer", layers_part, lambda s, n: 25 * _layers(s), least=20),
    Step("trace", "Trace of the Hessian", trace_part, lambda s, n: 120, least=16, is_steady=True),
    Step("path", "Path of the training", path_part, lambda s, n: 5, is_fixed=True,
         obstacle=_no_trajectory),
    Step("theory", "Theory beside the measurement", theory_part, lambda s, n: 120, least=20,
         obstacle=no_chain),
    Step("density", "Spectral density", density_part, lambda s, n: 400, least=24),
)  # fmt: skip
"""In order of how much they tell for what they cost."""
