"""Eq. (2.27) of [subnetworks]: gradient descent follows a modified loss to second order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hyperribbon.core import numpy_generator
from hyperribbon.papers.experiments import kit
from hyperribbon.theory import gradient_flow

TITLE = "Gradient descent follows the loss plus a gradient penalty"

_FACTORS = {
    "loss itself": 0.0,
    "modified loss": 1.0,
    "opposite sign": -1.0,
    "twice the penalty": 2.0,
}

_SETTING = (
    "gradient descent on a small tanh network's squared error, in double precision, beside flows "
    "integrated to rounding; the equation is for any smooth loss"
)

STATEMENTS = (
    kit.says(
        "modified-loss",
        "Eqs. (2.26), (2.27)",
        "which can be viewed as the gradient flow of a modified loss function",
        "Gradient descent stays within O(h²) of the flow of L + (h/4)‖∇L‖²: the slope of the "
        "distance in h is 2.",
        kit.Band.around(2, "closed form", atol=0.15),
        setting=_SETTING,
    ),
    kit.says(
        "loss-itself",
        "Eq. (2.21)",
        "incurring a local truncation error of order O((Δt)^2) relative to the exact solution",
        "A local error of second order adds up to O(h): the slope of the distance from the flow of "
        "L itself is 1.",
        kit.Band.around(1, "closed form", atol=0.15),
        setting=_SETTING,
    ),
    kit.observe(
        "momentum",
        "Eq. (2.27)",
        "With momentum the same holds with the coefficient h(1+μ)/(4(1−μ)), h the step over 1−μ: "
        "the slope is 2.",
        kit.Band.around(2, "closed form", atol=0.15),
    ),
)


class Config(kit.Frozen):
    """Setting of gradient descent and the gradient penalty that it implies."""

    hidden: int = 6  # width of the tanh network's hidden layer
    samples: int = 20  # training samples
    steps: float = 0.02  # largest effective step h/(1 − μ); each further one is half
    halvings: int = 5  # number of steps
    time: float = 1.0  # length of the flow
    momenta: tuple[float, ...] = (0.0, 0.5, 0.9)  # momentum coefficients


PRESETS = kit.presets(
    Config(),
    smoke=Config(halvings=3, momenta=(0.0, 0.9), time=0.4),
    paper=Config(hidden=20, samples=50, halvings=6),
)


class Result(kit.Frozen):
    """Distance between descent and flows at the end time."""

    momenta: np.ndarray  # (m,)
    steps: np.ndarray  # (m, h), effective steps
    errors: dict[str, np.ndarray]  # {flow: (m, h)}
    slopes: dict[str, np.ndarray]  # {flow: (m,)}, of the error in the step


def compute(config: Config, context: kit.Context) -> Result:
    """Run descent beside the flows of four losses with implicit gradient regularisation."""
    base = {**vars(config), "seed": context.seed}
    items = [
        {**base, "step": config.steps * (1 - momentum) / 2**halving, "momentum": momentum}
        for momentum in config.momenta
        for halving in range(config.halvings)
    ]
    table = np.array(context.map(_errors, items, "descent and flows"))
    table = table.reshape(len(config.momenta), config.halvings, len(_FACTORS))
    steps = np.array([item["step"] for item in items]).reshape(table.shape[:2])
    errors = {name: table[:, :, column] for column, name in enumerate(_FACTORS)}
    slopes = {
        name: np.array(
            [np.polyfit(np.log(h), np.log(e), 1)[0] for h, e in zip(steps, values, strict=True)]
        )
        for name, values in errors.items()
    }
    return Result(np.array(config.momenta), steps, errors, slopes)


def _errors(item: kit.Item) -> np.ndarray:
    """Return how far descent is from each regularised flow; `step` is the effective step."""
    start, gradient, hessian_product = _problem(item)
    momentum = item["momentum"]
    rate = item["step"] * (1 - momentum)
    theta = start.copy()
    # The velocity starts at its quasi-steady value; from rest it would lag by one step's length.
    velocity = -item["step"] * gradient(theta)
    for _ in range(round(item["time"] / item["step"])):
        velocity = momentum * velocity - rate * gradient(theta)
        theta = theta + velocity
    coefficient = gradient_flow.regularisation_coefficient(rate, momentum)
    modified = [
        gradient_flow.modified_gradient(gradient, hessian_product, factor * coefficient)
        for factor in _FACTORS.values()
    ]
    ends = [gradient_flow.flow(slope, start, item["time"]) for slope in modified]
    return np.array([np.linalg.norm(theta - end) for end in ends])


def _problem(
    item: kit.Item,
) -> tuple[np.ndarray, Callable[..., np.ndarray], Callable[..., np.ndarray]]:
    """Return start, gradient and Hessian product of a small tanh network to regularise."""
    rng = numpy_generator(item["seed"], "regression")
    hidden, count = item["hidden"], item["samples"]
    inputs = np.hstack([rng.standard_normal((count, 2)), np.ones((count, 1))])
    targets = np.sin(2 * inputs[:, 0]) + inputs[:, 1] ** 2 / 2
    start = np.concatenate([rng.standard_normal(3 * hidden) / 3**0.5, rng.standard_normal(hidden)])

    def gradient(theta: np.ndarray) -> np.ndarray:
        inner, outer = theta[: 3 * hidden].reshape(3, hidden), theta[3 * hidden :]
        active = np.tanh(inputs @ inner)
        residual = 2.0 / count * (active @ outer / hidden**0.5 - targets)
        back = residual[:, None] * outer / hidden**0.5 * (1 - active**2)
        return np.concatenate([(inputs.T @ back).ravel(), active.T @ residual / hidden**0.5])

    def hessian_product(theta: np.ndarray, v: np.ndarray) -> np.ndarray:
        # The complex step differentiates the analytic gradient to rounding.
        return np.imag(gradient(theta + 1e-30j * v)) / 1e-30

    return start, gradient, hessian_product


def plot(result: Result) -> kit.Figure:
    """Draw the flows' errors with gradient regularisation against the step, per momentum."""
    count = len(result.momenta)
    figure, axes = kit.new_figure(1, count, width="full", ratio=1.0, sharey=True, squeeze=False)
    styles = ("-", "-", "--", ":")
    for row, axis in enumerate(axes[0]):
        curves = zip(kit.COLORS, styles, result.errors.items(), strict=False)
        for color, style, (name, errors) in curves:
            look = {"ls": style, "color": color, "ms": 3}
            label = f"flow of the {name}" if "loss" in name else name
            axis.loglog(result.steps[row], errors[row], "o", **look, label=label)
        text = "\n".join(f"{name}: {slopes[row]:.2f}" for name, slopes in result.slopes.items())
        corner = {"transform": axis.transAxes, "ha": "right", "va": "bottom"}
        axis.text(0.97, 0.03, f"slopes\n{text}", fontsize=7, linespacing=1.3, **corner)
        axis.set(xlabel=r"step $h/(1-\mu)$", title=rf"momentum $\mu={result.momenta[row]:g}$")
        ticks = result.steps[row][::2]
        axis.set_xticks(ticks, [f"{tick:.2g}" for tick in ticks], fontsize=7)
        axis.set_xticks([], minor=True)
        axis.set_ylim(0.003 * min(errors[row].min() for errors in result.errors.values()), None)
    axes[0, 0].set_ylabel("distance from descent")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), fontsize=8)
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure the orders of the gradient regularisation's errors, with and without momentum."""
    plain = int(np.argmin(result.momenta))
    modified = result.slopes["modified loss"]
    farthest = int(np.abs(modified - 2).argmax())
    wrong = ", ".join(
        f"{result.slopes[name][plain]:.2f} with {name}"
        for name in ("opposite sign", "twice the penalty")
    )
    return {
        "modified-loss": kit.exact(modified[plain], f"slope of the distance; {wrong}"),
        "loss-itself": kit.exact(result.slopes["loss itself"][plain], "slope of the distance"),
        "momentum": kit.exact(
            modified[farthest], f"slope farthest from two, μ = {result.momenta[farthest]:g}"
        ),
    }
