"""Relaxation of the loss and of single weight modes near the interpolation threshold."""

from __future__ import annotations

import numpy as np

from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.fluctuations import GOOD, ROUGH, _regression
from hyperribbon.papers.simulation import trace_one_layer
from hyperribbon.theory import fluctuations as theory

TITLE = "Relaxation of weight modes"

STATEMENTS = kit.at_scale(
    "N = 50 and P = 52",
    kit.says(
        "modes",
        "Sec. II B 3, on Fig. 4",
        "We find that the relaxation behavior is overall well described by Eq. (2.27), with minor "
        "deviations from the purely exponential relaxation for P ≃ N.",
        "The modes' mean over runs follows Eq. (2.27) within a tenth of the solution (our "
        "threshold), root mean square over times and modes.",
        kit.Band.at_most(GOOD, "words"),
        setting="N = 50, P = 52, λ = 0.1, S = 10, σε² = 0.01, modes 1, 5 and 25 as in the figure",
        changed="2026-11-17: within 5% before, which the paper does not print",
    ),
    kit.says(
        "loss-settles-first",
        "Sec. II B 3, on Fig. 4",
        "An interesting observation (see inset to Fig. 4) is that the loss settles to the constant "
        "L* already for t ≪ ω0, although the slowest modes zk have not yet all reached their final "
        "value.",
        "When the loss has come within a quarter of L*, the slowest mode is, in the median data "
        "set, still farther than a tenth from its final value (our thresholds).",
        kit.Band.at_least(GOOD, "words"),
        setting="N = 50, P = 52, σε² = 0.01 as in the figure, from zero weights, mean path of Eq. "
        "(2.27) in 400 data sets; the figure shows one",
        changed="2026-11-17: the loss below 2L* before 0.1/ω₀ was asked, neither number being the "
        "paper's",
    ),
)


class Config(_regression.RegressionConfig):
    """Task and run of Fig. 4; `chains` runs for the mean, more data sets for the loss."""

    inputs: int = 50
    samples: int = 52
    steps: int = 2_000_000
    points: int = 120
    chains: int = 4
    modes: tuple[int, ...] = (0, 1, 5, 25)
    realisations: int = 400


PRESETS = kit.presets(
    Config(),
    smoke=Config(
        inputs=20, samples=24, steps=8000, points=40, chains=16, modes=(0, 1, 5), realisations=40
    ),
    paper=Config(chains=48),
)


class Result(kit.Frozen):
    """Times t = λτ (T,), modes (T, k) of one run and their mean, theory, losses (Fig. 4).

    `remaining` (realisations,) is |1 − z₀/z₀*| when the loss has come within a quarter of L*.
    """

    times: np.ndarray
    modes: list
    rates: np.ndarray
    solution: np.ndarray
    single: np.ndarray
    mean: np.ndarray
    mean_error: np.ndarray
    theory: np.ndarray
    loss: np.ndarray
    final_loss: float
    slowest: float
    remaining: np.ndarray


def compute(config: Config, context: kit.Context) -> Result:
    """Trace chains of SGD from zero weights; time the mean loss (Fig. 4 of [fluctuations])."""
    item = config.item(context.seed, points=config.points, modes=list(config.modes))
    traced = context.map(_relax, [item], label="chains of SGD")[0]
    data_sets = _regression.data_sets({**item, "realisations": config.realisations})
    remaining = np.array([_remaining_distance(X, Y) for X, Y, _ in data_sets])
    return Result(**traced, remaining=remaining)


def _remaining_distance(X: np.ndarray, Y: np.ndarray) -> float:
    """Return exp(−ω₀t) when L(⟨z(t)⟩) of Eqs. (2.26), (2.27) is near L* (fluctuations, Fig. 4)."""
    rates, V = np.linalg.eigh(theory.hessian(X))
    solution, final = V.T @ theory.minimum_norm_solution(X, Y), theory.regression_loss(X, Y)
    times = np.geomspace(1e-5, 30, 600)
    left = theory.mode_mean(times / rates[0], rates, 0 * rates, solution) - solution
    return float(np.exp(-times[np.argmax(0.5 * left**2 @ rates < ROUGH * final)]))


