"""Fig. 4.3 of [subnetworks]: the last hidden layer in two dimensions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core import Band, Claim
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.subnetworks._drawing import judge_over_seeds
from hyperribbon.experiments.subnetworks._embedding import hidden_embedding
from hyperribbon.experiments.subnetworks._training import TrainingConfig, presets, source_of
from hyperribbon.plots.style import new_figure

ID = "subnetworks/fig4.3"
TITLE = "t-SNE of the last hidden layer: ten clusters"


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
    """

    position: np.ndarray
    labels: np.ndarray
    neighbour_accuracy: np.ndarray
    within: np.ndarray
    source: str


def compute(config: Config, context: Context) -> Result:
    """Embed the hidden layer of every run."""
    embedded = hidden_embedding(config, context, config.points)
    return Result(
        position=embedded[0]["position"],
        labels=embedded[0]["labels"],
        neighbour_accuracy=np.array([one["neighbour_accuracy"] for one in embedded]),
        within=np.array([one["within"] for one in embedded]),
        source=source_of(config),
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
    """Judge the clusters and the neural collapse read into them."""
    return [
        judge_over_seeds(
            f"{ID}/clusters",
            place="Fig. 4.3",
            statement="The ten classes form ten distinct clusters in the plane",
            expected=Band.at_least(0.9, "paper"),
            values=result.neighbour_accuracy,
            why=f"share of test points whose nearest neighbour has their class; {result.source}",
        ),
        judge_over_seeds(
            f"{ID}/collapse",
            place="Sec. 4.3.1",
            statement="The clusters are neural collapse: within-class variance vanishes",
            expected=Band.at_most(0.1, "paper"),
            values=result.within,
            why="within-class share of the hidden layer's variance on test images: t-SNE shows "
            f"separation, not collapse; {result.source}",
        ),
    ]
