"""Fig. 7 of [ribbons]: the spectrum of trained models by training time."""

from __future__ import annotations

from typing import Any

import numpy as np

from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.ribbons import _shared
from hyperribbon.theory.ribbons import Ribbon

TITLE = "Eigenvalues of P(N, T) by training time"
RANDOM = "trained models"

_SETTING = (
    "d = 100, n = 50, c = 0.1, σw² = 1, α = 1/λ1 as printed, σ* = 3 for the paper does not state it"
)
_AS_PLOTTED = (
    "; of T·P, whose eigenvalues Sec. II.C means by λ and to which the caption refers (Fig. 4)"
)
_CHANGED = "2026-11-17: judged of P before, whose points are a mean over T"
STATEMENTS = (
    kit.says(
        "tail-grows",
        "Fig. 7, caption",
        "As training time T increases, the eigenvalues in the tail increase in magnitude",
        "The last eigenvalue of T·P(N,T) is larger at the last training time than at the second.",
        kit.Band.at_least(1.0, "printed"),
        setting=_SETTING + _AS_PLOTTED,
        changed=_CHANGED,
    ),
    kit.says(
        "head-grows",
        "Fig. 7, caption",
        "This also causes an increase in the largest eigenvalue in the head, due to the "
        "diminishing magnitude of P2(T)",
        "The largest eigenvalue of T·P(N,T) is larger at the last training time than at the "
        "second.",
        kit.Band.at_least(1.0, "printed"),
        setting=_SETTING + _AS_PLOTTED,
        changed=_CHANGED,
    ),
    kit.says(
        "head-cause",
        "Fig. 7, caption",
        "This also causes an increase in the largest eigenvalue in the head, due to the "
        "diminishing magnitude of P2(T)",
        "Without P2, in T·P1, the largest eigenvalue grows by less than half as much, in "
        "logarithms.",
        kit.Band.at_most(0.5, "words"),
        setting=_SETTING + _AS_PLOTTED,
        changed="2026-11-18: new, with a band chosen after the number was known",
    ),
    _shared.simulation_says(_SETTING),
    kit.observe(
        "tail-share",
        "Fig. 7",
        "The tail grows relative to the head, λn/λ1.",
        kit.Band.at_least(1.0, "words"),
    ),
    kit.observe(
        "tail-of-P",
        "Fig. 7",
        "The last eigenvalue of P itself, a mean over the steps, falls with the training time.",
        kit.Band.at_most(1.0, "words"),
    ),
)


class Config(kit.Frozen):
    """Setting of Fig. 7 of [ribbons]; the paper does not state σ*."""

    samples: int = 50  # n
    dimensions: int = 100  # d
    slope: float = 0.1  # c
    sigma_w: float = 1.0  # standard deviation of the initial weights
    sigma_star: float = 3.0  # standard deviation of the true weights
    steps: tuple[int, ...] = (1, 4, 16, 64, 256, 1024)  # training times
    batches: int = 8  # independent batches of models
    initialisations: int = 500  # models in a batch


PRESETS = kit.presets(
    Config(),
    smoke=Config(steps=(1, 4, 16, 64, 128), batches=2, initialisations=200),
    paper=Config(steps=(1, 4, 16, 64, 256, 1024, 4096), batches=20),
)


class Result(kit.Frozen):
    """Eigenvalues by training time (Fig. 7 of [ribbons])."""

    steps: np.ndarray  # (t,)
    closed_form: np.ndarray  # (t, n), of P(T)
    simulated: np.ndarray  # (t, n), of P(N, T), all batches together
    batches: np.ndarray  # (b, t, n), each batch alone
    # (b,), second moments of each batch along the three leading eigenvectors of P₁ over the closed
    # form, mean over training times
    projections: np.ndarray
    largest_P1: np.ndarray  # (t,), the largest eigenvalue of P₁
    initialisations: int  # N of all batches


def compute(config: Config, context: kit.Context) -> Result:
    """Train models and evaluate the closed form at the same times (Fig. 7 of [ribbons])."""
    sigma = {"sigma_w": config.sigma_w, "sigma_star": config.sigma_star}
    setting: dict[str, Any] = {**sigma, "alpha": 1.0}
    own = {"dimensions": config.dimensions, "slope": config.slope, "steps": list(config.steps)}
    items = [
        _shared.training_item(config, context, "weights", batch, **own, **setting)
        for batch in range(config.batches)
    ]
    trained = _shared.Trained(context, items)
    ribbons = [
        Ribbon.exponential(config.samples, config.slope, steps=steps, **setting)
        for steps in config.steps
    ]
    return Result(
        steps=np.array(config.steps),
        closed_form=np.array([ribbon.spectrum() for ribbon in ribbons]),
        simulated=trained.together,
        batches=trained.each,
        projections=trained.projections,
        largest_P1=np.array([ribbon.spectrum("P1")[0] for ribbon in ribbons]),
        initialisations=config.initialisations * config.batches,
    )


def plot(result: Result) -> kit.Figure:
    """Draw P and T·P by training time: the one's tail falls, the other's rises (Fig. 7)."""
    figure, (left, right) = kit.new_figure(1, 2, width="full", ratio=0.75)
    colors = kit.shades(len(result.steps))
    for color, steps, truth, simulated in zip(
        colors, result.steps, result.closed_form, result.simulated, strict=True
    ):
        for axis, scale in ((left, 1), (right, steps)):
            look = {"color": color, "label": f"$T={steps}$"}
            _shared.draw_spectrum(axis, scale * truth, scale * simulated, **look)
    left.set(ylabel="eigenvalue of $P(T)$", title="(a) covariance")
    left.set_ylim(top=20 * result.closed_form.max())  # room for the legend
    right.set(ylabel=r"eigenvalue of $T\cdot P(T)$", title="(b) summed over the steps")
    left.legend(ncols=2, loc="upper right", title="lines: closed form, circles: trained")
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure what training longer does to Fig. 7's tail and head."""
    first, last = (1 if len(result.steps) > 1 else 0), -1
    times = f"T = {result.steps[first]} to {result.steps[last]}, one value per batch of models"
    heads, tails = result.batches[:, :, 0], result.batches[:, :, -1]
    longer = result.steps[last] / result.steps[first]

    def growth(values: np.ndarray) -> np.ndarray:
        return values[:, last] / values[:, first]

    logs = np.log([result.largest_P1, result.closed_form[:, 0]])
    without, with_mean = logs[:, last] - logs[:, first] + np.log(longer)

    return {
        "tail-grows": kit.over_seeds(longer * growth(tails), times),
        "head-grows": kit.over_seeds(longer * growth(heads), times),
        "head-cause": kit.exact(
            without / with_mean,
            f"growth by {np.exp(without):.2f} of T·P1 and by {np.exp(with_mean):.2f} of T·P, in "
            "closed form",
        ),
        "simulation": kit.over_seeds(result.projections, "one value per batch of models"),
        "tail-share": kit.over_seeds(growth(tails / heads), times),
        "tail-of-P": kit.over_seeds(growth(tails), times),
    }
