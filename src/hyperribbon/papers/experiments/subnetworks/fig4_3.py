"""Fig. 4.3 of [subnetworks]: the last hidden layer in two dimensions."""

from __future__ import annotations

import numpy as np

from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.subnetworks import _runs
from hyperribbon.papers.experiments.subnetworks._embedding import hidden_embedding

TITLE = "t-SNE of the last hidden layer: ten clusters"

STATEMENTS = (
    _runs.says_trained(
        "clusters",
        "Sec. 4.3.1, Fig. 4.3",
        "The visualization reveals ten distinct clusters, each corresponding to a different class "
        "label",
        "At least 0.9 of the test images have their nearest neighbour in the plane in their own "
        "class (our threshold).",
        kit.Band.at_least(0.9, "words"),
    ),
    kit.observe(
        "collapse",
        "Sec. 4.3.1",
        "On test images the last hidden layer has collapsed: at most 0.1 of its variance is "
        "within the classes.",
        kit.Band.at_most(0.1, "words"),
        needs=_runs.SCALE,
        changed="2026-11-17: a claim before; the paper names the clusters neural collapse and "
        "says nothing of variances",
    ),
)


class Config(_runs.TrainingConfig):
    """Setting of Fig. 4.3 of [subnetworks]."""

    points: int = 1000  # test images embedded


PRESETS, PRESETS_WITH_DATA = _runs.presets(
    Config, smoke={"points": 120, "seeds": 1}, paper={"points": 10_000}
)


class Result(_runs.OfRuns):
    """The embedding (Fig. 4.3 of [subnetworks])."""

    position: np.ndarray  # (points, 2), of the first run
    labels: np.ndarray  # (points,)
    # (seeds,), share of points whose nearest neighbour in the plane has their label
    neighbour_accuracy: np.ndarray
    within: np.ndarray  # (seeds,), within-class variance over total variance of the hidden layer


def compute(config: Config, context: kit.Context) -> Result:
    """Embed the hidden layer of every run (Fig. 4.3 of [subnetworks])."""
    embedded = hidden_embedding(config, context, config.points)
    return Result(
        position=embedded[0]["position"],
        labels=embedded[0]["labels"],
        **kit.stack(embedded, "neighbour_accuracy", "within"),
        **_runs.origin(config),
    )


def plot(result: Result) -> kit.Figure:
    """Draw the points by class (Fig. 4.3 of [subnetworks])."""
    figure, axis = kit.new_figure(ratio=0.9)
    points = axis.scatter(*result.position.T, c=result.labels, cmap="tab10", s=4, lw=0)
    for label in np.unique(result.labels):
        centre = np.median(result.position[result.labels == label], axis=0)
        axis.text(*centre, str(label), ha="center", va="center", weight="bold", fontsize=11)
    points.set_alpha(0.7)
    axis.set(xticks=[], yticks=[], xlabel="t-SNE of the last hidden layer, test images")
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure the clusters, and beside them the collapse that they are named after (Fig. 4.3)."""
    return {
        "clusters": result.by_run(
            result.neighbour_accuracy,
            "share of test images whose nearest neighbour has their class",
        ),
        "collapse": result.by_run(
            result.within,
            "within-class share of the variance: t-SNE shows separation, not collapse",
        ),
    }
