"""Accuracy (or another measure) of sub-networks over fractions or thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from hyperribbon.core import ArgumentError, Mask, ParameterFilter
from hyperribbon.core.checks import (
    check_array,
    check_choice,
    check_fraction,
    torch_module,
    validate,
)
from hyperribbon.core.devices.tensors import tensor_of
from hyperribbon.core.result import Result, frame
from hyperribbon.core.store import Kept, content_digest
from hyperribbon.operators.risk.data import Data
from hyperribbon.subnetworks.evaluation import Measure, StateMetric
from hyperribbon.subnetworks.operations import prune, reinitialize
from hyperribbon.subnetworks.selection import Criterion, check_only_of_fractions, rank
from hyperribbon.subnetworks.states import State, state_of

if TYPE_CHECKING:
    import pandas as pd

_GROUP = 16  # sub-networks evaluated at once


@dataclass(frozen=True)
class Sweep(Result, plot="plot_sweep"):
    """Measurements of a family of sub-networks.

    Attributes:
        settings: (s,) the requested fractions or thresholds.
        fractions: (s,) the fraction of entries selected.
        values: (s,) mean over the samples, with normalisation statistics re-estimated at each
            point for models that keep such statistics (batch norm).
        stderr: (s,) its standard error over the samples.
        stored_values: (s,) the same with the statistics of the final state, which do not fit the
            changed weights; equal to `values` for models without such layers.
    """

    settings: torch.Tensor
    fractions: torch.Tensor
    values: torch.Tensor
    stderr: torch.Tensor
    stored_values: torch.Tensor

    def to_frame(self) -> pd.DataFrame:
        """Return a sweep's mean over samples and its standard error, one row per sub-network."""
        own = {"fraction": self.fractions, "value": self.values, "stderr": self.stderr}
        return frame(own | {"setting": self.settings, "stored_value": self.stored_values})

    def _headline(self) -> str:
        low, high = float(self.values.min()), float(self.values.max())
        return f"{len(self.values)} sub-networks, {low:.4g} to {high:.4g}"


@validate()
def sweep_selection(
    model: nn.Module,
    final: State,
    initial: State | None,
    data: Data,
    *,
    operation: str = "reinitialize",
    criterion: Criterion = "change",
    fractions: Sequence[float] | None = None,
    thresholds: Sequence[float] | None = None,
    order: str = "smallest",
    scope: str = "global",
    include: str = "weights",
    params: ParameterFilter = None,
    measure: Measure = "accuracy",
    calibration: Data = None,
    folder: str | Path | None = None,
    seed: int = 0,
) -> Sweep:
    """Sweep over sub-networks of increasing fractions or upper thresholds.

    Implements the scans of Figs. 3.3, 3.4 and 3.6 of [subnetworks]: the entries are ranked once,
    the sub-networks are evaluated in batches, and none is trained.

    Args:
        model: The architecture; not modified.
        final: Its trained state.
        initial: Its start (not needed to prune by magnitude).
        data: What to measure on, as `hr.Risk` takes them.
        operation: "reinitialize" or "prune" the selected entries.
        criterion: As in `select`.
        fractions: Shares to select.
        thresholds: Upper ends of the interval [0, threshold] of scores to select.
        order: As in `select`; fractions only.
        scope: As in `select`; fractions only.
        include: As in `select`.
        params: As in `select`.
        measure: As in `evaluate_states`.
        calibration: Data for re-estimating the statistics of normalisation layers, see
            `Statistics`; by default the inputs of `data`.
        folder: Where evaluations are kept, in groups of 16: the same call continues there after it
            was killed.
        seed: Seed of the criterion "random".

    Returns:
        The mean (s,) of the measure at every point, with its standard error (s,).

    Raises:
        ArgumentError: Not exactly one of `fractions` and `thresholds` is given, or as in `rank`.
    """
    check_choice("operation", operation, ("reinitialize", "prune"))
    torch_module("model", model)
    settings = fractions if fractions is not None else thresholds
    if settings is None or (fractions is None) == (thresholds is None):
        reason = "expected exactly one of fractions and thresholds"
        remedy = "Give fractions=[0.5, 0.8] or thresholds=[0.01, 0.05]."
        raise ArgumentError("fractions", fractions, reason, remedy)
    settings = check_array("fractions" if thresholds is None else "thresholds", settings, ndim=1)
    if fractions is None:
        check_only_of_fractions(order, scope)
    else:
        for fraction in settings.tolist():
            check_fraction("fractions", fraction)
    how = {"criterion": criterion, "order": order, "scope": scope, "include": include}
    ranking = rank(final, initial, params=params, model=model, seed=seed, **how)
    masks = [
        ranking.select(setting) if fractions is not None else ranking.between(0.0, setting)
        for setting in settings.tolist()
    ]
    metric = StateMetric(model, data, measure, calibration=calibration)
    whole = None if folder is None else metric(state_of("final", final))
    kept = Kept(folder, whole)
    stored = _evaluate_masks(metric, final, initial, masks, operation, kept, reestimates=False)
    values = stored
    if metric.is_normalised:
        values = _evaluate_masks(metric, final, initial, masks, operation, kept, reestimates=True)
    count = values.shape[1]
    return Sweep(
        settings=torch.from_numpy(settings),
        fractions=torch.tensor(
            [mask.fraction for mask in masks], dtype=torch.float64, device="cpu"
        ),
        values=values.mean(1),
        stderr=values.std(1, correction=1 if count > 1 else 0) / count**0.5,
        stored_values=stored.mean(1),
    )


def _evaluate_masks(
    metric: StateMetric,
    final: State,
    initial: State | None,
    masks: list[Mask],
    operation: str,
    kept: Kept,
    *,
    reestimates: bool,
) -> torch.Tensor:
    """Evaluate a sweep (masks, samples); only one group of states is in memory at a time."""
    base = state_of("final", final)

    def change(mask: Mask) -> dict[str, torch.Tensor]:
        changed = prune(base, mask) if operation == "prune" else reinitialize(base, initial, mask)  # type: ignore[arg-type]
        if reestimates:
            changed = metric.reestimate(changed)
        same = {name: tensor for name, tensor in base.items() if torch.equal(tensor, changed[name])}
        return {**changed, **same}

    groups = [masks[start : start + _GROUP] for start in range(0, len(masks), _GROUP)]
    start = None if initial is None else state_of("initial", initial)
    found = [
        kept(
            content_digest(operation, reestimates, base, start, group),
            lambda group=group: metric.evaluator([change(mask) for mask in group]),
        )
        for group in groups
    ]
    return torch.cat([tensor_of(values) for values in found]).double()
