"""Extreme eigenvalues of the weight covariance, with and without detailed balance."""

from __future__ import annotations

import numpy as np

from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.fluctuations import ROUGH, _regression
from hyperribbon.theory import fluctuations as theory

TITLE = "Detailed balance against the exact covariance"

STATEMENTS = kit.at_scale(
    "N = 100 and 20 data sets",
    kit.says(
        "balance-at-two",
        "Sec. II C 1, on Fig. 5(c)",
        "We infer that the detailed balance approximation for M given in Eq. (2.33) is applicable "
        "for P ≳ 2N.",
        "At P = 2N the ordered eigenvalues of Eq. (2.33) are those of Eq. (2.30) within a quarter "
        "(our threshold), root mean square over all of them.",
        kit.Band.at_most(ROUGH, "words"),
        setting="N = 100, means over data sets as the figure draws them",
        changed="2026-11-18: the smallest of 100 eigenvalues decided before; 2026-11-17: within a "
        "tenth",
    ),
    kit.says(
        "broken-balance",
        "Sec. II C 1",
        "While, generally, detailed balance is broken for SGD",
        "Near the threshold, at P = 1.1N, the ordered eigenvalues of Eq. (2.33) are off those of "
        "Eq. (2.30) by more than a quarter (our threshold), root mean square over all of them.",
        kit.Band.at_least(ROUGH, "words"),
        setting="N = 100, means over data sets",
        changed="2026-11-18: the smallest or the largest eigenvalue before",
    ),
    kit.says(
        "current-peak",
        "Sec. II C 1, on Fig. 5(c)",
        "This is also corroborated by the behavior of the eigenvalues of Q [Eq. (2.31), dashed "
        "lines], which peak around P ≈ N, and decay for larger sample numbers.",
        "The largest eigenvalue of Q is largest where P/N is one within a quarter (our threshold).",
        kit.Band(1, 1 + ROUGH, "words"),
        setting="N = 100, P/N from 1.02 to 100, means over data sets",
        changed="2026-11-17: up to 1.2 before, which the paper does not print",
    ),
    kit.says(
        "isotropy",
        "Sec. II C 1, on Fig. 5(c)",
        "we finally conclude that the weight fluctuations become essentially isotropic [see Eq. "
        "(2.34)] for P ≳ 100N",
        "At P = 100N the eigenvalues of M are that of Eq. (2.34) within a quarter (our threshold), "
        "root mean square over all of them.",
        kit.Band.at_most(ROUGH, "words"),
        setting="N = 100, means over data sets as the figure draws them",
        changed="2026-11-18: the smallest and the largest of 100 eigenvalues before, whose "
        "distance no "
        "word of the paper bounds; 2026-11-17: their ratio below 1.1",
    ),
    kit.observe(
        "balance-at-ten",
        "Sec. II C 1",
        "At P = 10N detailed balance gives both extreme eigenvalues within 5%.",
        kit.Band.at_most(0.05, "words"),
    ),
    kit.observe(
        "defect-peak",
        "Sec. II C 1",
        "Relative to the noise, ‖Q‖/‖C‖ is largest between P = N and 1.5N.",
        kit.Band(1.0, 1.5, "words"),
    ),
)

_RATIOS = (1.02, 1.05, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0, 20.0, 50.0, 100.0)


class Config(kit.Frozen):
    """Input dimension, ratios P/N, realisations (Fig. 5(c) of [fluctuations])."""

    inputs: int = 100
    ratios: tuple[float, ...] = _RATIOS
    realisations: int = 20


PRESETS = kit.presets(
    Config(),
    smoke=Config(inputs=20, ratios=(1.1, 1.5, 2.0, 4.0, 10.0, 100.0), realisations=4),
    paper=Config(realisations=100),
)


class Result(kit.Frozen):
    """Means over data (ratios,), eigenvalues in units λσε²/(2S) (Fig. 5(c) of [fluctuations])."""

    ratios: np.ndarray
    low: np.ndarray
    high: np.ndarray
    balance_low: np.ndarray
    balance_high: np.ndarray
    current: np.ndarray  # largest |eigenvalue| of Q
    weakest: np.ndarray  # smallest one
    defect: np.ndarray  # ‖Q‖/‖C‖
    balance_error: np.ndarray  # of the ordered eigenvalues of Eq. (2.33), root mean square
    anisotropy: np.ndarray  # of the eigenvalues of M about one, root mean square


