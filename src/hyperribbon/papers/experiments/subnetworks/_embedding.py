"""The last hidden layer of a recorded run in two dimensions, shared by Figs. 4.3 and 4.4."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.manifold import TSNE
from sklearn.neighbors import NearestNeighbors

from hyperribbon.papers.experiments.kit import Context, Item
from hyperribbon.papers.experiments.subnetworks import _runs


def hidden_embedding(
    config: _runs.TrainingConfig, context: Context, points: int
) -> list[dict[str, np.ndarray]]:
    """Return every run's embedding of the hidden layer: position, labels, accuracy and within."""
    items = [{**run, "points": points} for run in _runs.train_runs(config, context)]
    return context.shared_map(_embed, items, "t-SNE")


def _embed(item: Item) -> dict[str, Any]:
    run = _runs.load_run(item)
    data = _runs.test_data(item)
    chosen = torch.randperm(
        len(data.targets), generator=torch.Generator("cpu").manual_seed(0), device="cpu"
    )
    chosen = chosen[: item["points"]].sort().values
    inputs, labels = data.inputs[chosen], data.targets[chosen].numpy()
    with torch.no_grad():
        layers = list(run.model.children())
        hidden = torch.nn.Sequential(*layers[:-1])(inputs).double().numpy()
    position = TSNE(perplexity=min(30, len(labels) // 4), random_state=0, init="pca")
    position = position.fit_transform(hidden)
    nearest = NearestNeighbors(n_neighbors=2).fit(position).kneighbors(return_distance=False)
    centred = hidden - hidden.mean(0)
    within = sum(
        ((hidden[labels == c] - hidden[labels == c].mean(0)) ** 2).sum() for c in np.unique(labels)
    )
    return {
        "position": position.astype(np.float64),
        "labels": labels,
        "chosen": chosen.numpy(),
        "neighbour_accuracy": float((labels[nearest[:, 0]] == labels).mean()),
        "within": float(within / (centred**2).sum()),
    }
