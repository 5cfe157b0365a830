"""Eqs. (4.4), (4.23) of [subnetworks]: the Fisher matrix as a metric, and as the Hessian."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from hyperribbon.core import derive_seed, torch_generator
from hyperribbon.core.data import load_data
from hyperribbon.operators import Fisher, Hessian
from hyperribbon.papers.experiments import kit
from hyperribbon.papers.training import mlp, train

TITLE = "The Fisher matrix as the metric of divergence and outputs, and as the Hessian"

_SETTING = "a small tanh network on handwritten digits, matrices formed whole in double precision"
_LEADING = 10

STATEMENTS = (
    kit.says(
        "divergence",
        "Eq. (4.4)",
        "In the vicinity of θ∗, the KL divergence can be approximated by a second-order Taylor "
        "expansion",
        "The divergence over ½ dθᵀF dθ differs from 1 in proportion to the step: the slope of the "
        "logarithms is 1.",
        kit.Band.around(1, "closed form", atol=0.15),
        setting=f"{_SETTING}; F of the categorical outputs",
    ),
    kit.says(
        "outputs",
        "Eq. (4.23)",
        "This equation is typically derived via a second-order (or probabilistic) expansion, so it "
        "holds locally",
        "The mean square change of the outputs over dθᵀF dθ differs from 1 in proportion to the "
        "step: the slope of the logarithms is 1.",
        kit.Band.around(1, "closed form", atol=0.15),
        setting=f"{_SETTING}; F of unit Gaussian noise on the outputs",
    ),
    *(
        kit.says(
            name,
            "Sec. 4.3.1",
            "if the network is close to a good minimum (e.g., the minimum in Figure 4.2) under MSE "
            "loss functions, the FIM reveals the same eigenvectors and eigenvalues as Hessian",
            reading,
            band,
            setting=f"{_SETTING}, trained on the squared error until it nearly fits its data",
        )
        for name, reading, band in (
            (
                "hessian-values",
                "After training the ten largest eigenvalues of F and of the Hessian of ½‖f − y‖² "
                "differ by at most 0.05 of themselves (our margin).",
                kit.Band.at_most(0.05, "words"),
            ),
            (
                "hessian-vectors",
                "After training the spaces of the ten leading eigenvectors overlap by at least "
                "0.95 (mean squared cosine, our margin).",
                kit.Band.at_least(0.95, "words"),
            ),
        )
    ),
    kit.observe(
        "hessian-start",
        "Sec. 4.3.1",
        "At the start, far from a minimum, the eigenvalues differ by more than 0.05.",
        kit.Band.at_least(0.05, "words"),
    ),
    kit.observe(
        "cross-entropy",
        "Sec. 4.3.1",
        "For a network trained on the cross-entropy, as in the thesis, the leading spaces of F "
        "over the softmax outputs and of the Hessian overlap by at least 0.95.",
        kit.Band.at_least(0.95, "words"),
    ),
)


class Config(kit.Frozen):
    """Setting of the experiment."""

    hidden: int = 12  # width of the tanh network
    samples: int = 60  # digits
    updates: int = 4000  # of full-batch training
    lr: float = 0.1  # learning rate (momentum 0.9)
    halvings: int = 6  # of the length of dθ
    seeds: int = 5  # networks


PRESETS = kit.presets(
    Config(),
    smoke=Config(hidden=4, samples=30, updates=300, halvings=4, seeds=2),
    paper=Config(hidden=20, samples=100, updates=20_000, seeds=10),
)


class Result(kit.Frozen):
    """Ratios along random directions, and eigenvalues of both matrices."""

    lengths: np.ndarray  # (h,), of dθ
    divergence: np.ndarray  # (seeds, h), |KL / (½ dθᵀF dθ) − 1|
    outputs: np.ndarray  # (seeds, h), |E‖Δf‖² / dθᵀF dθ − 1|
    fisher: np.ndarray  # (seeds, 2, k), leading eigenvalues, at the start and after training
    hessian: np.ndarray  # (seeds, 2, k)
    overlap: np.ndarray  # (seeds, 2), mean squared cosine of the leading spaces, squared error
    softmax_overlap: np.ndarray  # (seeds,), after training on the cross-entropy
    loss: np.ndarray  # (seeds,), mean squared error that is left


def compute(config: Config, context: kit.Context) -> Result:
    """Measure the metric's expansions and matrices for every network."""
    seeds = [derive_seed(context.seed, "network", number) for number in range(config.seeds)]
    items = [{**vars(config), "seed": seed} for seed in seeds]
    measured = context.map(_measure, items, "metrics")
    return Result(lengths=_lengths(config.halvings), **kit.stack(measured))


def _lengths(halvings: int) -> np.ndarray:
    return 0.1 / 2.0 ** np.arange(halvings)


def _half_squares(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs - targets).square().sum() / (2 * len(outputs))


