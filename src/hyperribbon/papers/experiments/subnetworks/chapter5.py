"""Chapter 5 of [subnetworks]: its open questions, measured on the recorded runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hyperribbon.application.inspection import effective_ranks, measure_anisotropy
from hyperribbon.core import numpy_generator
from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.subnetworks import _runs
from hyperribbon.subnetworks import select

TITLE = "Receptive fields, layer-wise Fisher matrices, and sparsity in training"

_CRITERIA = ("magnitude", "change")
_EDGE = 28
"""Pixels of an image's side."""

STATEMENTS = (
    kit.says(
        "receptive-fields",
        "Chapter 5",
        "iterative magnitude pruning can uncover the structures of receptive fields (RFs) in the "
        "first layer of multilayer perceptrons",
        "The pixels from which a first-layer unit keeps weights are nearer to each other than as "
        "many drawn from the pixels that all units keep: at most 0.95 of the mean distance (our "
        "margin).",
        kit.Band.at_most(0.95, "words"),
        setting="the largest 5% of the first layer's trained weights by magnitude, pruned once; "
        f"the sentence reports studies that prune iteratively; {_runs.TRAINING}",
        needs=_runs.SCALE,
    ),
    kit.observe(
        "same-fields",
        "Chapter 5",
        "The maps of pixels that the two criteria keep have a correlation of at least 0.7 ('the "
        "correlation of their receptive fields').",
        kit.Band.at_least(0.7, "words"),
        needs=_runs.SCALE,
    ),
    kit.observe(
        "layer-projections",
        "Chapter 5",
        "In every layer the ten leading directions of the layer's own block of F hold at least "
        "half of the squared length of that layer's gradients of the label's probability, on test "
        "images ('the layer-wise FIM and the gradient projection').",
        kit.Band.at_least(0.5, "words"),
        needs=_runs.SCALE,
    ),
    kit.observe(
        "sparsity-and-anisotropy",
        "Chapter 5",
        "Along training, the effective number of changed weights falls as T100 rises: their "
        "correlation is −0.7 or below ('how sparsity evolves in conjunction with […] anisotropy').",
        kit.Band.at_most(-0.7, "words"),
        needs=_runs.SCALE,
    ),
)


class Config(_runs.TrainingConfig):
    """Setting of the experiment."""

    share: float = 0.05  # of the first layer's weights that are kept
    fields: int = 8  # units shown
    samples: int = 200  # N of the Fisher matrices
    moments: tuple[int, ...] = (1, 2, 5, 15, 30, 60, 100)  # epochs at which sparsity is measured


PRESETS, PRESETS_WITH_DATA = _runs.presets(
    Config, smoke={"fields": 4, "samples": 20, "moments": (1, 2, 4), "seeds": 1}
)


class Result(_runs.OfRuns):
    """Fields, shares and sparsity."""

    # {criterion: (units, 28, 28)}, kept first-layer weights of the units that keep most, first run
    shown: dict[str, np.ndarray]
    maps: dict[str, np.ndarray]  # {criterion: (seeds, 28, 28)}, units that keep a pixel
    # {criterion: (seeds,)}, mean distance of a unit's pixels over that of pixels drawn at random
    locality: dict[str, np.ndarray]
    projections: np.ndarray  # (seeds, layers), shares of the gradients in ten directions
    moments: np.ndarray  # (e,)
    sparsity: np.ndarray  # (seeds, e), effective share of the weights that changed
    t100: np.ndarray  # (seeds, e)


def compute(config: Config, context: kit.Context) -> Result:
    """Measure chapter 5's receptive fields, layers' matrices and sparsity of every run."""
    runs = _runs.train_runs(config, context)
    wanted = {"share": config.share, "fields": config.fields, "samples": config.samples}
    items = [{**run, **wanted, "moments": list(config.moments)} for run in runs]
    measured = context.map(_measure, items, "fields, layers and sparsity")
    return Result(
        shown={c: measured[0]["shown"][c] for c in _CRITERIA},
        maps={c: np.array([one["maps"][c] for one in measured]) for c in _CRITERIA},
        locality={c: np.array([one["locality"][c] for one in measured]) for c in _CRITERIA},
        moments=np.array(config.moments),
        **kit.stack(measured, "projections", "sparsity", "t100"),
        **_runs.origin(config),
    )


def _measure(item: kit.Item) -> dict[str, Any]:
    run = _runs.load_run(item)
    name = next(iter(run.final))
    fields = {criterion: _fields(item, run, name, criterion) for criterion in _CRITERIA}
    keys = ("shown", "maps", "locality")
    sparsity, ratios = [], []
    inputs = _runs.train_data(item, item["samples"]).inputs
    for epoch in item["moments"]:
        state = run.at_epoch(epoch)
        changes = torch.cat([(state[n] - run.initial[n]).flatten() for n in state])
        sparsity.append(float(effective_ranks(changes[:, None])[0]) / len(changes))
        spectrum = measure_anisotropy(run.model, inputs, state=state, vectors=False)
        ratios.append(spectrum.trace_ratio(min(100, len(spectrum.eigenvalues))))
    return {
        **{key: {c: fields[c][i] for c in _CRITERIA} for i, key in enumerate(keys)},
        "projections": _projections(item, run),
        "sparsity": np.array(sparsity),
        "t100": np.array(ratios),
    }


