"""Table A.2 of [subnetworks]: shares of the weights by how much they changed."""

from __future__ import annotations

import numpy as np

from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.subnetworks import _runs, _weights

TITLE = "Shares of the weights by absolute change"


def _intervals() -> list[tuple[int, float, float, float]]:
    """Return number, ends and printed percentage of the intervals with most weights (Table A.2)."""
    width, printed = _weights.SHARE_WIDTH, _weights.PRINTED_SHARES
    count = len(_weights.SHARE_TOLERANCES)
    return [(i, i * width, (i + 1) * width, printed[i]) for i in range(count)]


STATEMENTS = (
    *(
        _weights.says_printed(
            f"interval-{index + 1}",
            "Table A.2",
            f"{low:.5f} to {high:.5f} {share:.2f}%",
            f"{share}% of the weights change by {low:.3f} to {high:.3f} {_weights.REACHED}",
            kit.Band.around(share, "printed", atol=0.005),
        )
        for index, low, high, share in _intervals()
    ),
)


class Config(_runs.TrainingConfig):
    """Setting of the table (Table A.2 of [subnetworks])."""


PRESETS, PRESETS_WITH_DATA = _runs.presets(Config)


class Result(_runs.OfRuns):
    """Percentages of weights by how much they changed (Table A.2 of [subnetworks])."""

    percent: np.ndarray  # (seeds, intervals), of all weights, in the intervals of the table
    beyond: np.ndarray  # (seeds,), percentage that changed more than the table's end


def compute(config: Config, context: kit.Context) -> Result:
    """Count the changes of every run (Table A.2 of [subnetworks])."""
    runs = _runs.train_runs(config, context)
    percent = np.array(context.map(_weights.change_shares, runs, "changes"))
    return Result(**_runs.origin(config), percent=percent, beyond=100.0 - percent.sum(1))


def plot(result: Result) -> kit.Figure:
    """Draw measured against printed percentages (Table A.2 of [subnetworks])."""
    figure, axis = kit.new_figure()
    middles = _weights.SHARE_WIDTH * (np.arange(len(_weights.PRINTED_SHARES)) + 0.5)
    mean, error = _runs.mean_and_error(result.percent)
    axis.bar(
        middles,
        _weights.PRINTED_SHARES,
        width=0.9 * _weights.SHARE_WIDTH,
        color="0.85",
        label="printed",
    )
    axis.errorbar(
        middles, mean, 2 * error, fmt="o", color=kit.COLORS[0], ms=3, capsize=2, label="measured"
    )
    axis.set(yscale="log", xlabel="absolute change of a weight", ylabel="percentage of the weights")
    axis.legend()
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure the intervals that hold most of the weights (Table A.2 of [subnetworks])."""
    why = f"{result.beyond.mean():.2f}% change more than the table's end"
    return {
        f"interval-{index + 1}": result.by_run(result.percent[:, index], why)
        for index in range(len(_weights.SHARE_TOLERANCES))
    }
