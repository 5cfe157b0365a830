"""Sharpness of trained networks against the largest class's share: Fig. 1 right and Fig. 2."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hyperribbon.application.inspection import leading_eigenvalues, linear_measurements
from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.linear_networks import _training
from hyperribbon.papers.experiments.linear_networks._data import read_moments
from hyperribbon.theory import linear_networks as theory
from hyperribbon.theory.linear_networks.moments import Moments

_OF_FIRST_START = ("shares", "samples", "inputs", "general", "printed", "floor", "exact", "rate")
_OF_FIRST_START += ("history",)
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
    records: int = 4  # epochs at which the sharpness is taken


class SweepResult(kit.Frozen):
    """Trained sharpness and its predictions, by data set and share."""

    depth: int  # number of layers
    classes: int  # number of classes
    data: list[str]  # names of the data sets, m
    shares: np.ndarray  # (m, s), share of the largest class as sampled
    samples: np.ndarray  # (m, s), images used
    inputs: np.ndarray  # (m, s), pixels of an image
    trained: np.ndarray  # (m, s, r), sharpness at the end, for each start
    peak: np.ndarray  # (m, s, r), largest sharpness among the recorded epochs
    general: np.ndarray  # (m, s), Eq. (13) in its general form, through Eq. (9)
    printed: np.ndarray  # (m, s), Eq. (14)
    exact: np.ndarray  # (m, s), Eq. (9) for the inputs of the training, from the map learnt
    rate: np.ndarray  # (m, s), learning rate at the end, of the first start
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
    """Run a sweep: train one network for every data set, share and start.

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
    run = _training.train_item(
        item, moments, measure, _training.record_times(item["epochs"], item["records"])
    )
    history = run.measured["sharpness"]
    return {
        "trained": history[-1],
        "peak": history.max(),
        "loss": run.losses[-1],
        "defect": theory.balance_defect(run.weights),
        "epochs": run.epochs,
        "history": history,
        "rate": run.rates[-1],
        "exact": balanced_sharpness(run.weights, moments, item["depth"]),
        **predictions(facts, item["depth"]),
    }


def balanced_sharpness(weights: Sequence[np.ndarray], moments: Moments, depth: int) -> float:
    """Return Eq. (9)'s sharpness for inputs of any covariance, which sweeps compare with.

    It is that of the Gauss-Newton matrix of the balanced network of that depth with this map.
    """
    product = theory.end_to_end(weights)
    layers = theory.balance_layers(product, [min(product.shape)] * (depth - 1) + [len(product)])
    return float(leading_eigenvalues(layers, moments, matrix=theory.ggn)[0])


def predictions(facts: Mapping[str, Any], depth: int) -> dict[str, Any]:
    """Return what a sweep's data say of a balanced minimum: sharpness and loss.

    The least loss is (1/2n)‖Y‖² − ½‖M‖², for one-hot labels and inputs of unit variance.
    """
    cross = facts["cross"]
    singular = np.linalg.svd(cross, compute_uv=False) ** (1 / depth)
    d_out, d_in = cross.shape
    return {
        "shares": facts["proportions"].max(),
        "samples": facts["samples"],
        "inputs": d_in + facts["dropped"],
        "classes": d_out,
        "general": theory.balanced_eigenvalues(singular, depth, d_in, d_out)[0],
        "printed": theory.label_sharpness(facts["proportions"], depth),
        "floor": 0.5 * (1 - np.sum(cross**2)),
    }


def measure_rise(sharpness: np.ndarray) -> kit.Observed:
    """Measure how sharpness (m, s, r) grows along a sweep of the share, one value per start."""
    steps = np.diff(sharpness, axis=1)
    least = steps.min(axis=(0, 1)) if steps.size else np.full(sharpness.shape[2], np.nan)
    why = "least change from one share to the next larger one, over data sets"
    return kit.over_seeds(least, why)


def plot_sweep(result: SweepResult, trained: str) -> kit.Figure:
    """Draw a sweep: sharpness against the largest share, a panel per data set.

    Args:
        result: What to draw.
        trained: What to call the trained networks.
    """
    figure, axes = _training.panels(result.data, result.samples, sharey=True)
    draw_sweep(result, axes, trained)
    add_legend(figure, axes)
    return figure


def draw_sweep(result: SweepResult, axes: np.ndarray, trained: str) -> None:
    """Draw a sweep's sharpness against the largest share into panels, one per data set."""
    draw_theory(result, axes)
    draw_trained(result, axes, result.trained, trained)


def draw_theory(result: Any, axes: np.ndarray) -> None:
    """Draw both forms of the prediction into a sweep's panels."""
    for row, axis in enumerate(axes):
        shares = result.shares[row]
        grid = np.linspace(shares.min(), 1, 200)
        rest = np.full(result.classes - 1, 1 / (result.classes - 1))
        printed = [theory.label_sharpness([s, *(1 - s) * rest], result.depth) for s in grid]
        axis.plot(grid, printed, color=kit.COLORS[0], label="Eq. (14)")
        look = {"ls": "", "color": kit.COLORS[2], "zorder": 3}
        axis.plot(shares, result.general[row], marker="_", ms=14, label="Eq. (13), general", **look)
        axis.set_title(_training.panel_title(result.data[row], result.samples[row]), fontsize=8)
        axis.set(xlabel=r"largest label share $\alpha_{\max}$", xlim=(0.02, 1.03))
    axes[0].set_ylabel(r"sharpness $\lambda_{\max}$")


def draw_trained(
    result: Any,
    axes: np.ndarray,
    trained: np.ndarray,
    label: str,
    color: str = kit.COLORS[1],
    marker: str = "o",
) -> None:
    """Draw a sweep's trained sharpness (m, s, r); open where there are fewer images than pixels.

    Args:
        result: Has shares, samples and inputs.
        axes: The panels, m.
        trained: For each start; the mean is drawn, and the range.
        label: What to call the trained networks.
        color: Of the markers.
        marker: Its shape.
    """
    for row, axis in enumerate(axes):
        shares, starts = result.shares[row], trained[row]
        few = result.samples[row] < result.inputs[row]
        look = {"mec": color, "ms": 5, "ls": "", "zorder": 4, "marker": marker}
        for chosen, fill, name in (
            (~few, color, label),
            (few, "white", f"{label}, $n<d_0$"),
        ):
            if chosen.any():
                axis.plot(shares[chosen], starts.mean(axis=1)[chosen], label=name, mfc=fill, **look)
        if starts.shape[1] > 1:
            axis.vlines(shares, starts.min(axis=1), starts.max(axis=1), color=color)


def add_legend(figure: kit.Figure, axes: np.ndarray) -> None:
    """Add one legend to a sweep's panels: above several, inside a single one."""
    found = {}
    for axis in axes:
        found |= dict(zip(*axis.get_legend_handles_labels()[::-1], strict=True))
    if len(axes) > 1:
        look = {"ncols": 4 if len(found) <= 4 else 3, "fontsize": 8}
        figure.legend(found.values(), found.keys(), loc="outside upper center", **look)
    else:
        axes[0].legend(found.values(), found.keys(), loc="best")
