"""Chapter 4 of [subnetworks]: in which settings each printed statement on the spectrum holds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise, product
from typing import Any

import numpy as np
from matplotlib.colors import ListedColormap

from hyperribbon.papers.experiments.judging import Measurements, exact, over_settings
from hyperribbon.papers.experiments.kit import Context, Figure, new_figure, stack
from hyperribbon.papers.experiments.statements import Band, Statement, observe, says
from hyperribbon.papers.experiments.subnetworks import _runs, _spectra

TITLE = "Where the printed statements on the Fisher spectrum hold"

_SETTING = (
    "F over the softmax outputs, centred over the samples or not, for every N and both starts of "
    "the grid: the text prints none of the three. Network, batch, schedule and the 100 epochs are "
    "those printed, on all of MNIST; rate 0.01 and momentum 0.9 match Tables A.1 and A.2"
)
_says = partial(says, setting=_SETTING, needs=_runs.SCALE)
_RANK_QUOTE = (
    "the average effective ranks of the top eigenvectors, corresponding to the 100 largest "
    "eigenvalues, consistently decrease throughout training until convergence to a minimum"
)
_MOVED = "2026-11-18: before, judged at one N and the Gaussian start, where a trend could only hold"

Cell = dict[str, dict[str, np.ndarray]]
"""Summaries by state: "start", "first" (after one epoch), "trained", "kept" and "lost"."""


def _norm_ratios(cell: Cell, above: str, below: str) -> np.ndarray:
    return np.array([cell[above][n] / cell[below][n] for n in ("spectral_norm", "frobenius")])


_JUDGED: tuple[tuple[str, Statement, Callable[[Cell], np.ndarray]], ...] = (
    (
        "$T_{100}$\nstart",
        _says(
            "start-t100",
            "Sec. 4.3",
            "T100 increases from 0.360 at initialization to 0.999 after training",
            "At the start T100 is 0.36 ± 0.03 (our margin for another draw of weights and images).",
            Band.around(0.36, "printed", atol=0.03),
            changed=_MOVED,
        ),
        lambda cell: cell["start"]["t100"],
    ),
    (
        "$T_{100}$\ntrained",
        _says(
            "trained-t100",
            "Sec. 4.3",
            "T100 increases from 0.360 at initialization to 0.999 after training, indicating a "
            "concentration in a few direction",
            "After training the 100 largest eigenvalues carry 0.999 of the trace or more.",
            Band.at_least(0.9985, "printed"),
            changed=_MOVED,
        ),
        lambda cell: cell["trained"]["t100"],
    ),
    (
        "norms in\ntraining",
        _says(
            "norms-fall-in-training",
            "Sec. 4.3.3",
            "robustness is reflected in the reduction of the norms of spectrum during training",
            "Largest eigenvalue and L2 norm are both smaller after training than at the start: the "
            "larger of the two ratios is at most 1.",
            Band.at_most(1.0, "words"),
            changed=_MOVED,
        ),
        lambda cell: _norm_ratios(cell, "trained", "start").max(0),
    ),
    (
        "rank in\ntraining",
        _says(
            "rank-falls",
            "Sec. 4.3.4, Fig. 4.7",
            _RANK_QUOTE,
            "The effective rank, averaged over the top 100 eigenvectors, is lower after training "
            "than at the start.",
            Band.at_most(0.0, "words"),
            changed=_MOVED,
        ),
        lambda cell: cell["trained"]["effective_rank100"] / cell["start"]["effective_rank100"] - 1,
    ),
    (
        "rank in\nepoch 1",
        _says(
            "rank-falls-at-once",
            "Sec. 4.3.4, Fig. 4.7",
            _RANK_QUOTE,
            "It is lower after the first epoch than at the start.",
            Band.at_most(0.0, "words"),
            changed=_MOVED,
        ),
        lambda cell: cell["first"]["effective_rank100"] / cell["start"]["effective_rank100"] - 1,
    ),
    (
        "$T_{100}$\nkept",
        _says(
            "kept",
            "Sec. 4.3.3, Fig. 4.5",
            "the anisotropy remains largely unchanged, even after most of the parameters have been "
            "reset to their initial values",
            "Re-initialising the 80% of the weights that changed least changes T100 by at most "
            "0.01 (our threshold for 'largely unchanged').",
            Band.around(0.0, "words", atol=0.01),
            changed=_MOVED,
        ),
        lambda cell: cell["kept"]["t100"] - cell["trained"]["t100"],
    ),
    (
        "norms\nkept",
        _says(
            "norms-rise-first",
            "Sec. 4.3.3, Fig. 4.5",
            "Both norms initially increase as the re-initialization interval grows",
            "With the 80% of the weights that changed least re-initialised both norms are higher "
            "than in the trained network: the smaller of the two ratios is at least 1.",
            Band.at_least(1.0, "words"),
            changed=_MOVED,
        ),
        lambda cell: _norm_ratios(cell, "kept", "trained").min(0),
    ),
    (
        "$T_{100}$\nlost",
        _says(
            "lost-largest-first",
            "Sec. 4.3.3, Fig. 4.6 (c)",
            "when critical parameters are disturbed—whether by pruning or re-initialization—the "
            "anisotropy of the FIM spectrum consistently declines",
            "Re-initialising the 2% of the weights that changed most lowers T100 by at least 0.05 "
            "(share and threshold are ours).",
            Band.at_most(-0.05, "words"),
            changed=_MOVED,
        ),
        lambda cell: cell["lost"]["t100"] - cell["trained"]["t100"],
    ),
    (
        "rank\nlost",
        _says(
            "rank-rises",
            "Sec. 4.3.4, Fig. 4.8 (a)",
            "when the parameters with the largest changes are reinitialized based on the absolute "
            "change criterion, […] the entropy exhibits a substantial increase",
            "Re-initialising the 2% of the weights that changed most raises the effective rank of "
            "the top 100 eigenvectors by at least 0.1 of itself (share and threshold are ours).",
            Band.at_least(0.1, "words"),
            changed=_MOVED,
        ),
        lambda cell: cell["lost"]["effective_rank100"] / cell["trained"]["effective_rank100"] - 1,
    ),
    *(
        (
            f"kurtosis,\ntop {count}",
            _says(
                f"kurtosis{count}-falls",
                f"Sec. 4.3.4, Fig. 4.8 ({letter})",
                "the kurtosis exhibits a clear decrease for both the top 50 and 100 eigenvectors",
                f"The kurtosis of the top {count} eigenvectors is lower in the wholly "
                "re-initialised network than in the trained one.",
                Band.at_most(0.0, "words"),
                changed=_MOVED,
            ),
            lambda cell, key=f"kurtosis{count}": cell["start"][key] / cell["trained"][key] - 1,
        )
        for count, letter in ((100, "b"), (50, "d"))
    ),
)
"""Heading of the column, statement, and its number in a cell of the grid."""

STATEMENTS = (
    *(statement for _, statement, _ in _JUDGED),
    observe(
        "one-setting",
        "Chapter 4",
        "One setting of the grid shows all the printed statements at once, in every run.",
        Band.at_least(1.0, "closed form"),
        needs=_runs.SCALE,
    ),
)
_STATES = {
    "trained": ("largest", 0.0),
    "kept": ("smallest", 0.8),
    "lost": ("largest", 0.02),
}
"""Order and share of what is re-initialised."""


class Config(_runs.TrainingConfig):
    """Setting of the grid."""

    samples: tuple[int, ...] = (100, 200, 500)  # N
    moments: tuple[int, ...] = (15, 100)  # epochs of training


PRESETS, PRESETS_WITH_DATA = _runs.presets(
    Config,
    smoke={"samples": (20,), "moments": (4,), "init": 0.1, "seeds": 1},
    laptop={"seeds": 1},
    paper={"samples": (100, 200, 500, 1000), "seeds": 3},
)


class Result(_runs.OfRuns):
    """The number of every printed statement in every setting."""

    starts: list[str]  # (s,), start of each setting
    centred: np.ndarray  # (s,), 1 where the gradients are centred
    epochs: np.ndarray  # (s,), of training
    samples: np.ndarray  # (s,), N
    # {statement: (s, runs)}
    values: dict[str, np.ndarray]
    printed: int  # epochs of the paper's training


def compute(config: Config, context: Context) -> Result:
    """Measure every state of every run in every setting of chapter 4's grid."""
    named = {"Gaussian": config.init, "LeCun": "lecun"}
    runs = {name: _runs.train_runs(config, context, init=init) for name, init in named.items()}
    grid = list(product(named, (False, True), config.moments, config.samples))
    items = {
        (setting, state, number): item
        for setting in grid
        for number, run in enumerate(runs[setting[0]])
        for state, item in _states(run, setting).items()
    }
    unique = {repr(item): item for item in items.values()}
    points = context.shared_map(_spectra.measure_point, list(unique.values()), "Fisher spectra")
    found = dict(zip(unique, points, strict=True))

    def cell(setting: Any) -> Cell:
        rows = {
            state: [found[repr(items[setting, state, n])] for n in range(config.seeds)]
            for state in ("start", "first", *_STATES)
        }
        return {state: stack(row) for state, row in rows.items()}

    cells = [cell(setting) for setting in grid]
    columns = list(zip(*grid, strict=True))
    return Result(
        starts=list(columns[0]),
        centred=np.array(columns[1], dtype=float),
        epochs=np.array(columns[2]),
        samples=np.array(columns[3]),
        values={
            statement.name: np.array([number(one) for one in cells])
            for _, statement, number in _JUDGED
        },
        printed=config.epochs,
        **_runs.origin(config),
    )


