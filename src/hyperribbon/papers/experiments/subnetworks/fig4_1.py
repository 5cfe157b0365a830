"""Fig. 4.1 of [subnetworks]: the leading Fisher eigenvalues, and how T100 depends on N."""

from __future__ import annotations

from typing import Any

import numpy as np

from hyperribbon.application.inspection import measure_anisotropy
from hyperribbon.papers.experiments.judging import Measurements
from hyperribbon.papers.experiments.kit import COLORS, Context, Figure, Item, new_figure
from hyperribbon.papers.experiments.statements import Band, observe
from hyperribbon.papers.experiments.subnetworks import _runs

TITLE = "Leading Fisher eigenvalues before and after training, and what N does to them"

STATEMENTS = (
    observe(
        "falls-with-n",
        "Eq. (4.22)",
        "T100 of the trained network falls as N grows, so N belongs to the number.",
        Band.at_most(0.0, "words"),
        needs=_runs.SCALE,
        changed="2026-11-17: before, the opposite was judged as if the paper said it",
    ),
    observe(
        "logits",
        "Sec. 4.3",
        "Over the logits training does not concentrate the spectrum: T100 stays below 0.9.",
        Band.at_most(0.9, "words"),
        needs=_runs.SCALE,
        changed="2026-11-17: before, the opposite was judged as if the paper said it",
    ),
)


class Config(_runs.TrainingConfig):
    """Setting of Fig. 4.1 of [subnetworks]."""

    shown: int = 200  # N of the spectra shown
    eigenvalues: int = 1000  # how many of them
    # the N over which T100 is measured for the softmax outputs
    samples: tuple[int, ...] = (100, 300, 600)
    logit_samples: tuple[int, ...] = (100, 300)  # the N over which it is measured for the logits


PRESETS, PRESETS_WITH_DATA = _runs.presets(
    Config,
    smoke={
        "shown": 20,
        "eigenvalues": 150,
        "samples": (20, 40),
        "logit_samples": (20,),
        "seeds": 1,
    },
    laptop_with_data={"samples": (100, 300, 1000)},
    paper={"samples": (100, 300, 1000, 2000)},
)


class Result(_runs.OfRuns):
    """Spectra and trace ratios (Fig. 4.1 of [subnetworks])."""

    start: np.ndarray  # (seeds, k), leading eigenvalues at the start, N = shown, softmax outputs
    trained: np.ndarray  # (seeds, k), after training
    shown: int  # their N
    samples: np.ndarray  # (s,)
    t100_start: np.ndarray  # (seeds, s), softmax outputs
    t100_trained: np.ndarray  # (seeds, s)
    logit_samples: np.ndarray  # (l,)
    logit_start: np.ndarray  # (seeds, l), T100 of the logits
    logit_trained: np.ndarray  # (seeds, l)


def compute(config: Config, context: Context) -> Result:
    """Measure the spectra of every run at both moments (Fig. 4.1 of [subnetworks])."""
    runs = _runs.train_runs(config, context)

    def measure_spectra(outputs: str, samples: tuple[int, ...], k: int) -> list[Any]:
        items = [
            {**run, "outputs": outputs, "samples": count, "k": k}
            for run in runs
            for count in samples
        ]
        return context.map(_spectra_at_both_ends, items, f"Fisher spectra, {outputs} outputs")

    def by_run(measured: list[Any], key: str) -> np.ndarray:
        return np.array([one[key] for one in measured]).reshape(len(runs), -1)

    shown = measure_spectra("softmax", (config.shown,), config.eigenvalues)
    softmax = measure_spectra("softmax", config.samples, 100)
    logits = measure_spectra("model", config.logit_samples, 100)
    return Result(
        start=by_run(shown, "start"),
        trained=by_run(shown, "trained"),
        shown=config.shown,
        samples=np.array(config.samples),
        t100_start=by_run(softmax, "t100_start"),
        t100_trained=by_run(softmax, "t100_trained"),
        logit_samples=np.array(config.logit_samples),
        logit_start=by_run(logits, "t100_start"),
        logit_trained=by_run(logits, "t100_trained"),
        **_runs.origin(config),
    )


def _spectra_at_both_ends(item: Item) -> dict[str, Any]:
    run = _runs.load_run(item)
    inputs = _runs.train_data(item, item["samples"]).inputs
    options = {"k": item["k"], "outputs": item["outputs"], "vectors": False}
    start, trained = (
        measure_anisotropy(run.model, inputs, state=state, **options)
        for state in (run.initial, run.final)
    )
    count = min(100, len(start.eigenvalues))
    return {
        "start": start.eigenvalues.numpy(),
        "trained": trained.eigenvalues.numpy(),
        "t100_start": start.trace_ratio(count),
        "t100_trained": trained.trace_ratio(count),
    }


def plot(result: Result) -> Figure:
    """Draw the spectra and the dependence of T100 on N and on the outputs (Fig. 4.1)."""
    figure, (left, right) = new_figure(1, 2, width="full", ratio=0.75)
    index = np.arange(1, result.start.shape[1] + 1)
    for values, color, label in (
        (result.start, COLORS[0], "at the start"),
        (result.trained, COLORS[1], "after training"),
    ):
        positive = np.maximum(values, 1e-300)
        _runs.draw_band(left, index, positive, color=color, label=label)
    top = max(result.start.max(), result.trained.max())
    left.set(xscale="log", yscale="log", xlabel="index", ylabel="eigenvalue of $F$")
    left.set_ylim(top * 1e-12, top * 3)
    left.set_title(f"softmax outputs, $N={result.shown}$")
    left.legend(loc="lower left")
    for samples, start, trained, style, label in (
        (result.samples, result.t100_start, result.t100_trained, "-", "softmax"),
        (result.logit_samples, result.logit_start, result.logit_trained, "--", "logits"),
    ):
        for values, color, moment in ((start, COLORS[0], "start"), (trained, COLORS[1], "trained")):
            look = {"color": color, "ls": style, "marker": "o"}
            _runs.draw_band(right, samples, values, **look, label=f"{moment}, {label}")
    right.axhline(0.36, color="0.5", ls=":", lw=1)
    right.text(result.samples[-1], 0.37, "printed for the start", ha="right", fontsize=8)
    right.set(xscale="log", xlabel="$N$, samples in $F$", ylabel="$T_{100}$", ylim=(0.3, 1.03))
    right.legend(loc="lower center", ncols=2, bbox_to_anchor=(0.5, 1.0))
    return figure


def measure(result: Result) -> Measurements:
    """Measure what the printed trace ratios depend on (Fig. 4.1 of [subnetworks])."""
    return {
        "falls-with-n": result.by_run(
            result.t100_trained[:, -1] - result.t100_trained[:, 0],
            f"change from N = {result.samples[0]} to {result.samples[-1]}",
        ),
        "logits": result.by_run(
            result.logit_trained[:, -1],
            f"N = {result.logit_samples[-1]}, from {result.logit_start[:, -1].mean():.2f} at "
            "the start: the concentration is the softmax's saturation",
        ),
    }
