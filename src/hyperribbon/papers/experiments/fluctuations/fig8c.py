"""Fluctuation spectrum of a two-layer network from a standard start: ensemble and long run."""

from __future__ import annotations

import numpy as np

from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.fluctuations import GOOD, _regression, _two_layer

TITLE = "Fluctuations from a standard start"

STATEMENTS = (
    kit.says(
        "modal-ratio",
        "Sec. III C 2, on Figs. 8(b), (c)",
        "We find good agreement with the covariance spectrum of the weights predicted by Eq. "
        "(3.30)",
        "The variances of an ensemble along the modes of W₁W₁ᵀ are those of Eq. (3.34), in the "
        "mean over modes within a tenth (our threshold).",
        kit.Band(1 - GOOD, 1 + GOOD, "words"),
        setting="the network, task, start and batch of the figure; an ensemble from the solution "
        "in place of one long run, one value per network",
        needs="N_i = 30 and 1500 chains",
        changed="2026-11-17: within 8% before, which the paper does not print",
    ),
    kit.says(
        "drift",
        "Sec. III C 2",
        "although the loss is stationary, we observe in our SGD experiments a transient dynamics "
        "of the individual weights, resulting in a slow but steady drop of the overall magnitude "
        "of the eigenvalues",
        "In a long run D₂ = ‖W₂‖² falls below nine tenths of its start (our threshold).",
        kit.Band.at_most(1 - GOOD, "words"),
        setting="200,000 steps of the same networks, the mean of 8 runs of each",
        needs="200,000 steps",
        changed="2026-11-17: a long run had to show the spectrum without drift before; the paper "
        "reports the drift",
    ),
)


class Config(_two_layer.TwoLayerConfig):
    """Network, task and batch of Fig. 8(c); an ensemble and long runs of several networks."""

    long_steps: int = 200_000
    long_chains: int = 8
    networks: int = 5


_SMOKE = {"inputs": 8, "hidden": 5, "samples": 400, "steps": 400, "chains": 300, "batch_size": 50}
PRESETS = kit.presets(
    Config(),
    smoke=Config(**_SMOKE, long_steps=5000, networks=2),
    paper=Config(chains=4000, long_steps=1_000_000),
)


class Result(kit.Frozen):
    """Spectra in units λσ²/(2S), σ² unexplained; leading eigenvalue of each long run (Fig. 8(c)).

    The spectra are those of the first network; `ratios` (networks, N_h) and `long_leading`
    (networks, runs) come from all of them.
    """

    inputs: int
    chains: int
    ratios: np.ndarray
    modal: np.ndarray
    predicted: np.ndarray
    first: np.ndarray
    first_predicted: np.ndarray
    long_leading: np.ndarray
    long_drift: np.ndarray


def compute(config: Config, context: kit.Context) -> Result:
    """Measure ensembles started at the solution, and the covariance over time of long runs."""
    others = _regression.seeds(context.seed, config.networks - 1)
    items = [config.item(seed) for seed in (context.seed, *others)]
    shared = [_two_layer.share_ensemble(context, item) for item in items]
    ensembles, found = zip(*shared, strict=True)
    changes = {"steps": config.long_steps, "chains": config.long_chains}
    long_runs = context.map(_long_run, [{**i, **changes} for i in items], label="long runs")
    return Result(
        config.inputs,
        config.chains,
        np.array([modes.variances / modes.predicted for modes in found]),
        found[0].variances,
        found[0].predicted,
        *_two_layer.first_layer_spectra(found[0], ensembles[0]["chains1"]),
        np.array([r["leading"] / m.unit for r, m in zip(long_runs, found, strict=True)]),
        np.array([run["drift"] for run in long_runs]),
    )


def _long_run(item: kit.Item) -> dict:
    record = np.linspace(0, item["steps"], 1001).astype(int)
    run = _two_layer.run_chains(item, _two_layer.linear_network(item), record)
    paths = run.W2[:, :, 0, :].astype(float)
    leading = [np.linalg.eigvalsh(np.cov(path.T))[-1] for path in paths.transpose(1, 0, 2)]
    ends = np.sum(paths[[0, -1]] ** 2, axis=2)
    return {"leading": np.array(leading), "drift": ends[1] / ends[0]}


def plot(result: Result) -> kit.Figure:
    """Draw the ensemble's spectra and the leading eigenvalues of long runs (Fig. 8(c))."""
    figure, axis = kit.new_figure(width="column", ratio=0.85)
    modes = np.arange(1, len(result.modal) + 1)
    error, label = 2 * result.modal * np.sqrt(2 / result.chains), r"$\delta W_2$, ensemble"
    axis.errorbar(modes, result.modal, error, fmt="o", color=kit.COLORS[0], label=label)
    _two_layer.draw_spectra(axis, result.predicted, result.first, result.first_predicted)
    leading, label = result.long_leading[0], r"$\delta W_2$, long runs, leading"
    axis.semilogy(np.ones(len(leading)), leading, "x", color=kit.COLORS[3], label=label)
    axis.set_ylim(1e-3, None)
    axis.legend(fontsize=7)
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure the modal variances of ensembles and the drift of long runs (Fig. 8(c))."""
    return {
        "modal-ratio": kit.over_seeds(
            result.ratios.mean(axis=1),
            "mean over modes of measured over predicted variance, one value per network; single "
            f"modes {result.ratios.min():.2f}–{result.ratios.max():.2f}",
        ),
        "drift": kit.over_seeds(
            result.long_drift.mean(axis=1),
            "‖W₂‖² at the end over that at the start, one value per network; the leading "
            f"eigenvalue over time is {np.median(result.long_leading):.3g} for it, below 1 in Eq. "
            "(3.34)",
        ),
    }
