"""Fig. 4.2 of [subnetworks]: training and test loss."""

from __future__ import annotations

import numpy as np

from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.subnetworks import _runs

TITLE = "Training and test loss"

STATEMENTS = (
    _runs.says_trained(
        "converged",
        "Fig. 4.2",
        "The model achieves convergence after approximately 75 epochs.",
        "After 75 of 100 epochs at most 0.02 of the training loss's whole fall is still to come "
        "(our threshold).",
        kit.Band.at_most(0.02, "words"),
    ),
    _runs.says_trained(
        "test-flat",
        "Sec. 4.3",
        "the model converges (training and test losses flatten) after around 75 epochs",
        "From epoch 75 on the test loss stays within 0.05 of its final value (our threshold).",
        kit.Band.at_most(0.05, "words"),
    ),
)


class Config(_runs.TrainingConfig):
    """Setting of Fig. 4.2 of [subnetworks]."""


PRESETS, PRESETS_WITH_DATA = _runs.presets(Config)


class Result(_runs.OfRuns):
    """Losses by epoch (Fig. 4.2 of [subnetworks])."""

    epochs: np.ndarray  # (e,)
    train_loss: np.ndarray  # (seeds, e), mean over the epoch's samples before their updates
    test_loss: np.ndarray  # (seeds, e)
    milestones: np.ndarray  # (m,), epochs at which the rate falls


def compute(config: Config, context: kit.Context) -> Result:
    """Read the recorded losses (Fig. 4.2 of [subnetworks])."""
    measured = context.map(_losses, _runs.train_runs(config, context), "losses")
    return Result(
        epochs=measured[0]["epochs"],
        **kit.stack(measured, "train_loss", "test_loss"),
        milestones=np.array(config.milestones),
        **_runs.origin(config),
    )


def _losses(item: kit.Item) -> dict[str, np.ndarray]:
    table = _runs.load_run(item).trajectory.metrics().dropna(subset=["test_loss"])
    return {
        "epochs": table["epoch"].to_numpy(),
        "train_loss": table["epoch_loss"].to_numpy(),
        "test_loss": table["test_loss"].to_numpy(),
    }


def plot(result: Result) -> kit.Figure:
    """Draw both losses (Fig. 4.2 of [subnetworks])."""
    figure, axis = kit.new_figure()
    _runs.draw_band(axis, result.epochs, result.train_loss, color=kit.COLORS[0], label="training")
    _runs.draw_band(axis, result.epochs, result.test_loss, color=kit.COLORS[1], label="test")
    for epoch in result.milestones:
        axis.axvline(epoch, color="0.8", lw=1, zorder=0)
    axis.set(xlabel="epoch (grey: the rate falls)", ylabel="cross-entropy", yscale="log")
    axis.legend()
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure when the losses have converged (Fig. 4.2 of [subnetworks])."""
    final = result.train_loss[:, -1:]
    drop = result.train_loss[:, :1] - final
    late = result.epochs >= 0.75 * result.epochs[-1]
    to_come = ((result.train_loss - final) / drop)[:, late]
    return {
        "converged": result.by_run(
            to_come[:, 0], "share of the fall still to come after three quarters of the epochs"
        ),
        "test-flat": result.by_run(
            np.ptp(result.test_loss[:, late], axis=1) / result.test_loss[:, -1],
            "its relative range over the last quarter",
        ),
    }
