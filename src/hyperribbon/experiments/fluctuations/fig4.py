"""Relaxation of the loss and of single weight modes near the interpolation threshold."""

from __future__ import annotations

import numpy as np

from hyperribbon.experiments.fluctuations import _common
from hyperribbon.experiments.judging import Measurements, estimate
from hyperribbon.experiments.kit import COLORS, Context, Figure, Frozen, Item, new_figure, presets
from hyperribbon.experiments.statements import Band, says
from hyperribbon.simulation import trace_one_layer
from hyperribbon.theory import fluctuations as theory

TITLE = "Relaxation of weight modes"

STATEMENTS = (
    says(
        "modes",
        "Sec. II B 3, on Fig. 4",
        "We find that the relaxation behavior is overall well described by Eq. (2.27), with minor "
        "deviations from the purely exponential relaxation for P ≃ N.",
        "The modes' mean over runs follows Eq. (2.27) within a tenth of the solution (a threshold "
        "to the words), root mean square over times and modes.",
        Band.at_most(_common.GOOD, "words"),
        setting="N = 50, P = 52, λ = 0.1, S = 10, σε² = 0.01, modes 1, 5 and 25 as in the figure",
        needs="N = 50 and P = 52",
        changed="2026-11-17: within 5% before, which the paper does not print",
    ),
    says(
        "loss-settles-first",
        "Sec. II B 3, on Fig. 4",
        "An interesting observation (see inset to Fig. 4) is that the loss settles to the constant "
        "L* already for t ≪ ω0, although the slowest modes zk have not yet all reached their final "
        "value.",
        "When the loss has come within a quarter of L*, the slowest mode is, in the median data "
        "set, still farther than a tenth from its final value (thresholds to the words).",
        Band.at_least(_common.GOOD, "words"),
        setting="N = 50, P = 52, σε² = 0.01 as in the figure, from zero weights, mean path of "
        "Eq. (2.27) in 400 data sets; the figure shows one",
        needs="N = 50 and P = 52",
        changed="2026-11-17: the loss below 2L* before 0.1/ω₀ was asked, neither number being the "
        "paper's",
    ),
)


class Config(Frozen):
    """Task and run of the figure; `chains` runs for the mean, more data sets for the loss."""

    inputs: int = 50
    samples: int = 52
    label_variance: float = 0.01
    lr: float = 0.1
    batch_size: int = 10
    steps: int = 300_000
    points: int = 120
    chains: int = 48
    modes: tuple[int, ...] = (0, 1, 5, 25)
    realisations: int = 400


PRESETS = presets(
    Config(),
    smoke=Config(
        inputs=20, samples=24, steps=8000, points=40, chains=16, modes=(0, 1, 5), realisations=40
    ),
    paper=Config(steps=3_000_000),
)


class Result(Frozen):
    """Times t = λτ (T,), modes (T, k) of one run and their mean, theory, losses.

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


def compute(config: Config, context: Context) -> Result:
    """Trace chains of SGD from zero weights; time the mean loss of many data sets."""
    item = _common.simulation_item(
        config, context.seed, points=config.points, modes=list(config.modes)
    )
    traced = context.map(_relax, [item], label="chains of SGD")[0]
    left = [_way_left(config, seed) for seed in _common.seeds(context.seed, config.realisations)]
    return Result(**traced, remaining=np.array(left))


def _way_left(config: Config, seed: int) -> float:
    """Return exp(−ω₀t) when L(⟨z(t)⟩) of Eqs. (2.26), (2.27) is near L*, from zero weights."""
    X, Y, _ = _common.regression(config.inputs, config.samples, config.label_variance, seed)
    rates, V = np.linalg.eigh(theory.hessian(X))
    solution, final = V.T @ theory.minimum_norm_solution(X, Y), theory.regression_loss(X, Y)
    times = np.geomspace(1e-5, 30, 600)
    left = theory.mode_mean(times / rates[0], rates, 0 * rates, solution) - solution
    return float(np.exp(-times[np.argmax(0.5 * left**2 @ rates < _common.ROUGH * final)]))


def _relax(item: Item) -> dict:
    X, Y, _ = _common.data_of(item)
    record = np.unique(np.geomspace(1, item["steps"], item["points"]).astype(int))
    options = _common.chosen(item, "lr", "batch_size", "chains", "seed")
    path = trace_one_layer(X, Y, record=record, start=np.zeros(item["inputs"]), **options)
    rates, V = np.linalg.eigh(theory.hessian(X))
    solution = V.T @ theory.minimum_norm_solution(X, Y)
    chosen = item["modes"]
    modes = (path @ V)[:, :, chosen]
    times = item["lr"] * record
    return {
        "times": times,
        "modes": chosen,
        "rates": rates[chosen],
        "solution": solution[chosen],
        "single": modes[:, 0],
        "mean": modes.mean(axis=1),
        "mean_error": modes.std(axis=1, ddof=1) / np.sqrt(modes.shape[1]),
        "theory": theory.mode_mean(times, rates[chosen], np.zeros(len(chosen)), solution[chosen]),
        "loss": np.array([theory.regression_loss(X, Y, w) for w in path[:, 0]]),
        "final_loss": theory.regression_loss(X, Y),
        "slowest": float(1 / rates[0]),
    }


def plot(result: Result) -> Figure:
    """Draw the modes relative to their solution, and the loss."""
    figure, (left, right) = new_figure(columns=2, width="full", ratio=0.75)
    for column, (mode, color) in enumerate(zip(result.modes, COLORS, strict=False)):
        scale = result.solution[column]
        left.semilogx(
            result.times, result.single[:, column] / scale, color=color, label=f"k = {mode}"
        )
        left.semilogx(result.times, result.theory[:, column] / scale, "--", color=color, lw=1)
    left.set_xlabel(r"time $t = \lambda\tau$")
    left.set_ylabel(r"$z_k(t)/z_k^*$")
    left.set_title("solid: one run of SGD; dashed: Eq. (2.27)")
    left.legend()
    right.loglog(result.times, result.loss, color=COLORS[0], label="loss, one run")
    right.axhline(result.final_loss, color="0.6", label="$L^*$")
    remaining = abs(1 - result.theory[:, 0] / result.solution[0])
    right.loglog(
        result.times, remaining, "--", color=COLORS[1], label="slowest mode, $|1-z_0/z_0^*|$"
    )
    right.axvline(min(result.slowest, result.times[-1]), color=COLORS[1], lw=0.8, ls=":")
    right.set_xlabel(r"time $t = \lambda\tau$")
    right.legend()
    return figure


def measure(result: Result) -> Measurements:
    """Measure the exponential relaxation and the early settling of the loss."""
    deviation = (result.mean - result.theory)[:, 1:] / abs(result.solution[1:])
    error = (result.mean_error / result.solution)[:, 1:]
    reached = np.mean(result.remaining < _common.GOOD)
    return {
        "modes": estimate(
            np.sqrt(np.mean(deviation**2)),
            np.sqrt(np.mean(error**2) / deviation.size),
            "root mean square deviation of the mean over chains, relative to the solution",
        ),
        "loss-settles-first": estimate(
            np.median(result.remaining),
            _common.median_error(result.remaining),
            "share of its way that the slowest mode still has to go, median over data sets; "
            f"{reached:.0%} of them have less than a tenth left",
            freedom=len(result.remaining) - 1,
        ),
    }