def _relax(item: kit.Item) -> dict:
    X, Y, _ = _regression.data_of(item)
    record = np.unique(np.geomspace(1, item["steps"], item["points"]).astype(int))
    options = _regression.select(item, "lr", "batch_size", "chains", "seed")
    path = trace_one_layer(X, Y, record=record, start=np.zeros(item["inputs"]), **options)
    rates, V = np.linalg.eigh(theory.hessian(X))
    solution = V.T @ theory.minimum_norm_solution(X, Y)
    followed = item["modes"]
    modes = (path @ V)[:, :, followed]
    slowest, rates, solution = float(1 / rates[0]), rates[followed], solution[followed]
    times = item["lr"] * record
    return {
        "times": times,
        "modes": followed,
        "rates": rates,
        "solution": solution,
        "single": modes[:, 0],
        "mean": modes.mean(axis=1),
        "mean_error": modes.std(axis=1, ddof=1) / np.sqrt(modes.shape[1]),
        "theory": theory.mode_mean(times, rates, 0 * rates, solution),
        "loss": np.array([theory.regression_loss(X, Y, w) for w in path[:, 0]]),
        "final_loss": theory.regression_loss(X, Y),
        "slowest": slowest,
    }


def plot(result: Result) -> kit.Figure:
    """Draw the modes relative to their solution, and the loss (Fig. 4 of [fluctuations])."""
    figure, (left, right) = kit.new_figure(columns=2, width="full", ratio=0.75)
    single, predicted = result.single / result.solution, result.theory / result.solution
    for column, mode in enumerate(result.modes):
        color = kit.COLORS[column]
        left.semilogx(result.times, single[:, column], color=color, label=f"k = {mode}")
        left.semilogx(result.times, predicted[:, column], "--", color=color, lw=1)
    first = result.loss[0]
    left.semilogx(result.times, result.loss / first, "-.", color="0.4", label="$L/L(0)$")
    left.set(xlabel=r"time $t = \lambda\tau$", ylabel=r"$z_k(t)/z_k^*$, loss")
    left.set_title("solid: one run of SGD; dashed: Eq. (2.27)")
    left.legend()
    right.loglog(result.times, result.loss, color=kit.COLORS[0], label="loss, one run")
    right.axhline(result.final_loss, color="0.6", label="$L^*$")
    color = kit.COLORS[1]
    right.loglog(result.times, abs(result.single[:, 0]), color=color, label="$|z_0|$, one run")
    right.loglog(result.times, abs(result.theory[:, 0]), "--", color=color, label="Eq. (2.27)")
    right.axvline(result.slowest, color="0.6", lw=0.8, ls=":", label=r"$1/\omega_0$")
    right.set(xlabel=r"time $t = \lambda\tau$", ylabel="loss, $|z_0|$")
    right.legend(fontsize=7, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure relaxation and the early settling of the loss (Fig. 4 of [fluctuations])."""
    deviation = (result.mean - result.theory)[:, 1:] / abs(result.solution[1:])
    error = (result.mean_error / result.solution)[:, 1:]
    reached = np.mean(result.remaining < GOOD)
    return {
        "modes": kit.estimate(
            np.sqrt(np.mean(deviation**2)),
            np.sqrt(np.mean(error**2) / deviation.size),
            "root mean square deviation of the mean over chains, relative to the solution",
        ),
        "loss-settles-first": kit.estimate(
            np.median(result.remaining),
            _regression.median_error(result.remaining),
            "share of its way that the slowest mode still has to go, median over data sets; "
            f"{reached:.0%} of them have less than a tenth left",
            freedom=len(result.remaining) - 1,
        ),
    }
