"""Sharpness of trained networks against the largest class's share: Fig. 1 right and Fig. 2."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hyperribbon.application.inspection import linear_measurements
from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.linear_networks import _training
from hyperribbon.papers.experiments.linear_networks._data import read_moments
from hyperribbon.theory import linear_networks as theory

_OF_FIRST_START = ("shares", "samples", "general", "printed", "floor", "history")
_OF_EVERY_START = ("trained", "peak", "loss", "defect")
SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)
SETTING = (
    "4 layers of width 64, 5,000 images of each available set, 10,000 epochs with the halved "
    "rate of App. C; a balanced start has singular values of 0.5, which the paper does not print"
)
NEEDS = "5,000 images and 10,000 epochs"


class SweepConfig(_training.TrainingConfig):
    """Setting of a sweep over the largest class's share."""

    shares: tuple[float, ...] = SHARES
    start: str = "balanced"
    scale: float = 0.5
    white: bool = True  # whether the inputs are whitened
    repeats: int = 1  # independent starts


class SweepResult(kit.Frozen):
    """Trained sharpness and its predictions, by data set and share."""

    depth: int  # number of layers
    classes: int  # number of classes
    data: list[str]  # names of the data sets, m
    shares: np.ndarray  # (m, s), share of the largest class as sampled
    samples: np.ndarray  # (m, s), images used
    trained: np.ndarray  # (m, s, r), sharpness at the end, for each start
    peak: np.ndarray  # (m, s, r), largest sharpness among the recorded epochs
    general: np.ndarray  # (m, s), Eq. (13) in its general form, through Eq. (9)
    printed: np.ndarray  # (m, s), Eq. (14)
    loss: np.ndarray  # (m, s, r), loss at the end
    floor: np.ndarray  # (m, s), least loss that a linear map can reach
    defect: np.ndarray  # (m, s, r), balance defect at the end
    epochs: np.ndarray  # (e,), recorded epochs
    history: np.ndarray  # (m, s, e), sharpness at these of the first start


def run_sweep(
    config: SweepConfig,
    context: kit.Context,
    train: Callable[[Mapping[str, Any]], Any] | None = None,
) -> SweepResult:
    """Train one network for every data set, share and start.

    Args:
        config: The setting.
        context: Of the run.
        train: Trains the network of one item; a linear one by default.
    """
    items = _training.training_items(config, context, config.repeats)
    runs = context.map(train or _train, items, "training")
    shape = (len(config.data), len(config.shares), config.repeats)
    columns = kit.stack(runs, shape=shape)
    return SweepResult(
        depth=config.depth,
        classes=runs[0]["classes"],
        data=list(config.data),
        epochs=np.array(runs[0]["epochs"]),
        **{name: columns[name][:, :, 0] for name in _OF_FIRST_START},
        **{name: columns[name] for name in _OF_EVERY_START},
    )


def _train(item: kit.Item) -> dict[str, Any]:
    moments, facts = read_moments(item, white=item["white"])
    measure = linear_measurements(moments, ["sharpness"])
    run = _training.train_item(item, moments, measure, _training.record_times(item["epochs"]))
    history = run.measured["sharpness"]
    return {
        "trained": history[-1],
        "peak": history.max(),
        "loss": run.losses[-1],
        "defect": theory.balance_defect(run.weights),
        "epochs": run.epochs,
        "history": history,
        **predictions(facts, item["depth"]),
    }


def predictions(facts: Mapping[str, Any], depth: int) -> dict[str, Any]:
    """Return what labels and white inputs say of a balanced minimum: sharpness and loss.

    The least loss is (1/2n)‖Y‖² − ½‖M‖², for one-hot labels and inputs of unit variance.
    """
    cross = facts["cross"]
    singular = np.linalg.svd(cross, compute_uv=False) ** (1 / depth)
    d_out, d_in = cross.shape
    return {
        "shares": facts["proportions"].max(),
        "samples": facts["samples"],
        "classes": d_out,
        "general": theory.balanced_eigenvalues(singular, depth, d_in, d_out)[0],
        "printed": theory.label_sharpness(facts["proportions"], depth),
        "floor": 0.5 * (1 - np.sum(cross**2)),
    }


def measure_rise(sharpness: np.ndarray) -> kit.Observed:
    """Measure how sharpness (m, s, r) grows with the share, one value for each start."""
    steps = np.diff(sharpness, axis=1)
    least = steps.min(axis=(0, 1)) if steps.size else np.full(sharpness.shape[2], np.nan)
    why = "least change from one share to the next larger one, over data sets"
    return kit.over_seeds(least, why)


def plot_sweep(result: SweepResult, trained: str) -> kit.Figure:
    """Draw sharpness against the largest share, a panel for each data set.

    Args:
        result: What to draw.
        trained: What to call the trained networks.
    """
    figure, axes = _training.panels(result.data, sharey=True)
    for row, axis in enumerate(axes):
        shares, starts = result.shares[row], result.trained[row]
        grid = np.linspace(shares.min(), 1, 100)
        rest = np.full(result.classes - 1, 1 / (result.classes - 1))
        printed = [theory.label_sharpness([s, *(1 - s) * rest], result.depth) for s in grid]
        axis.plot(grid, printed, color=kit.COLORS[0], label="Eq. (14)")
        axis.plot(shares, result.general[row], "--", color=kit.COLORS[2], label="Eq. (13), general")
        axis.plot(shares, starts.mean(axis=1), "o", color=kit.COLORS[1], ms=5, label=trained)
        if starts.shape[1] > 1:
            axis.vlines(shares, starts.min(axis=1), starts.max(axis=1), color=kit.COLORS[1])
        axis.set_xlabel(r"largest label share $\alpha_{\max}$")
    axes[0].set_ylabel(r"sharpness $\lambda_{\max}$")
    if len(axes) > 1:
        handles, _ = axes[0].get_legend_handles_labels()
        figure.legend(handles=handles, loc="outside upper center", ncols=3, fontsize=8)
    else:
        axes[0].legend(loc="best")
    return figure
