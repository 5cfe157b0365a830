"""Fig. 3.6 of [subnetworks]: pruning and re-initialising a growing share of the weights."""

from __future__ import annotations

import numpy as np

from hyperribbon.core import derive_seed
from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.subnetworks import _runs
from hyperribbon.subnetworks import sweep_selection

TITLE = "Pruning and re-initialising by magnitude, by change and at random"

_OPERATIONS = ("reinitialize", "prune")
_CRITERIA = ("change", "magnitude", "random")

_SHARES = (0.5, 0.8, 0.95)

STATEMENTS = (
    _runs.says_trained(
        "late-decay",
        "Sec. 3.3.2",
        "the change-based approach demonstrates significant decay only after the vast majority of "
        "parameters have been re-initialized",
        "With 80% of the weights re-initialised by change the accuracy is still at least 0.93, "
        "within 0.05 of the trained network's (our threshold for 'significant').",
        kit.Band.at_least(0.93, "words"),
        changed="2026-11-17: an accuracy of our own before; the threshold was chosen with the "
        "result known",
    ),
    *(
        _runs.says_trained(
            f"{operation}-random-worst",
            "Sec. 3.3.2",
            "random selections perform worse than a systematic, criteria-driven approaches",
            f"{operation}: at p = 0.8 random selection keeps less accuracy than either criterion.",
            kit.Band.at_least(0.0, "words"),
        )
        for operation in _OPERATIONS
    ),
    *(
        _runs.says_trained(
            f"reinitialize-change-wins-{share:g}",
            "Sec. 3.3.2",
            "The analogous advantage also applies to criteria based on change in re-initialization",
            "Re-initialising by change keeps more accuracy than by magnitude, at p = "
            f"{share:g} (the shares are our choice).",
            kit.Band.at_least(0.0, "words"),
        )
        for share in _SHARES
    ),
    *(
        _runs.says_trained(
            f"prune-magnitude-wins-{share:g}",
            "Sec. 3.3.2",
            "the advantage of magnitude-based criteria over change-based criteria in pruning",
            f"Pruning by magnitude keeps more accuracy than by change, at p = {share:g} (the "
            "shares are our choice).",
            kit.Band.at_least(0.0, "words"),
        )
        for share in _SHARES
    ),
    *(
        _runs.says_trained(
            f"{name}-{share:g}",
            "Sec. 3.3.2",
            "re-initialization demonstrates superior accuracy under change-based criteria, while "
            "pruning maintains higher accuracy when adhering to magnitude-based criteria",
            f"{reading}, at p = {share:g} (the shares are our choice).",
            kit.Band.at_least(0.0, "words"),
        )
        for name, reading in (
            ("change-reinitialize-wins", "By change, re-initialising keeps more than pruning"),
            ("magnitude-prune-wins", "By magnitude, pruning keeps more than re-initialising"),
        )
        for share in _SHARES
    ),
    _runs.says_trained(
        "reinitialize-often-better",
        "Sec. 3.3.2",
        "when re-initialization is guided by well-defined criteria, it often preserves higher "
        "accuracy than pruning",
        "At more than half of the shares between 0 and 1, of both criteria, the re-initialised "
        "network is more accurate than the pruned one.",
        kit.Band.at_least(0.5, "words"),
    ),
    _runs.says_trained(
        "pruned-60",
        "Sec. 3.3.2",
        "one will select the network after 60% of it has been pruned for re-training (because at "
        "this point the network’s performance is not significantly decayed",
        "With 60% of the weights pruned, by either criterion, at most 0.05 of accuracy is lost "
        "(our threshold, that for 'negligible' in Fig. 3.2).",
        kit.Band.at_most(0.05, "words"),
    ),
    _runs.says_trained(
        "prune-consistent",
        "Sec. 3.3.2",
        "The pruning-based experiments show that the results for the two criteria remain largely "
        "consistent.",
        "At p = 0.8, the paper's example, the accuracies of the networks pruned by the two "
        "criteria differ by at most 0.1 (our margin).",
        kit.Band.around(0.0, "words", atol=0.1),
        changed="2026-11-17: added; the margin was chosen with the difference at p = 0.8 known",
    ),
    *(
        _runs.says_trained(
            f"prune-{criterion}-0.8",
            "Sec. 3.4",
            "when a large fraction of parameters is pruned (e.g., p = 0.8), the overlap ratio "
            "between the two criteria reaches 83.7%, while the model’s accuracy remains around 90%",
            f"Pruned by {criterion} at p = 0.8, the accuracy is 0.9 ± 0.05 (our margin for "
            "'around').",
            kit.Band.around(0.9, "words", atol=0.05),
            changed="2026-11-17: compared with an earlier measurement of our own before; the "
            "margin was chosen with the result known",
        )
        for criterion in ("change", "magnitude")
    ),
)


class Config(_runs.TrainingConfig):
    """Setting of Fig. 3.6 of [subnetworks]."""

    points: int = 40  # number of fractions, evenly spaced from 0 to 1 in steps of 1/(points)


