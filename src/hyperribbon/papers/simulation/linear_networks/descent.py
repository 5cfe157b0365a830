"""Full-batch gradient descent of deep linear networks, from the moments of the data alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from hyperribbon.core import checks
from hyperribbon.core.checks import (
    ArgumentError,
    check_choice,
    check_positive,
    check_positive_int,
    validate,
)
from hyperribbon.core.result import Result, frame
from hyperribbon.papers.training.loop import DivergenceError
from hyperribbon.theory.linear_networks.moments import Moments, reduce_chain
from hyperribbon.theory.linear_networks.weight_chains import check_widths, sample_balanced_weights

if TYPE_CHECKING:
    import pandas as pd

LINEAR_STARTS = ("balanced", "kaiming_uniform", "lecun", "gaussian")


@dataclass(frozen=True)
class HalvingSchedule:
    """Halve the rate when the loss has stopped improving.

    Once `window` epochs have passed since the start or the last halving, the rate is halved at the
    first epoch whose loss is not below (1 − `improvement`) times the loss `window` epochs before.
    As in App. C of [linear_networks], which prints 0.1% over 100 epochs.

    Attributes:
        improvement: Relative improvement that is enough to keep the rate.
        window: Epochs over which it is asked for.
    """

    improvement: float = 1e-3
    window: int = 100

    def __post_init__(self) -> None:
        check_positive("improvement", self.improvement, zero=True)
        check_positive_int("window", self.window)

    def is_stalled(self, losses: Sequence[float] | np.ndarray, epoch: int, since: int) -> bool:
        """Return whether descent has stalled at the loss of `epoch`, so that the rate is halved.

        Args:
            losses: Losses of epochs 0, …, `epoch` at least.
            epoch: The current epoch.
            since: Epoch of the last halving, or 0.
        """
        if epoch - since < self.window:
            return False
        return losses[epoch] > (1 - self.improvement) * losses[epoch - self.window]


@dataclass(frozen=True)
class LinearRun(Result):
    """What training a linear network gave.

    Attributes:
        weights: W1, …, WL at the end.
        losses: (epochs + 1,), the loss before each epoch and at the end.
        rates: (epochs,), the learning rate of each epoch.
        epochs: (m,), the epochs at which measurements were taken.
        measured: For each measurement its values at these epochs, (m, ...).
    """

    weights: list[np.ndarray]
    losses: np.ndarray
    rates: np.ndarray
    epochs: np.ndarray
    measured: dict[str, np.ndarray]

    def to_frame(self) -> pd.DataFrame:
        """Return the loss of the linear network before each epoch, with its learning rate."""
        rates = np.append(self.rates, np.nan)
        return frame({"epoch": np.arange(len(rates)), "loss": self.losses, "lr": rates})

    def _headline(self) -> str:
        layers, (first, *_, last) = len(self.weights), self.losses
        return f"{layers} layers, {len(self.rates)} epochs: loss {first:.4g} to {last:.4g}"


@validate(generator=checks.instance(np.random.Generator, "Give np.random.default_rng(seed)."))
def draw_linear_weights(
    widths: Sequence[int],
    start: str = "kaiming_uniform",
    *,
    generator: np.random.Generator,
    scale: float | None = None,
) -> list[np.ndarray]:
    """Draw the layers from which the descent of a linear network starts.

    Args:
        widths: d0, …, dL.
        start: "balanced": strongly balanced layers with all singular values equal to `scale`
            (0.5); "kaiming_uniform": uniform on ±1/√fan_in, as torch's linear layers start;
            "lecun": Gaussian of variance 1/fan_in; "gaussian": Gaussian of standard deviation
            `scale` (0.1).
        generator: Source of the weights.
        scale: See `start`; the two starts that fan-in determines take none.

    Returns:
        W1, …, WL, with Wℓ of shape (dℓ, dℓ₋₁).

    Raises:
        ArgumentError: A scale is given where the fan-in sets it.
    """
    check_choice("start", start, LINEAR_STARTS)
    widths = check_widths(widths)
    if scale is not None:
        check_positive("scale", scale)
        if start in ("kaiming_uniform", "lecun"):
            reason = f"the fan-in sets the scale of {start!r}"
            raise ArgumentError("scale", scale, reason, "Omit scale.")
    if start == "balanced":
        return sample_balanced_weights(widths, 0.5 if scale is None else scale, generator)
    if start == "kaiming_uniform":
        return [
            generator.uniform(-1, 1, (fan_out, fan_in)) / np.sqrt(fan_in)
            for fan_in, fan_out in pairwise(widths)
        ]
    deviation = 0.1 if scale is None else scale
    return [
        generator.standard_normal((fan_out, fan_in))
        * (1 / np.sqrt(fan_in) if start == "lecun" else deviation)
        for fan_in, fan_out in pairwise(widths)
    ]


@validate(
    weights=checks.matrices,
    moments=checks.instance(Moments, "Give Moments.of(X, Y)."),
    lr=checks.positive,
    epochs=checks.count,
    weight_decay=checks.zero_or_more,
    schedule=checks.instance(HalvingSchedule, "Give HalvingSchedule()."),
    measure=checks.mapping,
    at=checks.list_of(checks.whole),
)
def train_linear(
    weights: Sequence[np.ndarray],
    moments: Moments,
    *,
    lr: float,
    epochs: int,
    weight_decay: float = 0.0,
    schedule: HalvingSchedule | None = None,
    measure: Mapping[str, Callable[[list[np.ndarray]], Any]] | None = None,
    at: Iterable[int] = (),
) -> LinearRun:
    r"""Train a deep linear network on the squared loss by full-batch gradient descent.

    $$ W_\ell \leftarrow (1 - \eta\lambda) W_\ell
    - \eta \, S_\ell^\top (W \Sigma - M) P_\ell^\top $$

    The loss is (1/2n)‖W X − Y‖² with W = W_L ⋯ W_1. An epoch needs only the moments Σ and M, so
    its cost does not depend on the number of samples; directions that training never enters are
    left out (`theory.linear_networks.moments.reduce_chain`). The weights are those of gradient
    descent on the data, up to rounding.

    Raises an ArgumentError for widths that do not chain, moments of other data, or an epoch out of
    range.

    Args:
        weights: W1, …, WL to start from.
        moments: Of inputs and targets.
        lr: Learning rate η at the start.
        epochs: Number of steps.
        weight_decay: λ, as torch's SGD takes it; the losses do not include its penalty.
        schedule: Lowers the rate; None keeps it.
        measure: Functions of the layers [W1, …, WL], by name; each returns a number or an array of
            fixed shape.
        at: Epochs at which to measure, from 0 (the start) to `epochs` (the end).

    Returns:
        The layers at the end, losses (epochs + 1,), rates (epochs,), and what was measured.

    Raises:
        DivergenceError: The loss is no longer finite.

    >>> moments = Moments(np.ones(2), np.array([[1.0, 0.25]]), 1.1)
    >>> run = train_linear([np.array([[0.5, 0.5]])], moments, lr=0.5, epochs=50)
    >>> run.weights[0].round(6)
    array([[1.  , 0.25]])
    """
    times = _check_times(at, epochs)
    for name, one in (measure or {}).items():
        checks.function(f"measure[{name!r}]", one)
    reduced = reduce_chain(weights, moments)
    layers, small = reduced.weights, reduced.moments
    frozen = reduced.expand([np.zeros_like(layer) for layer in layers])  # decays, and nothing else
    kept = 1.0

    def expand() -> list[np.ndarray]:
        full = reduced.expand(layers)
        return [own - (1 - kept) * rest for own, rest in zip(full, frozen, strict=True)]

    measured: dict[str, list[Any]] = {name: [] for name in measure or {}}
    losses, rates = np.empty(epochs + 1), np.empty(epochs)
    since = 0
    waiting = iter([*times, epochs + 1])
    due = next(waiting)
    with np.errstate(over="ignore", invalid="ignore"):  # divergence is reported as an error
        for epoch in range(epochs + 1):
            if epoch == due:
                full = expand()
                for name, one in (measure or {}).items():
                    measured[name].append(one(full))
                due = next(waiting)
            losses[epoch], gradients = _loss_and_gradients(layers, small)
            if not np.isfinite(losses[epoch]):
                raise DivergenceError(
                    epoch, epoch, lr, {"loss": losses[:epoch], "lr": rates[:epoch]}
                )
            if epoch == epochs:
                break
            if schedule is not None and schedule.is_stalled(losses, epoch, since):
                lr, since = lr / 2, epoch
            rates[epoch] = lr
            for layer, gradient in zip(layers, gradients, strict=True):
                gradient *= lr
                layer *= 1 - lr * weight_decay
                layer -= gradient
            kept *= 1 - lr * weight_decay
    values = {name: np.asarray(series) for name, series in measured.items()}
    return LinearRun(expand(), losses, rates, np.array(times, dtype=int), values)


def _loss_and_gradients(
    layers: list[np.ndarray], moments: Moments
) -> tuple[float, list[np.ndarray]]:
    """Return loss and gradients for descent, through matrices of dL rows only."""
    after = [layers[-1]]
    for layer in layers[-2::-1]:
        after.append(after[-1] @ layer)
    product = after.pop()
    error = moments.times_inputs(product) - moments.cross
    loss = 0.5 * (float(np.vdot(product, error - moments.cross)) + moments.targets)
    gradients = []
    for layer, following in zip(layers, reversed(after), strict=False):
        gradients.append(following.T @ error)
        error = error @ layer.T
    gradients.append(error)
    return loss, gradients


def _check_times(at: Iterable[int], epochs: int) -> list[int]:
    times = sorted(set(at))
    if times and not 0 <= times[0] <= times[-1] <= epochs:
        reason = f"training has epochs 0 to {epochs}"
        raise ArgumentError("at", times, reason, "Give epochs in that range.")
    return times
