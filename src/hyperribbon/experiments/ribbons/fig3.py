"""Fig. 3 of [ribbons]: eigenvalues of the PCA matrix and of its two main contributions."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core import Band, Claim
from hyperribbon.experiments.ribbons._parts import (
    PRESETS,
    Config,
    Result,
    compute,
    nearer_to_targets,
)
from hyperribbon.experiments.ribbons._simulation import sampling_band
from hyperribbon.plots.style import COLORS, new_figure

__all__ = ["ID", "PRESETS", "TITLE", "Config", "Result", "claims", "compute", "plot"]

ID = "ribbons/fig3"
TITLE = "PCA eigenvalues of training trajectories and their two sources"


def plot(result: Result) -> Figure:
    """Draw the eigenvalues of P, of both parts, and of trained models."""
    figure, axis = new_figure(ratio=0.8)
    index = np.arange(1, len(result.P) + 1)
    visible = result.P1_y > 1e-9
    axis.semilogy(
        index, result.P1_sigma, color=COLORS[1], label=r"$P_1^{\sigma_w}$, initial weights"
    )
    axis.semilogy(index[visible], result.P1_y[visible], color=COLORS[0], label="$P_1^y$, targets")
    axis.semilogy(index, result.P, color="black", lw=2, label="$P$, closed form")
    axis.semilogy(
        index[::2], result.simulated_together[::2], "o", color="black", mfc="white", ms=3.5,
        label=f"$P(N,T)$, $N={result.initialisations}$ models",
    )  # fmt: skip
    axis.set(xlabel="index $i$", ylabel="eigenvalue", ylim=(1e-8, 2))
    axis.legend(loc="lower left", bbox_to_anchor=(0.2, 0.0))
    return figure


def claims(result: Result) -> list[Claim]:
    """Judge who controls the tail and the head, and the role of P₂."""
    nearer_targets, handover = nearer_to_targets(result, "P")
    apart = np.abs(result.P[10:] / result.P1_sigma[10:] - 1).max()
    head = np.abs(result.P[:3] / result.P1_y[:3] - 1).max()
    ratio = result.simulated[:, :10].sum(axis=1) / result.P[:10].sum()
    return [
        Claim.judge(
            f"{ID}/tail",
            place="Fig. 3",
            statement="After the handover, P's eigenvalues are nearer to the initial weights' part",
            expected=Band(1, 1, "paper"),
            measured=1 - nearer_targets[handover - 1 :].mean(),
            why=f"share of the indices from {handover} on, distances on the logarithmic scale; "
            f"beyond 10 they differ by {apart:.1%} at most",
        ),
        Claim.judge(
            f"{ID}/head",
            place="Fig. 3",
            statement="Before the handover, P's eigenvalues are nearer to the targets' part",
            expected=Band(1, 1, "paper"),
            measured=nearer_targets[: handover - 1].mean(),
            why=f"share of the first {handover - 1} indices; P2 takes a large share of the head "
            f"away at T = 50, so the first three still differ by up to {head:.0%}",
        ),
        Claim.judge(
            f"{ID}/mean-negligible",
            place="Eq. (8)",
            statement="The mean's part P2 is negligible beside the largest eigenvalue of P1",
            expected=Band.at_most(0.1, "paper"),
            measured=result.lambda_P2 / result.P1[0],
            why="negligible is below a tenth; λ(P2) falls as 1/T² only for T ≫ 1/(αλn), here "
            "18,000 steps",
        ),
        Claim.judge(
            f"{ID}/simulation",
            place="Eqs. (3) and (5)",
            statement="P(N,T) of trained models has the closed form's ten largest eigenvalues",
            expected=sampling_band(result.P, result.initialisations // len(ratio)),
            measured=ratio.mean(),
            uncertainty=ratio.std(ddof=1) / np.sqrt(len(ratio)),
            why="sum of ten eigenvalues over theory, mean of independent batches",
        ),
    ]
