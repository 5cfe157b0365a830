"""Sharpness against the number of samples: white inputs, raw ones, and the disputed setting."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

from hyperribbon.application.inspection import leading_eigenvalues
from hyperribbon.core import derive_seed, torch_generator
from hyperribbon.core.data import load_data
from hyperribbon.operators import Hessian
from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.linear_networks import _training
from hyperribbon.papers.experiments.linear_networks._data import (
    BUNDLED,
    NAMES,
    SPLITS,
    moments_of,
    to_moments,
)
from hyperribbon.papers.experiments.linear_networks._sweeps import balanced_sharpness, predictions
from hyperribbon.spectra import eigsh

TITLE = "Sharpness against the number of samples: white, raw, and the disputed setting"

_QUOTE = "the sharpness at a balanced solution is independent of the dataset size n"
_SETTING = (
    "random subsets with equal classes, 4 layers of width 64 trained from balanced starts as in "
    "Fig. 1 (c)"
)
STATEMENTS = kit.at_scale(
    "5,000 images",
    kit.says(
        "independent",
        "Sec. 4",
        _QUOTE,
        "From the smallest n above the number of pixels to the largest, the sharpness of networks "
        "trained on white inputs changes by less than 5%.",
        kit.Band(-0.05, 0.05, "words"),
        setting=f"{_SETTING}; Assumption 2 needs n above the number of pixels",
    ),
    kit.says(
        "disputed",
        "Sec. 4",
        "in disagreement with Cohen et al. [3, Figure 18], which suggests that sharpness of "
        "gradient-flow solution increases with n",
        "In the disputed setting sharpness does not grow with n either: its logarithmic slope is "
        "0.1 at most.",
        kit.Band.at_most(0.1, "words"),
        setting="Tanh networks with two hidden layers of width 64, torch's start, squared loss, on "
        "standardised raw images, by steps of half the inverse sharpness to 99% accuracy; Cohen et "
        "al. follow the flow exactly, with width 200",
    ),
    kit.observe(
        "printed",
        "Eq. (14)",
        "At the largest n the networks trained on white inputs are within 5% of Eq. (14).",
        kit.Band(-0.05, 0.05, "words"),
    ),
    kit.observe(
        "few-samples",
        "Assumption 2",
        "With fewer samples than pixels, white inputs are orthogonal and any labels are "
        "interpolated: Eq. (14) is exact, and its match shows nothing.",
        kit.Band.at_most(1e-6, "closed form"),
    ),
    kit.observe(
        "raw-peak",
        "Eqs. (9), (13)",
        "On raw inputs the balanced minimum is sharper at the n nearest the rank of the inputs, "
        "where least squares are worst conditioned, than at any other, on average over subsets.",
        kit.Band.at_least(0.0, "words"),
        compare="mean",
        changed="2026-11-18: n of the sharpest minimum over the rank before, a number that jumps "
        "from one n to another; one of three subsets disagreed",
    ),
)


class Config(_training.TrainingConfig):
    """Setting of the sharpness against n."""

    data: tuple[str, ...] = BUNDLED
    sizes: tuple[int, ...] = (200, 400, 800, 1600, 4500)  # numbers of samples, ascending
    share: float = 0.1  # of class 0; a tenth makes the ten classes equal
    start: str = "balanced"
    scale: float = 0.5
    draws: int = 8  # random subsets of each size
    disputed_data: str = "mnist5k"
    disputed_sizes: tuple[int, ...] = (100, 200, 400, 800)
    steps: int = 10_000  # at most, in the disputed setting


_SMOKE = {
    "sizes": (40, 80, 160, 600),
    "width": 16,
    "lr": 0.05,
    "epochs": 300,
    "draws": 2,
    "disputed_data": "digits",
    "disputed_sizes": (30, 60),
    "steps": 300,
}
PRESETS = _training.presets(Config(), smoke=_SMOKE, paper={"draws": 20})
_FULL = {
    "data": ("mnist", "fashion_mnist"),
    "sizes": (200, 400, 800, 1600, 5000, 20_000),
    "disputed_data": "cifar10",
}
PRESETS_WITH_DATA = {
    name: config if name == "smoke" else replace(config, **_FULL)
    for name, config in PRESETS.items()
}

_KINDS = ("general", "printed", "white", "minimum", "raw")
_ACCURATE = 0.99
_SLOWER = 0.5  # steps in units of the inverse sharpness: 4 times below the limit of stability
_WATCHED = 100  # steps between measurements of the sharpness


class Result(kit.Frozen):
    """Sharpness by data set, size and subset."""

    data: list[str]  # names of the data sets, m
    sizes: np.ndarray  # (k,)
    pixels: np.ndarray  # (m,)
    rank: np.ndarray  # (m, k, r), of the inputs
    general: np.ndarray  # (m, k, r), balanced minimum on white inputs, general form of Eq. (13)
    printed: np.ndarray  # (m, k, r), Eq. (14)
    white: np.ndarray  # (m, k, r), trained on white inputs
    minimum: np.ndarray  # (m, k, r), balanced minimum on raw inputs, Eq. (9) with their covariance
    raw: np.ndarray  # (m, k, r), trained on raw inputs
    disputed_data: str
    disputed_inputs: int  # pixels of an image
    disputed_sizes: np.ndarray  # (q,)
    before: np.ndarray  # (q, r), sharpness at the start, in the disputed setting
    disputed: np.ndarray  # (q, r), at the end
    accuracy: np.ndarray  # (q, r), then


def compute(config: Config, context: kit.Context) -> Result:
    """Train on random subsets of different numbers of samples n, in the disputed setting too."""
    setting = {name: getattr(config, name) for name in _LINEAR}
    seeds = [derive_seed(context.seed, "subset", draw) for draw in range(config.draws)]
    items = [
        {**setting, "data": data, "samples": samples, "data_seed": seed, "seed": seed}
        for data in config.data
        for samples in config.sizes
        for seed in seeds
    ]
    runs = context.map(_train, items, "linear networks")
    shape = (len(config.data), len(config.sizes), config.draws)
    disputed = [
        {
            "data": config.disputed_data,
            "samples": samples,
            "width": config.width,
            "steps": config.steps,
            "seed": seed,
        }
        for samples in config.disputed_sizes
        for seed in seeds
    ]
    tanh = context.map(_train_tanh, disputed, "Tanh networks")
    columns = kit.stack(runs, *_KINDS, "rank", "pixels", shape=shape)
    return Result(
        data=list(config.data),
        sizes=np.array(config.sizes),
        pixels=columns.pop("pixels")[:, 0, 0],
        disputed_data=config.disputed_data,
        disputed_inputs=tanh[0]["inputs"],
        disputed_sizes=np.array(config.disputed_sizes),
        **columns,
        **kit.stack(
            tanh,
            "before",
            "disputed",
            "accuracy",
            shape=(len(config.disputed_sizes), config.draws),
        ),
    )


_LINEAR = ("share", "depth", "width", "start", "scale", "lr", "epochs")


def _train(item: kit.Item) -> dict[str, Any]:
    """Return the sharpness of minima and trained networks on one subset of n samples."""
    facts = moments_of(item)
    white, raw = (to_moments(facts, white=white) for white in (True, False))
    known = predictions(facts, item["depth"])
    trained = {
        name: leading_eigenvalues(_training.train_item(item, moments).weights, moments)[0]
        for name, moments in (("white", white), ("raw", raw))
    }
    rank = len(facts["scales"])
    least = np.zeros_like(raw.cross)
    least[:, :rank] = raw.cross[:, :rank] / raw.inputs[:rank]
    minimum = balanced_sharpness([least], raw, item["depth"])
    shown = {name: float(known[name]) for name in ("general", "printed")}
    return {**shown, **trained, "minimum": minimum, "rank": rank, "pixels": raw.cross.shape[1]}


def _train_tanh(item: kit.Item) -> dict[str, Any]:
    """Train a Tanh network on n samples until it is accurate; return its sharpness."""
    name, samples = item["data"], item["samples"]
    split = SPLITS.get(name, "train")
    data = load_data(name, split, limit=samples, seed=item["seed"]).flat()
    X = data.inputs.float()
    X = (X - X.mean()) / X.std()
    Y = nn.functional.one_hot(data.targets.long(), data.classes).float()
    model = _network((X.shape[1], item["width"], item["width"], data.classes), item["seed"])
    X = restrict_to_span(model, X)

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs - targets).square().sum(1).mean() / 2

    def sharpness() -> float:
        found = eigsh(Hessian(model, loss, (X, Y)), 1, tol=1e-2, eigenvectors=False)
        return float(found.eigenvalues[0])

    weights = list(model.parameters())
    before = now = sharpness()
    accuracy = 0.0
    for step in range(item["steps"]):
        if step % _WATCHED == 0:
            now = sharpness()
        outputs = model(X)
        accuracy = float((outputs.argmax(1) == data.targets).float().mean())
        if accuracy >= _ACCURATE:
            break
        gradients = torch.autograd.grad(loss(outputs, Y), weights)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight -= _SLOWER / now * gradient
    ends = {"before": before, "disputed": sharpness(), "accuracy": accuracy}
    return {**ends, "inputs": data.inputs.shape[1]}


def _network(widths: tuple[int, ...], seed: int) -> nn.Sequential:
    """Return the disputed setting's Tanh network, to be trained on n samples."""
    generator = torch_generator(seed, "network")
    modules: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        layer = nn.Linear(fan_in, fan_out)
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.uniform_(-(fan_in**-0.5), fan_in**-0.5, generator=generator)
        modules += [layer, nn.Tanh()]
    return nn.Sequential(*modules[:-1])


