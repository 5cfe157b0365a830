"""Fig. 4.4 of [subnetworks]: eigenfunctions of the Fisher matrix over test images."""

from __future__ import annotations

import numpy as np

from hyperribbon.application.inspection import eigenfunctions, measure_anisotropy
from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.subnetworks import _runs, _spectra
from hyperribbon.papers.experiments.subnetworks._embedding import hidden_embedding

TITLE = "Gradient projections on the 1st, 10th, 100th and 500th eigenvector"

STATEMENTS = (
    _spectra.says_fisher(
        "leading-dominates",
        "Sec. 4.3.1, Fig. 4.4",
        "the eigenvector associated with the largest eigenvalue exhibits the most significant "
        "response to changes in the data",
        "Of the four eigenvectors shown, the first has the largest root mean square of u as Eq. "
        "(4.24) normalises it, over the test images: the logarithm of the largest of the others "
        "over it is at most 0.",
        kit.Band.at_most(0.0, "words"),
        changed="2026-11-18: before, projections without the printed factor 1/√λ were judged",
    ),
    kit.observe(
        "projection-dominates",
        "Fig. 4.4",
        "Without the factor 1/√λ the first eigenvector has the largest root mean square projection "
        "of the gradients of the test images: the same logarithm is at most 0.",
        kit.Band.at_most(0.0, "words"),
        needs=_runs.SCALE,
    ),
    kit.says(
        "unit-norm",
        "Eq. (4.24), Sec. 4.3.1",
        "is derived in Appendix A.2 to ensure uθi has unit norm in L^2(ρ)",
        "For F of Eq. (4.13), which sums over the outputs, the first eigenfunction of the label's "
        "output has E[u²] = 1 over the data of F.",
        kit.Band.around(1.0, "printed", atol=1e-5),
        setting="F of Eq. (4.13), as Sec. 4.3 says; the proof of App. A.2 takes the F of a single "
        "output, for which the norm is one",
    ),
)


class Config(_runs.TrainingConfig):
    """Setting of Fig. 4.4 of [subnetworks]."""

    points: int = 1000  # test images shown
    # N of the Fisher matrix (softmax outputs); with 200 the 500th eigenvalue of a trained network
    # is rounding, 1e-16 of the first
    samples: int = 500
    shown: tuple[int, ...] = (1, 10, 100, 500)  # eigenvectors, counted from 1


PRESETS, PRESETS_WITH_DATA = _runs.presets(
    Config,
    smoke={"points": 120, "samples": 30, "shown": (1, 5, 10, 50), "seeds": 1},
    paper={"points": 10_000, "samples": 1000},
)


class Result(_runs.OfRuns):
    """Eigenfunctions at the label's output (Fig. 4.4 of [subnetworks])."""

    position: np.ndarray  # (points, 2), t-SNE of the first run's hidden layer
    values: np.ndarray  # (points, e), u of Eq. (4.24) on test images, first run
    shown: np.ndarray  # (e,), eigenvectors, counted from 1
    relative: np.ndarray  # (seeds, e), eigenvalues over the largest
    response: np.ndarray  # (seeds, e), root mean square of ⟨v, ∇f⟩ over the test images
    single_norm: np.ndarray  # (seeds, e), E[u²] over the training images, label's output only
    summed_norm: np.ndarray  # (seeds, e), the same summed over all outputs


def compute(config: Config, context: kit.Context) -> Result:
    """Evaluate the eigenfunctions of every run (Fig. 4.4 of [subnetworks])."""
    embedded = hidden_embedding(config, context, config.points)
    wanted = {"samples": config.samples, "shown": list(config.shown)}
    items = [
        {**run, **wanted, "chosen": one["chosen"].tolist()}
        for run, one in zip(_runs.train_runs(config, context), embedded, strict=True)
    ]
    measured = context.map(_functions, items, "eigenfunctions")
    return Result(
        position=embedded[0]["position"],
        values=measured[0]["values"],
        shown=np.array(config.shown),
        **kit.stack(measured, "relative", "response", "single_norm", "summed_norm"),
        **_runs.origin(config),
    )


def _functions(item: kit.Item) -> dict[str, np.ndarray]:
    run = _runs.load_run(item)
    reference, test = _runs.train_data(item, item["samples"]), _runs.test_data(item)
    positions = tuple(number - 1 for number in item["shown"])
    spectrum = measure_anisotropy(
        run.model, reference.inputs, k=positions[-1] + 1, vectors=False, keep=positions
    )
    chosen = item["chosen"]
    seen = eigenfunctions(run.model, spectrum, reference.inputs).numpy()
    shown = eigenfunctions(run.model, spectrum, test.inputs[chosen]).numpy()
    rows = np.arange(len(seen))
    single = seen[rows, reference.targets.numpy()]
    values = shown[np.arange(len(shown)), test.targets[chosen].numpy()]
    scale = spectrum.eigenvalues[list(positions)].sqrt().numpy()
    return {
        "values": values,
        "relative": (scale / scale[0]) ** 2,
        "response": np.sqrt(((values * scale) ** 2).mean(0)),
        "single_norm": (single**2).mean(0),
        "summed_norm": (seen**2).sum(1).mean(0),
    }


def plot(result: Result) -> kit.Figure:
    """Draw ⟨v, ∇f⟩ above and u of Eq. (4.24) below, on the plane of Fig. 4.3 (Fig. 4.4)."""
    figure, axes = kit.new_figure(2, 4, width="full", ratio=1.1, sharex=True, sharey=True)
    as_printed = np.sqrt((result.values**2).mean(0))
    rows = (
        (r"$\langle v,\nabla f\rangle$", result.response[0] / as_printed, result.response[0]),
        (r"$u$ of Eq. (4.24)", np.ones_like(as_printed), as_printed),
    )
    for row, (label, factor, size) in zip(axes, rows, strict=True):
        values = result.values * factor / size[0]
        limit = np.quantile(np.abs(values[:, 0]), 0.98)
        order = np.argsort(np.abs(values).max(1))
        look = {"cmap": kit.DIVERGING, "vmin": -limit, "vmax": limit, "s": 5, "lw": 0.15}
        for column, axis in enumerate(row):
            colors = values[order, column]
            points = axis.scatter(*result.position[order].T, c=colors, edgecolors="0.6", **look)
            axis.set(xticks=[], yticks=[])
            axis.set_title(f"rms {size[column] / size[0]:.3g}", fontsize=8)
        row[0].set_ylabel(label)
        figure.colorbar(points, ax=row, label="over the rms of the first", shrink=0.8)
    for column, axis in enumerate(axes[1]):
        ratio = result.relative[0, column]
        axis.set_xlabel(f"eigenvector {result.shown[column]}\n$\\lambda/\\lambda_1$ = {ratio:.2g}")
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure the responses with and without the factor of Eq. (4.24), and its norm (Fig. 4.4)."""
    as_printed = result.response / np.sqrt(result.relative)
    sizes = ", ".join(f"{value:.3g}" for value in (as_printed / as_printed[:, :1]).mean(0))
    return {
        "leading-dominates": result.by_run(
            np.log10(as_printed[:, 1:].max(1) / as_printed[:, 0]),
            f"log10 of the ratio; all four over the first: {sizes}",
        ),
        "projection-dominates": result.by_run(
            np.log10(result.response[:, 1:].max(1) / result.response[:, 0]),
            "log10 of the largest root mean square projection of the others over the leading one's",
        ),
        "unit-norm": kit.over_seeds(
            result.single_norm[:, 0],
            f"summed over the outputs it is {result.summed_norm[:, 0].mean():.6f}; "
            + result.source,
        ),
    }