def _measure(item: kit.Item) -> dict[str, Any]:
    data = load_data("digits").flat()
    generator = torch_generator(item["seed"], "digits")
    chosen = torch.randperm(len(data.targets), generator=generator, device="cpu")
    inputs = data.inputs[chosen[: item["samples"]]].double()
    labels = data.targets[chosen[: item["samples"]]]
    targets = nn.functional.one_hot(labels, 10).double()
    model, classifier = (
        mlp((inputs.shape[1], item["hidden"], 10), "tanh", derive_seed(item["seed"], "start"))
        for _ in range(2)
    )
    start = _matrices(model.double(), inputs, targets)
    how = {"epochs": item["updates"], "lr": item["lr"], "momentum": 0.9, "batch_size": None}
    train(model, _half_squares, (inputs, targets), **how)
    train(classifier.double(), nn.functional.cross_entropy, (inputs, labels), **how)
    end = _matrices(model, inputs, targets)
    softmax = Fisher(classifier, inputs, likelihood="gaussian", outputs="softmax").to_dense()
    entropy = Hessian(classifier, nn.CrossEntropyLoss(), (inputs, labels)).to_dense()
    with torch.no_grad():
        loss = float(_half_squares(model(inputs), targets))
    return {
        **_expansions(item, model, inputs),
        "fisher": np.array([start[0], end[0]]),
        "hessian": np.array([start[1], end[1]]),
        "overlap": np.array([start[2], end[2]]),
        "softmax_overlap": _overlap(softmax, entropy)[2],
        "loss": loss,
    }


def _matrices(
    model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor
) -> tuple[np.ndarray, np.ndarray, float]:
    fisher = Fisher(model, inputs, likelihood="gaussian").to_dense()
    return _overlap(fisher, Hessian(model, _half_squares, (inputs, targets)).to_dense())


def _overlap(first: torch.Tensor, second: torch.Tensor) -> tuple[np.ndarray, np.ndarray, float]:
    """Return eigenvalues of Fisher metric and Hessian, and the overlap of their leading spaces."""
    (a, v), (b, w) = (torch.linalg.eigh(matrix) for matrix in (first, second))
    cosines = v[:, -_LEADING:].T @ w[:, -_LEADING:]
    values = [one[-_LEADING:].flip(0).numpy() for one in (a, b)]
    return values[0], values[1], float(cosines.square().sum() / _LEADING)


def _expansions(item: kit.Item, model: nn.Module, inputs: torch.Tensor) -> dict[str, np.ndarray]:
    """Return how far divergence and outputs are from the metric along one random direction."""
    vector = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    generator = torch_generator(item["seed"], "direction")
    direction = torch.randn(len(vector), generator=generator, dtype=torch.float64, device="cpu")
    direction /= direction.norm()
    forms = [
        float(direction @ (Fisher(model, inputs, likelihood=likelihood) @ direction))
        for likelihood in ("categorical", "gaussian")
    ]
    moved = mlp((inputs.shape[1], item["hidden"], 10), "tanh").double()
    rows = []
    with torch.no_grad():
        before = model(inputs)
        for length in _lengths(item["halvings"]):
            torch.nn.utils.vector_to_parameters(vector + length * direction, moved.parameters())
            after = moved(inputs)
            logs, others = before.log_softmax(1), after.log_softmax(1)
            divergence = float((logs.exp() * (logs - others)).sum(1).mean())
            square = float((after - before).square().sum(1).mean())
            rows.append(
                (divergence / (length**2 * forms[0] / 2) - 1, square / (length**2 * forms[1]) - 1)
            )
    errors = np.abs(rows)
    return {"divergence": errors[:, 0], "outputs": errors[:, 1]}


def plot(result: Result) -> kit.Figure:
    """Draw the errors of both expansions in the Fisher metric, and both matrices' eigenvalues."""
    figure, (left, right) = kit.new_figure(1, 2, width="full", ratio=0.75)
    for color, errors, label in (
        (kit.COLORS[0], result.divergence, "divergence, Eq. (4.4)"),
        (kit.COLORS[1], result.outputs, "outputs, Eq. (4.23)"),
    ):
        for row in errors:
            left.loglog(result.lengths, row, "o-", ms=2.5, lw=0.8, color=color, label=label)
            label = None
    left.loglog(result.lengths, result.lengths, "k:", label="slope 1")
    left.set(xlabel=r"$\|d\theta\|$", ylabel="relative error of the metric")
    left.legend(fontsize=7)
    index = np.arange(1, result.fisher.shape[-1] + 1)
    for moment, color, word in ((0, kit.COLORS[0], "start"), (1, kit.COLORS[1], "trained")):
        right.semilogy(index, result.fisher[0, moment], "o", color=color, label=f"$F$, {word}")
        right.semilogy(index, result.hessian[0, moment], "x", color=color, label=f"Hessian, {word}")
    right.set(xlabel="index", ylabel="eigenvalue, first network", title="squared error")
    right.legend(fontsize=7)
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure the orders of the expansions and how near the Fisher metric is to the Hessian."""
    logs = np.log(result.lengths)

    def slopes(errors: np.ndarray) -> list[float]:
        return [np.polyfit(logs, np.log(row), 1)[0] for row in errors]

    differences = np.abs(result.fisher / result.hessian - 1).max(2)
    left = f"squared error left {result.loss.mean():.2g}"
    return {
        "divergence": kit.over_seeds(slopes(result.divergence), "slope of the relative error"),
        "outputs": kit.over_seeds(slopes(result.outputs), "slope of the relative error"),
        "hessian-values": kit.over_seeds(differences[:, 1], f"largest of ten; {left}"),
        "hessian-vectors": kit.over_seeds(
            result.overlap[:, 1], f"{result.overlap[:, 0].mean():.3f} at the start; {left}"
        ),
        "hessian-start": kit.over_seeds(differences[:, 0], "largest of ten"),
        "cross-entropy": kit.over_seeds(
            result.softmax_overlap, "overlap of ten leading directions"
        ),
    }
