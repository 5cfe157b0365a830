"""Fig. 4 of [linear_networks]: error of Eq. (15) for the top ten eigenvalues along training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hyperribbon.application.inspection import leading_eigenvalues
from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.linear_networks import _training
from hyperribbon.papers.experiments.linear_networks._data import read_moments
from hyperribbon.theory.linear_networks import shallow_eigenvalues

TITLE = "Error of Eq. (15) for the top ten eigenvalues of two layers"

_EPOCHS = (0, 30, 100, 200, 300, 500, 700, 1000, 1500, 2000, 3000, 4000, 5000, 6000, 8000, 10_000)
_SETTING = (
    "2 layers of width 256, η = 0.001, white inputs, 5,000 images, 10,000 epochs; the start is "
    "PyTorch's Kaiming uniform, for the paper prints none"
)
_NEEDS = "5,000 images and 10,000 epochs"
_EARLY = 100
STATEMENTS = kit.at_scale(
    _NEEDS,
    kit.says(
        "falls",
        "App. B",
        "the approximation becomes increasingly precise as training progresses",
        "The mean error of the top ten eigenvalues falls from each record to the next.",
        kit.Band.at_most(0.0, "printed"),
        setting=_SETTING,
    ),
    kit.says(
        "sum-of-norms",
        "Eq. (10)",
        "This contradicts the conclusion drawn in Singh et al. […], which suggests that the "
        "maximum eigenvalue is given by the maximum spectral norm",
        "At the end of training, the sum of the squared norms is at least ten times nearer to the "
        "sharpness than the larger of them.",
        kit.Band.at_most(0.1, "words"),
        setting=_SETTING,
    ),
    kit.says(
        "flattening",
        "Sec. 3, on Eq. (11)",
        "sharpness decreases since the parameter norm decreases in early-training",
        "After 100 epochs sharpness and parameter norm are both below their start.",
        kit.Band.at_most(1.0, "printed"),
        setting=_SETTING,
    ),
    kit.observe(
        "end",
        "Fig. 4, App. B",
        "At the end the mean error of the top ten eigenvalues is below 0.1%, at a high loss.",
        kit.Band.at_most(0.1, "words"),
    ),
)


class Config(_training.TrainingConfig):
    """Setting of Fig. 4 of [linear_networks]."""

    depth: int = 2
    width: int = 256
    lr: float = 0.001
    at: tuple[int, ...] = _EPOCHS  # epochs at which the eigenvalues are taken
    eigenvalues: int = 10  # how many


PRESETS = _training.presets(
    Config(), smoke={"width": 24, "lr": 0.01, "epochs": 1500, "at": (0, 100, 1000, 1500)}, paper={}
)
PRESETS_WITH_DATA = _training.with_data(PRESETS)


class Result(kit.Frozen):
    """Top eigenvalues along training (Fig. 4 of [linear_networks])."""

    data: list[str]  # names of the data sets, m
    samples: np.ndarray  # (m,), images used
    epochs: np.ndarray  # (e,), recorded epochs
    loss: np.ndarray  # (m, e)
    numeric: np.ndarray  # (m, e, k), eigenvalues of the Hessian by Lanczos
    closed_form: np.ndarray  # (m, e, k), Eq. (15)
    larger: np.ndarray  # (m, e), σx² times the larger of the layers' squared spectral norms
    norm: np.ndarray  # (m, e), sum of all squared weights

    @property
    def errors(self) -> np.ndarray:
        """(m, e), mean error of k predicted eigenvalues in percent (linear_networks, Fig. 4)."""
        return 100 * np.abs(self.closed_form / self.numeric - 1).mean(axis=-1)


def compute(config: Config, context: kit.Context) -> Result:
    """Train linear networks; take top Hessian eigenvalues (Fig. 4 of [linear_networks])."""
    items = _training.training_items(config, context)
    runs = context.map(_train, items, "training and eigenvalues")
    columns = kit.stack(runs, "loss", "numeric", "closed_form", "larger", "norm")
    samples = np.array([item["samples"] for item in items])
    return Result(data=list(config.data), samples=samples, epochs=runs[0]["epochs"], **columns)


def _train(item: kit.Item) -> dict[str, Any]:
    moments, _ = read_moments(item)
    k = item["eigenvalues"]

    def numeric(layers: Sequence[np.ndarray]) -> np.ndarray:
        return leading_eigenvalues(layers, moments, k)

    def closed_form(layers: Sequence[np.ndarray]) -> np.ndarray:
        return shallow_eigenvalues(layers[0], layers[1], moments.sigma_x)[:k]

    def larger(layers: Sequence[np.ndarray]) -> float:
        return max(float(np.linalg.norm(W, 2)) for W in layers) ** 2 * moments.sigma_x**2

    measure = {
        "numeric": numeric,
        "closed_form": closed_form,
        "larger": larger,
        "norm": _training.squared_norm,
    }
    return _training.train_and_record(item, moments, measure, item["at"])


def plot(result: Result) -> kit.Figure:
    """Draw each predicted eigenvalue's error against epochs (Fig. 4 of [linear_networks])."""
    figure, axes = _training.panels(result.data, result.samples, sharey=True)
    errors = 100 * np.abs(result.closed_form / result.numeric - 1)
    colors = kit.shades(errors.shape[-1])
    for axis, found in zip(axes, errors, strict=True):
        for place, (curve, color) in enumerate(zip(found.T, colors, strict=True), start=1):
            label = rf"$\lambda_{{{place}}}$"
            axis.plot(result.epochs, curve, color=color, lw=0.9, label=label)
        axis.set_yscale("log")
        _training.label_epochs(axis, result.epochs)
    axes[0].set_ylabel("error of Eq. (15) (%)")
    handles, _ = axes[0].get_legend_handles_labels()
    look = {"ncols": len(handles) if len(axes) > 1 else 5, "handlelength": 1.0, "fontsize": 8}
    figure.legend(handles=handles, loc="outside upper center", **look)
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure the errors of Eq. (10)'s eigenvalues and the flattening (linear_networks, Fig. 4)."""
    errors, top = result.errors, result.numeric[:, -1, 0]
    nearer = np.abs(result.closed_form[:, -1, 0] - top) / np.abs(result.larger[:, -1] - top)
    early = int(np.searchsorted(result.epochs, _EARLY))
    flatter = result.numeric[:, early, 0] / result.numeric[:, 0, 0]
    smaller = result.norm[:, early] / result.norm[:, 0]
    return {
        "falls": kit.over_seeds(
            [np.diff(errors, axis=1).max()],
            "largest change of the mean error (percent) from one record to the next",
        ),
        "sum-of-norms": kit.over_seeds(
            [nearer.max()],
            "distance of the sum over that of the larger norm; the larger alone gives "
            f"{(result.larger[:, -1] / top).min():.0%} of the sharpness or more",
        ),
        "flattening": kit.over_seeds(
            [max(flatter.max(), smaller.max())],
            f"the larger of two ratios to the start, over data sets: sharpness "
            f"{flatter.max():.3f}, norm {smaller.max():.3f}, at epoch {result.epochs[early]}",
        ),
        "end": kit.over_seeds(
            [errors[:, -1].max()],
            f"percent, largest over data sets, at a loss of {result.loss[:, -1].max():.3f}: a "
            "stationary residual is enough",
        ),
    }
