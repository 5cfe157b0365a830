"""Fig. 5 of [ribbons]: the head of P₁ comes from the targets, its tail from the initial weights."""

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

ID = "ribbons/fig5"
TITLE = "Head and tail of the second moment of trajectories"

_VERIFIED = {
    "P": {1: 0.270137, 2: 0.0543999, 3: 0.0104106, 5: 0.00174308, 10: 0.00114990},
    "P1": {1: 0.422915, 2: 0.145553, 3: 0.0349079},
    "P1_y": {1: 0.421859, 2: 0.144408, 3: 0.0337051},
    "P1_sigma": {1: 0.002, 2: 0.00169309, 3: 0.00150412},
}
"""Eigenvalues by part and index, from an independent evaluation in float64."""


def plot(result: Result) -> Figure:
    """Draw P₁ and its parts; the spectrum over single batches of trained models shows the noise."""
    figure, axis = new_figure(ratio=0.85)
    index = np.arange(1, len(result.P) + 1)
    visible = result.P1_y > 1e-9
    axis.semilogy(index, result.P1, color="0.25", lw=3.5, alpha=0.35, label="$P_1$")
    axis.semilogy(index[visible], result.P1_y[visible], color=COLORS[0], label="$P_1^y$, targets")
    axis.semilogy(
        index, result.P1_sigma, color=COLORS[1], label=r"$P_1^{\sigma_w}$, initial weights"
    )
    axis.semilogy(index, result.P, color=COLORS[2], ls="--", label="$P=P_1-P_2$")
    axis.semilogy(
        index[::2], result.simulated_together[::2], "o", color=COLORS[2], mfc="white", ms=3.5,
        label="$P(N,T)$, trained models",
    )  # fmt: skip
    _, handover = nearer_to_targets(result, "P1")
    axis.axvline(handover, color="0.6", lw=0.8, ls=":")
    axis.annotate(
        f"handover at $i={handover}$",
        (handover, 0.6),
        (handover + 2.5, 0.75),
        fontsize=8,
        va="center",
    )
    axis.set(xlabel="index $i$", ylabel="eigenvalue", ylim=(1e-8, 2))
    axis.legend(loc="lower left", bbox_to_anchor=(0.2, 0.0))
    return figure


def claims(result: Result) -> list[Claim]:
    """Judge the numbers, the head, the tail and the spread over targets."""
    found = [
        Claim.judge(
            f"{ID}/{part}-i{index}",
            place="Fig. 5",
            statement=f"Eigenvalue {index} of {part}",
            expected=Band.around(value, "verification", rtol=1e-5),
            measured=getattr(result, part)[index - 1],
            why="closed form against an independent evaluation",
        )
        for part, values in _VERIFIED.items()
        for index, value in values.items()
    ]
    nearer_targets, handover = nearer_to_targets(result, "P1")
    off_head = np.abs(result.P1[:3] / result.P1_y[:3] - 1).max()
    off_tail = np.abs(result.P1[10:] / result.P1_sigma[10:] - 1).max()
    drawn = result.drawn_dimensions
    ratio = result.simulated[:, 0] / result.P[0]
    return [
        *found,
        Claim.judge(
            f"{ID}/head",
            place="Fig. 5",
            statement="Before the handover, P1's eigenvalues are nearer to the targets' part",
            expected=Band(1, 1, "paper"),
            measured=nearer_targets[: handover - 1].mean(),
            why=f"share of the first {handover - 1} indices, distances on the logarithmic scale; "
            f"the first three differ by {off_head:.1%} at most",
        ),
        Claim.judge(
            f"{ID}/tail",
            place="Fig. 5",
            statement="After the handover, P1's eigenvalues are nearer to the initial weights' "
            "part",
            expected=Band(1, 1, "paper"),
            measured=1 - nearer_targets[handover - 1 :].mean(),
            why=f"share of the indices from {handover} on; beyond 10 they differ by "
            f"{off_tail:.1%} at most",
        ),
        Claim.judge(
            f"{ID}/handover",
            place="Fig. 5",
            statement="The targets' part falls below the initial weights' part at index 5",
            expected=Band(5, 5, "verification"),
            measured=handover,
            why="first index at which the order of the two is reversed",
        ),
        Claim.judge(
            f"{ID}/dimensions",
            place="Fig. 5",
            statement="Nine dimensions carry 95% of the variance",
            expected=Band(9, 9, "verification"),
            measured=result.dimensions,
            why="targets at their typical size in every direction",
        ),
        Claim.judge(
            f"{ID}/concentration",
            place="Eq. (10)",
            statement="The targets' norm concentrates: one draw of true weights stands for all",
            expected=Band.at_most(0.5, "paper"),
            measured=drawn.std(),
            uncertainty=drawn.std() / np.sqrt(2 * len(drawn)),
            why="standard deviation of the dimension over draws of the true weights, below a half "
            "if they mostly agree "
            f"(mean {drawn.mean():.1f}); few eigenvalues carry the trace, so little averages out",
        ),
        Claim.judge(
            f"{ID}/simulation",
            place="Eqs. (3) and (5)",
            statement="P(N,T) of trained models has the closed form's largest eigenvalue",
            expected=sampling_band(result.P, result.initialisations // len(ratio)),
            measured=ratio.mean(),
            uncertainty=ratio.std(ddof=1) / np.sqrt(len(ratio)),
            why="ratio to theory, mean of independent batches",
        ),
    ]