def _states(run: Any, setting: tuple[str, bool, int, int]) -> dict[str, dict[str, Any]]:
    """Return the points of one run that a setting of chapter 4's grid needs, by state."""
    _, centre, epoch, samples = setting
    common = {"samples": samples, "centre": centre}
    make = partial(_spectra.point, run, "reinitialize", **common)
    return {
        "start": make("largest", 1.0),
        "first": make("largest", 0.0, epoch=1),
        **{state: make(order, share, epoch=epoch) for state, (order, share) in _STATES.items()},
    }


def _inside(result: Result, name: str) -> np.ndarray:
    """Return the share of the measured runs in the band, by setting of chapter 4's grid."""
    band = next(statement.band for _, statement, _ in _JUDGED if statement.name == name)
    values = result.values[name]
    inside = (values >= band.low) & (values <= band.high)
    return inside.mean(1)


def plot(result: Result) -> Figure:
    """Draw chapter 4's map: one row per setting, one column per printed statement."""
    shares = np.array([_inside(result, s.name) for _, s, _ in _JUDGED]).T
    means = np.array([result.values[s.name].mean(1) for _, s, _ in _JUDGED]).T
    count = len(means)
    figure, axis = new_figure(width="full", ratio=0.22 + 0.026 * count)
    colors = ListedColormap(["#ecb896", "#e0e0e0", "#8cbfdd"])
    kinds = np.where(shares == 1, 2, np.where(shares == 0, 0, 1))
    axis.imshow(kinds, cmap=colors, vmin=0, vmax=2, aspect="auto")
    for (row, column), value in np.ndenumerate(means):
        axis.text(column, row, f"{value:.3g}", ha="center", va="center", fontsize=6)
    rows = [
        f"{result.starts[i]}, {'centred' if result.centred[i] else 'not centred'}, "
        f"{result.epochs[i]} epochs, N = {result.samples[i]}"
        for i in range(count)
    ]
    axis.set_yticks(range(count), rows, fontsize=6)
    axis.set_xticks(range(len(_JUDGED)), [heading for heading, _, _ in _JUDGED], fontsize=6)
    axis.xaxis.tick_top()
    axis.tick_params(length=0)
    for row, (above, below) in enumerate(pairwise(rows)):
        if above.rpartition(",")[0] != below.rpartition(",")[0]:
            axis.axhline(row + 0.5, color="white", lw=2)
    axis.set_xlabel(
        "Means of the runs. Blue: as printed in every run, orange: in none, grey: the runs "
        "differ.\nKept: 80% of the weights re-initialised, least changed; lost: 2%, most changed.",
        fontsize=7,
    )
    return figure


def measure(result: Result) -> Measurements:
    """Judge every statement of chapter 4 over the settings with the printed training."""
    as_printed = result.epochs == result.printed
    measured = {}
    for _, statement, _ in _JUDGED:
        shares = _inside(result, statement.name)
        shown = [
            f"{result.starts[i]}, {'centred' if result.centred[i] else 'not centred'}, "
            f"N = {result.samples[i]}"
            for i in np.flatnonzero(as_printed & (shares == 1))
        ]
        measured[statement.name] = over_settings(
            result.values[statement.name].mean(1)[as_printed],
            f"in every run of {'; '.join(shown) if shown else 'no setting'}. {result.source}",
            comparable=result.full,
        )
    every = np.array([_inside(result, s.name) == 1 for _, s, _ in _JUDGED]).mean(0)
    best = int(np.argmax(np.where(as_printed, every, -1)))
    measured["one-setting"] = exact(
        every[best],
        f"share of the statements in the best setting: {result.starts[best]}, "
        f"{'centred' if result.centred[best] else 'not centred'}, N = {result.samples[best]}",
        comparable=result.full,
    )
    return measured