def restrict_to_span(model: nn.Sequential, X: torch.Tensor) -> torch.Tensor:
    """Replace a network's first layer and inputs by those in the span of fewer samples than inputs.

    Training moves the layer's weights within that span alone, and so does the loss's curvature.
    """
    if len(X) >= X.shape[1]:
        return X
    basis = torch.linalg.qr(X.T)[0]
    weight, bias = list(model[0].parameters())
    first = nn.Linear(len(X), len(weight), dtype=X.dtype)
    with torch.no_grad():
        first.weight.copy_(weight @ basis)
        first.bias.copy_(bias)
    model[0] = first
    return X @ basis


def plot(result: Result) -> kit.Figure:
    """Draw sharpness against the number of samples n, on white and raw inputs and as disputed."""
    figure, axes = kit.new_figure(1, 3, width="full", ratio=0.95)
    for row, name in enumerate(result.data):
        color, few = kit.COLORS[row], result.sizes < result.pixels[row]
        for axis, trained, theory in (
            (axes[0], result.white, result.general),
            (axes[1], result.raw, result.minimum),
        ):
            values, lines = trained[row], theory[row].mean(axis=1)
            label = NAMES[name]
            axis.plot(result.sizes, lines, "-", lw=1, color=color, label=f"{label}, minimum")
            for chosen, fill in ((~few, color), (few, "white")):
                look = {"mfc": fill, "mec": color, "ls": "", "ms": 5, "zorder": 4}
                label = f"{NAMES[name]}, trained" if fill == color else None
                axis.plot(result.sizes[chosen], values.mean(1)[chosen], "o", label=label, **look)
            axis.vlines(result.sizes, values.min(axis=1), values.max(axis=1), color=color)
        axes[1].axvline(result.rank[row].max(), color=color, lw=0.8, ls=":", zorder=0)
    axes[0].axhline(result.printed.mean(), color="0.5", ls="--", lw=1, label="Eq. (14)")
    axes[0].set_ylim(0, 1.6 * result.general.max())
    axes[0].set_title(r"white inputs (open: $n<d_0$)", fontsize=8)
    axes[1].set_title("raw inputs (dotted: rank)", fontsize=8)
    axes[1].set_yscale("log")
    for values, label, fill in (
        (result.before, "start", "white"),
        (result.disputed, f"{_ACCURATE:.0%} accuracy", kit.COLORS[2]),
    ):
        look = {"marker": "o", "ms": 5, "mfc": fill, "mec": kit.COLORS[2], "ls": ""}
        axes[2].plot(result.disputed_sizes, values.mean(axis=1), label=label, **look)
        axes[2].vlines(result.disputed_sizes, values.min(1), values.max(1), color=kit.COLORS[2])
    is_few = result.disputed_sizes.max() < result.disputed_inputs
    ending = ", $n<d_0$" if is_few else ""
    axes[2].set_title(f"Tanh, raw {NAMES[result.disputed_data]}{ending}", fontsize=8)
    axes[2].set_ylim(0, 1.5 * result.disputed.max())
    for axis in axes:
        axis.set(xscale="log", xlabel="samples $n$")
    for axis in axes[::2]:  # the middle panel has the colours of the first
        axis.legend(fontsize=6)
    axes[0].set_ylabel(r"sharpness $\lambda_{\max}$")
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure the change with the samples n in each setting, one number for each subset."""
    pixels = result.pixels.max()
    first = int(np.argmax(result.sizes >= pixels))
    change = result.white[:, -1] / result.white[:, first] - 1
    apart = result.white[:, -1] / result.printed[:, -1] - 1
    full = result.rank == result.sizes[:, None]  # no more samples than directions
    few = np.where(full, np.abs(result.general / result.printed - 1), 0.0)
    logs = np.log(result.disputed_sizes)
    slopes = np.polyfit(logs, np.log(result.disputed), 1)[0]
    growth = (result.disputed / result.before).mean(axis=1)
    near = np.abs(np.log(result.sizes[:, None] / result.rank.max(axis=1, keepdims=True)))
    is_peak = near == near.min(axis=1, keepdims=True)
    peak, rest = (
        np.where(chosen, result.minimum, 0.0).max(axis=1) for chosen in (is_peak, ~is_peak)
    )
    return {
        "independent": kit.over_seeds(
            _farthest(change),
            f"n = {result.sizes[first]} to {result.sizes[-1]}, the set that changes most",
        ),
        "disputed": kit.over_seeds(
            slopes,
            f"slope over n = {result.disputed_sizes[0]} to {result.disputed_sizes[-1]}; sharpness "
            f"grows to {growth[0]:.2f} and {growth[-1]:.2f} times its start, and accuracy ends at "
            f"{result.accuracy.min():.1%} or more",
        ),
        "printed": kit.over_seeds(_farthest(apart), f"at n = {result.sizes[-1]}"),
        "few-samples": kit.over_seeds(
            few.max(axis=(0, 1)),
            f"largest relative difference of {full.sum()} minima",
            comparable=full.any(),
        ),
        "raw-peak": kit.over_seeds(
            np.log10(peak / rest).min(axis=0),
            "decimal logarithm of the sharpness there over the largest elsewhere, lesser of sets",
        ),
    }


def _farthest(values: np.ndarray) -> np.ndarray:
    """Return for each subset of samples the change farthest from zero over data sets."""
    return np.take_along_axis(values, np.abs(values).argmax(axis=0)[None], axis=0)[0]
