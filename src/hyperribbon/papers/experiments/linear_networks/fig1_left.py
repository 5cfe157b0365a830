"""Fig. 1 (a) of [linear_networks]: every eigenvalue of a balanced solution, from the labels."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from hyperribbon.operators import Hessian
from hyperribbon.papers.experiments import kit
from hyperribbon.theory import linear_networks as theory

TITLE = "Every Hessian eigenvalue of a balanced solution, from the labels"

_SETTING = "20 inputs, 100 samples, 5 layers, σx = 3 and singular values from U[0, 1], as in App. C"
_QUOTE = "we note that the theory predicts the non-zero eigenvalues exactly"
STATEMENTS = (
    kit.says(
        "eigenvalues",
        "Sec. 4, on Fig. 1 (a)",
        _QUOTE,
        "No eigenvalue of the dense Hessian differs from theory by more than rounding: 1e-11 of "
        "the largest, and what rounded labels leave of the smallest singular value.",
        kit.Band.at_most(1.0, "closed form"),
        setting=_SETTING,
        changed="2026-11-17: 1e-11 alone before, which rounded labels exceed where a singular "
        "value is small; seen in one of five seeds, then bounded by (2nε/L²)·(σ₁/σd)^(L−2)",
    ),
    kit.says(
        "relative",
        "Sec. 4, on Fig. 1 (a)",
        _QUOTE,
        "Small eigenvalues, down to 1e-12 of the largest, are predicted to six digits too.",
        kit.Band.at_most(1e-6, "closed form"),
        setting=f"{_SETTING}; from the singular values of J, which resolve them",
    ),
    kit.says(
        "count",
        "Sec. 3",
        "of the p eigenvalues of the Hessian, at most (min{d0, d1, …, dL})² are non-zero",
        "A square balanced network has no more non-zero eigenvalues than that.",
        kit.Band.at_most(1.0, "printed"),
        setting=f"{_SETTING}; rectangular networks are in linear_networks/counts",
    ),
)

_ZERO = 1e-26  # squared singular values of J below this, over the largest, are rounding


class Config(kit.Frozen):
    """Setting of Fig. 1 (a) of [linear_networks]."""

    width: int = 20  # d, of inputs, hidden layers and outputs
    samples: int = 100  # n
    depth: int = 5  # number of layers
    sigma_x: float = 3.0  # root mean square of the white inputs


PRESETS = {"smoke": Config(width=8, samples=30), "laptop": Config(), "paper": Config()}


class Result(kit.Frozen):
    """Eigenvalues, descending (Fig. 1 (a) of [linear_networks])."""

    numeric: np.ndarray  # (p,), of the dense Hessian from automatic differentiation
    # (min(nd, p),), squared singular values of J/√n, precise for small ones too
    from_jacobian: np.ndarray
    # (d²,), Eq. (9) with the singular values that Eq. (13) takes from the labels
    theory: np.ndarray
    width: int  # d
    samples: int  # n
    loss: float  # at the solution
    rounding: float  # difference that rounding allows, over the largest eigenvalue; see `_rounding`


def compute(config: Config, context: kit.Context) -> Result:
    """Build a balanced solution and its Hessian; predict the spectrum from labels (Fig. 1 left)."""
    rng = context.rng("network")
    width = config.width
    X = theory.whiten(rng.standard_normal((width, config.samples)), config.sigma_x).inputs
    singular = rng.uniform(0, 1, width)
    weights = theory.sample_balanced_weights([width] * (config.depth + 1), singular, rng)
    Y = theory.end_to_end(weights) @ X
    model = nn.Sequential(
        *(nn.Linear(width, width, bias=False, dtype=torch.float64) for _ in weights)
    )
    with torch.no_grad():
        for layer, weight in zip(model, weights, strict=True):
            layer.weight.copy_(torch.from_numpy(weight))  # type: ignore[union-attr]
    data = (torch.from_numpy(X.T.copy()), torch.from_numpy(Y.T.copy()))
    hessian = Hessian(model, nn.MSELoss(reduction="sum"), data)
    from_labels = theory.solution_singular_values(X, Y, config.depth)
    jacobian = theory.jacobian(weights, X)
    return Result(
        numeric=torch.linalg.eigvalsh(hessian.to_dense()).flip(0).numpy() / (2 * config.samples),
        from_jacobian=np.linalg.svd(jacobian, compute_uv=False) ** 2 / config.samples,
        theory=theory.balanced_eigenvalues(from_labels, config.depth, width, width, config.sigma_x),
        width=width,
        samples=config.samples,
        loss=hessian.loss() / (2 * config.samples),
        rounding=_rounding(config, singular),
    )


def _rounding(config: Config, singular: np.ndarray) -> float:
    """Return how far rounding moves the predicted eigenvalues, over the largest (Fig. 1 left).

    Labels of n samples fix σ^L to nε·σ₁^L, so the smallest σd to nε·σ₁^L/(Lσd^(L−1)). The
    eigenvalues of σd and σ₁ change by 2σd·σ₁^(2L−4) times that; the largest is L·σ₁^(2L−2).
    """
    depth, ratio = config.depth, singular.max() / singular.min()
    lost = 2 * config.samples * np.finfo(float).eps / depth**2
    return float(1e-11 + lost * ratio ** (depth - 2))


def plot(result: Result) -> kit.Figure:
    """Draw the spectrum both ways, and their difference (Fig. 1 left of [linear_networks])."""
    figure, (left, right) = kit.new_figure(1, 2, width="full", ratio=0.7)
    count = len(result.theory)
    index = np.arange(1, count + 1)
    numeric, color = result.numeric[:count], kit.COLORS[1]
    left.semilogy(index, numeric, "o", color=color, ms=4, label="dense Hessian")
    left.semilogy(index, result.theory, color=kit.COLORS[0], label="Eqs. (9), (13), from labels")
    left.set(xlabel="index", ylabel="eigenvalue")
    left.set_ylim(result.theory[-1] / 10, 3 * result.theory[0])
    left.legend()
    scale = result.theory[0]
    for values, color, label in (
        (numeric, kit.COLORS[1], "dense Hessian"),
        (result.from_jacobian[:count], kit.COLORS[2], "singular values of $J$"),
    ):
        difference = np.maximum(np.abs(values - result.theory) / scale, 1e-18)
        right.semilogy(index, difference, ".", color=color, label=label)
    right.axhline(result.rounding, color="0.5", ls=":")
    right.annotate(
        "rounding", (count, result.rounding), ha="right", va="top", color="0.4", fontsize=7
    )
    right.set(xlabel="index", ylabel=r"difference from theory $/\,\lambda_{\max}$")
    right.set_ylim(5e-19, 1e5 * result.rounding)
    right.legend(loc="upper right")
    for axis in (left, right):
        axis.set_title(f"n = {result.samples:,}, $d_0$ = {result.width}", fontsize=8)
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure the eigenvalues and their number (Fig. 1 left of [linear_networks])."""
    count = len(result.theory)
    padded = np.zeros_like(result.numeric)
    padded[:count] = result.theory
    scale = result.theory[0]
    relative = np.abs(result.from_jacobian[:count] / result.theory - 1)
    resolved = result.theory > 1e-12 * scale
    nonzero = (result.from_jacobian > _ZERO * scale).sum()
    return {
        "eigenvalues": kit.exact(
            np.abs(result.numeric - padded).max() / scale / result.rounding,
            f"largest difference of {len(padded)} eigenvalues, over {result.rounding:.1e} of "
            "the largest one",
        ),
        "relative": kit.exact(
            relative[resolved].max(),
            f"largest relative difference of {resolved.sum()} eigenvalues from the SVD of J",
        ),
        "count": kit.exact(nonzero / result.width**2, f"{nonzero} of {len(padded)}, over (min d)²"),
    }
