"""Fisher spectra along re-initialisation and pruning of a recorded run, shared by three figures."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes

from hyperribbon.application.inspection import Anisotropy, measure_anisotropy
from hyperribbon.core import derive_seed
from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.subnetworks import _runs
from hyperribbon.subnetworks import evaluate_states, prune, reinitialize, select

FISHER = (
    "F of Eq. (4.13), not centred, over the softmax outputs; the text prints neither N nor whether "
    "the start is that of Chapter 3, and what they change is in subnetworks/chapter4; "
    f"{_runs.TRAINING}"
)
"""Where statements about the Fisher matrix are judged."""
says_fisher = partial(kit.says, setting=FISHER, needs=_runs.SCALE)
ORDER_LABELS = {
    "smallest": "smallest change first",
    "random": "at random",
    "largest": "largest change first",
}
_FRACTIONS = {
    "smallest": (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.98, 1.0),
    "random": (0.0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0),
    "largest": (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0),
}
"""Shares of the weights by order; "random" is random selection, the others go by change."""


class SpectralConfig(_runs.TrainingConfig):
    """Setting of the figures with spectra along re-initialisation."""

    samples: int = 200  # N, images the Fisher matrix averages over
    outputs: str = "softmax"  # "softmax" as in the paper, or "model" for the logits
    stride: int = 1  # measure every stride-th of the fractions only


PRESETS, PRESETS_WITH_DATA = _runs.presets(
    SpectralConfig, smoke={"samples": 12, "stride": 2, "seeds": 1}, paper={"samples": 500}
)


class Curves(_runs.OfRuns):
    """Spectra along re-initialisation or pruning, by curve ("operation-order")."""

    # (f,) each, share of the weights that was re-initialised or pruned
    fractions: dict[str, np.ndarray]
    # (seeds, f) each, largest change among the selected weights where the order is "smallest": the
    # threshold of Algorithm 1 that selects this share
    thresholds: dict[str, np.ndarray]
    # by name of the summary ("t100", "accuracy", …) and curve, (seeds, f) each
    columns: dict[str, dict[str, np.ndarray]]
    samples: int  # N
    outputs: str  # outputs of the matrix

    def at(self, column: str, curve: str, share: float) -> np.ndarray:
        """Return every run's summary of Fisher spectra at the measured share nearest to one."""
        position = int(np.argmin(np.abs(self.fractions[curve] - share)))
        return self.columns[column][curve][:, position]

    def draw(self, axis: Axes, column: str, curve: str, **style: Any) -> None:
        """Draw a summary of Fisher spectra along a curve, the mean of the runs and their range."""
        _runs.draw_band(axis, self.fractions[curve], self.columns[column][curve], ms=3, **style)

    def relative(self, column: str, curve: str, share: float) -> np.ndarray:
        """Return the relative change of spectra's summary from the trained network to a share."""
        return self.at(column, curve, share) / self.at(column, curve, 0.0) - 1


def measure_curves(
    config: SpectralConfig, context: kit.Context, curves: Sequence[str], columns: Sequence[str]
) -> Curves:
    """Measure summaries of every run's Fisher spectra along the curves of a figure."""
    runs = _runs.train_runs(config, context)
    fractions = {curve: _fractions_of(config, curve.split("-")[1]) for curve in curves}
    origin, measured = _runs.origin(config), {}
    for curve, shares in fractions.items():
        operation, order = curve.split("-")
        wanted = {"samples": config.samples, "outputs": config.outputs}
        items = [point(run, operation, order, share, **wanted) for run in runs for share in shares]
        points = context.shared_map(measure_point, items, f"spectra, {operation} {order} first")
        table = kit.stack(points)
        measured[curve] = {key: table[key].reshape(len(runs), len(shares)) for key in table}
    return Curves(
        fractions={curve: np.array(shares) for curve, shares in fractions.items()},
        thresholds={curve: table["threshold"] for curve, table in measured.items()},
        columns={
            name: {curve: table[name] for curve, table in measured.items()} for name in columns
        },
        samples=config.samples,
        outputs=config.outputs,
        source=f"N = {config.samples}, {config.outputs} outputs, {origin['source']}",
        full=origin["full"],
    )


def logarithmic_shares(axis: Axes) -> None:
    """Scale a spectra plot's axis of shares logarithmically from 0.01 on, linearly below."""
    axis.set_xscale("symlog", linthresh=0.01, linscale=0.6)
    axis.set_xticks([0, 0.01, 0.1, 1], ["0", "0.01", "0.1", "1"])
    axis.set_xlim(-0.0005, 1.1)


def _fractions_of(config: SpectralConfig, order: str) -> list[float]:
    """Return the shares of weights at which a curve of spectra is measured, 0 and 1 among them."""
    fractions = _FRACTIONS[order]
    return sorted({*fractions[:: config.stride], fractions[-1]})


def point(
    run: kit.Item,
    operation: str,
    order: str,
    fraction: float,
    *,
    samples: int,
    outputs: str = "softmax",
    centre: bool = False,
    epoch: int | None = None,
) -> dict[str, Any]:
    """Return the item of one point of a curve of spectra; the ends have one name each."""
    if fraction == 0.0:
        operation = "reinitialize"
    if fraction in (0.0, 1.0):
        order = "largest"
    return {
        **run,
        "operation": operation,
        "order": order,
        "fraction": fraction,
        "samples": samples,
        "outputs": outputs,
        "centre": centre,
        "epoch": run["epochs"] if epoch is None else epoch,
        "vectors": operation == "reinitialize" and order != "smallest",
    }


def summary_of(measured: Anisotropy) -> dict[str, float]:
    """Return the numbers of Fisher spectra that the figures show; NaN where not measured."""
    count = len(measured.eigenvalues)
    ranks, kurtoses = measured.effective_ranks, measured.kurtoses
    if ranks is None or kurtoses is None:
        ranks = kurtoses = measured.eigenvalues * float("nan")
    return {
        "t50": measured.trace_ratio(min(50, count)),
        "t100": measured.trace_ratio(min(100, count)),
        "spectral_norm": measured.spectral_norm,
        "frobenius": measured.frobenius,
        "effective_rank50": float(ranks[:50].mean()),
        "effective_rank100": float(ranks.mean()),
        "kurtosis50": float(kurtoses[:50].mean()),
        "kurtosis100": float(kurtoses.mean()),
    }


def measure_point(item: kit.Item) -> dict[str, float]:
    """Measure the Fisher spectra of a network partly re-initialised or pruned."""
    run = _runs.load_run(item)
    trained = run.at_epoch(item["epoch"])
    mask = select(
        trained,
        run.initial,
        fraction=item["fraction"],
        criterion="random" if item["order"] == "random" else "change",
        order="largest" if item["order"] == "largest" else "smallest",
        include="all",
        seed=derive_seed(item["seed"], "random selection"),
    )
    if item["operation"] == "prune":
        state = prune(trained, mask)
    else:
        state = reinitialize(trained, run.initial, mask)
    measured = measure_anisotropy(
        run.model,
        _runs.train_data(item, item["samples"]).inputs,
        state=state,
        outputs=item["outputs"],
        centre=item["centre"],
        vectors=item["vectors"],
    )
    changes = [(trained[name] - run.initial[name]).abs()[entry] for name, entry in mask.items()]
    return {
        **summary_of(measured),
        "accuracy": float(evaluate_states(run.model, [state], _runs.test_data(item)).mean()),
        "threshold": float(torch.cat([*changes, torch.zeros(1, device="cpu")]).max()),
    }
