"""Weight decay in Sec. III of [ribbons]: the exact form, the printed one and simulation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core import Band, Claim, derive_seed
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.ribbons._simulation import (
    fixed_problem,
    moments_of_training,
    pca_spectra,
)
from hyperribbon.experiments.statements import Ledger, observe, over_seeds, says
from hyperribbon.experiments.statements import exact as exactly
from hyperribbon.plots.style import COLORS, new_figure
from hyperribbon.theory.ribbons import Ribbon, dimensions_of, spectrum_bound

ID = "ribbons/weight_decay"
TITLE = "Weight decay: the exact covariance and the printed replacement"

LEDGER = Ledger(
    ID,
    says(
        "printed",
        "Sec. III, weight decay",
        "All our calculations in Section II hold with K replaced by Kλ, i.e., with each λi^Kλ = "
        "λi^K + λ.",
        "With that replacement Eq. (5) gives the dimensions of trained models, within one.",
        Band(-1, 1, "words"),
        setting="Fig. 5's setting with weight decay 0.01; the paper gives no numbers",
    ),
    says(
        "bound-printed",
        "Sec. III, weight decay",
        "λi/λ1 ≤ min{1, 4ρ^(−(i−1)) + (1/‖y‖²)(σw²/α + λ)}",
        "No relative eigenvalue of P1 under weight decay exceeds the printed bound.",
        Band(0, 0, "printed"),
        setting="108 settings of c, T, σw and λ under the lemma's assumptions",
    ),
    observe(
        "bound",
        "Sec. III, weight decay",
        "Lemma 3 holds with K(K + λI)⁻¹y in place of y and without the term +λ.",
        Band(0, 0, "closed form"),
    ),
    observe(
        "exact",
        "Sec. III, weight decay",
        "With K + λI in the dynamics, K in the start and K(K + λI)⁻¹y for y, the largest "
        "eigenvalue is that of trained models within 3%.",
        Band.around(1.0, "closed form", atol=0.03),
        needs="the models of preset laptop",
        compare="mean",
    ),
)


@dataclass(frozen=True)
class Config:
    """Setting of Fig. 5 with weight decay.

    Attributes:
        samples: n.
        slope: c.
        steps: T.
        variance_w: σw².
        variance_star: σ*².
        decays: Coefficients μ of weight decay.
        batches: Independent batches of models for each μ.
        initialisations: Models in a batch.
    """

    samples: int = 50
    slope: float = 0.2
    steps: int = 50
    variance_w: float = 0.1
    variance_star: float = 2.0
    decays: tuple[float, ...] = (0.0, 0.01, 0.1)
    batches: int = 6
    initialisations: int = 1000


PRESETS = {
    "smoke": Config(batches=2, initialisations=300),
    "laptop": Config(),
    "paper": Config(batches=20, initialisations=2000),
}


@dataclass(frozen=True)
class Result:
    """Spectra of P by weight decay.

    Attributes:
        decays: (m,).
        exact: (m, n).
        printed: (m, n), with K replaced by K + μI everywhere.
        simulated: (m, n), trained models.
        dimensions: (m, 3), for 95% of the variance: exact, printed, simulated.
        ratios: (m, batches), largest eigenvalue of trained models over exact theory.
        violations: Of Lemma 3 in the verified form, over many settings.
        printed_violations: In the printed form.
        settings: Number of those settings.
        initialisations: Models in a batch.
    """

    decays: np.ndarray
    exact: np.ndarray
    printed: np.ndarray
    simulated: np.ndarray
    dimensions: np.ndarray
    ratios: np.ndarray
    violations: int
    printed_violations: int
    settings: int
    initialisations: int


def compute(config: Config, context: Context) -> Result:
    """Evaluate both forms and train with weight decay."""
    exact, printed, simulated, ratios, dimensions = [], [], [], [], []
    for mu in config.decays:
        alpha = 1 / (1 + mu)
        item = {
            "samples": config.samples,
            "dimensions": 2 * config.samples,
            "slope": config.slope,
            "steps": [config.steps],
            "sigma_w": config.variance_w**0.5,
            "sigma_star": config.variance_star**0.5,
            "alpha": alpha,
            "initialisations": config.initialisations,
            "inputs_seed": derive_seed(context.seed, "inputs"),
            "weight_decay": mu,
        }
        X, y, plain = fixed_problem(item)
        ribbon = Ribbon.from_data(X, y, item["sigma_w"], alpha, config.steps, weight_decay=mu)
        replaced = Ribbon(plain.eigenvalues + mu, plain.targets, plain.sigma_w, alpha, config.steps)
        runs = context.map(
            moments_of_training,
            [
                {**item, "seed": derive_seed(context.seed, "wd", batch)}
                for batch in range(config.batches)
            ],
            f"weight decay {mu:g}",
        )
        time, count = (config.steps,), config.initialisations
        each = np.array([pca_spectra([run], count, time)[0] for run in runs])
        together = pca_spectra(runs, count, time)[0]
        exact.append(ribbon.spectrum())
        printed.append(replaced.spectrum())
        simulated.append(together)
        ratios.append(each[:, 0] / ribbon.spectrum()[0])
        dimensions.append([ribbon.dimensions(), replaced.dimensions(), dimensions_of(together)])
    violations, printed_violations, settings = _test_bound()
    return Result(
        decays=np.array(config.decays),
        exact=np.array(exact),
        printed=np.array(printed),
        simulated=np.array(simulated),
        dimensions=np.array(dimensions),
        ratios=np.array(ratios),
        violations=violations,
        printed_violations=printed_violations,
        settings=settings,
        initialisations=config.initialisations,
    )


def _test_bound() -> tuple[int, int, int]:
    violations = printed = settings = 0
    for slope in (0.01, 0.05, 0.2, 0.5):
        for mu in (1e-4, 1e-2, 0.3):
            for steps in (5, 100, 3000):
                for sigma_w in (0.03, 0.3, 3.0):
                    ribbon = Ribbon.exponential(
                        50, slope, sigma_w=sigma_w, alpha=1 / (1 + mu), steps=steps, weight_decay=mu
                    )
                    violations += bool(spectrum_bound(ribbon).violations().any())
                    printed += bool(spectrum_bound(ribbon, "printed").violations().any())
                    settings += 1
    return violations, printed, settings


def plot(result: Result) -> Figure:
    """Draw the spectra: exact, printed and trained."""
    figure, axis = new_figure(ratio=0.9)
    index = np.arange(1, result.exact.shape[1] + 1)
    rows = zip(COLORS, result.decays, result.exact, result.printed, result.simulated, strict=False)
    for color, mu, exact, printed, simulated in rows:
        axis.semilogy(index, exact, color=color, label=rf"$\mu={mu:g}$")
        axis.semilogy(index, printed, color=color, ls=":")
        axis.semilogy(index[::3], simulated[::3], "o", color=color, mfc="white", ms=3)
    axis.set(xlabel="index $i$", ylabel="eigenvalue of $P(T)$", ylim=(1e-8, 2))
    axis.add_artist(axis.legend(loc="upper right"))
    styles = [
        axis.plot([], [], color="0.3", label="exact")[0],
        axis.plot([], [], color="0.3", ls=":", label=r"$K\to K+\mu I$ everywhere")[0],
        axis.plot([], [], "o", color="0.3", mfc="white", ms=3, label="trained")[0],
    ]
    axis.legend(handles=styles, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3,
                handlelength=1.5, columnspacing=1.0)  # fmt: skip
    return figure


def claims(result: Result) -> list[Claim]:
    """Judge the printed replacement, both bounds and the exact form."""
    row = int(np.flatnonzero(result.decays > 0)[0])
    exact, printed, simulated = result.dimensions[row]
    settings = f"settings of {result.settings} with a violation"
    return LEDGER.judge(
        {
            "printed": over_seeds(
                [printed - simulated],
                f"{printed} dimensions by it, {simulated} of trained models, {exact} in the exact "
                "form: the initial covariance stays σw²K, and the fixed point is not y",
            ),
            "bound-printed": exactly(result.printed_violations, settings),
            "bound": exactly(result.violations, settings),
            "exact": over_seeds(
                result.ratios[result.decays > 0].mean(axis=0),
                "mean over decays, one value a batch of models",
            ),
        }
    )