def _fields(
    item: kit.Item, run: _runs.Run, name: str, criterion: str
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return chapter 5's receptive fields, the map of kept pixels, and the relative sizes."""
    mask = select(
        run.final,
        run.initial,
        fraction=1 - item["share"],
        criterion=criterion,
        order="smallest",
        params=[name],
    )
    kept = ~mask[name].numpy()
    grid = np.stack(np.divmod(np.arange(_EDGE**2), _EDGE), axis=1).astype(float)
    chances = kept.sum(0) / kept.sum()
    rng = numpy_generator(item["seed"], "fields", criterion)
    own, drawn = [], []
    for unit in kept[kept.sum(1) > 1]:
        pixels = np.flatnonzero(unit)
        # as many different pixels, each as likely as it is over all units
        other = rng.choice(_EDGE**2, len(pixels), replace=False, p=chances)
        own.append(_mean_distance(grid[pixels]))
        drawn.append(_mean_distance(grid[other]))
    most = np.argsort(-kept.sum(1))[: item["fields"]]
    weights = np.where(kept, run.final[name].double().numpy(), 0.0)[most]
    return (
        weights.reshape(-1, _EDGE, _EDGE),
        kept.sum(0).reshape(_EDGE, _EDGE).astype(float),
        float(np.mean(own) / np.mean(drawn)),
    )


def _mean_distance(points: np.ndarray) -> float:
    """Return the mean distance between two pixels of a receptive field (chapter 5)."""
    distances = np.linalg.norm(points[:, None] - points, axis=-1)
    return float(distances[np.triu_indices(len(points), 1)].mean())


def _projections(item: kit.Item, run: _runs.Run) -> np.ndarray:
    """Return each layer's share of test gradients in leading directions of its F (chapter 5)."""
    test = _runs.test_data(item)
    network = run.model.double()
    images, labels = test.inputs[: item["samples"]].double(), test.targets[: item["samples"]]
    layers: dict[str, list[str]] = {}
    for name, _ in network.named_parameters():
        layers.setdefault(name.rpartition(".")[0], []).append(name)
    reference = _runs.train_data(item, item["samples"]).inputs
    state = {name: value.detach() for name, value in network.named_parameters()}

    def probability(weights: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> Any:
        logits = torch.func.functional_call(network, weights, (x[None],))
        return logits.softmax(1)[0].gather(0, y[None])[0]

    rows = torch.func.vmap(torch.func.grad(probability), (None, 0, 0), chunk_size=50)
    gradients = rows(state, images, labels)
    shares = []
    for names in layers.values():
        block = measure_anisotropy(
            network, reference, params=names, vectors=False, k=10, keep=range(10)
        )
        columns = block.eigenvectors
        own = torch.cat([gradients[name].reshape(len(images), -1) for name in names], dim=1)
        if columns is not None:
            shares.append(float((own @ columns).square().sum() / own.square().sum()))
    return np.array(shares)


def plot(result: Result) -> kit.Figure:
    """Draw chapter 5's fields and maps, the layers' shares, and sparsity beside T100."""
    count = len(result.shown["magnitude"])
    figure = kit.Figure(figsize=(7.2, 5.2), layout="constrained")
    above, below = np.asarray(figure.subfigures(2, 1, height_ratios=(1.0, 1.1)))
    axes = above.subplots(2, count + 1)
    for row, criterion in zip(axes, _CRITERIA, strict=True):
        for axis, field in zip(row, result.shown[criterion], strict=False):
            limit = np.abs(field).max()
            axis.imshow(field, cmap="RdBu_r", vmin=-limit, vmax=limit)
        row[-1].imshow(result.maps[criterion].mean(0), cmap="viridis")
        row[0].set_ylabel(f"by {criterion}")
        for axis in row:
            axis.set(xticks=[], yticks=[])
    axes[0, 0].set_title("kept weights of single units", fontsize=8, loc="left")
    axes[0, -1].set_title("units per pixel", fontsize=8)
    left, right = below.subplots(1, 2)
    layers = np.arange(1, result.projections.shape[1] + 1)
    left.bar(layers, result.projections.mean(0), color=kit.COLORS[0], alpha=0.6, width=0.6)
    for row in result.projections:
        left.plot(layers, row, "o", color="black", ms=2.5)
    left.set(xlabel="layer", xticks=layers, ylim=(0, 1.03))
    left.set_ylabel("share of the gradients\nin ten directions")
    _runs.draw_band(right, result.moments, result.sparsity, color=kit.COLORS[0], marker="o", ms=3)
    right.set(xscale="log", xlabel="epoch")
    right.set_ylabel("effective share of changed weights", color=kit.COLORS[0])
    twin = right.twinx()
    _runs.draw_band(twin, result.moments, result.t100, color=kit.COLORS[1], marker="s", ms=3)
    twin.set_ylabel("$T_{100}$", color=kit.COLORS[1])
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure chapter 5's locality, agreement of fields, projections, sparsity and anisotropy."""
    pairs = zip(result.maps["magnitude"], result.maps["change"], strict=True)
    along = zip(result.sparsity, result.t100, strict=True)
    by_layer = ", ".join(f"{value:.2f}" for value in result.projections.mean(0))
    return {
        "receptive-fields": result.by_run(
            result.locality["magnitude"],
            f"mean distance over that of random pixels; by change "
            f"{result.locality['change'].mean():.3f}",
        ),
        "same-fields": result.by_run(
            [np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in pairs], "correlation of the maps"
        ),
        "layer-projections": result.by_run(
            result.projections.min(1), f"smallest of the layers; mean by layer {by_layer}"
        ),
        "sparsity-and-anisotropy": result.by_run(
            [np.corrcoef(a, b)[0, 1] for a, b in along],
            f"correlation over {len(result.moments)} epochs",
        ),
    }