def compute(config: Config, context: kit.Context) -> Result:
    """Evaluate Eqs. (2.30), (2.31) and (2.33) on many data sets (Fig. 5(c) of [fluctuations])."""
    parts = context.map(_extremes, _regression.ratio_items(config, context.seed))
    return Result(np.array(config.ratios), *np.array([part["means"] for part in parts]).T)


def _extremes(item: kit.Item) -> dict:
    lr, S, label_variance = 0.1, 10, item["label_variance"]
    unit = theory.isotropic_variance(lr, label_variance, S)
    rows, spectra = [], []
    for X, Y, _ in _regression.data_sets(item):
        H, C = theory.hessian(X), theory.noise_covariance(X, Y, S)
        exact = np.linalg.eigvalsh(theory.lyapunov_covariance(H, C, lr)) / unit
        balance = np.linalg.eigvalsh(theory.detailed_balance_covariance(H, C, lr)) / unit
        Q = theory.antisymmetric_part(H, C)
        currents = np.linalg.svd(Q, compute_uv=False) / unit
        defect = np.linalg.norm(Q) / np.linalg.norm(C)
        extremes = [exact[0], exact[-1], balance[0], balance[-1], currents[0], currents[-1]]
        rows.append([*extremes, defect])
        spectra.append([exact, balance])
    exact, balance = np.mean(spectra, axis=0)
    spread = [np.sqrt(np.mean((part - 1) ** 2)) for part in (balance / exact, exact)]
    return {"means": np.array([*np.mean(rows, axis=0), *spread])}


def plot(result: Result) -> kit.Figure:
    """Draw the extremes against P/N − 1 (Fig. 5(c) of [fluctuations])."""
    figure, (left, right) = kit.new_figure(columns=2, width="full", ratio=0.75)
    x = result.ratios - 1
    for exact, balance, color, name in (
        (result.high, result.balance_high, kit.COLORS[1], "largest"),
        (result.low, result.balance_low, kit.COLORS[0], "smallest"),
    ):
        left.loglog(x, exact, "-", color=color, label=f"{name}, Eq. (2.30)")
        left.loglog(x, balance, ":", color=color, label=f"{name}, detailed balance")
    for values, color, name in (
        (result.current, kit.COLORS[1], "largest"),
        (result.weakest, kit.COLORS[0], "smallest"),
    ):
        left.loglog(x, values, "--", color=color, label=f"{name} $|q|$ of $Q$")
    left.axhline(1, color="0.7", lw=0.8)
    left.set(xlabel="P/N − 1", ylabel=r"eigenvalues [$\lambda\sigma_\epsilon^2/2S$]")
    left.legend(fontsize=6, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    for values, style, color, label in (
        (result.current / result.current.max(), "-o", kit.COLORS[2], "largest $|q|$ over its peak"),
        (result.defect, "-s", kit.COLORS[3], r"$\|Q\|_F/\|C\|_F$"),
        (result.balance_error, ":^", kit.COLORS[4], "Eq. (2.33) against (2.30), r.m.s."),
        (result.anisotropy, "-v", kit.COLORS[5], "Eq. (2.30) against 1, r.m.s."),
    ):
        right.semilogx(x, values, style, ms=3, color=color, label=label)
    right.set(xlabel="P/N − 1", ylim=(0, 1.1))
    right.legend(fontsize=6, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure the statements that the paper reads off this figure (Fig. 5(c) of [fluctuations])."""
    low, high = result.balance_low / result.low - 1, result.balance_high / result.high - 1
    near, two, ten, far = (int(np.argmin(abs(result.ratios - at))) for at in (1.1, 2, 10, 100))

    def balance(at: int) -> kit.Observed:
        why = f"smallest off by {low[at]:+.0%}, largest by {high[at]:+.0%}; their sum is exact"
        return kit.over_seeds(result.balance_error[at], why)

    return {
        "balance-at-two": balance(two),
        "broken-balance": balance(near),
        "balance-at-ten": kit.over_seeds(max(abs(low[ten]), abs(high[ten])), "the worse of both"),
        "current-peak": kit.over_seeds(
            result.ratios[np.argmax(result.current)],
            "P/N at which |Q| is largest; near N the noise itself vanishes",
        ),
        "defect-peak": kit.over_seeds(
            result.ratios[np.argmax(result.defect)], f"its maximum is {result.defect.max():.2f}"
        ),
        "isotropy": kit.over_seeds(
            result.anisotropy[far],
            f"eigenvalues from {result.low[far]:.2f} to {result.high[far]:.2f} of λσε²/(2S); the "
            "spread falls only like √(N/P)",
        ),
    }
