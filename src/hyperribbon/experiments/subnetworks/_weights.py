"""How the weights of a recorded run moved: statistics layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hyperribbon.experiments.subnetworks._training import load_run

__all__ = ["layer_changes", "weight_statistics"]


def layer_changes(item: Mapping[str, Any]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the initial and final weights of every layer, flattened."""
    run = load_run(item)
    return [
        (run.initial[name].flatten().double().numpy(), run.final[name].flatten().double().numpy())
        for name in run.final
        if name.endswith("weight")
    ]


def weight_statistics(item: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return means, standard deviations and correlation of every layer, (layers,) each."""
    pairs = layer_changes(item)
    return {
        "initial_mean": np.array([start.mean() for start, _ in pairs]),
        "initial_sd": np.array([start.std() for start, _ in pairs]),
        "final_mean": np.array([end.mean() for _, end in pairs]),
        "final_sd": np.array([end.std() for _, end in pairs]),
        "correlation": np.array([np.corrcoef(start, end)[0, 1] for start, end in pairs]),
    }
