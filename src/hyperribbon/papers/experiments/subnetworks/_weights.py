"""How the weights of a recorded run moved: statistics layer by layer."""

from __future__ import annotations

from functools import partial

import numpy as np

from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.subnetworks._runs import SCALE, TRAINING, load_run

SHARE_WIDTH = 0.008
REACHED = "in a run: the 95% interval for one more run reaches it."
"""How readings of numbers that are printed from one run end."""
PRINTED_SHARES = (
    *(53.97, 16.48, 10.45, 6.79, 4.39, 2.80, 1.77, 1.12, 0.73, 0.44, 0.30, 0.19, 0.12, 0.08, 0.06),
    *(0.05, 0.03, 0.03, 0.03, 0.02, *(0.01,) * 12),
)
"""Percentages of the intervals [0, .008), [.008, .016), … of Table A.2."""
SHARE_TOLERANCES = (2.5, 0.8, 0.8, 0.6, 0.5, 0.4, 0.3, 0.25)
"""Of the intervals that hold most of the weights."""
says_printed = partial(
    kit.says,
    setting=f"{TRAINING}: of the settings tried, these come nearest to the two tables",
    needs=SCALE,
    compare="prediction",
    changed="2026-11-17: mean of our runs within a tolerance of our own before",
)
"""What the two tables print is the number of one run."""


def layer_changes(item: kit.Item) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return every layer's initial and final weights, flattened."""
    run = load_run(item)
    return [
        (run.initial[name].flatten().double().numpy(), run.final[name].flatten().double().numpy())
        for name in run.final
        if name.endswith("weight")
    ]


def change_shares(item: kit.Item) -> np.ndarray:
    """Return the percentages of weights in Table A.2's intervals, by absolute change."""
    changes = np.concatenate([np.abs(end - start) for start, end in layer_changes(item)])
    edges = SHARE_WIDTH * np.arange(len(PRINTED_SHARES) + 1)
    return 100.0 * np.histogram(changes, edges)[0] / len(changes)


def weight_statistics(item: kit.Item) -> dict[str, np.ndarray]:
    """Return every layer's means, standard deviations and correlation of weights, (layers,)."""
    pairs = layer_changes(item)
    return {
        "initial_mean": np.array([start.mean() for start, _ in pairs]),
        "initial_sd": np.array([start.std() for start, _ in pairs]),
        "final_mean": np.array([end.mean() for _, end in pairs]),
        "final_sd": np.array([end.std() for _, end in pairs]),
        "correlation": np.array([np.corrcoef(start, end)[0, 1] for start, end in pairs]),
    }
