"""Fig. 6 of [ribbons]: the bound of Lemma 3 beside the eigenvalues it bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core import Band, Claim, derive_seed, numpy_generator
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.ribbons._simulation import moments_of_training, sampling_band
from hyperribbon.plots.style import COLORS, new_figure
from hyperribbon.theory.ribbons import Ribbon, decay_base, spectrum_bound, target_decay_bound

ID = "ribbons/fig6"
TITLE = "Lemma 3: bound and truth for several slopes"


@dataclass(frozen=True)
class Config:
    """Setting of the figure (the paper does not state T and the variances).

    Attributes:
        samples: n.
        slopes: c.
        steps: T.
        sigma_w: Standard deviation of the initial weights.
        sigma_star: Standard deviation of the true weights.
        initialisations: Trained models for each slope.
        cases: Random settings in which the lemmas are tested.
        cases_at_once: Settings in one item.
    """

    samples: int = 50
    slopes: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2, 0.5)
    steps: int = 50
    sigma_w: float = 0.1
    sigma_star: float = 1.0
    initialisations: int = 2000
    cases: int = 20_000
    cases_at_once: int = 2000


PRESETS = {
    "smoke": Config(initialisations=200, cases=200, cases_at_once=100),
    "laptop": Config(),
    "paper": Config(cases=500_000, cases_at_once=20_000),
}


@dataclass(frozen=True)
class Result:
    """Relative eigenvalues of P₁.

    Attributes:
        slopes: (s,).
        truth: (s, n), λᵢ/λ₁ in closed form.
        bound: (s, n), Lemma 3.
        simulated: (s, n), from trained models.
        cases: Random settings tested.
        violations: Of Lemma 3, in how many of them.
        violations_lemma1: Of Lemma 1.
        tightest: Largest ratio of truth to bound over all cases, index 2 and above.
        rates: (s,), how many times faster P₁^y decays than Lemma 1 says.
        initialisations: Trained models for each slope.
    """

    slopes: np.ndarray
    truth: np.ndarray
    bound: np.ndarray
    simulated: np.ndarray
    cases: int
    violations: int
    violations_lemma1: int
    tightest: float
    rates: np.ndarray
    initialisations: int


def compute(config: Config, context: Context) -> Result:
    """Evaluate bound and truth, train models, and test the lemmas in random settings."""
    setting: dict[str, Any] = {
        "sigma_w": config.sigma_w,
        "sigma_star": config.sigma_star,
        "alpha": 1.0,
    }
    ribbons = [
        Ribbon.exponential(config.samples, slope, steps=config.steps, **setting)
        for slope in config.slopes
    ]
    bounds = [spectrum_bound(ribbon) for ribbon in ribbons]
    items = [
        {
            "samples": config.samples,
            "dimensions": 2 * config.samples,
            "slope": slope,
            "steps": [config.steps],
            "initialisations": config.initialisations,
            "inputs_seed": derive_seed(context.seed, "inputs"),
            "seed": derive_seed(context.seed, "weights", slope),
            **setting,
        }
        for slope in config.slopes
    ]
    moments = context.map(moments_of_training, items, "gradient descent")
    spectra = np.linalg.eigvalsh(np.array([moment["second"][0] for moment in moments]))[:, ::-1]
    tests = context.map(
        _test_lemmas,
        [
            {"cases": config.cases_at_once, "seed": derive_seed(context.seed, "cases", part)}
            for part in range(config.cases // config.cases_at_once)
        ],
        "random settings",
    )
    return Result(
        slopes=np.array(config.slopes),
        truth=np.array([bound.truth for bound in bounds]),
        bound=np.array([bound.upper for bound in bounds]),
        simulated=spectra / spectra[:, :1],
        cases=sum(test["cases"] for test in tests),
        violations=sum(test["lemma3"] for test in tests),
        violations_lemma1=sum(test["lemma1"] for test in tests),
        tightest=max(test["tightest"] for test in tests),
        rates=np.array([_rate(ribbon) for ribbon in ribbons]),
        initialisations=config.initialisations,
    )


def _test_lemmas(item: Mapping[str, Any]) -> dict[str, Any]:
    """Count violations of Lemmas 1 and 3 over random n, c, α, T, σ*/σw and targets."""
    rng = numpy_generator(item["seed"])
    lemma1 = lemma3 = 0
    tightest = 0.0
    for _ in range(item["cases"]):
        ribbon = Ribbon.exponential(
            int(rng.integers(2, 61)),
            float(10 ** rng.uniform(-3, 0.5)),
            sigma_star=float(10 ** rng.uniform(-2, 2)),
            alpha=float(rng.uniform(0.01, 1)),
            steps=int(10 ** rng.uniform(0, 7)),
            rng=rng,
        )
        third = spectrum_bound(ribbon)
        lemma3 += bool(third.violations().any())
        lemma1 += bool(target_decay_bound(ribbon).violations().any())
        tightest = max(tightest, float((third.truth / third.upper)[1:].max()))
    return {"cases": item["cases"], "lemma1": lemma1, "lemma3": lemma3, "tightest": tightest}


def _rate(ribbon: Ribbon) -> float:
    """Return the decay of log λ^y an index over log ρ, where eigenvalues are above rounding."""
    truth = target_decay_bound(ribbon).truth
    last = int(np.flatnonzero(truth > 1e-12)[-1])
    decay = np.log(truth[0] / truth[last]) / (2 * last)
    return float(decay / np.log(decay_base(ribbon.eigenvalues)))


def plot(result: Result) -> Figure:
    """Draw truth (solid), bound (dashed) and trained models (circles) by slope."""
    figure, axis = new_figure(ratio=0.95)
    index = np.arange(1, result.truth.shape[1] + 1)
    for color, slope, truth, bound, simulated in zip(
        COLORS, result.slopes, result.truth, result.bound, result.simulated, strict=False
    ):
        axis.semilogy(index, truth, color=color, label=f"$c={slope:g}$")
        axis.semilogy(index, np.minimum(bound, 1), color=color, ls="--", lw=1)
        axis.semilogy(index[::4], simulated[::4], "o", color=color, mfc="white", ms=3)
    axis.set(xlabel="index $i$", ylabel=r"$\lambda_i/\lambda_1$ of $P_1(T)$", ylim=(1e-9, 3))
    axis.add_artist(axis.legend(loc="lower left", ncols=1))
    styles = [
        axis.plot([], [], color="0.3", label="closed form")[0],
        axis.plot([], [], color="0.3", ls="--", lw=1, label="Lemma 3")[0],
        axis.plot([], [], "o", color="0.3", mfc="white", ms=3, label="trained models")[0],
    ]
    axis.legend(handles=styles, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3,
                handlelength=1.5, columnspacing=1.0)  # fmt: skip
    return figure


def _deviation(result: Result) -> tuple[np.ndarray, np.ndarray]:
    """Return relative differences of λ₂/λ₁ and λ₃/λ₁ from the closed form and their error.

    Both eigenvalues of the ratio move by the error of the covariance, in units of λ₁.
    """
    found = np.abs(result.simulated / result.truth - 1)[:, 1:3]
    moves = [sampling_band(truth, result.initialisations).high - 1 for truth in result.truth]
    return found, np.array(moves)[:, None] * (1 / result.truth[:, 1:3] + 1)


def claims(result: Result) -> list[Claim]:
    """Judge the lemmas, the decay of the targets' part and the simulation."""
    informative = (result.bound.min(axis=1) < 1).sum()
    deviation, allowed = _deviation(result)
    return [
        Claim.judge(
            f"{ID}/lemma-3",
            place="Lemma 3",
            statement="No relative eigenvalue of P1 exceeds the bound",
            expected=Band(0, 0, "paper"),
            measured=result.violations,
            why=f"violations in {result.cases} random settings; the closest comes to "
            f"{result.tightest:.2f} of it",
        ),
        Claim.judge(
            f"{ID}/lemma-1",
            place="Lemma 1",
            statement="No odd eigenvalue of the targets' part exceeds the bound",
            expected=Band(0, 0, "paper"),
            measured=result.violations_lemma1,
            why=f"violations in {result.cases} random settings",
        ),
        Claim.judge(
            f"{ID}/twice-as-fast",
            place="Sec. II.C",
            statement="The targets' part decays about twice as fast as Lemma 1 says",
            expected=Band(1.5, 2.5, "paper"),
            measured=np.median(result.rates),
            why="twice, rounded; median over slopes of the decay an index over ln ρ; by slope "
            + ", ".join(f"{rate:.1f}" for rate in result.rates),
        ),
        Claim.judge(
            f"{ID}/informative",
            place="Fig. 6",
            statement="The bound is below 1 somewhere for every slope shown",
            expected=Band(len(result.slopes), len(result.slopes), "paper"),
            measured=informative,
            why="slopes with a bound below 1; 4ρ^(1−k*) exceeds 1 when k* is small and ρ near 1",
        ),
        Claim.judge(
            f"{ID}/simulation",
            place="Eq. (5)",
            statement="Trained models have the closed form's second and third relative eigenvalues",
            expected=Band.at_most(1.0, "closed form"),
            measured=(deviation / allowed).max(),
            why="largest difference over the error of a covariance from "
            f"{result.initialisations} models; relative differences up to {deviation.max():.1%}",
        ),
    ]
