"""Eq. (2.28) of [subnetworks]: training with an explicit gradient penalty."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from hyperribbon.core import derive_seed, torch_generator
from hyperribbon.operators import Hessian
from hyperribbon.papers.experiments import kit
from hyperribbon.papers.training import mlp, train
from hyperribbon.spectra import eigsh

TITLE = "An explicit gradient penalty in place of a large step"

_QUOTE = (
    "This explicit penalty preserves the regularization effect even if Δt is altered, thereby "
    "maintaining the bias toward flat minima."
)
_SETTING = (
    "full-batch gradient descent on the squared error of small tanh networks, in double precision; "
    "the sentence is about any loss"
)

STATEMENTS = (
    kit.says(
        "replaces-the-step",
        "Eq. (2.28)",
        _QUOTE,
        "Descent with a small step and the penalty γ = h − h₀ ends nearer to descent with the step "
        "h than descent without a penalty: at most 0.2 of the distance (our margin).",
        kit.Band.at_most(0.2, "words"),
        setting=_SETTING,
    ),
    kit.says(
        "flatter-at-every-step",
        "Eq. (2.28)",
        _QUOTE,
        "At every step tried the largest Hessian eigenvalue after training is smaller with the "
        "penalty than without: the largest ratio is at most 1.",
        kit.Band.at_most(1.0, "words"),
        setting=_SETTING,
    ),
)


class Config(kit.Frozen):
    """Setting of the experiment."""

    hidden: int = 12  # width of the tanh network
    samples: int = 20  # training samples
    steps: tuple[float, ...] = (0.005, 0.01, 0.04)  # learning rates, the first is h₀, the last h
    # γ of the comparison of minima; descent needs η(λ + γλ²/2) < 2, which γ = 0.5 broke at η = 0.08
    penalty: float = 0.1
    time: float = 4.0  # learning rate times updates, for the comparison of paths
    long_time: float = 20.0  # the same for the comparison of minima
    seeds: int = 3  # networks


PRESETS = kit.presets(
    Config(),
    smoke=Config(hidden=6, samples=12, steps=(0.02, 0.08), time=0.96, long_time=4.0, seeds=2),
    paper=Config(hidden=30, samples=50, long_time=300.0, seeds=10),
)


class Result(kit.Frozen):
    """Distances between ends, and curvatures of the minima."""

    steps: np.ndarray  # (h,)
    distance: np.ndarray  # (seeds, 2), from the large step: small step, small step with penalty
    sharpness: np.ndarray  # (seeds, 2, h), λ₁ without and with the penalty
    loss: np.ndarray  # (seeds, 2, h), training loss there
    penalty: float  # γ


def compute(config: Config, context: kit.Context) -> Result:
    """Train every network with and without the gradient penalty, at every step."""
    seeds = [derive_seed(context.seed, "network", number) for number in range(config.seeds)]
    items = [{**vars(config), "seed": seed} for seed in seeds]
    measured = context.map(_train_all, items, "gradient penalties")
    return Result(steps=np.array(config.steps), **kit.stack(measured), penalty=config.penalty)


def _train_all(item: kit.Item) -> dict[str, Any]:
    generator = torch_generator(item["seed"], "regression")
    draw = {"generator": generator, "dtype": torch.float64}
    inputs = torch.randn(item["samples"], 2, **draw, device="cpu")
    targets = torch.sin(2 * inputs[:, :1]) + inputs[:, 1:] ** 2 / 2

    def descend(step: float, penalty: float, time: float) -> nn.Module:
        model = mlp((2, item["hidden"], 1), "tanh", derive_seed(item["seed"], "start")).double()
        train(
            model,
            nn.MSELoss(),
            (inputs, targets),
            epochs=round(time / step),
            lr=step,
            batch_size=None,
            gradient_penalty=penalty,
        )
        return model

    small, large = item["steps"][0], item["steps"][-1]
    ends = [
        torch.nn.utils.parameters_to_vector(model.parameters()).detach()
        for model in (
            descend(large, 0.0, item["time"]),
            descend(small, 0.0, item["time"]),
            descend(small, large - small, item["time"]),
        )
    ]
    sharpness, loss = np.empty((2, 2, len(item["steps"])))
    for row, penalty in enumerate((0.0, item["penalty"])):
        for column, step in enumerate(item["steps"]):
            model = descend(step, penalty, item["long_time"])
            hessian = Hessian(model, nn.MSELoss(), (inputs, targets))
            sharpness[row, column] = float(eigsh(hessian, 1).eigenvalues[0])
            with torch.no_grad():
                loss[row, column] = float(nn.functional.mse_loss(model(inputs), targets))
    return {
        "distance": np.array([float((end - ends[0]).norm()) for end in ends[1:]]),
        "sharpness": sharpness,
        "loss": loss,
    }


def plot(result: Result) -> kit.Figure:
    """Draw how far the gradient penalty is from descent with the large step, and the sharpness."""
    figure, (left, right) = kit.new_figure(1, 2, width="full", ratio=0.75)
    for row in result.distance:
        left.plot([0, 1], row, "o-", color="0.6", ms=3)
    left.set_yscale("log")
    small, large = result.steps[0], result.steps[-1]
    left.set_xticks([0, 1], [f"step {small:g}", f"step {small:g},\npenalty {large - small:g}"])
    left.set(xlim=(-0.4, 1.4), ylabel=f"distance from descent with step {large:g}")
    for row, (color, label) in enumerate(
        ((kit.COLORS[0], "no penalty"), (kit.COLORS[1], rf"$\gamma={result.penalty:g}$"))
    ):
        for one in result.sharpness[:, row]:
            right.plot(result.steps, one, "o-", color=color, ms=3, lw=0.8, label=label)
            label = None
    right.set(xscale="log", xlabel="step", ylabel=r"$\lambda_1$ after training")
    right.legend()
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure how well the gradient penalty replaces the step, and the sharpness it leaves."""
    ratios = result.sharpness[:, 1] / result.sharpness[:, 0]
    plain, penalised = result.loss.mean((0, 2))
    return {
        "replaces-the-step": kit.over_seeds(
            result.distance[:, 1] / result.distance[:, 0],
            f"distance with the penalty over that without, step {result.steps[0]:g} beside "
            f"{result.steps[-1]:g}",
        ),
        "flatter-at-every-step": kit.over_seeds(
            ratios.max(1),
            f"largest ratio over the steps; mean ratio {ratios.mean():.3f}; training losses "
            f"{plain:.2g} without, {penalised:.2g} with the penalty",
        ),
    }