PRESETS, PRESETS_WITH_DATA = _runs.presets(Config, smoke={"points": 20}, paper={"points": 100})


class Result(_runs.OfRuns):
    """Accuracy by method and fraction (Fig. 3.6 of [subnetworks])."""

    fractions: np.ndarray  # (f,)
    accuracy: dict[str, np.ndarray]  # {"prune-change", …}: (seeds, f)


def compute(config: Config, context: kit.Context) -> Result:
    """Sweep every method over the fractions, for every run (Fig. 3.6 of [subnetworks])."""
    fractions = np.arange(config.points + 1) / config.points
    runs = _runs.train_runs(config, context)
    methods = [(operation, criterion) for operation in _OPERATIONS for criterion in _CRITERIA]
    items = [
        {**run, "operation": operation, "criterion": criterion, "fractions": fractions.tolist()}
        for operation, criterion in methods
        for run in runs
    ]
    curves = np.array(context.map(_curve, items, "sub-networks"))
    curves = curves.reshape(len(methods), config.seeds, -1)
    accuracy = {f"{a}-{b}": curve for (a, b), curve in zip(methods, curves, strict=True)}
    return Result(**_runs.origin(config), fractions=fractions, accuracy=accuracy)


def _curve(item: kit.Item) -> np.ndarray:
    run = _runs.load_run(item)
    return sweep_selection(
        run.model,
        run.final,
        run.initial,
        _runs.test_data(item),
        operation=item["operation"],
        criterion=item["criterion"],
        fractions=item["fractions"],
        seed=derive_seed(item["seed"], "random selection"),
    ).values.numpy()


def plot(result: Result) -> kit.Figure:
    """Draw one panel for each operation (Fig. 3.6 of [subnetworks])."""
    figure, axes = kit.new_figure(1, 2, width="full", ratio=0.75, sharey=True)
    titles = {"reinitialize": "re-initialised", "prune": "pruned"}
    for axis, operation in zip(axes, _OPERATIONS, strict=True):
        for color, criterion in zip(kit.COLORS, _CRITERIA, strict=False):
            label = {"random": "at random"}.get(criterion, f"smallest {criterion} first")
            accuracy = result.accuracy[f"{operation}-{criterion}"]
            _runs.draw_band(axis, result.fractions, accuracy, color=color, label=label)
        axis.set(xlabel=f"fraction {titles[operation]}", ylim=(0, 1.03), xlim=(0, 1))
        axis.set_title(titles[operation])
    axes[0].set_ylabel("test accuracy")
    axes[0].legend(loc="lower left")
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure the order of the curves and the accuracies that the text names (Fig. 3.6)."""

    def at(method: str, fraction: float) -> np.ndarray:
        return result.accuracy[method][:, int(np.argmin(np.abs(result.fractions - fraction)))]

    def margin(better: str, worse: str, fraction: float) -> kit.Observed:
        difference = at(better, fraction) - at(worse, fraction)
        return result.by_run(difference, "difference of the accuracies, same networks")

    measured = {"late-decay": result.by_run(at("reinitialize-change", 0.8), "accuracy at p = 0.8")}
    for operation in _OPERATIONS:
        weaker = np.minimum(at(f"{operation}-change", 0.8), at(f"{operation}-magnitude", 0.8))
        measured[f"{operation}-random-worst"] = result.by_run(
            weaker - at(f"{operation}-random", 0.8),
            "margin of the weaker criterion over random selection",
        )
    for share in _SHARES:
        measured[f"reinitialize-change-wins-{share:g}"] = margin(
            "reinitialize-change", "reinitialize-magnitude", share
        )
        measured[f"prune-magnitude-wins-{share:g}"] = margin(
            "prune-magnitude", "prune-change", share
        )
        measured[f"change-reinitialize-wins-{share:g}"] = margin(
            "reinitialize-change", "prune-change", share
        )
        measured[f"magnitude-prune-wins-{share:g}"] = margin(
            "prune-magnitude", "reinitialize-magnitude", share
        )
    inner = (result.fractions > 0) & (result.fractions < 1)
    better = [
        (result.accuracy[f"reinitialize-{one}"] > result.accuracy[f"prune-{one}"])[:, inner]
        for one in ("change", "magnitude")
    ]
    measured["reinitialize-often-better"] = result.by_run(
        np.mean(better, axis=(0, 2)),
        "share of the points; by change {:.2f}, by magnitude {:.2f}".format(
            *(one.mean() for one in better)
        ),
    )
    pruned = np.minimum(at("prune-change", 0.6), at("prune-magnitude", 0.6))
    measured["pruned-60"] = result.by_run(
        at("prune-change", 0.0) - pruned, "accuracy lost, the larger of the two criteria"
    )
    measured["prune-consistent"] = margin("prune-magnitude", "prune-change", 0.8)
    for criterion in ("change", "magnitude"):
        accuracy = at(f"prune-{criterion}", 0.8)
        measured[f"prune-{criterion}-0.8"] = result.by_run(accuracy, "accuracy at p = 0.8")
    return measured
