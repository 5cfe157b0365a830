"""Fluctuation spectrum of a two-layer network from a standard start: ensemble and long run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core import Band, Claim
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.fluctuations._common import linear_network, two_layer_ensemble
from hyperribbon.experiments.fluctuations._two_layer import (
    draw_first_layer,
    first_layer_spectra,
    measure_modes,
    two_layer_item,
)
from hyperribbon.plots.style import COLORS, new_figure
from hyperribbon.training import simulate_two_layer

ID = "fluctuations/fig8c"
TITLE = "Fluctuations from a standard start"


@dataclass(frozen=True)
class Config:
    """Network, task and batch of the figure; an ensemble, and a few long runs."""

    inputs: int = 30
    hidden: int = 20
    samples: int = 3000
    target_variance: float = 0.1
    lr: float = 0.1
    batch_size: int = 10
    steps: int = 3000
    chains: int = 1500
    long_steps: int = 200_000
    long_chains: int = 8


PRESETS = {
    "smoke": Config(
        inputs=8, hidden=5, samples=400, steps=400, chains=300, batch_size=50, long_steps=5000
    ),
    "laptop": Config(),
    "paper": Config(chains=4000, long_steps=1_000_000),
}


@dataclass(frozen=True)
class Result:
    """Spectra in units λσ²/(2S), σ² unexplained; leading eigenvalue of each long run."""

    inputs: int
    chains: int
    modal: np.ndarray
    predicted: np.ndarray
    first: np.ndarray
    first_predicted: np.ndarray
    long_leading: np.ndarray
    long_drift: np.ndarray


def compute(config: Config, context: Context) -> Result:
    """Measure an ensemble begun at the solution, and the covariance over time of long runs."""
    values = {k: v for k, v in vars(config).items() if not k.startswith("long")}
    item = two_layer_item(seed=context.seed, **values)
    ensemble = context.shared(two_layer_ensemble, item, "chains of SGD")
    found = measure_modes(item, ensemble)
    long_item = {**item, "steps": config.long_steps, "chains": config.long_chains}
    long_run = context.map(_long_run, [long_item], label="long runs")[0]
    return Result(
        config.inputs,
        config.chains,
        found.variances,
        found.predicted,
        *first_layer_spectra(found, ensemble["chains1"]),
        np.array(long_run["leading"]) / found.unit,
        np.array(long_run["drift"]),
    )


def _long_run(item: Mapping[str, Any]) -> dict:
    X, Y, W1, W2 = linear_network(item)
    run = simulate_two_layer(
        X,
        Y,
        W1,
        W2,
        lr=item["lr"],
        batch_size=item["batch_size"],
        record=np.linspace(0, item["steps"], 1001).astype(int),
        chains=item["chains"],
        seed=item["chain_seed"],
    )
    paths = run.W2[:, :, 0, :].astype(float)
    leading = [np.linalg.eigvalsh(np.cov(path.T))[-1] for path in paths.transpose(1, 0, 2)]
    ends = np.sum(paths[[0, -1]] ** 2, axis=2)
    return {"leading": np.array(leading), "drift": ends[1] / ends[0]}


def plot(result: Result) -> Figure:
    """Draw the ensemble's spectra and the leading eigenvalues of long runs."""
    figure, axis = new_figure(width="column", ratio=0.85)
    modes = np.arange(1, len(result.modal) + 1)
    error = 2 * result.modal * np.sqrt(2 / result.chains)
    axis.errorbar(
        modes, result.modal, error, fmt="o", color=COLORS[0], label=r"$\delta W_2$, ensemble"
    )
    axis.semilogy(modes, result.predicted, "-", color=COLORS[0], label=r"$\delta W_2$, Eq. (3.34)")
    draw_first_layer(axis, result.first, result.first_predicted)
    axis.semilogy(
        np.ones(len(result.long_leading)),
        result.long_leading,
        "x",
        color=COLORS[3],
        label=r"$\delta W_2$, long runs, leading",
    )
    axis.set_ylim(1e-3, None)
    axis.set_xlabel("mode")
    axis.set_ylabel(r"eigenvalues [$\lambda\sigma_y^2/2S$]")
    axis.legend(fontsize=7)
    return figure


def claims(result: Result) -> list[Claim]:
    """Judge the modal variances of the ensemble and of a single long run."""
    ratio = result.modal / result.predicted
    return [
        Claim.judge(
            f"{ID}/modal-ratio",
            place="Fig. 8(c), Eq. (3.34)",
            statement="The variances along the modes of W₁W₁ᵀ are those of Eq. (3.34).",
            expected=Band(0.92, 1.08, "verification"),
            measured=float(ratio.mean()),
            uncertainty=float(np.sqrt(2 / (result.chains - 1) / len(ratio))),
            why=f"Mean ratio over modes in an ensemble; single modes {ratio.min():.2f}–"
            f"{ratio.max():.2f}.",
        ),
        Claim.judge(
            f"{ID}/single-run",
            place="Fig. 8(c)",
            statement="One long run shows the predicted spectrum (leading eigenvalue below 1).",
            expected=Band(0.0, 1.0, "paper"),
            measured=float(np.median(result.long_leading)),
            uncertainty=float(result.long_leading.std(ddof=1) / np.sqrt(len(result.long_leading))),
            why="Over a long run the mean drifts (‖W₂‖² falls to "
            f"{np.median(result.long_drift):.2f} of its start): the covariance over time measures "
            "the drift.",
        ),
    ]
