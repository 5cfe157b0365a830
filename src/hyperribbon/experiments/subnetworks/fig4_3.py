"""Fig. 4.3 of [subnetworks]: the last hidden layer in two dimensions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core import Band, Claim
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.statements import Ledger, observe, says
from hyperribbon.experiments.subnetworks._embedding import hidden_embedding
from hyperribbon.experiments.subnetworks._training import (
    SCALE,
    TRAINING,
    TrainingConfig,
    by_run,
    is_full,
    presets,
    source_of,
)
from hyperribbon.plots.style import new_figure

ID = "subnetworks/fig4.3"
TITLE = "t-SNE of the last hidden layer: ten clusters"

LEDGER = Ledger(
    ID,
    says(
        "clusters",
        "Sec. 4.3.1, Fig. 4.3",
        "The visualization reveals ten distinct clusters, each corresponding to a different class "
        "label",
        "At least 0.9 of the test images have their nearest neighbour in the plane in their own "
        "class (our threshold).",
        Band.at_least(0.9, "words"),
        setting=TRAINING,
        needs=SCALE,
    ),
    observe(
        "collapse",
        "Sec. 4.3.1",
        "On test images the last hidden layer has collapsed: at most 0.1 of its variance is "
        "within the classes.",
        Band.at_most(0.1, "words"),
        needs=SCALE,
        changed="2026-11-17: a claim before; the paper names the clusters neural collapse and "
        "says nothing of variances",
    ),
)


@dataclass(frozen=True)
class Config(TrainingConfig):
    """Setting of the figure.

    Attributes:
        points: Test images embedded.
    """

    points: int = 1000


PRESETS, PRESETS_WITH_DATA = presets(
    Config, smoke={"points": 120, "seeds": 1}, paper={"points": 10_000}
)


@dataclass(frozen=True)
class Result:
    """The embedding.

    Attributes:
        position: (points, 2), of the first run.
        labels: (points,).
        neighbour_accuracy: (seeds,), share of points whose nearest neighbour in the plane has
            their label.
        within: (seeds,), within-class variance over total variance of the hidden layer.
        source: What was trained.
        full: Whether as in the paper, on all of MNIST.
    """

    position: np.ndarray
    labels: np.ndarray
    neighbour_accuracy: np.ndarray
    within: np.ndarray
    source: str
    full: bool


def compute(config: Config, context: Context) -> Result:
    """Embed the hidden layer of every run."""
    embedded = hidden_embedding(config, context, config.points)
    return Result(
        position=embedded[0]["position"],
        labels=embedded[0]["labels"],
        neighbour_accuracy=np.array([one["neighbour_accuracy"] for one in embedded]),
        within=np.array([one["within"] for one in embedded]),
        source=source_of(config),
        full=is_full(config),
    )


def plot(result: Result) -> Figure:
    """Draw the points by class."""
    figure, axis = new_figure(ratio=0.9)
    points = axis.scatter(*result.position.T, c=result.labels, cmap="tab10", s=4, lw=0)
    for label in np.unique(result.labels):
        centre = np.median(result.position[result.labels == label], axis=0)
        axis.text(*centre, str(label), ha="center", va="center", weight="bold", fontsize=11)
    points.set_alpha(0.7)
    axis.set(xticks=[], yticks=[], xlabel="t-SNE of the last hidden layer, test images")
    return figure


def claims(result: Result) -> list[Claim]:
    """Judge the clusters, and beside them the collapse that they are named after."""
    return LEDGER.judge(
        {
            "clusters": by_run(
                result,
                result.neighbour_accuracy,
                "share of test images whose nearest neighbour has their class",
            ),
            "collapse": by_run(
                result,
                result.within,
                "within-class share of the variance: t-SNE shows separation, not collapse",
            ),
        }
    )
