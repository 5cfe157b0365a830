"""Inverse variance–flatness relation of the second layer, and when its exponent is two."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core import Band, Claim
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.fluctuations._common import linear_network, two_layer_ensemble
from hyperribbon.experiments.fluctuations._two_layer import measure_modes, two_layer_item
from hyperribbon.plots.style import COLORS, new_figure
from hyperribbon.theory import fluctuations as theory

ID = "fluctuations/fig9a"
TITLE = "Loss along the modes of the second layer"


@dataclass(frozen=True)
class Config:
    """Network and task of the figure; ensembles at a standard and at a small first layer."""

    inputs: int = 50
    hidden: int = 40
    samples: int = 3000
    target_variance: float = 1.0
    lr: float = 0.1
    batch_size: int = 100
    steps: int = 2000
    chains: int = 600
    small_init: float = 0.02
    theta: float = 0.1


PRESETS = {
    "smoke": Config(inputs=10, hidden=8, samples=600, steps=300, chains=300),
    "laptop": Config(),
    "paper": Config(chains=4000),
}


@dataclass(frozen=True)
class Result:
    """For both starts (2, N_h): D₁, variances, predictions, loss; D₂ and exponents (2,)."""

    input_variance: float
    theta: float
    unit: float
    D1: np.ndarray
    D2: np.ndarray
    variances: np.ndarray
    predicted: np.ndarray
    loss: np.ndarray
    exponent: np.ndarray
    exponent_error: np.ndarray
    predicted_exponent: np.ndarray
    chains: int


def compute(config: Config, context: Context) -> Result:
    """Measure variance and loss along the modes of W₁W₁ᵀ in two ensembles."""
    values = {k: v for k, v in vars(config).items() if k not in ("small_init", "theta")}
    items = [
        two_layer_item(seed=context.seed, **values),
        two_layer_item(seed=context.seed, **values, init1=config.small_init),
    ]
    parts = context.map(two_layer_ensemble, items, label="chains of SGD")
    rows: dict[str, list] = {key: [] for key in ("D1", "D2", "variances", "predicted", "loss")}
    exponents = []
    rng = context.rng("bootstrap")
    for item, part in zip(items, parts, strict=True):
        found = measure_modes(item, part)
        X, Y, _, _ = linear_network(item)
        W1, W2 = part["chains1"].mean(axis=0), part["chains2"].mean(axis=0)
        loss = _symmetric_rise(X, Y, W1, W2, found.modes.A, config.theta)
        rows["D1"].append(found.modes.D1)
        rows["D2"].append(found.modes.D2[0])
        rows["variances"].append(found.variances)
        rows["predicted"].append(found.predicted)
        rows["loss"].append(loss)
        resampled = [
            theory.fit_exponent(
                found.z2[rng.integers(len(found.z2), size=len(found.z2))].var(0), loss
            )
            for _ in range(200)
        ]
        exponents.append(
            [
                theory.fit_exponent(found.variances, loss),
                np.std(resampled),
                theory.fit_exponent(found.predicted, found.modes.D1),
            ]
        )
    return Result(
        1 / config.inputs,
        config.theta,
        found.unit,
        *(np.array(value) for value in rows.values()),
        *np.array(exponents).T,
        chains=config.chains,
    )


def _symmetric_rise(X, Y, W1, W2, A, theta: float) -> np.ndarray:
    """Return [L(W₂+θaᵀ) + L(W₂−θaᵀ)]/2 − L(W₂) for every mode a."""
    hidden = W1 @ X
    base = Y - W2 @ hidden

    def loss(step: np.ndarray) -> np.ndarray:
        return np.mean((base - step @ hidden) ** 2, axis=1) / 2

    steps = theta * A.T
    return (loss(steps) + loss(-steps)) / 2 - np.mean(base**2) / 2


def plot(result: Result) -> Figure:
    """Draw the loss along modes, and variance against flatness for both starts."""
    figure, (left, right) = new_figure(columns=2, width="full", ratio=0.75)
    modes = np.arange(1, result.D1.shape[1] + 1)
    curvature = result.input_variance * result.D1[0]
    left.semilogy(modes, result.loss[0] / result.theta**2, "o", ms=3, label="SGD, measured")
    left.semilogy(modes, curvature / 2, "-", color="k", label=r"$\sigma_x^2 D_1/2$, Eq. (3.37)")
    approximate = result.input_variance * result.D2[0] * result.variances[0] / 2
    left.semilogy(modes, approximate, "--", color=COLORS[1], label=r"from $M_{22}$, Eq. (3.37)")
    left.set_xlabel("mode")
    left.set_ylabel(r"$\delta L/\theta^2$")
    left.legend()
    for row, name in enumerate(("standard start", "small first layer")):
        flatness = (2 * result.loss[row] / result.theta**2) ** -0.5
        order = np.argsort(flatness)
        color = COLORS[row]
        right.loglog(
            flatness,
            result.variances[row],
            "o",
            ms=3,
            color=color,
            label=f"{name}, ψ = {result.exponent[row]:.2f}",
        )
        right.loglog(flatness[order], result.predicted[row][order], "-", color=color, lw=1)
    right.set_xlabel(r"flatness $F$ = curvature$^{-1/2}$")
    right.set_ylabel(r"variance [$\lambda\sigma_y^2/2S$]")
    right.legend()
    return figure


def claims(result: Result) -> list[Claim]:
    """Judge the loss along modes and the exponent of the relation."""
    loss_ratio = result.loss[0] / (0.5 * result.input_variance * result.theta**2 * result.D1[0])
    gap = result.exponent - result.predicted_exponent
    approximate = result.variances[0] * result.D2[0] / result.D1[0]
    return [
        Claim.judge(
            f"{ID}/loss",
            place="Fig. 9(a), Eq. (3.37)",
            statement="The loss along a mode of W₂ is ½σx²θ²D₁.",
            expected=Band(0.95, 1.05, "closed form"),
            measured=float(loss_ratio.mean()),
            why="Mean ratio over modes, inputs not whitened.",
        ),
        Claim.judge(
            f"{ID}/second-form",
            place="Eq. (3.37), second form",
            statement="Written with M₂₂ the loss is the same (within 10% in the leading mode).",
            expected=Band(0.9, 1.1, "paper"),
            measured=float(approximate[0]),
            uncertainty=float(approximate[0] * np.sqrt(2 / result.chains)),
            why="The second form is too small by 1 + D₁/D₂.",
        ),
        Claim.judge(
            f"{ID}/psi-is-two",
            place="Sec. III C 3",
            statement="At standard initialisation the exponent ψ is 2.",
            expected=Band(1.9, 2.1, "paper"),
            measured=float(result.exponent[0]),
            uncertainty=float(result.exponent_error[0]),
            why="ψ = 2·D₂/(D₁+D₂) locally, and D₁ is not small against D₂.",
        ),
        Claim.judge(
            f"{ID}/psi-local",
            place="Eqs. (3.34), (3.37)",
            statement="The measured exponent is the theory's, 2·D₂/(D₁+D₂) over the modes.",
            expected=Band(-0.1, 0.1, "closed form"),
            measured=float(gap[0]),
            uncertainty=float(result.exponent_error[0]),
            why=f"Measured {result.exponent[0]:.2f}, theory {result.predicted_exponent[0]:.2f}.",
        ),
        Claim.judge(
            f"{ID}/psi-tends-to-two",
            place="Eq. (3.36)",
            statement="Where D₁ ≪ D₂ the exponent tends to 2.",
            expected=Band(1.85, 2.1, "closed form"),
            measured=float(result.exponent[1]),
            uncertainty=float(result.exponent_error[1]),
            why=f"Theory gives {result.predicted_exponent[1]:.2f} for this small first layer.",
        ),
    ]
