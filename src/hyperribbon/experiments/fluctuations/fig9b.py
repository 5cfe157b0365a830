"""Loss along the modes of the first layer: flat up to N_i, then nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core import Band, Claim
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.fluctuations._common import linear_network, two_layer_ensemble
from hyperribbon.experiments.fluctuations._two_layer import stacked_first, two_layer_item
from hyperribbon.plots.style import COLORS, new_figure
from hyperribbon.theory import fluctuations as theory

ID = "fluctuations/fig9b"
TITLE = "Loss along the modes of the first layer"


@dataclass(frozen=True)
class Config:
    """Network and task of the figure; ensembles of SGD and of the stochastic gradient flow."""

    inputs: int = 30
    hidden: int = 20
    samples: int = 3000
    target_variance: float = 1.0
    lr: float = 0.1
    batch_size: int = 100
    steps: int = 1500
    chains: int = 1500
    flow_chains: int = 300
    theta: float = 0.1


PRESETS = {
    "smoke": Config(inputs=8, hidden=5, samples=300, steps=150, chains=300, flow_chains=100),
    "laptop": Config(),
    "paper": Config(chains=4000, flow_chains=4000),
}


@dataclass(frozen=True)
class Result:
    """δL over ½σx²D₂θ² and variances (modes,), for SGD and for the flow."""

    inputs: int
    loss: np.ndarray
    flow_loss: np.ndarray
    variances: np.ndarray
    flow_variances: np.ndarray


def compute(config: Config, context: Context) -> Result:
    """Take the modes of cov(vec δW₁) of both ensembles and the loss along them."""
    values = {k: v for k, v in vars(config).items() if k not in ("flow_chains", "theta")}
    sgd = two_layer_item(seed=context.seed, **values)
    flow = {**sgd, "chains": config.flow_chains, "dynamics": "flow"}
    parts = context.map(two_layer_ensemble, [sgd, flow], label="ensembles")
    losses, variances = zip(*(_along_modes(sgd, part, config.theta) for part in parts), strict=True)
    return Result(config.inputs, *losses, *variances)


def _along_modes(
    item: Mapping[str, Any], part: dict, theta: float
) -> tuple[np.ndarray, np.ndarray]:
    X, _, _, _ = linear_network(item)
    W2 = part["chains2"].mean(axis=0)
    variances, vectors = np.linalg.eigh(np.cov(stacked_first(part["chains1"]).T))
    steps = theta * vectors.T[::-1].reshape(-1, item["inputs"], item["hidden"]).transpose(0, 2, 1)
    moves = np.einsum("oh,khi->ki", W2, steps) @ X
    rise = np.mean(moves**2, axis=1) / 2  # the terms linear in θ cancel between ±θ
    D2 = float(np.sum(W2**2))
    height = theory.loss_along_first_layer_modes(D2, 1 / item["inputs"], theta, 1, 1)[0]
    unit = theory.isotropic_variance(item["lr"], item["target_variance"], item["batch_size"])
    return rise / height, variances[::-1] / unit


def plot(result: Result) -> Figure:
    """Draw the loss along the modes and, beside it, their variances."""
    figure, (left, right) = new_figure(columns=2, width="full", ratio=0.75)
    shown = min(3 * result.inputs, len(result.loss))
    index = np.arange(1, shown + 1)
    for axis, sgd, flow in (
        (left, result.loss, result.flow_loss),
        (right, result.variances, result.flow_variances),
    ):
        axis.semilogy(index, sgd[:shown], "o", ms=3, color=COLORS[0], label="SGD")
        axis.semilogy(index, flow[:shown], "-.", color=COLORS[1], label="flow, Eq. (3.15)")
        axis.axvline(result.inputs + 0.5, color="0.7", lw=0.8)
        axis.set_xlabel("mode of $W_1$, by variance")
    left.axhline(1, color="k", lw=0.9, label="linear theory")
    left.set_ylabel(r"$\delta L/(\sigma_x^2 D_2\theta^2/2)$")
    right.set_ylabel(r"variance [$\lambda\sigma_y^2/2S$]")
    left.legend()
    return figure


def claims(result: Result) -> list[Claim]:
    """Judge the plateau, the drop, and that the flow shows both."""
    plateau = result.loss[: result.inputs]
    beyond = result.loss[result.inputs :]
    flow = result.flow_loss[: result.inputs]
    return [
        Claim.judge(
            f"{ID}/plateau",
            place="Fig. 9(b)",
            statement="Up to mode N_i the loss is the same along every mode, ½σx²D₂θ².",
            expected=Band(0.967, 1.027, "verification"),
            measured=float(plateau.mean()),
            why=f"Mean over modes; single modes ±{plateau.std():.3f} (inputs not whitened).",
        ),
        Claim.judge(
            f"{ID}/drop",
            place="Fig. 9(b)",
            statement="Beyond N_i the loss drops away.",
            expected=Band(0.0, 0.02, "paper"),
            measured=float(beyond.mean()),
            why="Mean over the modes that the linear theory leaves without fluctuation.",
        ),
        Claim.judge(
            f"{ID}/flow",
            place="Fig. 9(b)",
            statement="The nonlinear stochastic gradient flow shows the same plateau and drop.",
            expected=Band(0.95, 1.05, "paper"),
            measured=float(flow.mean() - result.flow_loss[result.inputs :].mean()),
            why="Height of the plateau above the rest, for the flow of Eq. (3.15).",
        ),
    ]
