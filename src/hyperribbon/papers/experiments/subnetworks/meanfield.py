"""Sec. 4.3.2 of [subnetworks]: mean-field Fisher statistics of random networks over widths."""

from __future__ import annotations

import numpy as np
import torch

from hyperribbon.application.inspection import measure_anisotropy
from hyperribbon.core import derive_seed, torch_generator
from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.subnetworks import _runs
from hyperribbon.papers.training import mlp
from hyperribbon.theory.meanfield import fisher_statistics

TITLE = "Mean-field theory of the Fisher spectrum against random networks"

_SETTINGS = {"relu": (2.0, 0.1), "tanh": (3.0, 0.64), "linear": (1.0, 0.1), "erf": (2.0, 0.3)}
_FIELDS = ("mean", "second_moment", "largest")
_WIDE = 1000

_SETTING = (
    "two hidden layers of width M, N(0, σw²/M) weights and N(0, 1) inputs, four activations; the "
    "printed limits with their corrections at finite width"
)

STATEMENTS = (
    *(
        kit.says(
            name,
            "Sec. 4.3.2",
            "For sufficiently wide neural networks, where the width M ≫ 1, the eigenvalue […] "
            "statistics of the FIM can be asymptotically evaluated as",
            f"From M = 1000 on, the {words} is the predicted one within {tolerance:.0%}, the "
            "scatter of networks of that width.",
            kit.Band.around(1.0, "closed form", atol=tolerance),
            setting=_SETTING,
            needs="widths from 1000 on",
            compare="mean",
        )
        for name, words, tolerance in (
            ("mean", "mean eigenvalue", 0.05),
            ("second-moment", "second moment of the eigenvalues", 0.15),
            ("largest", "mean of the C leading eigenvalues", 0.08),
        )
    ),
    *(
        kit.says(
            f"slope-{name}",
            "Sec. 4.3.2",
            quote,
            f"The slope of the logarithm of {words} in ln M, mean over activations, is {slope:g} "
            "within 0.15 (our margin for 'asymptotically').",
            kit.Band.around(slope, "words", atol=0.15),
            setting=_SETTING,
            needs="widths from 1000 on",
            compare="mean",
        )
        for name, slope, words, quote in (
            (
                "mean",
                -1,
                "the mean eigenvalue",
                "The mean eigenvalue, λ̄, decreases asymptotically as O(1/M).",
            ),
            (
                "second-moment",
                0,
                "Σλ²/P, which the formula of sλ gives,",
                "The variance, sλ, remains at O(1).",
            ),
            (
                "largest",
                1,
                "the mean of the C leading eigenvalues, which tend to one λmax,",
                "The largest eigenvalue, λmax, grows asymptotically as O(M).",
            ),
        )
    ),
)


class Config(kit.Frozen):
    """Setting of the mean-field Fisher statistics of random networks."""

    # M of the inputs and of the two hidden layers
    widths: tuple[int, ...] = (125, 250, 500, 1000, 2000)
    outputs: int = 10  # C
    samples: int = 50  # N inputs with standard normal entries
    draws: int = 5  # random networks of each width


PRESETS = kit.presets(
    Config(),
    smoke=Config(widths=(50, 100, 200), outputs=3, samples=20, draws=2),
    paper=Config(widths=(125, 250, 500, 1000, 2000, 4000), samples=100, draws=20),
)


class Result(kit.Frozen):
    """Measured and predicted statistics, by activation."""

    widths: np.ndarray  # (w,)
    # {activation: (draws, w, 3)}: mean, second moment, mean of the C leading ones
    measured: dict[str, np.ndarray]
    predicted: dict[str, np.ndarray]  # {activation: (w, 3)}


def compute(config: Config, context: kit.Context) -> Result:
    """Draw networks of every width and activation, and predict them by mean-field theory."""
    items = [
        {
            **vars(config),
            "activation": activation,
            "width": width,
            "seed": derive_seed(context.seed, activation, width, draw),
        }
        for activation in _SETTINGS
        for draw in range(config.draws)
        for width in config.widths
    ]
    table = np.array(context.map(_statistics, items, "random networks"))
    table = table.reshape(len(_SETTINGS), config.draws, len(config.widths), 3)
    predicted = {}
    for activation, (weight, bias) in _SETTINGS.items():
        rows = [
            fisher_statistics(activation, weight, bias, [m, m, m, config.outputs], config.samples)
            for m in config.widths
        ]
        predicted[activation] = np.array([[getattr(r, f) for f in _FIELDS] for r in rows])
    return Result(np.array(config.widths), dict(zip(_SETTINGS, table, strict=True)), predicted)


def _statistics(item: kit.Item) -> np.ndarray:
    weight, bias = _SETTINGS[item["activation"]]
    width, outputs = item["width"], item["outputs"]
    start, widths = (weight**0.5, bias**0.5), (width, width, width, outputs)
    model = mlp(widths, item["activation"], item["seed"], init=start)
    generator = torch_generator(item["seed"], "inputs")
    inputs = torch.randn((item["samples"], width), generator=generator, device="cpu")
    measured = measure_anisotropy(model, inputs, k=outputs, outputs="model", vectors=False)
    moments = (measured.trace / measured.parameters, measured.frobenius**2 / measured.parameters)
    return np.array([*moments, float(measured.eigenvalues.mean())])


def plot(result: Result) -> kit.Figure:
    """Draw the three mean-field statistics against the width, measured and predicted."""
    figure, axes = kit.new_figure(1, 3, width="full", ratio=1.0)
    labels = (r"mean eigenvalue", r"$\sum\lambda^2/P$", r"mean of the $C$ leading ones")
    for column, (axis, label) in enumerate(zip(axes, labels, strict=True)):
        for color, activation in zip(kit.COLORS, result.measured, strict=False):
            axis.plot(result.widths, result.predicted[activation][:, column], color=color, lw=1)
            look = {"color": color, "marker": "o", "ls": "none", "mfc": "none"}
            values = result.measured[activation][:, :, column]
            _runs.draw_band(axis, result.widths, values, **look, label=activation)
        axis.set(xscale="log", yscale="log", xlabel="width $M$", title=label)
        axis.set_xticks(result.widths, [str(width) for width in result.widths], fontsize=7)
        axis.set_xticks([], minor=True)
    axes[0].legend(title="lines: theory", fontsize=7, title_fontsize=7)
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure mean-field predictions at the widths from 1000 on, and the slopes in M."""
    comparable = int(result.widths[-1]) >= _WIDE
    wide = np.flatnonzero(result.widths >= min(_WIDE, int(result.widths[-1])))
    measured = {}
    for column, field in enumerate(_FIELDS):
        ratios = {
            (activation, int(result.widths[m])): values[:, m, column]
            / result.predicted[activation][m, column]
            for activation, values in result.measured.items()
            for m in wide
        }
        worst = max(ratios, key=lambda key: abs(ratios[key].mean() - 1))
        slopes = [
            np.polyfit(np.log(result.widths), np.log(values[:, :, column]).T, 1)[0]
            for values in result.measured.values()
        ]
        name = field.replace("_", "-")
        measured[name] = kit.over_seeds(
            ratios[worst],
            f"measured over predicted for {worst[0]} at M = {worst[1]}, the farthest of "
            f"{len(ratios)} cases; {len(ratios[worst])} draws",
            comparable=comparable,
        )
        measured[f"slope-{name}"] = kit.over_seeds(
            np.mean(slopes, axis=0),
            f"from M = {result.widths[0]} to {result.widths[-1]}; {len(slopes[0])} draws",
            comparable=comparable,
        )
    return measured
