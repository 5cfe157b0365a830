"""Fig. 4.7 of [subnetworks]: effective rank of the top eigenvectors during training."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from hyperribbon.application.inspection import measure_anisotropy
from hyperribbon.papers.experiments.judging import Measurements
from hyperribbon.papers.experiments.kit import COLORS, Context, Figure, Item, new_figure
from hyperribbon.papers.experiments.statements import Band, observe
from hyperribbon.papers.experiments.subnetworks import _runs, _spectra

TITLE = "Effective rank of the top 100 eigenvectors during training"

_COARSE = (0, 1, 2, 3, 5, 10, 20, 30, 45, 60, 75, 90, 100)

STATEMENTS = (
    observe(
        "any-n",
        "Fig. 4.7",
        "The fall belongs to small N: with twice the samples it is smaller.",
        Band.at_least(0.0, "words"),
        needs=_runs.SCALE,
        changed="2026-11-17: before, the opposite was judged as if the paper said it",
    ),
    observe(
        "logits",
        "Fig. 4.7",
        "Over the logits the effective rank rises in training.",
        Band.at_least(0.0, "words"),
        needs=_runs.SCALE,
        changed="2026-11-17: before, the opposite was judged as if the paper said it",
    ),
)


class Config(_spectra.SpectralConfig):
    """Setting of Fig. 4.7 of [subnetworks]."""

    measured: tuple[int, ...] = _COARSE  # epochs at which every run is measured
    every_epoch: bool = False  # whether the first run is measured after every epoch
    other_samples: int = 600  # A second N, measured at the first and last epoch
    # second kind of outputs, measured at the first and last epoch with `samples`
    other_outputs: str = "model"


PRESETS, PRESETS_WITH_DATA = _runs.presets(
    Config,
    smoke={"samples": 12, "measured": (0, 1, 4), "other_samples": 24, "seeds": 1},
    laptop={"samples": 200},
    laptop_with_data={"samples": 500, "every_epoch": True, "other_samples": 1000},
    paper={"samples": 500, "measured": tuple(range(101)), "other_samples": 2000},
)


class Result(_runs.OfRuns):
    """Entries of the eigenvectors by epoch (Fig. 4.7 of [subnetworks])."""

    epochs: np.ndarray  # (e,)
    effective_rank: np.ndarray  # (seeds, e), mean over the top 100 eigenvectors
    kurtosis: np.ndarray  # (seeds, e)
    # (epochs + 1,), the same of the first run after every epoch; empty if not measured
    fine_rank: np.ndarray
    samples: int  # N
    other_samples: int  # second N
    other_rank: np.ndarray  # (seeds, 2), start and end with the second N
    logit_rank: np.ndarray  # (seeds, 2), start and end of the other outputs
    parameters: int  # number of weights


def compute(config: Config, context: Context) -> Result:
    """Measure every run at every epoch of the configuration (Fig. 4.7 of [subnetworks])."""
    runs = _runs.train_runs(config, context)
    ends = (config.measured[0], config.measured[-1])
    every_epoch = range(config.epochs + 1) if config.every_epoch else ()

    def measure_entries(
        runs: Sequence[Item], epochs: Sequence[int], samples: int, outputs: str = config.outputs
    ) -> np.ndarray:
        items = [
            {**run, "epoch": epoch, "samples": samples, "outputs": outputs}
            for run in runs
            for epoch in epochs
        ]
        entries = np.array(context.map(_entries, items, "top eigenvectors"))
        return entries.reshape(len(runs), len(epochs), 2)

    main = measure_entries(runs, config.measured, config.samples)
    return Result(
        epochs=np.array(config.measured),
        effective_rank=main[:, :, 0],
        kurtosis=main[:, :, 1],
        fine_rank=measure_entries(runs[:1], every_epoch, config.samples)[0, :, 0],
        samples=config.samples,
        other_samples=config.other_samples,
        other_rank=measure_entries(runs, ends, config.other_samples)[:, :, 0],
        logit_rank=measure_entries(runs, ends, config.samples, config.other_outputs)[:, :, 0],
        parameters=sum((a + 1) * b for a, b in pairwise(config.widths)),
        **_runs.origin(config),
    )


def _entries(item: Item) -> np.ndarray:
    run = _runs.load_run(item)
    measured = measure_anisotropy(
        run.model,
        _runs.train_data(item, item["samples"]).inputs,
        state=run.at_epoch(item["epoch"]),
        outputs=item["outputs"],
    )
    summary = _spectra.summary_of(measured)
    return np.array([summary["effective_rank100"], summary["kurtosis100"]])


def plot(result: Result) -> Figure:
    """Draw the effective rank by epoch, and its change for other N and outputs (Fig. 4.7)."""
    figure, (left, right) = new_figure(1, 2, width="full", ratio=0.75)
    look = {"color": COLORS[0], "marker": "o", "ms": 2.5, "label": "mean and range of the runs"}
    _runs.draw_band(left, result.epochs, result.effective_rank / 1000, **look)
    if len(result.fine_rank):
        left.plot(result.fine_rank / 1000, color=COLORS[1], lw=0.8, label="one run, every epoch")
        left.legend()
    title = f"softmax outputs, $N={result.samples}$, of {result.parameters:,} weights"
    left.set(xlabel="epoch", ylabel="effective rank / 1000", title=title)
    ends = result.effective_rank[:, [0, -1]]
    bars = (
        (f"softmax\n$N={result.samples}$", ends),
        (f"softmax\n$N={result.other_samples}$", result.other_rank),
        (f"logits\n$N={result.samples}$", result.logit_rank),
    )
    for position, (_, values) in enumerate(bars):
        change = 100 * (values[:, 1] / values[:, 0] - 1)
        right.bar(position, change.mean(), color=COLORS[position], alpha=0.6, width=0.6)
        right.plot([position] * len(change), change, "o", color="black", ms=2.5)
    right.axhline(0, color="0.3", lw=0.8)
    right.set_xticks(range(len(bars)), [label for label, _ in bars])
    right.set_ylabel("change in training, %")
    return figure


def measure(result: Result) -> Measurements:
    """Measure what the fall in training depends on (Fig. 4.7 of [subnetworks])."""
    rank = result.effective_rank
    whole = rank[:, -1] / rank[:, 0] - 1
    return {
        "any-n": result.by_run(
            result.other_rank[:, 1] / result.other_rank[:, 0] - 1 - whole,
            f"relative change with N = {result.other_samples} minus that with N = {result.samples}",
        ),
        "logits": result.by_run(
            result.logit_rank[:, 1] / result.logit_rank[:, 0] - 1,
            f"relative change for the logits, N = {result.samples}",
        ),
    }
