"""The loss along principal modes of the fluctuations of a one-layer network is isotropic."""

from __future__ import annotations

import numpy as np

from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.fluctuations import GOOD, _regression
from hyperribbon.theory import fluctuations as theory

TITLE = "Loss along the modes of a one-layer network"

STATEMENTS = (
    kit.says(
        "isotropic-loss",
        "Fig. 6(a), caption",
        "The simulation results superimpose on the theoretical prediction δL = ½θ²σx² (dashed "
        "curve) for large sample numbers.",
        "The curvature along each of SGD's modes is σx² within a tenth (our threshold), root mean "
        "square over the modes.",
        kit.Band.at_most(GOOD, "words"),
        setting="N = 100, P = 2000, λ = 0.1, S = 10 as printed",
        needs="N = 100 and P = 2000",
        changed="2026-11-17: the mean over all modes before, which is tr H/N for any modes",
    ),
    kit.says(
        "no-relation",
        "Sec. II C 2",
        "We thus conclude that the IVFR is not fulfilled for a typical single-layer linear "
        "network.",
        "Log variance and log curvature of the modes of M are uncorrelated, within ±0.3 in the "
        "mean over data sets (our threshold).",
        kit.Band(-0.3, 0.3, "words"),
        setting="N = 100, P = 2000; modes of Eq. (2.30), of which the paper says it",
        compare="mean",
        changed="2026-11-16: modes of one run of SGD before, whose correlation changed sign with "
        "the seed",
    ),
)


class Config(_regression.RegressionConfig):
    """Data set of Fig. 6(a) of [fluctuations]; length of the simulation; modes drawn; data sets."""

    inputs: int = 100
    samples: int = 2000
    steps: int = 150_000
    chains: int = 128
    shown: int = 8
    realisations: int = 30


PRESETS = kit.presets(
    Config(),
    smoke=Config(inputs=20, samples=400, steps=4000, shown=4, realisations=5),
    paper=Config(steps=500_000),
)


class Result(kit.Frozen):
    """Variance and curvature (N,) along the measured modes, from the largest variance down.

    `correlations` (realisations,) are those of their logarithms along the modes of Eq. (2.30).
    """

    inputs: int
    variances: np.ndarray
    curvatures: np.ndarray
    shown: list
    correlations: np.ndarray


def compute(config: Config, context: kit.Context) -> Result:
    """Measure M by SGD and curvature along its modes; repeat with Eq. (2.30) (Fig. 6(a))."""
    item = config.item(context.seed)
    part = context.map(_regression.simulate_fluctuations, [item], label="chains of SGD")[0]
    variances, modes = np.linalg.eigh(part["covariance"])
    unit = theory.isotropic_variance(config.lr, config.label_variance, config.batch_size)
    data_sets = _regression.data_sets({**item, "realisations": config.realisations})
    return Result(
        config.inputs,
        variances[::-1] / unit,
        _regression.along_modes(part["hessian"], modes)[::-1],
        np.linspace(0, config.inputs - 1, config.shown).astype(int).tolist(),
        np.array([_correlation(X, Y, config) for X, Y, _ in data_sets]),
    )


def _correlation(X: np.ndarray, Y: np.ndarray, config: Config) -> float:
    """Return Fig. 6(a)'s correlation of log variance and log curvature along the modes."""
    H, C = theory.hessian(X), theory.noise_covariance(X, Y, config.batch_size)
    variances, modes = np.linalg.eigh(theory.lyapunov_covariance(H, C, config.lr))
    curvatures = _regression.along_modes(H, modes)
    return float(np.corrcoef(np.log(variances), np.log(curvatures))[0, 1])


def plot(result: Result) -> kit.Figure:
    """Draw parabolas of the loss along modes, and the eigenvalues beside them (Fig. 6(a))."""
    figure, (left, right) = kit.new_figure(columns=2, width="full", ratio=0.75)
    theta = np.linspace(-1, 1, 101)
    for mode in result.shown:
        left.plot(theta, 0.5 * theta**2 * result.curvatures[mode], lw=1, label=f"mode {mode + 1}")
    isotropic = 0.5 * theta**2 / result.inputs
    left.plot(theta, isotropic, "--", color="k", label=r"$\theta^2\sigma_x^2/2$")
    left.set(xlabel=r"perturbation $\theta$", ylabel=r"$\delta L(\theta v_i)$")
    left.legend(ncols=2, fontsize=7)
    label = r"variance [$\lambda\sigma_\epsilon^2/2S$]"
    right.semilogy(result.variances, "o", ms=2.5, color=kit.COLORS[0], label=label)
    relative, label = result.curvatures * result.inputs, r"curvature [$\sigma_x^2$]"
    right.semilogy(relative, "s", ms=2.5, color=kit.COLORS[1], label=label)
    right.set_xlabel("mode, by variance")
    right.legend()
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure isotropy and the absence of an inverse relation (Fig. 6(a) of [fluctuations])."""
    relative = result.curvatures * result.inputs
    spread = np.sqrt(np.mean((relative - 1) ** 2))
    simulated = np.corrcoef(np.log(result.variances), np.log(relative))[0, 1]
    return {
        "isotropic-loss": kit.estimate(
            spread,
            spread / np.sqrt(2 * result.inputs),
            f"curvatures over σx² lie between {relative.min():.2f} and {relative.max():.2f}",
        ),
        "no-relation": kit.over_seeds(
            result.correlations,
            f"one value per data set; {simulated:+.2f} along the modes of SGD in one of them",
        ),
    }
