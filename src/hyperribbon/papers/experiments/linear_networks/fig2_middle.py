"""Fig. 2 (b) of [linear_networks]: Kaiming uniform starts, without Assumption 3."""

from __future__ import annotations

from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.linear_networks import _sweeps
from hyperribbon.papers.experiments.linear_networks._training import presets, with_data

TITLE = "Sharpness from Kaiming uniform starts: layers out of balance"

STATEMENTS = kit.at_scale(
    _sweeps.NEEDS,
    kit.says(
        "imbalance",
        "Sec. 5",
        "the theoretical predictions made in previous section stay intact, as the final sharpness "
        "increasing with label imbalance",
        "For every set, sharpness rises from each share of the largest class to the next.",
        kit.Band.at_least(0.0, "printed"),
        setting=f"{_sweeps.SETTING}; Kaiming uniform start as PyTorch has it",
    ),
    kit.observe(
        "intact",
        "Sec. 5",
        "Sharpness is within 5% of a balanced minimum's for every set, share and start.",
        kit.Band.at_most(0.05, "words"),
    ),
    kit.observe(
        "sharper",
        "Eq. (9)",
        "A network out of balance is sharper than the balanced one of equal outputs.",
        kit.Band.at_least(0.0, "closed form"),
    ),
)

Config, Result = _sweeps.SweepConfig, _sweeps.SweepResult

PRESETS = presets(
    Config(start="kaiming_uniform", scale=0.0, repeats=2),
    smoke={"shares": (0.1, 0.5), "width": 16, "lr": 0.05, "epochs": 1500, "repeats": 1},
    paper={"repeats": 5},
)
PRESETS_WITH_DATA = with_data(PRESETS)


def compute(config: _sweeps.SweepConfig, context: kit.Context) -> _sweeps.SweepResult:
    """Train from Kaiming uniform starts on white inputs for every share (Fig. 2 middle)."""
    return _sweeps.run_sweep(config, context)


def plot(result: _sweeps.SweepResult) -> kit.Figure:
    """Draw trained sharpness beside both forms of the prediction (Fig. 2 middle)."""
    return _sweeps.plot_sweep(result, "trained, Kaiming start")


def measure(result: _sweeps.SweepResult) -> kit.Measurements:
    """Measure the trend and the distance from balance for each start (Fig. 2 middle)."""
    excess = (result.trained / result.general[..., None] - 1).reshape(-1, result.trained.shape[-1])
    defect = f"the balance defect ends at {result.defect.min():.2f} or more"
    return {
        "imbalance": _sweeps.measure_rise(result.trained),
        "intact": kit.over_seeds(excess.max(axis=0), f"largest relative difference; {defect}"),
        "sharper": kit.over_seeds(excess.min(axis=0), f"least relative difference; {defect}"),
    }
