"""Every layer put back to its start and drawn anew, for one recorded run."""

from __future__ import annotations

from typing import Any

import numpy as np

from hyperribbon.core import derive_seed
from hyperribbon.papers.experiments.kit import Context, Item, stack
from hyperribbon.papers.experiments.subnetworks import _runs
from hyperribbon.subnetworks import evaluate_states, layer_criticality, layer_of, metric_of


def layer_measurements(
    config: _runs.TrainingConfig, context: Context, draws: int, **changes: Any
) -> dict[str, Any]:
    """Return accuracies layer by layer: baseline (seeds,), and per layer (seeds, layers).

    Keys: "baseline", "reinitialized", "drop", "drop_stderr", "rerandomized" (seeds, layers),
    and "worst_class", the lowest share of a class that is still recognised with the layer
    re-initialised.
    """
    runs = _runs.train_runs(config, context, **changes)
    items = [{**run, "draws": draws} for run in runs]
    return stack(context.shared_map(_measure, items, "layers"))


def _measure(item: Item) -> dict[str, Any]:
    run = _runs.load_run(item)
    result = layer_criticality(
        run.model,
        run.initial,
        metric_of(run.model, _runs.test_data(item)),
        initializer=lambda seed: _runs.fresh_model(item, seed),
        draws=item["draws"],
        seed=derive_seed(item["seed"], "layers"),
    )
    layers = result.layers
    return {
        "baseline": result.baseline,
        "reinitialized": np.array([layer.reinitialized for layer in layers]),
        "drop": np.array([layer.drop for layer in layers]),
        "drop_stderr": np.array([layer.drop_stderr for layer in layers]),
        "rerandomized": np.array([layer.rerandomized for layer in layers]),
        "worst_class": np.array([_worst_class(item, run, layer.layer) for layer in layers]),
    }


def _worst_class(item: Item, run: _runs.Run, layer: str) -> float:
    owned = {name: start for name, start in run.initial.items() if layer_of(name) == layer}
    data = _runs.test_data(item)
    right = evaluate_states(run.model, [{**run.final, **owned}], data)[0]
    return min(float(right[data.targets == label].mean()) for label in data.targets.unique())
