"""Fig. 4 of [ribbons]: what the initial weights contribute to the PCA matrix, beside its bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core import Band, Claim, derive_seed, numpy_generator
from hyperribbon.core.data import sloppy_inputs
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.statements import Ledger, exact, over_seeds, says
from hyperribbon.plots.style import COLORS, new_figure
from hyperribbon.theory.ribbons import Ribbon, weight_bound

ID = "ribbons/fig4"
TITLE = "Contribution of the initial weights, closed form and bound (Eq. 9)"

_SETTING = "σw² = 1, α = 1 and c = 0.5, as printed; n = 50, as in the other figures"
LEDGER = Ledger(
    ID,
    says(
        "bound",
        "Eq. (9)",
        "the eigenvalue λi^σw is bounded above by (σw²/α)·min{1, 2Tαλi}/(2 − αλi)",
        "No eigenvalue exceeds the bound, at any training time or index.",
        Band(0, 0, "printed"),
        setting=_SETTING,
    ),
    says(
        "long-training",
        "Fig. 4, caption",
        "For very large training times T ≫ λ1/λn […] λi^σw decays to ∼ σw²/2α as the index i "
        "increases",
        "At T = 1e14 the last eigenvalue is σw²/(2α) within 2%.",
        Band.around(1.0, "words", atol=0.02),
        setting=f"{_SETTING}; λ1/λn is 4e10",
    ),
    says(
        "simulation",
        "Eqs. (3) and (5)",
        "The first term P1^σw(T) = (σw²/T) Σ Kd^2t K depends on the variance of initial weights",
        "Gradient descent from random weights has the closed form's variances along the "
        "eigenvectors of K, within 2% on average.",
        Band.around(1.0, "closed form", atol=0.02),
        setting=_SETTING,
        needs="the models of preset laptop",
        compare="mean",
    ),
)


@dataclass(frozen=True)
class Config:
    """Setting of the figure.

    Attributes:
        samples: n, with as many input dimensions.
        slope: c of the input eigenvalues exp(−c(i−1)).
        alpha: Learning rate.
        steps: Training times T drawn from the closed form.
        simulated_steps: Training times at which gradient descent is run too.
        batches: Independent batches of initialisations.
        initialisations: Initial weights in a batch.
    """

    samples: int = 50
    slope: float = 0.5
    alpha: float = 1.0
    steps: tuple[int, ...] = (1, 10, 100, 1000, 10_000, 10**6, 10**14)
    simulated_steps: tuple[int, ...] = (1, 10, 100, 1000)
    batches: int = 8
    initialisations: int = 500


PRESETS = {
    "smoke": Config(simulated_steps=(1, 10, 100), batches=2, initialisations=200),
    "laptop": Config(),
    "paper": Config(simulated_steps=(1, 10, 100, 1000, 10_000), batches=40),
}


@dataclass(frozen=True)
class Result:
    """Eigenvalues of T·P₁^σ by training time.

    Attributes:
        steps: (t,), training times.
        closed_form: (t, n).
        bound: (t, n), Eq. (9).
        violations: Number of entries above the bound.
        simulated_steps: (s,).
        simulated: (s, n), mean over initialisations of gradient descent.
        ratios: (batches,), simulated over closed form, mean over indices at the last time.
        initialisations: Number of initial weights simulated.
        alpha: Learning rate.
    """

    steps: np.ndarray
    closed_form: np.ndarray
    bound: np.ndarray
    violations: int
    simulated_steps: np.ndarray
    simulated: np.ndarray
    ratios: np.ndarray
    initialisations: int
    alpha: float


def compute(config: Config, context: Context) -> Result:
    """Evaluate the closed form and its bound, and run gradient descent beside them."""
    bounds = [
        weight_bound(
            Ribbon.exponential(config.samples, config.slope, alpha=config.alpha, steps=steps)
        )
        for steps in config.steps
    ]
    items = [
        {
            "samples": config.samples,
            "slope": config.slope,
            "alpha": config.alpha,
            "steps": list(config.simulated_steps),
            "initialisations": config.initialisations,
            "inputs_seed": derive_seed(context.seed, "inputs"),
            "seed": derive_seed(context.seed, "weights", batch),
        }
        for batch in range(config.batches)
    ]
    simulated = context.map(_simulate, items, "gradient descent")
    last = bounds[config.steps.index(config.simulated_steps[-1])].truth
    return Result(
        steps=np.array(config.steps),
        closed_form=np.array([bound.truth for bound in bounds]),
        bound=np.array([bound.upper for bound in bounds]),
        violations=int(sum(bound.violations().sum() for bound in bounds)),
        simulated_steps=np.array(config.simulated_steps),
        simulated=np.mean(simulated, axis=0),
        ratios=(np.array(simulated)[:, -1] / last).mean(axis=1),
        initialisations=config.batches * config.initialisations,
        alpha=config.alpha,
    )


def _simulate(item: Mapping[str, Any]) -> np.ndarray:
    """Train a batch of linear models on zero targets.

    Returns:
        (s, n): for each training time, the sum over steps of the squared residual along each
        eigenvector of K, averaged over the initialisations.
    """
    samples, alpha = item["samples"], item["alpha"]
    inputs, _ = sloppy_inputs(samples, samples, item["slope"], item["inputs_seed"])
    eigenvectors = np.linalg.svd(inputs)[0]
    rng = numpy_generator(item["seed"])
    weights = rng.standard_normal((samples, item["initialisations"]))
    total = np.zeros(samples)
    recorded = []
    for step in range(1, max(item["steps"]) + 1):
        residuals = inputs @ weights / np.sqrt(samples)
        total += ((eigenvectors.T @ residuals) ** 2).mean(axis=1)
        if step in item["steps"]:
            recorded.append(total.copy())
        weights -= alpha / np.sqrt(samples) * (inputs.T @ residuals)
    return np.array(recorded)


def plot(result: Result) -> Figure:
    """Draw eigenvalues against their index: closed form, bound and simulation."""
    figure, axis = new_figure(ratio=0.95)
    index = np.arange(1, result.closed_form.shape[1] + 1)
    simulated = dict(zip(result.simulated_steps.tolist(), result.simulated, strict=True))
    for color, steps, truth, bound in zip(
        COLORS, result.steps.tolist(), result.closed_form, result.bound, strict=False
    ):
        axis.semilogy(index, truth, color=color, label=f"$T={_power(steps)}$")
        axis.semilogy(index, bound, color=color, ls=":", lw=1.2)
        if steps in simulated:
            axis.semilogy(index[::3], simulated[steps][::3], "o", color=color, ms=3, mfc="none")
    axis.set(xlabel="index $i$", ylabel=r"eigenvalue $\lambda_i$ of $T\,P_1^{\sigma_w}(T)$")
    axis.set_ylim(1e-12, 4)
    curves = axis.legend(loc="lower left", title=None, handlelength=1.2)
    axis.add_artist(curves)
    styles = [
        axis.plot([], [], color="0.3", ls="-", label="closed form")[0],
        axis.plot([], [], color="0.3", ls=":", label="bound, Eq. (9)")[0],
        axis.plot([], [], "o", color="0.3", mfc="none", ms=3, label="gradient descent")[0],
    ]
    axis.legend(handles=styles, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3,
                handlelength=1.5, columnspacing=1.0)  # fmt: skip
    return figure


def _power(steps: int) -> str:
    exponent = len(str(steps)) - 1
    return str(steps) if steps < 1000 else f"10^{{{exponent}}}"


def claims(result: Result) -> list[Claim]:
    """Judge the bound, the limit of long training and the simulation."""
    return LEDGER.judge(
        {
            "bound": exact(result.violations, f"entries above the bound, of {result.bound.size}"),
            "long-training": exact(
                result.closed_form[-1, -1] * 2 * result.alpha,
                f"last eigenvalue at T = {result.steps[-1]:.0e} over σw²/(2α)",
            ),
            "simulation": over_seeds(
                result.ratios,
                f"one value a batch, {result.initialisations} models in all, T = "
                f"{result.simulated_steps[-1]}",
            ),
        }
    )
